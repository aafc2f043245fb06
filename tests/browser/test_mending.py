"""Each act of the page, done to a real pipeline in the state that it is for: what is asked, and what comes of it.

One Airflow does them, with a scheduler. All acts are asked for before the first outcome is looked at, so that tasks run
beside one another. What came of an act is read from the decision log and the sinks, not from the page alone.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq
import pytest
from playwright.sync_api import Browser, Locator, expect

from airflow_ft.pipeline.actions.names import ACTIONS, READING
from airflow_ft.protocol.errors import AirflowFtError, PipelineHaltedError
from airflow_ft.protocol.model import AfterAbort, CheckpointState
from airflow_ft.protocol.pipelines import PipelineStatus
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.protocol.set_aside import of_checkpoint
from airflow_ft.spark.savepoints.metadata import METADATA, read_metadata, verify
from airflow_ft.spark.savepoints.taking import take
from airflow_ft.spark.state.catching_up import is_planned
from airflow_ft.spark.state.locations import SparkLocation
from airflow_ft.state.handle import State
from airflow_ft.state.positions import Position
from airflow_ft.store import open_store
from airflow_ft.store.decision_log import DecisionLog
from airflow_ft.wal.local import local_path
from tests.browser import broken
from tests.browser.actions import BUTTONS, STREAMS, above, open_checkpoint, savepoint
from tests.browser.broken import ARCHIVE, REFUSED, SHOP, Broken
from tests.browser.conftest import logged_in
from tests.browser.pages import ActionButton, PipelinePage, Visit
from tests.browser.server import ADMIN, MAINTENANCE, ApiServer
from tests.integration.real_world import expected
from tests.raising import raises
from tests.waiting import wait_for

pytestmark = [pytest.mark.airflow, pytest.mark.sampled(among="the page"), pytest.mark.slow, pytest.mark.timeout(600)]

SECONDS = 120.0
"""So long may the run of an act take: a scheduler starts it, and others work beside this test."""
REASON = "a test has looked"
S = CheckpointState


@dataclass(frozen=True)
class Place:
    """Where all of it lies."""

    folder: Path
    store: DecisionLog

    @property
    def savepoints(self) -> Path:
        return self.folder / "savepoints"

    def saved(self, pipeline: str) -> list[Path]:
        """Folders of savepoints."""
        return [path.parent for path in self.savepoints.glob(f"savepoint-{pipeline}-*/{METADATA}")]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("mending")
    with closing(open_store(f"sqlite:///{folder}/ft.db")) as store:
        yield Place(folder, store)


@pytest.fixture(scope="module")
def airflow(template: Path, place: Place) -> Iterator[ApiServer]:
    """One that runs what is triggered."""
    server = ApiServer(
        place.folder / "airflow",
        f"sqlite:///{place.folder}/ft.db",
        place.savepoints,
        template,
        connections={
            name: {"conn_type": "sqlite", "host": str(file)} for name, file in broken.files(place.folder).items()
        },
        settings={"airflow_ft__wal_root": str(place.folder / "wal"), "airflow_ft__preload": "True"},
    )
    try:
        server.start()
        server.start_scheduler()
        server.wait()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def visit(airflow: ApiServer, browser: Browser) -> Iterator[Visit]:
    """A window that all of them share."""
    with closing(logged_in(browser, airflow, ADMIN)) as context:
        visit = Visit(context.new_page(), airflow.url)
        visit.excuse("/api/v2/")  # Airflow's own: beside a scheduler its SQLite is locked now and then
        yield visit


@pytest.fixture(autouse=True)
def watched(request: pytest.FixtureRequest) -> Iterator[None]:
    """What goes wrong in the window fails the test in which it does, or the first one."""
    if "visit" not in request.fixturenames:
        yield
        return
    visit: Visit = request.getfixturevalue("visit")
    request.node.visits = {ADMIN: visit}
    yield
    problems, visit.problems[:] = list(visit.problems), []
    assert not problems, f"the browser told {problems}"


def confirm(action_button: ActionButton, words: str, fill: Callable[[ActionButton], None] = lambda _: None) -> str:
    """Clicks, reads the question, and says yes to it, again while Airflow's SQLite is locked; the id of the run."""
    action_button.button.click()
    expect(action_button.dialog).to_contain_text(words)
    if action_button.reason.count():
        action_button.reason.fill(REASON)
    fill(action_button)
    refused = action_button.dialog.get_by_role("alert")
    for _ in range(3):
        action_button.confirm.click()
        expect(action_button.started.or_(refused)).to_be_visible(timeout=60_000)
        if action_button.started.count():
            break
    expect(action_button.started).to_be_visible()
    found = re.search(r"/runs/([^/?]+)", action_button.started.get_by_role("link").get_attribute("href") or "")
    assert found is not None
    return unquote(found[1])


