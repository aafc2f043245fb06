"""The page of an Airflow that is served below a path (`[api] base_url`): all addresses begin with it."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from tests.browser.pages import API, PAGE, PipelineList, PipelinePage, Visit
from tests.browser.world import HALTED
from tests.store.scene import PIPELINE, RUN

pytestmark = [pytest.mark.airflow, pytest.mark.sampled(among="the page")]


def test_every_address_of_the_page_is_below_the_path_of_airflow(visit: Visit) -> None:
    asked: list[str] = []
    address = urlsplit(visit.url)
    assert address.path, "else this shows nothing"

    visit.page.on("request", lambda request: asked.append(request.url))
    visit.used_up = True
    visit.load(PAGE)
    pipelines = PipelineList(visit)
    name = pipelines.names.filter(has_text=HALTED)
    expect(name).to_have_js_property("href", f"{visit.url}/plugin/airflow-ft?pipeline={HALTED}")
    with visit.page.context.expect_page() as opened:
        name.click(modifiers=["ControlOrMeta"])
    expect(opened.value.get_by_role("heading", name=HALTED, exact=True)).to_be_visible()
    opened.value.close()
    visit.page.bring_to_front()
    pipelines.search.fill(PIPELINE)
    expect(pipelines.names).to_have_text([PIPELINE])
    pipelines.choose(PIPELINE).history().details(1)
    visit.load(f"dags/{RUN.dag_id}")
    visit.page.get_by_role("link", name="Checkpoints", exact=True).click()
    expect(PipelineList(visit).names.filter(has_text=HALTED)).to_have_js_property(
        "href", f"{visit.url}/plugin/airflow-ft?pipeline={HALTED}"
    )
    visit.load(f"dags/{RUN.dag_id}/runs/{RUN.run_id}")
    visit.page.get_by_role("link", name="Checkpoints", exact=True).click()
    visit.page.get_by_role("link", name=HALTED, exact=True).click()
    expect(PipelinePage(visit, HALTED).heading).to_be_visible()
    assert any(f"/{API}/" in url for url in asked)
    server = f"{address.scheme}://{address.netloc}"
    assert not {url for url in asked if url.startswith(server) and not url.startswith(f"{visit.url}/")}
