"""Times are shown, and asked for, in the time zone that is chosen in Airflow."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.browser.pages import Visit
from tests.browser.world import CHECKPOINTS
from tests.store.scene import PIPELINE

pytestmark = [pytest.mark.airflow, pytest.mark.sampled(among="the page")]

KOLKATA = "Asia/Kolkata"
TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d "


def choose(visit: Visit, zone: str | None) -> None:
    """As Airflow's own page keeps and tells it."""
    visit.page.evaluate(
        """value => {
          if (value === null) localStorage.removeItem("timezone"); else localStorage.setItem("timezone", value);
          dispatchEvent(new StorageEvent("local-storage", { key: "timezone" }));
        }""",
        zone,
    )


@pytest.fixture
def zoned(visit: Visit) -> Iterator[Visit]:
    yield visit
    choose(visit, None)


def test_times_use_the_browsers_zone_until_another_is_chosen(zoned: Visit) -> None:
    history = zoned.pipeline(PIPELINE).history()
    row = history.checkpoints.rows.first
    expect(row).to_have_text(re.compile(f"{TIME}UTC"))
    expect(zoned.page.get_by_text("Times are in UTC")).to_be_visible()
    choose(zoned, json.dumps(KOLKATA))
    expect(row).to_have_text(re.compile(rf"{TIME}\+05:30"))
    expect(zoned.page.get_by_text(f"Times are in {KOLKATA}")).to_be_visible()
    choose(zoned, None)
    expect(row).to_have_text(re.compile(f"{TIME}UTC"))


def test_a_time_that_is_asked_for_is_of_that_zone(zoned: Visit) -> None:
    history = zoned.pipeline(PIPELINE).history()
    choose(zoned, json.dumps(KOLKATA))
    field = zoned.page.get_by_label("Triggered until", exact=True)
    field.fill("2026-01-02T12:30")
    expect(zoned.page).to_have_url(re.compile(r"until=2026-01-02T07%3A00%3A59\.999Z"))
    expect(field).to_have_value("2026-01-02T12:30")
    expect(zoned.page.get_by_text("No checkpoint matches.")).to_be_visible()
    field.fill("2099-01-02T12:30")
    history.shows(CHECKPOINTS, 6)


def test_summer_time_counts_where_there_is_such(zoned: Visit) -> None:
    zoned.pipeline(PIPELINE).history()
    choose(zoned, json.dumps("Europe/Berlin"))
    field = zoned.page.get_by_label("Triggered until", exact=True)
    for given, asked in (("2026-07-01T12:00", "2026-07-01T10"), ("2026-03-29T03:30", "2026-03-29T01")):
        field.fill(given)
        expect(zoned.page).to_have_url(re.compile(f"until={asked}"))
        expect(field).to_have_value(given)
