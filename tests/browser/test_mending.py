"""What is broken is mended from the page: real pipelines, and acts that a scheduler runs, until none has a problem."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, expect

from airflow_ft.core.ports import Store
from airflow_ft.store import open_store
from tests.browser import broken
from tests.browser.conftest import logged_in
from tests.browser.pages import Act, PipelinePage, Table, Visit
from tests.browser.server import ADMIN, MAINTENANCE, ApiServer
from tests.integration.real_world import expected

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

MENDED = 120_000
"""Milliseconds that the run of an act may take: a scheduler starts it, and others work beside this test."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(open_store(f"sqlite:///{tmp_path}/ft.db")) as store:
        yield store


@pytest.fixture
def airflow(store: Store, tmp_path: Path) -> Iterator[ApiServer]:
    """One that runs what is triggered."""
    server = ApiServer(tmp_path / "airflow", f"sqlite:///{tmp_path}/ft.db", tmp_path / "savepoints")
    try:
        server.start()
        server.start_scheduler()
        server.wait()
        yield server
    finally:
        server.stop()


@pytest.fixture
def opened(
    airflow: ApiServer, browser: Browser, request: pytest.FixtureRequest
) -> Iterator[Callable[[str], PipelinePage]]:
    """Opens a pipeline in a window of its own."""
    visits: dict[str, Visit] = {}
    request.node.visits = visits
    with closing(logged_in(browser, airflow, ADMIN)) as context:

        def open_one(name: str) -> PipelinePage:
            visits[name] = Visit(context.new_page(), airflow.url)
            return visits[name].pipeline(name)

        yield open_one
        assert not [problem for visit in visits.values() for problem in visit.problems]


def condition(pipeline: PipelinePage, name: str) -> Locator:
    return pipeline.heading.locator("..").get_by_text(name, exact=True)


def open_checkpoint(pipeline: PipelinePage, state: str) -> Locator:
    return Table(pipeline.tab("Overview"), "Open checkpoints").row(state)


def test_the_page_mends_what_is_halted_in_doubt_quarantined_and_prepared(
    store: Store, tmp_path: Path, opened: Callable[[str], PipelinePage], airflow: ApiServer
) -> None:
    worlds = {
        make.__name__: make(store, tmp_path)
        for make in (broken.halted, broken.in_doubt, broken.quarantined, broken.prepared)
    }
    halted, in_doubt, quarantined, prepared = pages = [opened(each.pipeline) for each in worlds.values()]
    for page, name in zip(pages, ("HALTED", "IN DOUBT", "QUARANTINED", "WAITING"), strict=True):
        expect(condition(page, name)).to_be_visible()
    expect(halted.visit.page.get_by_text("the sink has lost its head").first).to_be_visible()

    broken.bring_back(worlds["halted"])
    of_checkpoint = "checkpoint 1 ({}, 20 rows)"
    give_up = Act(open_checkpoint(prepared, "PREPARED"), "Abort", f"Give {of_checkpoint.format('PREPARED')} up?")
    acts = [
        Act(halted.acts, "Resume", "Let halted go on?"),
        Act(in_doubt.acts, "Recover", "Settle what is in doubt of in-doubt?"),
        Act(open_checkpoint(quarantined, "QUARANTINED"), "Deliver", f"Deliver {of_checkpoint.format('QUARANTINED')}?"),
        give_up,
    ]
    for act in acts:
        act.button.click()
        if act is give_up:
            act.dialog.get_by_label("Compute its rows again", exact=False).check()
        act.reason.fill("a test has looked")
        act.confirm.click()
        expect(act.started).to_be_visible()

    expect(condition(halted, "IN DOUBT")).to_be_visible(timeout=MENDED)
    recover = Act(halted.acts, "Recover", "Settle what is in doubt of halted?")
    recover.button.click()
    recover.confirm.click()
    for page in pages:
        expect(condition(page, "IDLE")).to_be_visible(timeout=MENDED)
    assert {name: world.ids() for name, world in worlds.items()} == {
        "halted": expected([1, 2]),
        "in_doubt": expected([1]),
        "quarantined": expected([1]),
        "prepared": [],
    }
    expect(prepared.tab("Overview").get_by_text("1 (USER)")).to_be_visible()
    for world in worlds.values():
        told = [event.message for event in store.events(world.pipeline)]
        assert any(f"by {ADMIN} ({MAINTENANCE}/" in each and "a test has looked" in each for each in told), told
