"""The pictures of the page in the documentation: `make screenshots` makes them, and here the page still looks so."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import pytest
from playwright.sync_api import Route, expect

from tests.browser import pictures
from tests.browser.flights import COUNT, FLIGHTS
from tests.browser.pages import Table, Visit
from tests.browser.world import CHECKPOINTS, QUARANTINED, URGENT
from tests.store.scene import PIPELINE

pytestmark = [pytest.mark.airflow, pytest.mark.sampled(among="the page")]

MOST, APART = 0.15, 0.08
"""Of the window may look different; of two parts of the page at least does. In a serif font 0.11 of the list does."""


def pipelines(visit: Visit) -> None:
    expect(visit.pipelines().names.nth(len(URGENT))).to_have_text(FLIGHTS)


def overview(visit: Visit) -> None:
    tab = visit.pipeline(QUARANTINED).tab("Overview")
    expect(Table(tab, "Open checkpoints").row("QUARANTINED")).to_be_visible()


def history(visit: Visit) -> None:
    pipeline = visit.pipeline(FLIGHTS).history()
    pipeline.details(COUNT).click()
    expect(Table(visit.page, f"Events of checkpoint {COUNT}").region).to_be_visible()


def charts(visit: Visit) -> None:
    charts = visit.pipeline(FLIGHTS).tab("Charts")
    expect(charts.get_by_role("img", name=f"Rows of checkpoints 1 to {COUNT}")).to_be_visible()


def summary(visit: Visit) -> None:
    tab = visit.pipeline(FLIGHTS).tab("Summary")
    expect(Table(tab, "Summary").row("Trigger to completion")).to_be_visible()


def state(visit: Visit) -> None:
    tab = visit.pipeline(PIPELINE).tab("State")
    tab.get_by_label("Key: k", exact=True).fill("a")
    visit.button("Look up").click()
    expect(Table(tab, "Values in default").region).to_contain_text(f'"count": {CHECKPOINTS}')


def savepoints(visit: Visit) -> None:
    visit.used_up = True
    visit.page.route("**/v1/pipelines/*/savepoints**", _elsewhere)
    tab = visit.pipeline(PIPELINE).tab("Savepoints")
    tab.get_by_role("button", name=re.compile("^Details of ")).click()
    expect(tab.get_by_role("region", name=re.compile("^Operators in "))).to_contain_text("stateStoreSave")


def _elsewhere(route: Route) -> None:
    """The API's own answer, of savepoints that lie in a folder as somebody would have it."""
    answer = route.fetch()
    route.fulfill(response=answer, body=re.sub(r'(file://)?/[^":]*/savepoints', r"\1/data/savepoints", answer.text()))


def configuration(visit: Visit) -> None:
    tab = visit.pipeline(FLIGHTS).tab("Configuration")
    expect(Table(tab, "Configuration").row("checkpointing.timeout")).to_be_visible()


def job(visit: Visit) -> None:
    expect(visit.pipeline(FLIGHTS).tab("Job").get_by_text("air.flights")).to_be_visible()


def dark(visit: Visit) -> None:
    visit.page.emulate_media(color_scheme="dark")
    visit.page.set_viewport_size({"width": 400, "height": 760})
    pipelines(visit)


SHOWN: Mapping[str, Callable[[Visit], None]] = {
    each.__name__: each
    for each in (pipelines, overview, history, summary, charts, state, savepoints, configuration, job, dark)
}


@pytest.mark.parametrize("name", SHOWN)
def test_the_page_looks_as_in_the_documentation(visit: Visit, name: str) -> None:
    visit.page.set_viewport_size({"width": 1200, "height": 720})
    SHOWN[name](visit)
    visit.page.mouse.move(0, 0)
    visit.page.evaluate("() => Promise.all([document.fonts.ready, new Promise(requestAnimationFrame)])")
    image = pictures.taken(visit.page)
    if pictures.MAKE:
        pictures.keep(image, name)
    different = {each: pictures.distance(image, pictures.kept(each)) for each in SHOWN}
    assert different[name] <= MOST, (
        f"{different[name]:.0%} of it looks different: see docs/images/{name}.png, and `make screenshots`"
    )
    assert min(different, key=lambda each: different[each]) == name, f"it looks like another part: {different}"


def test_pictures_of_different_parts_are_told_apart() -> None:
    wide = [pictures.kept(name) for name in SHOWN if name != "dark"]
    assert min(pictures.distance(one, other) for one in wide for other in wide if one is not other) > APART
    assert {path.stem for path in pictures.FOLDER.glob("*.png")} == set(SHOWN)
    assert max(path.stat().st_size for path in pictures.FOLDER.glob("*.png")) <= pictures.LARGEST
