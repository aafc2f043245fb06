"""A pipeline in a browser: its tabs, its checkpoints, and what each of them tells."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import expect

from tests.browser.pages import LIMIT, PAGE, PipelinePage, Table, Visit
from tests.browser.world import (
    CHECKPOINTS,
    FAILED,
    HALTED,
    IN_DOUBT,
    NOT_RUNNING,
    QUARANTINED,
    RUNNING,
    SPEC,
    STAGE,
    WAITING,
)
from tests.store.scene import PIPELINE, RUN

pytestmark = [pytest.mark.airflow, pytest.mark.sampled(among="the page")]


def test_a_link_opens_a_pipeline_and_one_of_its_tabs(visit: Visit) -> None:
    visit.load(PAGE, pipeline=PIPELINE)
    expect(visit.page.get_by_text(f"confirmed up to checkpoint {CHECKPOINTS}")).to_be_visible()
    visit.load(PAGE, pipeline=PIPELINE, tab="history")
    PipelinePage(visit, PIPELINE).shows(CHECKPOINTS, CHECKPOINTS - LIMIT + 1)


def test_tabs_are_in_the_address_and_the_browser_leads_back(visit: Visit) -> None:
    pipeline = visit.pipeline(PIPELINE)
    expect(pipeline.tab("Overview")).to_contain_text("No open checkpoints")
    expect(Table(pipeline.tab("Summary"), "Summary").row("Trigger to completion")).to_be_visible()
    expect(visit.page).to_have_url(re.compile("tab=summary"))
    charts = pipeline.tab("Charts")
    rows = charts.get_by_role("img", name=f"Rows of checkpoints 1 to {CHECKPOINTS}: at most 11")
    expect(rows.locator("text")).to_have_text(["0", "10", "20", "checkpoint 1", str(CHECKPOINTS)])
    visit.page.go_back()
    expect(visit.page.get_by_role("tab", name="Summary", exact=True)).to_have_attribute("aria-selected", "true")
    visit.page.go_back()
    expect(visit.page.get_by_role("tab", name="Overview", exact=True)).to_have_attribute("aria-selected", "true")


def test_settings_and_job_are_as_they_counted(visit: Visit) -> None:
    pipeline = visit.pipeline(PIPELINE)
    settings = Table(pipeline.tab("Configuration"), "Configuration")
    expect(settings.row("checkpointing.timeout")).to_have_text("checkpointing.timeout600[airflow_ft]")
    expect(settings.row("spark.driver.memory")).to_contain_text("1g")
    expect(settings.row("checkpointing.num_retained_events")).to_have_text(
        "checkpointing.num_retained_events100000default"
    )
    job = pipeline.tab("Job")
    for words in ("orders.new", "jobs.orders", "mysql, local, ATOMIC", "shop.orders", "least: 100"):
        expect(job).to_contain_text(words)


def test_the_overview_charts_and_job_tabs_show_the_lag(visit: Visit) -> None:
    running = visit.pipeline(RUNNING).tab("Overview")
    expect(running).to_contain_text("clicks: 8,000 records behind, 2,000 of 10,000 read, 100 a second, 80 s left")
    expect(running).to_contain_text("pages: 1 file behind (2 h ago)")
    expect(running.get_by_role("progressbar", name="clicks read")).to_have_js_property("position", 0.2)
    pipeline = visit.pipeline(PIPELINE)
    expect(pipeline.tab("Overview")).to_contain_text("orders: 1,200 records behind")
    chart = f"Lag of orders (records) of checkpoints {CHECKPOINTS - 1} to {CHECKPOINTS}: at most 1,200"
    expect(pipeline.tab("Charts").get_by_role("img", name=chart)).to_be_visible()
    expect(pipeline.tab("Job")).to_contain_text("lag: 1,200 records behind")


def test_how_large_the_state_was_is_told_beside_the_log(visit: Visit) -> None:
    pipeline = visit.pipeline(PIPELINE)
    summary = Table(pipeline.tab("Summary"), "Summary")
    expect(summary.row("Log")).to_contain_text("4.1 MB")
    expect(summary.row("State, changed")).to_contain_text("26.0 KB")
    expect(summary.row("State, full snapshot")).to_contain_text("3.0 MB")
    history = pipeline.history()
    expect(history.checkpoints.region.get_by_role("columnheader", name="State size", exact=True)).to_be_visible()
    expect(history.checkpoints.row("3.0 MB")).to_have_count(LIMIT)
    history.details(CHECKPOINTS).click()
    expect(
        visit.page.get_by_text("50.0 KB changed; 3.0 MB in the newest full snapshot, 4 micro-batches before")
    ).to_be_visible()
    without = visit.pipeline(WAITING).history()
    without.shows(2, 1)
    expect(without.checkpoints.region.get_by_role("columnheader", name="State size", exact=True)).to_have_count(0)


def test_older_checkpoints_are_behind_the_newest(visit: Visit) -> None:
    pipeline = visit.pipeline(PIPELINE).history()
    pipeline.shows(CHECKPOINTS, CHECKPOINTS - LIMIT + 1)
    pipeline.older.click()
    pipeline.shows(CHECKPOINTS - LIMIT, 1)
    expect(pipeline.older).to_be_disabled()
    pipeline.newest.click()
    pipeline.shows(CHECKPOINTS, CHECKPOINTS - LIMIT + 1)
    visit.page.go_back()
    pipeline.shows(CHECKPOINTS - LIMIT, 1)


def test_the_overview_counts_and_names_dead_letters(visit: Visit) -> None:
    overview = visit.pipeline(PIPELINE).tab("Overview")
    for words in ("Triggered", "Completed"):
        expect(overview).to_contain_text(f"{words}: {CHECKPOINTS}")
    for words in ("In progress: 0", "Failed: 0", "Restored: 0"):
        expect(overview).to_contain_text(words)
    for words in ("Sink: alerts", "In the newest 20 checkpoints: 20 of 220 rows (9.1%)"):
        expect(overview).to_contain_text(words)
    expect(overview).to_contain_text("A checkpoint fails: with more than 50 rows, or 20% of its rows")
    waiting = visit.pipeline(WAITING).tab("Overview")
    expect(waiting).to_contain_text("Triggered: 2")
    expect(waiting).to_contain_text("Failed: 1")


def test_the_history_is_narrowed_by_reason_number_and_run(visit: Visit) -> None:
    history = visit.pipeline(WAITING).history()
    history.shows(2, 1)
    visit.page.get_by_label("Reason", exact=True).select_option("DECLINED")
    history.shows(1, 1)
    visit.page.get_by_label("Reason", exact=True).select_option("EXPIRED")
    expect(visit.page.get_by_text("No checkpoint matches.")).to_be_visible()
    history = visit.pipeline(PIPELINE).history()
    visit.page.get_by_label("Up to checkpoint", exact=True).fill("7")
    history.shows(7, 1)
    expect(history.checkpoints.region.get_by_role("columnheader", name="Triggered", exact=True)).to_be_visible()
    visit.button("Newest").click()
    history.details(CHECKPOINTS).click()
    visit.button("Only this run").click()
    expect(visit.page).to_have_url(re.compile(f"of={RUN.dag_id}&run={RUN.run_id}"))
    history.shows(CHECKPOINTS, CHECKPOINTS - LIMIT + 1)
    visit.button(f"✕ Only run {RUN.run_id}").click()
    expect(visit.page).not_to_have_url(re.compile("run="))


def test_failed_checkpoints_alone_are_shown(visit: Visit) -> None:
    pipeline = visit.pipeline(WAITING).history()
    pipeline.shows(2, 1)
    visit.button("Failed").click()
    pipeline.shows(1, 1)
    visit.button("Completed").click()
    expect(visit.page.get_by_text("No checkpoint matches.")).to_be_visible()


def test_a_checkpoint_shows_its_deliveries_and_its_configuration(visit: Visit) -> None:
    pipeline = visit.pipeline(PIPELINE).history()
    details = pipeline.details(CHECKPOINTS - 2)
    details.click()
    expect(details).to_have_attribute("aria-expanded", "true")
    expect(visit.page.get_by_text(f"delivers checkpoint {CHECKPOINTS - 2}")).to_be_visible()
    expect(visit.page.get_by_text("alerts 1, orders 10")).to_be_visible()
    db = Table(visit.page, f"Sinks of checkpoint {CHECKPOINTS - 2}").row("db")
    expect(db).to_contain_text("✓")
    expect(db).to_have_text(re.compile(r"[0-9a-f]{12}, epoch 1.*connection"))
    expect(visit.page.get_by_text(re.compile("commit .*, confirm "))).to_be_visible()
    visit.button("Show its configuration").click()
    shown = visit.page.locator("pre").filter(has_text="spark.driver.memory")
    expect(shown).to_be_visible()
    assert json.loads(shown.inner_text()) == SPEC
    details.click()
    expect(details).to_have_attribute("aria-expanded", "false")
    expect(shown).to_have_count(0)


def test_open_details_are_refreshed(visit: Visit) -> None:
    visit.pipeline(PIPELINE).history().details(CHECKPOINTS).click()
    expect(visit.page.get_by_role("link", name=f"{RUN.dag_id} / {RUN.run_id}")).to_be_visible()
    with visit.page.expect_request(re.compile(rf"/checkpoints/{CHECKPOINTS}$")):
        pass


def test_a_checkpoint_leads_to_its_run(visit: Visit) -> None:
    visit.pipeline(PIPELINE).history().details(CHECKPOINTS).click()
    visit.page.get_by_role("link", name=f"{RUN.dag_id} / {RUN.run_id}").click()
    expect(visit.page).to_have_url(f"{visit.url}/dags/{RUN.dag_id}/runs/{RUN.run_id}")


def test_a_checkpoint_links_to_the_task_that_staged_it(visit: Visit) -> None:
    visit.pipeline(PIPELINE).history().details(CHECKPOINTS).click()
    visit.page.get_by_role("link", name=STAGE, exact=True).click()
    expect(visit.page).to_have_url(f"{visit.url}/dags/{RUN.dag_id}/runs/{RUN.run_id}/tasks/{STAGE}")


def test_what_stands_still_says_why_and_what_to_do(visit: Visit) -> None:
    expect(visit.pipeline(HALTED).heading).to_be_visible()
    expect(visit.page.get_by_text("TOKEN_LOST [token_lost]: the transaction of checkpoint 2 is gone")).to_be_visible()
    quarantined = visit.pipeline(QUARANTINED).tab("Overview")
    expect(Table(quarantined, "Open checkpoints").row("QUARANTINED")).to_contain_text("db refuses the row with id 7.")
    visit.pipeline(WAITING).history().details(1).click()
    for words in ("ABORTED (DECLINED)", "too long", "Why: ", "Its rows: ", "Fix: "):
        expect(visit.page.get_by_text(words).first).to_be_visible()


def test_a_failed_run_shows_its_error_and_leads_to_its_log(visit: Visit) -> None:
    visit.excuse("404 (Not Found)")  # Airflow's own page of the task, which this DAG does not have
    failed = visit.pipeline(FAILED).tab("Overview")
    for words in ("Last run failed", "JobError [job_failed]: the job raised a KeyError.", "Fix: correct it."):
        expect(failed).to_contain_text(words)
    failed.get_by_role("link", name="receipts.stage, try 2", exact=True).click()
    task = f"{visit.url}/dags/{RUN.dag_id}/runs/{RUN.run_id}/tasks/receipts.stage"
    expect(visit.page).to_have_url(f"{task}?try_number=2")


def test_the_overview_shows_refusals_and_warnings(visit: Visit) -> None:
    doubtful = Table(visit.pipeline(IN_DOUBT).tab("Overview"), "Open checkpoints").row("COMMITTING")
    for words in ("Last error of db", "UnfitTargetError: the table has no column note.", "Fix: add the column."):
        expect(doubtful).to_contain_text(words)
    expect(visit.pipeline(PIPELINE).tab("Overview")).to_contain_text("SOURCE_FILE_GREW (orders): a.json has grown")


def test_acts_that_a_state_refuses_are_not_offered(visit: Visit) -> None:
    quarantined = visit.pipeline(QUARANTINED)
    row = Table(quarantined.tab("Overview"), "Open checkpoints").row("QUARANTINED")
    expect(row.get_by_role("button", name="Deliver", exact=True)).to_be_visible()
    for label in ("Abort", "Quarantine"):
        expect(row.get_by_role("button", name=label, exact=True)).to_have_count(0)
    for label in ("Recover", "Rewind", "Resume", "Retire"):
        expect(quarantined.actions.get_by_role("button", name=label, exact=True)).to_have_count(0)
    stopped = visit.pipeline(NOT_RUNNING)
    expect(stopped.actions.get_by_role("button", name="Retire", exact=True)).to_be_visible()
    expect(stopped.actions.get_by_role("button", name="Stop", exact=True)).to_have_count(0)


def test_a_pipeline_that_there_is_not_is_told(visit: Visit) -> None:
    visit.excuse("404 (Not Found)")
    pipeline = visit.pipeline("nowhere")
    visit.shows("there is no pipeline 'nowhere' that you may see")
    pipeline.all.click()
    expect(visit.page.get_by_role("searchbox", name="Search", exact=True)).to_be_visible()


@pytest.mark.parametrize("name", ["many-0000", HALTED])
def test_every_tab_of_a_pipeline_with_little_says_something(visit: Visit, name: str) -> None:
    visit.excuse("400 (Bad Request)")  # of its state, which it has none of
    pipeline = visit.pipeline(name)
    tabs = visit.page.get_by_role("tab")
    expect(tabs.first).to_be_visible()
    for tab in tabs.all_inner_texts():
        panel = pipeline.tab(tab)
        expect(panel).to_have_text(re.compile(r"\w{3}"))
        expect(panel.get_by_text("Loading …")).to_have_count(0)
        expect(panel).to_have_text(re.compile(r"\w{3}"))
