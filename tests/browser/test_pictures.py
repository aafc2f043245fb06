"""The pictures of the page in the documentation: `make screenshots` makes them, and here the page still looks so."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from playwright.sync_api import expect

from tests.browser import pictures
from tests.browser.flights import COUNT, FLIGHTS
from tests.browser.pages import Table, Visit
from tests.browser.world import QUARANTINED, URGENT

pytestmark = pytest.mark.airflow

MOST = 0.15
"""Of the window may look different. In a serif font 0.11 of the list does; of two parts of the page 0.20 and more."""


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


def job(visit: Visit) -> None:
    expect(visit.pipeline(FLIGHTS).tab("Job").get_by_text("air.flights")).to_be_visible()


def dark(visit: Visit) -> None:
    visit.page.emulate_media(color_scheme="dark")
    visit.page.set_viewport_size({"width": 400, "height": 760})
    pipelines(visit)


SHOWN: Mapping[str, Callable[[Visit], None]] = {
    each.__name__: each for each in (pipelines, overview, history, charts, job, dark)
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
    different = pictures.distance(image, pictures.kept(name))
    assert different <= MOST, (
        f"{different:.0%} of it looks different: see docs/images/{name}.png, and `make screenshots`"
    )


def test_pictures_of_different_parts_are_told_apart() -> None:
    wide = [pictures.kept(name) for name in SHOWN if name != "dark"]
    assert min(pictures.distance(one, other) for one in wide for other in wide if one is not other) > MOST
    assert {path.stem for path in pictures.FOLDER.glob("*.png")} == set(SHOWN)
    assert max(path.stat().st_size for path in pictures.FOLDER.glob("*.png")) <= pictures.LARGEST
