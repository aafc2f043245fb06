"""Dark and light, narrow windows, and the keyboard alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.looks import faults, focused, overflowing, reachable
from tests.browser.pages import LIMIT, PAGE, ActionButton, PipelineList, PipelinePage, Table, Visit
from tests.browser.world import CHECKPOINTS, HALTED, QUARANTINED, WAITING
from tests.store.scene import PIPELINE

pytestmark = [pytest.mark.airflow, pytest.mark.sampled(among="the page")]


def root(visit: Visit) -> Locator:
    """All that is ours on Airflow's page."""
    return visit.page.get_by_role("heading", name="Checkpoints", exact=True, level=1).locator("..")


def everywhere(visit: Visit) -> Iterator[str]:
    """Shows one part after the other, and names it."""
    expect(visit.pipelines().names).to_have_count(25)
    yield "the list"
    for name in (HALTED, QUARANTINED, WAITING):
        pipeline = visit.pipeline(name)
        expect(pipeline.heading).to_be_visible()  # the acts may be those of the one before
        actions = pipeline.actions
        expect(actions).to_be_visible()
        yield name
    action_button = ActionButton(actions, "Rewind", f"Rewind: {WAITING}?")
    action_button.button.click()
    expect(action_button.dialog).to_be_visible()
    yield "what is asked before an act"
    action_button.cancel.click()
    pipeline = visit.pipeline(PIPELINE)
    expect(pipeline.heading).to_be_visible()
    for tab in visit.page.get_by_role("tab").all_inner_texts():
        panel = pipeline.tab(tab)
        expect(panel).to_have_text(re.compile(r"\w{3}"))
        expect(panel.get_by_text("Loading …")).to_have_count(0)
        if tab == "History":
            pipeline.details(CHECKPOINTS).click()
            expect(Table(panel, f"Events of checkpoint {CHECKPOINTS}").region).to_be_visible()
        yield tab


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_read_and_reach_all(visit: Visit, scheme: Literal["light", "dark"]) -> None:
    visit.page.emulate_media(color_scheme=scheme)
    found = {where: output for where in everywhere(visit) if (output := faults(root(visit)))}
    expect(visit.page.locator("html")).to_have_class(re.compile(scheme))
    assert not found, "\n".join(f"{where}: {each}" for where, output in found.items() for each in output)


def test_a_narrow_window_is_not_scrolled_sideways(visit: Visit) -> None:
    visit.page.set_viewport_size({"width": 400, "height": 800})
    assert not {where: found for where in everywhere(visit) if (found := overflowing(root(visit)))}


def test_the_keyboard_alone_opens_a_pipeline_and_a_checkpoint(visit: Visit) -> None:
    pipelines = visit.pipelines()
    expect(pipelines.names).to_have_count(25)
    visit.tab_to(pipelines.search)
    visit.page.keyboard.type(PIPELINE)
    expect(pipelines.names).to_have_text([PIPELINE])
    visit.tab_to(pipelines.names.first)
    visit.page.keyboard.press("Enter")
    pipeline = PipelinePage(visit, PIPELINE)
    visit.tab_to(visit.page.get_by_role("tab", name="Overview", exact=True))
    visit.page.keyboard.press("ArrowRight")
    pipeline.shows(CHECKPOINTS, CHECKPOINTS - LIMIT + 1)
    details = pipeline.details(CHECKPOINTS - 1)
    visit.tab_to(details)
    for key, expanded in (("Enter", "true"), ("Space", "false")):
        visit.page.keyboard.press(key)
        expect(details).to_have_attribute("aria-expanded", expanded)
    visit.tab_to(pipeline.older)
    visit.page.keyboard.press("Enter")
    pipeline.shows(CHECKPOINTS - LIMIT, 1)


@pytest.mark.parametrize("part", ["the list", QUARANTINED, "Savepoints"])
def test_the_keyboard_reaches_every_control_and_marks_the_focus(visit: Visit, part: str) -> None:
    if part == "the list":
        expect(visit.pipelines().names).to_have_count(25)
    elif part == QUARANTINED:
        expect(Table(visit.pipeline(part).tab("Overview"), "Open checkpoints").row("QUARANTINED")).to_be_visible()
    else:
        expect(Table(visit.pipeline(PIPELINE).tab(part), f"Savepoints of {PIPELINE}").region).to_be_visible()
    wanted, walked = set(reachable(root(visit))), {}
    visit.page.locator("body").click(position={"x": 0, "y": 0})
    while wanted - set(walked):
        visit.page.keyboard.press("Tab")
        name, marked = focused(root(visit))
        assert name not in walked or name == "", f"the keyboard does not reach {wanted - set(walked)}"
        walked[name] = marked
        assert len(walked) < 300
    assert not {name for name in wanted if not walked[name]}, "nothing shows that they have the focus"


def test_a_question_keeps_the_focus(visit: Visit) -> None:
    action_button = ActionButton(visit.pipeline(HALTED).actions, "Resume", f"Resume: {HALTED}?")
    action_button.button.press("Enter")
    expect(action_button.dialog).to_be_visible()
    reached = set()
    for _ in range(8):
        visit.page.keyboard.press("Tab")
        where = action_button.dialog.evaluate(
            "dialog => [document.activeElement.tagName, dialog.contains(document.activeElement)]"
        )
        reached.add(tuple(where))
    # The browser's own frame, which is told as the body, may be among it; nothing of the page behind is.
    assert {("INPUT", True), ("BUTTON", True)} <= reached <= {("INPUT", True), ("BUTTON", True), ("BODY", False)}


def test_the_address_sets_a_filter_that_the_keyboard_can_change(visit: Visit) -> None:
    pipelines = PipelineList(visit)
    visit.load(PAGE, condition="HALTED")
    expect(pipelines.names).to_have_text([HALTED])
    visit.tab_to(pipelines.only("All"))
    visit.page.keyboard.press("Space")
    expect(pipelines.names).to_have_count(25)
