"""What others than the administrator see, and what they may do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.browser.pages import LIMIT, Act, PipelineList, Visit
from tests.browser.server import STRANGER, VIEWER
from tests.browser.world import ALONE, CHECKPOINTS, URGENT
from tests.store.scene import PIPELINE

pytestmark = pytest.mark.airflow


def test_a_viewer_of_the_team_sees_its_pipelines_and_acts_on_none(visit_as: Callable[[str], Visit]) -> None:
    visit = visit_as(VIEWER)
    pipelines = visit.pipelines()
    expect(pipelines.names.first).to_have_text(next(iter(URGENT)))
    pipelines.search.fill(PIPELINE)
    expect(pipelines.names).to_have_text([PIPELINE])
    pipeline = pipelines.choose(PIPELINE).history()
    pipeline.shows(CHECKPOINTS, CHECKPOINTS - LIMIT + 1)
    act = Act(pipeline.tab("Savepoints"), "Take a savepoint", f"Take a savepoint of {PIPELINE}?")
    act.button.click()
    visit.excuse("403 (Forbidden)")
    act.confirm.click()
    expect(act.dialog).to_contain_text("You may not trigger the DAG airflow_ft_maintenance.")


def test_a_viewer_of_another_team_sees_none_of_them(visit_as: Callable[[str], Visit]) -> None:
    visit = visit_as(STRANGER)
    visit.open("plugin/airflow-ft")
    pipelines = PipelineList(visit)
    expect(pipelines.names.first).to_have_text("many-0000")  # no DAG has made checkpoints of it
    for name in (PIPELINE, ALONE, *URGENT):
        pipelines.search.fill(name)
        expect(visit.page.get_by_text("No pipeline is like that.")).to_be_visible()
    visit.excuse("404 (Not Found)")
    visit.pipeline(PIPELINE)
    visit.tell(f"there is no pipeline '{PIPELINE}' that you may see")
