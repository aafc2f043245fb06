"""Savepoints and state of a pipeline in a browser, and acts, which are runs of a DAG."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Route, expect

from tests.browser.pages import ActionButton, Table, Visit
from tests.browser.server import MAINTENANCE, ApiServer
from tests.browser.world import CHECKPOINTS, HALTED, QUARANTINED, RUNNING, World
from tests.store.scene import PIPELINE

pytestmark = [pytest.mark.airflow, pytest.mark.sampled(among="the page")]


def asked(airflow: ApiServer, *names: str) -> dict[str, Any]:
    """These parameters of the run that was started last."""
    conf = airflow.runs(MAINTENANCE)[0]["conf"]
    return {name: conf[name] for name in names}


def lose_an_answer(visit: Visit) -> None:
    """The next run is started, but a proxy answers in place of Airflow."""

    def lose(route: Route) -> None:
        route.fetch()
        route.fulfill(status=504, body="")

    visit.excuse("/dagRuns")
    visit.page.route(re.compile("/dagRuns$"), lose, times=1)


def test_savepoints_are_listed_and_tell_what_is_in_them(visit: Visit, world: World) -> None:
    tab = visit.pipeline(PIPELINE).tab("Savepoints")
    table = Table(tab, f"Savepoints of {PIPELINE}")
    expect(table.row(world.cut.name)).to_contain_text("not usable")
    expect(table.row(world.whole.name)).to_contain_text("a test")
    visit.button(f"Details of {world.whole.name}").click()
    expect(visit.page.get_by_text("all present with the right size")).to_be_visible()
    operators = Table(tab, f"Operators in {world.whole.name}")
    expect(operators.row("stateStoreSave")).to_contain_text("default value: count long")


def test_an_act_asks_first_and_starts_a_run_of_the_dag(visit: Visit, airflow: ApiServer) -> None:
    before = len(airflow.runs(MAINTENANCE))
    tab = visit.pipeline(PIPELINE).tab("Savepoints")
    action_button = ActionButton(tab, "Take a savepoint", f"Take a savepoint: {PIPELINE}?")
    action_button.button.click()
    expect(action_button.dialog).to_contain_text("The pipeline keeps running.")
    action_button.cancel.click()
    expect(action_button.dialog).to_have_count(0)
    assert len(airflow.runs(MAINTENANCE)) == before
    tab.get_by_label("Checkpoint", exact=True).select_option(str(CHECKPOINTS - 1))
    action_button.button.click()
    action_button.confirm.click()
    expect(action_button.started).to_contain_text("queued: ")
    expect(action_button.button).to_be_disabled()
    assert len(airflow.runs(MAINTENANCE)) == before + 1
    assert asked(airflow, "pipeline", "action", "checkpoint") == {
        "pipeline": PIPELINE,
        "action": "savepoint",
        "checkpoint": CHECKPOINTS - 1,
    }


def test_an_action_with_a_lost_answer_starts_one_run(visit: Visit, airflow: ApiServer) -> None:
    before = len(airflow.runs(MAINTENANCE))
    button = ActionButton(
        visit.pipeline(PIPELINE).tab("Savepoints"), "Take a savepoint", f"Take a savepoint: {PIPELINE}?"
    )
    lose_an_answer(visit)
    button.button.click()
    button.confirm.click()
    expect(button.dialog.get_by_role("alert")).to_contain_text("status 504")
    button.cancel.click()
    button.button.click()
    button.confirm.click()
    expect(button.started).to_contain_text("queued: ")
    visit.shows("An earlier try started this run at ")
    [run, *_] = runs = airflow.runs(MAINTENANCE)
    assert len(runs) == before + 1
    airflow.fail_run(MAINTENANCE, run["dag_run_id"])
    expect(button.button).to_be_enabled()
    button.button.click()
    button.confirm.click()
    expect(button.started).to_contain_text("queued: ")
    assert len(airflow.runs(MAINTENANCE)) == before + 2
    expect(visit.page.get_by_role("alert")).to_have_count(0)


def test_a_repeated_action_with_other_choices_starts_nothing(visit: Visit, airflow: ApiServer, world: World) -> None:
    """The answer to the first try was lost, so its run may exist. The same holds if another tab was open."""
    before = len(airflow.runs(MAINTENANCE))
    page = visit.pipeline(PIPELINE)
    tab = page.tab("Savepoints")
    button = ActionButton(
        Table(tab, f"Savepoints of {PIPELINE}").row(world.whole.name),
        "Restore",
        f"Restore {PIPELINE} to checkpoint {CHECKPOINTS}?",
    )
    lose_an_answer(visit)
    button.button.click()
    button.confirm.click()
    expect(button.dialog.get_by_role("alert")).to_contain_text("status 504")
    button.cancel.click()
    page.tab("Overview")
    page.tab("Savepoints")
    button.button.click()
    button.dialog.get_by_label("Checkpoints delivered after it", exact=True).select_option("continue")
    button.confirm.click()
    expect(button.started).to_contain_text("queued: ")
    visit.shows('with other parameters (savepoint_later: "refuse"). This click started nothing.')
    [run, *_] = runs = airflow.runs(MAINTENANCE)
    assert len(runs) == before + 1
    airflow.fail_run(MAINTENANCE, run["dag_run_id"])
    expect(button.button).to_be_enabled()
    button.button.click()
    button.confirm.click()
    expect(button.started).to_contain_text("queued: ")
    assert asked(airflow, "savepoint_later") == {"savepoint_later": "continue"}


def test_that_a_run_cannot_be_looked_at_is_told_for_as_long(visit: Visit) -> None:
    action_button = ActionButton(
        visit.pipeline(PIPELINE).tab("Savepoints"), "Take a savepoint", f"Take a savepoint: {PIPELINE}?"
    )
    action_button.button.click()
    action_button.confirm.click()
    expect(action_button.started).to_contain_text("queued: ")
    visit.excuse("/dagRuns/")
    visit.page.route(re.compile("/dagRuns/manual__"), lambda route: route.fulfill(status=502, body="away"))
    visit.shows("status 502")
    visit.page.unroute_all()
    expect(visit.page.get_by_role("alert")).to_have_count(0)


@pytest.mark.parametrize(
    ("label", "title", "says", "action"),
    [
        ("Stop with a savepoint", f"Stop with a savepoint: {RUNNING}?", "a savepoint", "stop_with_savepoint"),
        (
            "Drain with a savepoint",
            f"Drain with a savepoint: {RUNNING}?",
            "also delivers open windows, joins and timers",
            "drain_with_savepoint",
        ),
    ],
)
def test_a_stream_is_stopped_or_drained_with_a_savepoint(
    visit: Visit, airflow: ApiServer, label: str, title: str, says: str, action: str
) -> None:
    action_button = ActionButton(visit.pipeline(RUNNING).tab("Savepoints"), label, title)
    action_button.button.click()
    expect(action_button.dialog).to_contain_text(says)
    action_button.confirm.click()
    expect(action_button.started).to_contain_text("queued: ")
    wanted = {"pipeline": RUNNING, "action": action}
    assert asked(airflow, *wanted) == wanted


def test_a_savepoint_is_restored_under_another_name(visit: Visit, airflow: ApiServer, world: World) -> None:
    tab = visit.pipeline(PIPELINE).tab("Savepoints")
    action_button = ActionButton(
        Table(tab, f"Savepoints of {PIPELINE}").row(world.whole.name),
        "Restore",
        f"Restore {PIPELINE} to checkpoint {CHECKPOINTS}?",
    )
    later, name = (
        action_button.dialog.get_by_label(each, exact=True) for each in ("Checkpoints delivered after it", "New name")
    )
    action_button.button.click()
    expect(later).to_be_visible()
    expect(action_button.dialog).not_to_contain_text("fail from now on")
    name.fill(" shop-orders ")
    expect(action_button.dialog).to_contain_text(f"Runs of {PIPELINE} fail from now on")
    expect(later).to_have_count(0)
    action_button.confirm.click()
    expect(action_button.started).to_contain_text("queued: ")
    assert airflow.runs(MAINTENANCE)[0]["conf"] == {
        "pipeline": "shop-orders",
        "action": "restore",
        "savepoint": world.whole.as_uri(),
        "savepoint_rename": True,
        "savepoint_claim_mode": "NO_CLAIM",
        "allow_non_restored_state": False,
    }


def test_a_scheduled_pipeline_is_not_offered_what_stops_a_stream(visit: Visit) -> None:
    tab = visit.pipeline(PIPELINE).tab("Savepoints")
    expect(tab.get_by_role("button", name="Take a savepoint", exact=True)).to_be_visible()
    for label in ("Stop with a savepoint", "Drain with a savepoint"):
        expect(tab.get_by_role("button", name=label, exact=True)).to_have_count(0)


def test_a_halted_pipeline_is_resumed_for_a_reason(visit: Visit, airflow: ApiServer) -> None:
    action_button = ActionButton(visit.pipeline(HALTED).actions, "Resume", f"Resume: {HALTED}?")
    action_button.button.click()
    expect(action_button.dialog).to_contain_text("the transaction of checkpoint 2 is gone")
    action_button.reason.fill("looked, and it is there")
    action_button.confirm.click()
    expect(action_button.started).to_contain_text("queued: ")
    wanted = {"pipeline": HALTED, "action": "resume", "halt_reason": "TOKEN_LOST", "reason": "looked, and it is there"}
    assert asked(airflow, *wanted) == wanted


def test_a_checkpoint_is_delivered_by_its_own_act(visit: Visit, airflow: ApiServer) -> None:
    row = Table(visit.pipeline(QUARANTINED).tab("Overview"), "Open checkpoints").row("QUARANTINED")
    action_button = ActionButton(row, "Deliver", "Deliver: checkpoint 1 (QUARANTINED, 11 rows)?")
    action_button.button.click()
    action_button.confirm.click()
    expect(action_button.started).to_contain_text("queued: ")
    wanted = {"pipeline": QUARANTINED, "action": "commit", "checkpoint": 1}
    assert asked(airflow, *wanted) == wanted


def test_escape_closes_what_is_asked_and_gives_the_focus_back(visit: Visit) -> None:
    action_button = ActionButton(visit.pipeline(HALTED).actions, "Resume", f"Resume: {HALTED}?")
    action_button.button.press("Enter")
    expect(action_button.dialog).to_be_visible()
    visit.page.keyboard.press("Escape")
    expect(action_button.dialog).to_have_count(0)
    expect(action_button.button).to_be_focused()


def test_a_key_is_looked_up_as_of_a_checkpoint(visit: Visit) -> None:
    tab = visit.pipeline(PIPELINE).tab("State")
    expect(Table(tab, "Operators").row("stateStoreSave")).to_contain_text("count bigint")
    key, values = tab.get_by_label("Key: k", exact=True), Table(tab, "Values in default").region
    key.fill("a")
    visit.button("Look up").click()
    expect(tab.get_by_text(f"As of checkpoint {CHECKPOINTS}:")).to_be_visible()
    expect(values).to_contain_text(f'"count": {CHECKPOINTS}')
    key.fill("nobody")
    key.press("Enter")
    expect(tab.get_by_text(f"No state for this key at checkpoint {CHECKPOINTS}.")).to_be_visible()
    tab.get_by_label("As of", exact=True).select_option(str(CHECKPOINTS - 1))
    expect(tab.get_by_text(f"Shown: checkpoint {CHECKPOINTS - 1}.")).to_be_visible()
    key.fill("a")
    key.press("Enter")
    expect(values).to_contain_text(f'"count": {CHECKPOINTS - 1}')


def test_a_pipeline_without_state_says_so(visit: Visit) -> None:
    visit.excuse("400 (Bad Request)")
    tab = visit.pipeline("many-0000").tab("State")
    visit.shows("it has no confirmed checkpoint yet")
    expect(tab.get_by_role("button", name="Refresh", exact=True)).to_be_visible()
