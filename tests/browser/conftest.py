"""One Airflow, one decision log and one browser for all tests of this folder, which are one group (tests/tiers.py).

Playwright keeps an event loop running in this thread, so it ends with the folder's last test, not with the session:
others could not call `asyncio.run`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, expect, sync_playwright

from tests.browser.pages import Visit
from tests.browser.server import ADMIN, ApiServer
from tests.browser.world import World
from tests.store.scene import RUN
from tools.servers.base import local_folder

BROWSERS = ("chromium", "google-chrome", "chromium-browser")
SECONDS = 60.0
"""So long may an answer take: others work beside these tests."""


def find_chromium() -> str | None:
    """A browser of the PATH that runs; on Ubuntu `chromium-browser` may be a script that asks for a snap."""
    for name in BROWSERS:
        path = shutil.which(name)
        if path and subprocess.run([path, "--version"], capture_output=True, check=False).returncode == 0:
            return path
    return None


@pytest.fixture(scope="package")
def chromium() -> str:
    path = find_chromium()
    if path is None:
        pytest.skip(
            f"there is no browser: none of {', '.join(BROWSERS)} is on the PATH. On Debian `make install ONLY=chromium`"
            " installs it; elsewhere (Ubuntu's package is a snap) install Google Chrome"
        )
    return path


@pytest.fixture(scope="package")
def world(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("log"))
    yield world
    world.close()


@pytest.fixture(scope="package")
def template(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home of Airflow with a database and DAGs, where each server takes them from."""
    home = tmp_path_factory.mktemp("template")
    server = ApiServer(home, "sqlite:////nowhere", home, home)
    server.make_template()
    server.stop()
    return home


@pytest.fixture(scope="package")
def airflow(world: World, template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """It is served below a path, which no address of the page may leave out; that of `test_mending.py` is not."""
    server = ApiServer(tmp_path_factory.mktemp("airflow"), world.url, world.savepoints, template, "/team/airflow")
    try:
        server.start()
        server.wait()
        for dag_id, run_id in ((RUN.dag_id, RUN.run_id), (RUN.dag_id, "run-2"), ("alone", "run-1")):
            server.add_run(dag_id, run_id)
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="package")
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        expect.set_options(timeout=SECONDS * 1000)
        # The sandbox of Chromium does not work for root, nor in many containers.
        arguments = ["--no-sandbox", "--no-proxy-server"]
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def windows(airflow: ApiServer, browser: Browser) -> Callable[[str], BrowserContext]:
    """The browser of each user, who is logged in; files of Airflow's UI stay in its cache."""
    contexts: dict[str, BrowserContext] = {}

    def of(user: str) -> BrowserContext:
        if user not in contexts:
            contexts[user] = logged_in(browser, airflow, user)
        return contexts[user]

    return of


def logged_in(browser: Browser, airflow: ApiServer, user: str) -> BrowserContext:
    """Windows of a user."""
    context = browser.new_context(locale="en-US", timezone_id="UTC")
    context.set_default_timeout(SECONDS * 1000)
    context.add_cookies([{"name": "_token", "value": airflow.token(user), "url": airflow.url}])
    return context


@pytest.fixture(scope="package")
def kept() -> dict[str, Visit]:
    """Windows of users that other tests have left as they were."""
    return {}


@pytest.fixture
def visit_as(
    airflow: ApiServer,
    windows: Callable[[str], BrowserContext],
    kept: dict[str, Visit],
    request: pytest.FixtureRequest,
) -> Iterator[Callable[[str], Visit]]:
    """A window of a user. What goes wrong in it fails the test."""
    opened: dict[str, Visit] = {}
    request.node.visits = opened

    def visit(user: str) -> Visit:
        opened[user] = kept.pop(user, None) or Visit(windows(user).new_page(), airflow.url)
        return opened[user]

    yield visit
    failed = request.node.failed
    for user, each in opened.items():
        if each.used_up or each.problems or failed:
            each.page.close()
        else:
            each.leave()
            kept[user] = each
    problems = [problem for each in opened.values() for problem in each.problems]
    assert not problems, f"the browser told {problems}"


@pytest.fixture
def visit(visit_as: Callable[[str], Visit]) -> Visit:
    """A window of somebody who may do all."""
    return visit_as(ADMIN)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure shows what was to be seen: the words here, and a picture in .local/log/browser."""
    report = yield
    item.failed = report.failed  # type: ignore[attr-defined]
    for visit in getattr(item, "visits", {}).values() if report.failed and report.when == "call" else ():
        folder = local_folder() / "log" / "browser"
        folder.mkdir(parents=True, exist_ok=True)
        picture: Path = folder / f"{re.sub(r'[^a-z0-9_]+', '-', item.name)}.png"
        visit.page.screenshot(path=picture)
        words = visit.page.locator("body").inner_text()
        report.sections.append((f"{visit.page.url}, {picture}", "\n".join([words[:3000], *visit.problems])))
    return report