def ended(airflow: ApiServer, run_id: str) -> str:
    """The state in which a run has ended."""

    def over() -> str:
        state = airflow.run_state(MAINTENANCE, run_id)
        return state if state in ("success", "failed") else ""

    return str(wait_for(over, SECONDS, f"the run {run_id} ends"))


def log_of(airflow: ApiServer, run_id: str) -> str:
    """What the task of a run has told."""
    [task] = airflow.tasks(MAINTENANCE, run_id)
    return airflow.task_log(MAINTENANCE, run_id, task).read_text()


def condition(pipeline: PipelinePage, name: str) -> Locator:
    return pipeline.heading.locator("..").get_by_text(name, exact=True)


# --- what each act is done to, and what comes of it -------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A pipeline that the act is for, and what has to be true after it.

    `before` and `after` are what the page says of the pipeline, `of` of its open checkpoint. `choose` and `fill` is
    what a person does before the click, and in the question.
    """

    make: broken.Make
    came_of: Callable[[Broken, Place], None]
    before: str = "IDLE"
    of: str = ""
    after: str = "IDLE"
    fill: Callable[[ActionButton], None] = lambda _: None
    choose: Callable[[PipelinePage], None] = lambda _: None


def both(numbers: list[int]) -> dict[str, list[int]]:
    return dict.fromkeys((SHOP, ARCHIVE), expected(numbers))


def completed(world: Broken, _: Place) -> None:
    """Its only checkpoint is in both files, once."""
    assert world.store.checkpoint(world.pipeline, 1).state is S.COMPLETED
    assert world.ids() == both([1])


def resumed(world: Broken, _: Place) -> None:
    assert world.store.pipeline(world.pipeline).status is PipelineStatus.ACTIVE
    world.deliver()  # as the next run does
    assert world.ids() == both([1, 2])


def aborted(world: Broken, _: Place) -> None:
    found = world.store.checkpoint(world.pipeline, 1)
    assert (found.state, found.reason, found.after_abort) == (S.ABORTED, AbortReason.USER, AfterAbort.REWOUND)
    assert world.ids() == both([])
    world.stage()
    world.deliver()
    assert world.ids() == both([2]), "what was given up does not come later"


def kept_back(world: Broken, _: Place) -> None:
    assert world.store.checkpoint(world.pipeline, 1).state is S.QUARANTINED
    with suppress(AirflowFtError):
        world.stage()
        world.deliver()
    assert world.ids() == both([]), "nothing later is delivered"


def without_the_refused(world: Broken, _: Place) -> None:
    found = world.store.checkpoint(world.pipeline, 1)
    assert found.state is S.COMPLETED
    assert world.ids() == {SHOP: expected([1]), ARCHIVE: [id for id in expected([1]) if id != REFUSED]}
    aside = of_checkpoint(found)[ARCHIVE]
    [file] = aside.files
    assert aside.rows == 1 and "nobody wants it" in aside.reasons[0]
    assert f"order {REFUSED}" in f"{pq.read_table(local_path(file)).to_pylist()}"


def rewound(world: Broken, _: Place) -> None:
    found = world.store.checkpoint(world.pipeline, 2)
    assert (found.state, found.after_abort) == (S.ABORTED, AfterAbort.REWOUND)
    first = world.store.position_before(world.pipeline, 2)
    assert first is not None and world.store.pipeline(world.pipeline).base == first, "the next run starts behind 1"
    assert world.ids() == both([1])
    world.stage()
    world.deliver()
    assert world.ids() == both([1, 3])


def without_state(world: Broken, _: Place) -> None:
    base = world.store.pipeline(world.pipeline).base
    assert base is not None and base.batch == -1
    location = local_path(base.location)
    assert not (location / "state").exists()
    assert json.loads((location / "airflow_ft_start.json").read_text()) == [{"logOffset": 0}], "positions are kept"
    assert "file:///in/" in (location / "sources" / "0" / "0").read_text()
    assert world.ids() == both([1, 2])


def as_before(world: Broken, _: Place) -> None:
    assert world.ids() == both([1, 2])
    assert world.store.open_checkpoints(world.pipeline) == []


def kept(world: Broken, place: Place) -> None:
    [folder] = place.saved(world.pipeline)
    found = read_metadata(str(folder))
    verify(str(folder), found)
    assert (found.pipeline, found.number) == (world.pipeline, 1), "the one that was chosen, not the newest"
    assert counted(found.location(str(folder)), 1) == 1
    assert f"by {ADMIN} ({MAINTENANCE}/" in found.taken_by
    assert world.ids() == both([1, 2])


def gone_back(world: Broken, place: Place) -> None:
    base = world.store.pipeline(world.pipeline).base
    assert base is not None and not is_planned(base), "what was delivered after it is to come again, as was chosen"
    assert counted(SparkLocation("", world.pipeline, base.location, base.batch), 1) == 1
    assert len(place.saved(world.pipeline)) == 1, "it is nobody's but the user's (NO_CLAIM)"
    assert world.ids() == both([1, 2]), "what was delivered stays"
    world.stage()
    world.deliver()
    assert world.ids() == both([1, 2, 3]), "numbers go on"


def disposed(world: Broken, place: Place) -> None:
    assert place.saved(world.pipeline) == []
    world.stage()
    world.deliver()
    assert world.ids() == both([1, 2, 3]), "the pipeline does not need it"


def counted(location: SparkLocation, number: int) -> int:
    """What the count knows of "a" there: the number of its newest checkpoint."""
    with State(location.pipeline, lambda _: Position(number, location)) as state:
        return int(state.get(0, "a")["count"])


def halted_and_mended(store: DecisionLog, folder: Path, name: str) -> Broken:
    world = broken.halted(store, folder, name)
    broken.bring_back(world)
    return world


def with_a_savepoint(store: DecisionLog, folder: Path, name: str) -> Broken:
    """Of its first checkpoint; the second one was delivered after it."""
    world = broken.delivered(store, folder, name)
    take(store, name, str(folder / "savepoints"), "a test", 1)
    return world


def choose_the_first(pipeline: PipelinePage) -> None:
    pipeline.tab("Savepoints").get_by_label("Checkpoint", exact=True).select_option("1")


def compute_again(action_button: ActionButton) -> None:
    action_button.dialog.get_by_label("Compute its rows again", exact=False).check()


def write_again(action_button: ActionButton) -> None:
    action_button.dialog.get_by_label("Checkpoints delivered after it", exact=True).select_option("write-again")


CASES: Mapping[str, Case] = {
    "resume": Case(halted_and_mended, resumed, "HALTED", after="WAITING"),
    "recover": Case(broken.in_doubt, completed, "IN DOUBT"),
    "commit": Case(broken.quarantined, completed, "QUARANTINED", of="QUARANTINED, 40 rows"),
    "abort": Case(broken.prepared, aborted, "WAITING", of="PREPARED, 40 rows", fill=compute_again),
    "quarantine": Case(broken.prepared, kept_back, "WAITING", "PREPARED, 40 rows", "QUARANTINED"),
    "redeliver": Case(broken.in_doubt, completed, "IN DOUBT", of="COMMITTING, 40 rows"),
    "dead_letter": Case(broken.refusing, without_the_refused, "IN DOUBT", of="COMMITTING, 40 rows"),
    "rewind": Case(broken.staged, rewound, "WAITING"),
    "reset_state": Case(broken.delivered, without_state),
    "retire": Case(broken.late, as_before, "FAILED"),
    "verify": Case(broken.delivered, as_before),
    "doctor": Case(broken.delivered, as_before),
    "savepoint": Case(broken.delivered, kept, choose=choose_the_first),
    "restore": Case(with_a_savepoint, gone_back, fill=write_again),
    "dispose": Case(with_a_savepoint, disposed),
}


@dataclass
class Asked:
    """What was done to a pipeline by a click; `problem`: why it could not be."""

    world: Broken
    events: list[str]
    run_id: str = ""
    problem: Exception | None = None


@pytest.fixture(scope="module")
def asked(request: pytest.FixtureRequest, place: Place, airflow: ApiServer, visit: Visit) -> Mapping[str, Asked]:
    """All acts that this module's tests will look at."""
    wanted = [item.callspec.params["action"] for item in request.session.items if _is_case(item)]
    found = {}
    for action in wanted:
        case, button = CASES[action], BUTTONS[action]
        world = case.make(place.store, place.folder, action)
        found[action] = Asked(world, world.events())
        try:
            page = visit.pipeline(action)
            expect(condition(page, case.before)).to_be_visible()
            case.choose(page)
            names = [folder.name for folder in place.saved(action)]
            action_button = button.of(page, of=case.of, savepoint="".join(names))
            found[action].run_id = confirm(action_button, button.says, case.fill)
        except Exception as problem:  # is told by the act's own test
            found[action].problem = problem
            visit.load()
    return found


