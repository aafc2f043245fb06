"""The page as who looks at it finds it: by roles, names and words, wherever they stand."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlencode

from playwright.sync_api import ConsoleMessage, Locator, Page, Response, expect

PAGE = "plugin/airflow-ft"
API = "airflow-ft/v1"
LIMIT = 20
"""Checkpoints that are shown at once."""


NEUTRAL = "providers"
"""A page of Airflow that has nothing of ours on it."""
_GO = """address => {
  history.pushState(null, "", address);
  dispatchEvent(new PopStateEvent("popstate", { state: null }));
}"""


class Visit:
    """A window of somebody's browser, and all that goes wrong in it.

    Airflow's UI takes two seconds to load. So it is loaded once, and another address is then gone to as the buttons
    of a browser do it; and a window in which all went well serves the next test, too.
    """

    def __init__(self, page: Page, url: str) -> None:
        self.page, self.url = page, url
        self.problems: list[str] = []
        self.used_up = False
        """Whether no other test should have it: something was made to fail in it."""
        self._excused: list[str] = []
        self._loaded = False
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self._note(f"an error that nobody caught: {error}"))
        page.on("response", self._answered)

    def excuse(self, *texts: str) -> None:
        """What has one of these in it is meant to happen."""
        self._excused += texts
        self.used_up = True

    def open(self, path: str = "", **query: Any) -> None:
        """Goes to an address of Airflow."""
        address = f"{self.url}/{path}{'?' if query else ''}{urlencode(query)}"
        if self._loaded:
            self.page.evaluate(_GO, address)
        else:
            self.page.goto(address)
            self._loaded = True

    def load(self, path: str = "", **query: Any) -> None:
        """Goes to an address of Airflow as who follows a link from elsewhere: all is loaded anew."""
        self._loaded = False
        self.open(path, **query)

    def stop_clock(self) -> None:
        """From now on time goes by `page.clock` alone."""
        self.page.clock.install()
        self.used_up = True

    def leave(self) -> None:
        """Makes it as it was, for another test."""
        self.page.set_viewport_size({"width": 1280, "height": 720})
        self.page.emulate_media(color_scheme="light")
        self.open(NEUTRAL)

    def pipelines(self, path: str = PAGE, **query: Any) -> PipelineList:
        """The list of all pipelines, or of a DAG's, by its address."""
        self.open(path, **query)
        return PipelineList(self)

    def pipeline(self, name: str, **query: Any) -> PipelinePage:
        """A pipeline by its address."""
        self.open(PAGE, pipeline=name, **query)
        return PipelinePage(self, name)

    def answer(self, path: str, status: int = 200, body: str = "", kind: str = "text/html") -> None:
        """From now on something else answers for the page's API, as a proxy does; `path` with `*` and `**`."""
        self.page.route(
            f"{self.url}/{API}/{path}", lambda route: route.fulfill(status=status, body=body, content_type=kind)
        )
        self.used_up = True
        if status >= 400:
            self.excuse(f"/{API}/")

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    def shows(self, words: str) -> None:
        """Waits for a problem to be told in these words."""
        expect(self.page.get_by_role("alert").filter(has_text=words)).to_be_visible()

    def tab_to(self, wanted: Locator, most: int = 80) -> None:
        """Moves the focus forward by the keyboard."""
        for _ in range(most):
            self.page.keyboard.press("Tab")
            if wanted.evaluate("element => element === document.activeElement"):
                return
        raise AssertionError(f"the focus does not reach {wanted} in {most} steps")

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self._note(f"{message.text} ({message.location['url']})")

    def _answered(self, response: Response) -> None:
        if response.status >= 500:
            self._note(f"{response.status} {response.url}")

    def _note(self, text: str) -> None:
        if not any(excused in text for excused in self._excused):
            self.problems.append(text)


class Table:
    """A table by its caption."""

    def __init__(self, within: Page | Locator, caption: str) -> None:
        self.region = within.get_by_role("region", name=caption, exact=True)
        self.rows = self.region.locator("tbody").get_by_role("row")

    def row(self, text: str) -> Locator:
        return self.rows.filter(has_text=text)


class PipelineList(Table):
    """Pipelines, a row each."""

    def __init__(self, visit: Visit) -> None:
        page = visit.page
        super().__init__(page, "Pipelines")
        self._visit = visit
        self.names = self.rows.get_by_role("link")
        self.search = page.get_by_role("searchbox", name="Search", exact=True)
        self.shown = page.get_by_role("status").filter(has_text=re.compile(r"\d to \d"))
        self.next, self.previous = visit.button("Next"), visit.button("Previous")

    def only(self, state: str) -> Locator:
        """The button that leaves pipelines in one state, or in "All"."""
        group = self._visit.page.get_by_role("group", name="Show only")
        return group.get_by_role("button", name=re.compile(rf"^{state} [\d,]+$"))

    def choose(self, name: str) -> PipelinePage:
        """Opens one that is shown."""
        self.names.filter(has_text=re.compile(f"^{name}$")).click()
        return PipelinePage(self._visit, name)


class PipelinePage:
    """One pipeline."""

    def __init__(self, visit: Visit, name: str) -> None:
        self.visit, self.name = visit, name
        self.heading = visit.page.get_by_role("heading", name=name, exact=True)
        self.all = visit.button("← All pipelines")
        self.actions = visit.page.get_by_role("group", name="Actions", exact=True)
        self.older, self.newest = visit.button("Older"), visit.button("Newest")
        self.checkpoints = Table(visit.page, f"Checkpoints of {name}")
        self.numbers = self.checkpoints.rows.get_by_role("button", name="Details of checkpoint")

    def tab(self, name: str) -> Locator:
        """Opens one of its tabs; returns what is on it."""
        self.visit.page.get_by_role("tab", name=name, exact=True).click()
        return self.visit.page.get_by_role("tabpanel", name=name, exact=True)

    def history(self) -> PipelinePage:
        """Opens the tab with its checkpoints."""
        self.tab("History")
        return self

    def details(self, number: int) -> Locator:
        """The button that opens and closes what is told of a checkpoint."""
        return self.visit.page.get_by_role("button", name=f"Details of checkpoint {number}", exact=True)

    def shows(self, newest: int, oldest: int) -> None:
        """Waits for these checkpoints, newest first."""
        expect(self.numbers).to_have_text([re.compile(rf"[▸▾] {n}$") for n in range(newest, oldest - 1, -1)])


class ActionButton:
    """A button that asks before it starts a run of the DAG `airflow_ft_maintenance`."""

    def __init__(self, within: Locator, label: str, title: str) -> None:
        self.button = within.get_by_role("button", name=label, exact=True)
        page = within.page
        self.dialog = page.get_by_role("alertdialog", name=title, exact=True)
        self.cancel = self.dialog.get_by_role("button", name="Cancel", exact=True)
        self.confirm = self.dialog.get_by_role("button", name=label, exact=True)
        self.reason = self.dialog.get_by_label("Reason", exact=True)
        self.started = page.get_by_role("status").filter(has_text="manual__")
