"""The page of an Airflow that is served below a path (`[api] base_url`): all addresses begin with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import logged_in
from tests.browser.pages import API, PipelineList, PipelinePage, Visit
from tests.browser.server import ADMIN, ApiServer
from tests.browser.world import HALTED, World
from tests.store.scene import PIPELINE, RUN

pytestmark = pytest.mark.airflow

PATH = "/team/airflow"


@pytest.fixture
def below(world: World, browser: Browser, tmp_path: Path) -> Iterator[Visit]:
    server = ApiServer(tmp_path, world.url, world.savepoints, PATH)
    try:
        server.start()
        server.wait()
        server.add_run(RUN.dag_id, RUN.run_id)
        context = logged_in(browser, server, ADMIN)
        yield Visit(context.new_page(), server.url)
        context.close()
    finally:
        server.stop()


def test_every_address_of_the_page_is_below_the_path_of_airflow(below: Visit) -> None:
    asked: list[str] = []
    below.page.on("request", lambda request: asked.append(request.url))
    pipelines = below.pipelines()
    name = pipelines.names.filter(has_text=HALTED)
    expect(name).to_have_js_property("href", f"{below.url}/plugin/airflow-ft?pipeline={HALTED}")
    with below.page.context.expect_page() as opened:
        name.click(modifiers=["ControlOrMeta"])
    expect(opened.value.get_by_role("heading", name=HALTED, exact=True)).to_be_visible()
    opened.value.close()
    below.page.bring_to_front()
    pipelines.search.fill(PIPELINE)
    expect(pipelines.names).to_have_text([PIPELINE])
    pipelines.choose(PIPELINE).history().details(1)
    below.load(f"dags/{RUN.dag_id}")
    below.page.get_by_role("link", name="Checkpoints", exact=True).click()
    expect(PipelineList(below).names.filter(has_text=HALTED)).to_have_js_property(
        "href", f"{below.url}/plugin/airflow-ft?pipeline={HALTED}"
    )
    below.load(f"dags/{RUN.dag_id}/runs/{RUN.run_id}")
    below.page.get_by_role("link", name="Checkpoints", exact=True).click()
    below.page.get_by_role("link", name=HALTED, exact=True).click()
    expect(PipelinePage(below, HALTED).heading).to_be_visible()
    assert any(f"/{API}/" in url for url in asked)
    server = below.url.removesuffix(PATH)
    assert not {url for url in asked if url.startswith(server) and not url.startswith(f"{below.url}/")}
    assert not below.problems