def _is_case(item: Any) -> bool:
    return item.function is test_an_act_does_to_a_real_pipeline_what_it_says


def test_each_act_that_there_is_has_a_button_and_is_tried() -> None:
    assert set(BUTTONS) == set(CASES) | STREAMS
    assert set(BUTTONS) == set(ACTIONS)


@pytest.mark.parametrize("action", CASES)
def test_an_act_does_to_a_real_pipeline_what_it_says(
    action: str,
    asked: Mapping[str, Asked],
    place: Place,
    airflow: ApiServer,
    visit: Visit,
) -> None:
    done, case = asked[action], CASES[action]
    if done.problem is not None:
        raise done.problem
    assert ended(airflow, done.run_id) == "success", log_of(airflow, done.run_id)
    new = done.world.events()[: -len(done.events)]
    if action in READING:
        assert new == []
    elif action != "dispose":
        why = f": {REASON}" if BUTTONS[action].within in (above, open_checkpoint) else ""
        assert any(f"by {ADMIN} ({MAINTENANCE}/{done.run_id}/action){why}" in each for each in new), new
    expect(condition(visit.pipeline(action), case.after)).to_be_visible()
    case.came_of(done.world, place)


def test_verify_reports_missing_rows_beside_its_button(place: Place, airflow: ApiServer, visit: Visit) -> None:
    world = broken.delivered(place.store, place.folder, "lacking")
    world.sql(ARCHIVE, f'DELETE FROM "{world.pipeline}" WHERE id = {REFUSED}')
    action_button = BUTTONS["verify"].of(visit.pipeline(world.pipeline))
    run_id = confirm(action_button, BUTTONS["verify"].says)
    failed = visit.page.get_by_role("status").filter(has_text="failed: see the log of its task")
    expect(failed).to_be_visible(timeout=SECONDS * 1000)
    log = log_of(airflow, run_id)
    assert "INCOMPLETE: 39 of 40 rows are there" in log and "1 row is missing" in log


