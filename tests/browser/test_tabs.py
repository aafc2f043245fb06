"""The tabs of a DAG and of its run in Airflow's UI."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.pages import LIMIT, PipelineList, PipelinePage, Table, Visit
from tests.browser.world import ALONE, ALONE_RUN, CHECKPOINTS, HALTED, URGENT
from tests.store.scene import PIPELINE, RUN

pytestmark = [pytest.mark.airflow, pytest.mark.sampled(among="the page")]


def open_tab(visit: Visit, path: str) -> None:
    visit.open(path)
    # Until Airflow has drawn the new page, the tab of the old one is there, which leads back to that one.
    tab = visit.page.get_by_role("link", name="Checkpoints", exact=True)
    tab.and_(visit.page.locator(f'a[href*="/{path}/plugin/"]')).click()


def test_a_dag_shows_its_pipelines_and_opens_them(visit: Visit) -> None:
    open_tab(visit, f"dags/{RUN.dag_id}")
    pipelines = PipelineList(visit)
    expect(pipelines.names).to_have_text([*URGENT, PIPELINE])
    pipeline = pipelines.choose(PIPELINE).history()
    pipeline.shows(CHECKPOINTS, CHECKPOINTS - LIMIT + 1)
    expect(visit.page).to_have_url(re.compile(rf"/dags/{RUN.dag_id}/.*pipeline={PIPELINE}"))
    pipeline.all.click()
    expect(pipelines.names).to_have_count(len(URGENT) + 1)


def test_the_only_pipeline_of_a_dag_is_open(visit: Visit) -> None:
    open_tab(visit, f"dags/{ALONE_RUN.dag_id}")
    pipeline = PipelinePage(visit, ALONE)
    pipeline.history().shows(1, 1)
    expect(pipeline.all).to_have_count(0)


def test_a_dag_without_pipelines_says_so(visit: Visit) -> None:
    open_tab(visit, "dags/fresh")
    expect(visit.page.get_by_text("None of the pipelines that you may see has run yet")).to_be_visible()


def test_a_run_shows_the_checkpoints_that_it_has_made(visit: Visit) -> None:
    open_tab(visit, f"dags/{RUN.dag_id}/runs/{RUN.run_id}")
    for name, count in ((PIPELINE, LIMIT), (HALTED, 2)):
        expect(Table(visit.page, f"Checkpoints of {name}").rows).to_have_count(count)
    halted = Table(visit.page, f"Checkpoints of {HALTED}").region
    halted.get_by_role("button", name="Details of checkpoint 2").click()
    expect(halted).to_contain_text("alerts 1, orders 10")
    visit.page.get_by_role("link", name=HALTED, exact=True).click()
    expect(PipelinePage(visit, HALTED).all).to_be_visible()


def test_a_task_shows_the_run_of_its_pipeline(visit: Visit) -> None:
    run = f"dags/{RUN.dag_id}/runs/{RUN.run_id}/tasks"
    open_tab(visit, f"{run}/{PIPELINE}.stage")
    expect(Table(visit.page, f"Checkpoints of {PIPELINE}").rows).to_have_count(LIMIT)
    expect(visit.page.get_by_role("link", name=HALTED, exact=True)).to_have_count(0)  # of another group
    open_tab(visit, f"{run}/nothing")
    expect(visit.page.get_by_role("link", name=HALTED, exact=True)).to_be_visible()


def test_a_run_without_checkpoints_says_so(visit: Visit) -> None:
    open_tab(visit, f"dags/{RUN.dag_id}/runs/run-2")
    expect(visit.page.get_by_text("This run made no checkpoint.")).to_be_visible()


def test_the_tab_of_a_dag_leads_back_to_its_pipelines(visit: Visit) -> None:
    open_tab(visit, f"dags/{RUN.dag_id}")
    for _ in range(3):
        expect(PipelineList(visit).choose(HALTED).heading).to_be_visible()
        visit.page.get_by_role("link", name="Checkpoints", exact=True).click()
        expect(PipelineList(visit).names).to_have_count(len(URGENT) + 1)
