"""What the page says when the API, or something before it, does not answer as it should: words, never a blank page."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import expect

from tests.browser.pages import API, NEUTRAL, Table, Visit
from tests.browser.world import CHECKPOINTS, HALTED
from tests.store.scene import PIPELINE, RUN

pytestmark = [pytest.mark.airflow, pytest.mark.sampled(among="the page")]

DOWN = json.dumps({"detail": "the decision log cannot be opened.\nFix: start it."})
PROXY = "<html><body><h1>502 Bad Gateway</h1></body></html>"
BETWEEN = "a proxy answered instead of Airflow"
ANSWERS = {
    "JSON": (503, DOWN, "application/json", "the decision log cannot be opened.\nFix: start it."),
    "HTML": (502, PROXY, "text/html", f"status 502: {BETWEEN}"),
    "no words": (502, "", "text/plain", f"status 502: {BETWEEN}"),
    "JSON without words": (504, '{"detail": ""}', "application/json", f"status 504: {BETWEEN}"),
    "a status that nobody expects": (418, "", "text/plain", "status 418: unexpected answer. Fix: try again"),
    "no login": (401, '{"detail": "Not authenticated"}', "application/json", "reload the page and log in"),
    "a list of faults": (422, '{"detail": [{"msg": "too many"}]}', "application/json", "too many"),
    "a login page": (200, PROXY, "text/html", "did not return JSON; perhaps a login page"),
}


def test_the_list_and_a_pipeline_tell_what_was_answered(visit: Visit) -> None:
    for status, body, kind, words in ANSWERS.values():
        visit.open(NEUTRAL)
        visit.answer("pipelines**", status, body, kind)
        visit.pipelines()
        visit.shows(words)
        pipeline = visit.pipeline(PIPELINE)
        visit.shows(words)
        visit.page.unroute_all()
        pipeline.all.click()
        expect(visit.page.get_by_role("link", name=HALTED, exact=True)).to_be_visible()


def test_a_server_that_is_away_is_told(visit: Visit) -> None:
    visit.excuse("ERR_CONNECTION_REFUSED")
    visit.page.route(f"{visit.url}/{API}/pipelines**", lambda route: route.abort("connectionrefused"))
    visit.pipelines()
    visit.shows("Airflow's API server cannot be reached (Failed to fetch)")
    visit.shows("Fix: try again in a minute.")
    expect(visit.page.get_by_text("Loading …")).to_have_count(0)


def test_a_server_that_is_silent_is_told(visit: Visit) -> None:
    """What is there would look as if it were of now."""
    visit.stop_clock()
    pipelines = visit.pipelines()
    expect(pipelines.names).to_have_count(25)
    with visit.page.expect_request(f"{visit.url}/{API}/pipelines**"):
        visit.page.route(f"{visit.url}/{API}/pipelines**", lambda route: None)
        visit.page.clock.run_for(6_000)
    visit.page.clock.run_for(16_000)
    visit.shows("No answer for 15 seconds")
    visit.shows("Showing data of ")
    visit.page.clock.run_for(121_000)
    visit.shows("Airflow's API server cannot be reached (no answer for two minutes)")
    expect(pipelines.names).to_have_count(25)


def test_what_was_there_stays_when_a_later_answer_is_none(visit: Visit) -> None:
    visit.stop_clock()
    pipelines = visit.pipelines()
    expect(pipelines.names).to_have_count(25)
    visit.answer("pipelines**", 503, DOWN, "application/json")
    visit.page.clock.run_for(6_000)
    visit.shows("the decision log cannot be opened")
    visit.shows("Showing data of ")
    expect(pipelines.names).to_have_count(25)
    visit.page.unroute_all()
    visit.page.clock.run_for(6_000)
    expect(visit.page.get_by_role("alert")).to_have_count(0)


def test_each_tab_tells_what_was_answered(visit: Visit) -> None:
    visit.answer(f"pipelines/{PIPELINE}/**", 502, PROXY)
    pipeline = visit.pipeline(PIPELINE)
    expect(pipeline.tab("Overview")).to_contain_text("Latest completed")
    for tab in visit.page.get_by_role("tab").all_inner_texts()[1:]:
        expect(pipeline.tab(tab).get_by_role("alert")).to_contain_text(BETWEEN)
        expect(pipeline.heading).to_be_visible()


def test_savepoints_and_state_are_asked_for_again(visit: Visit) -> None:
    pipeline = visit.pipeline(PIPELINE)
    for tab, path, again in (("Savepoints", "savepoints", "Try again"), ("State", "state", "Refresh")):
        visit.answer(f"pipelines/{PIPELINE}/{path}", 502, PROXY)
        alert = pipeline.tab(tab).get_by_role("alert").filter(has_text=BETWEEN)
        expect(alert).to_be_visible()
        visit.page.unroute_all()
        visit.button(again).click()
        expect(alert).to_have_count(0)


def test_savepoints_stay_when_a_later_answer_is_none(visit: Visit) -> None:
    """With them stays what became of an action beside one."""
    listed = Table(visit.pipeline(PIPELINE).tab("Savepoints"), f"Savepoints of {PIPELINE}")
    listed.rows.get_by_role("button", name="Restore", exact=True).first.click()
    visit.page.get_by_role("alertdialog").get_by_label("New name", exact=True).fill("other")
    visit.page.keyboard.press("Escape")
    visit.answer(f"pipelines/{PIPELINE}/savepoints", 502, PROXY)
    visit.button("Refresh").click()
    visit.shows(BETWEEN)
    visit.shows("Showing data of ")
    listed.rows.get_by_role("button", name="Restore", exact=True).first.click()
    expect(visit.page.get_by_role("alertdialog").get_by_label("New name", exact=True)).to_have_value("other")


def test_what_a_checkpoint_was_made_with_may_not_be_there(visit: Visit) -> None:
    visit.answer("**/spec", 503, DOWN, "application/json")
    visit.pipeline(PIPELINE).history().details(CHECKPOINTS).click()
    visit.button("Show its configuration").click()
    expect(visit.page.get_by_text("the decision log cannot be opened")).to_be_visible()


def test_the_tab_of_a_run_tells_what_was_answered(visit: Visit) -> None:
    visit.answer("runs**", 502, PROXY)
    visit.open(f"dags/{RUN.dag_id}/runs/{RUN.run_id}/plugin/airflow-ft-dag_run")
    visit.shows(BETWEEN)
