"""What others than the administrator see, and what they may do."""

from __future__ import annotations

import re
from collections.abc import Callable

import httpx
import pytest
from playwright.sync_api import expect

from airflow_ft.pipeline.actions.names import ACTIONS
from tests.browser.actions import BUTTONS
from tests.browser.pages import LIMIT, PipelineList, Table, Visit
from tests.browser.server import ADMIN, MAINTENANCE, STRANGER, USER, VIEWER, ApiServer
from tests.browser.world import ALONE, CHECKPOINTS, HALTED, IN_DOUBT, LATE, QUARANTINED, RUNNING, URGENT
from tests.store.scene import PIPELINE

pytestmark = [pytest.mark.airflow, pytest.mark.sampled(among="the page")]


def test_a_viewer_of_the_team_sees_its_pipelines_but_no_actions(visit_as: Callable[[str], Visit]) -> None:
    visit = visit_as(VIEWER)
    pipelines = visit.pipelines()
    expect(pipelines.names.first).to_have_text(next(iter(URGENT)))
    pipelines.search.fill(PIPELINE)
    expect(pipelines.names).to_have_text([PIPELINE])
    pipeline = pipelines.choose(PIPELINE).history()
    pipeline.shows(CHECKPOINTS, CHECKPOINTS - LIMIT + 1)
    expect(visit.page.get_by_text("You have read access")).to_be_visible()
    expect(pipeline.actions.get_by_role("button")).to_have_count(0)
    savepoints = Table(pipeline.tab("Savepoints"), f"Savepoints of {PIPELINE}").region
    expect(savepoints).to_be_visible()
    expect(savepoints.get_by_role("columnheader", name="Actions")).to_have_count(0)
    open_ones = Table(visit.pipeline(QUARANTINED).tab("Overview"), "Open checkpoints")
    expect(open_ones.row("QUARANTINED")).to_be_visible()
    expect(open_ones.region.get_by_role("button")).to_have_count(0)


def offered(visit: Visit) -> set[str]:
    """The acts whose buttons somebody finds, each on a pipeline in the state that it is for."""
    found = set()
    for name in (HALTED, QUARANTINED, IN_DOUBT, LATE, RUNNING, PIPELINE):
        pipeline = visit.pipeline(name)
        expect(pipeline.heading).to_be_visible()
        for tab, loaded in (("Overview", "No open checkpoints|Last known"), ("Savepoints", "^In file://")):
            expect(pipeline.tab(tab)).to_contain_text(re.compile(loaded))
            found |= {action for action, button in BUTTONS.items() if visit.button(button.label).count()}
    return found


def test_a_viewer_finds_no_button_of_those_that_others_find(visit_as: Callable[[str], Visit]) -> None:
    assert offered(visit_as(ADMIN)) == set(ACTIONS)
    assert offered(visit_as(VIEWER)) == set()


@pytest.mark.parametrize("action", ACTIONS)
def test_a_viewer_who_asks_without_the_page_is_refused(action: str, airflow: ApiServer) -> None:
    before = len(airflow.runs(MAINTENANCE))
    conf = {"pipeline": QUARANTINED, "action": action, "checkpoint": 1, "savepoint": "/nowhere"}
    for user in (VIEWER, STRANGER):
        answer = airflow.trigger_as(user, MAINTENANCE, conf)
        assert answer.status_code == httpx.codes.FORBIDDEN, answer.text
    assert len(airflow.runs(MAINTENANCE)) == before


def test_a_user_of_the_team_acts_as_the_administrator_does(visit_as: Callable[[str], Visit]) -> None:
    offered = []
    for user in (USER, ADMIN):
        pipeline = visit_as(user).pipeline(IN_DOUBT)
        row = Table(pipeline.tab("Overview"), "Open checkpoints").row("COMMITTING")
        expect(row).to_be_visible()
        offered.append([name for of in (pipeline.actions, row) for name in of.get_by_role("button").all_inner_texts()])
    assert offered[0] == offered[1] and {"Recover", "Verify", "Deliver", "Quarantine"} <= set(offered[0])


def test_actions_are_hidden_while_the_maintenance_dag_is_paused(visit: Visit, airflow: ApiServer) -> None:
    airflow.pause(MAINTENANCE)
    try:
        pipeline = visit.pipeline(IN_DOUBT)
        expect(visit.page.get_by_text(f"To act from here, unpause {MAINTENANCE}.")).to_be_visible()
        expect(pipeline.actions.get_by_role("button")).to_have_count(0)
    finally:
        airflow.pause(MAINTENANCE, False)
    expect(pipeline.actions.get_by_role("button", name="Recover", exact=True)).to_be_visible()


def test_a_dag_whose_file_is_gone_offers_no_acts(visit: Visit, airflow: ApiServer) -> None:
    airflow.forget(MAINTENANCE)
    try:
        visit.pipeline(IN_DOUBT)
        expect(visit.page.get_by_text(f"Airflow needs a DAG {MAINTENANCE} that you may see")).to_be_visible()
        expect(visit.button("Recover")).to_have_count(0)
    finally:
        airflow.forget(MAINTENANCE, False)


def test_a_viewer_of_another_team_sees_none_of_them(visit_as: Callable[[str], Visit]) -> None:
    visit = visit_as(STRANGER)
    visit.open("plugin/airflow-ft")
    pipelines = PipelineList(visit)
    expect(pipelines.names.first).to_have_text("many-0000")  # no DAG has made checkpoints of it
    for name in (PIPELINE, ALONE, *URGENT):
        pipelines.search.fill(name)
        expect(visit.page.get_by_text("No pipeline matches.")).to_be_visible()
    visit.excuse("404 (Not Found)")
    visit.pipeline(PIPELINE)
    visit.shows(f"there is no pipeline '{PIPELINE}' that you may see")