def test_a_pipeline_gets_another_name_by_a_click(place: Place, airflow: ApiServer, visit: Visit) -> None:
    """What the old one has delivered stays, and the new one reads on: each row comes once into the same tables."""
    old = broken.delivered(place.store, place.folder, "old-name")
    take(place.store, old.pipeline, str(place.savepoints), "a test")

    def give_a_name(action_button: ActionButton) -> None:
        action_button.dialog.get_by_label("New name", exact=True).fill("new-name")
        expect(action_button.dialog).to_contain_text("Runs of old-name fail from now on")

    action_button = ActionButton(
        savepoint(visit.pipeline(old.pipeline)), "Restore", "Restore old-name to checkpoint 2?"
    )
    run_id = confirm(action_button, "Nothing was delivered after it.", give_a_name)
    assert ended(airflow, run_id) == "success", log_of(airflow, run_id)
    assert "old-name is RENAMED: its runs fail from now on" in log_of(airflow, run_id)
    new = replace(old, pipeline="new-name")
    for world, kind in ((old, "RENAMED"), (new, "RESTORED")):
        assert any(
            f"{kind}: " in each and f"by {ADMIN} ({MAINTENANCE}/{run_id}/action)" in each for each in world.events()
        )
    expect(condition(page := visit.pipeline(old.pipeline), "RENAMED")).to_be_visible()
    expect(page.visit.page.get_by_text("It continues as new-name.", exact=True)).to_be_visible()
    with raises(PipelineHaltedError, "pipeline_renamed", pipeline=old.pipeline):
        old.stage()
    new.stage()
    new.deliver()
    assert new.ids() == both([1, 2, 3])
    expect(condition(visit.pipeline(new.pipeline), "IDLE")).to_be_visible()


# --- streams ----------------------------------------------------------------------------------------------------------

CLOSED, ALL = {0: 10, 10: 10}, {0: 10, 10: 10, 20: 5}
"""Rows by window, of 25 seconds with a row each: what comes out while it runs, and what a drain adds."""


def windows(place: Place, pipeline: str) -> dict[int, int]:
    """What the stream has delivered; a window that came twice is an error."""
    with closing(sqlite3.connect(broken.files(place.folder)[SHOP], timeout=60)) as shop:
        if not shop.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (pipeline,)).fetchall():
            return {}
        found = shop.execute(f'SELECT second, rows FROM "{pipeline}"').fetchall()
    assert len(dict(found)) == len(found), found
    return dict(found)


@pytest.mark.spark
@pytest.mark.parametrize("action", sorted(STREAMS))
def test_a_stream_is_stopped_by_a_click(action: str, place: Place, airflow: ApiServer, visit: Visit) -> None:
    """A real one, which Spark computes and Airflow runs."""
    pipeline, folder = f"stream-{action}", place.folder / "in"
    folder.mkdir(exist_ok=True)
    (folder / "times.json").write_text(
        "".join(json.dumps({"at": f"2026-01-01T00:00:{second:02}Z"}) + "\n" for second in range(25))
    )
    stream = airflow.trigger("stream", {"pipeline": pipeline, "folder": str(folder)})
    wait_for(lambda: windows(place, pipeline) == CLOSED, SECONDS, "the stream has delivered what it can")
    page = visit.pipeline(pipeline)
    expect(condition(page, "RUNNING")).to_be_visible()
    run_id = confirm(BUTTONS[action].of(page), BUTTONS[action].says)
    assert ended(airflow, run_id) == "success", log_of(airflow, run_id)
    wait_for(lambda: airflow.run_state("stream", stream) == "success", SECONDS, "the run of the stream ends")
    assert windows(place, pipeline) == (ALL if action.startswith("drain") else CLOSED)
    assert place.store.undelivered(pipeline) == 0 and place.store.leases(pipeline) == []
    newest = place.store.latest_confirmed(pipeline)
    assert newest is not None and (newest.drained is not None) == action.startswith("drain")
    saved = [read_metadata(str(each)).number for each in place.saved(pipeline)]
    assert saved == ([newest.number] if action.endswith("with_savepoint") else [])
    messages = [event.message for event in place.store.events(pipeline)]
    assert any(f"by {ADMIN} ({MAINTENANCE}/{run_id}/action)" in each for each in messages), messages
    assert f"stopped; {newest.number} is the newest confirmed checkpoint" in log_of(airflow, run_id)
    expect(condition(visit.pipeline(pipeline), "NOT RUNNING")).to_be_visible()
