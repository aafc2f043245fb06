"""Links and pages of the UI, asked of Airflow's own API server below a path (`[api] base_url`)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urljoin

import pytest

from airflow_ft.operators.links import PipelineLink

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

ROOT = Path(__file__).parents[2]

_ASK = """
import json, sys
from airflow.api_fastapi.app import create_app
from starlette.testclient import TestClient

client = TestClient(create_app(), base_url="http://airflow.example")
answers = {path: client.get(path) for path in json.loads(sys.argv[1])}
print(json.dumps({path: [answer.status_code, answer.text] for path, answer in answers.items()}))
"""


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What an anonymous browser is answered: path -> status and text. Airflow is served below /shop."""
    settings = {
        "AIRFLOW_HOME": str(tmp_path_factory.mktemp("airflow")),
        "AIRFLOW__API__BASE_URL": "http://airflow.example/shop",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }

    def run(*paths: str) -> dict[str, tuple[int, str]]:
        command = [sys.executable, "-W", "ignore", "-c", _ASK, json.dumps(paths)]
        done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return {path: (code, text) for path, (code, text) in json.loads(done.stdout.splitlines()[-1]).items()}

    return run


def documentation() -> str:
    """The link that Airflow's list of providers shows."""
    urls = dict(entry.split(", ", 1) for entry in metadata.metadata("airflow-ft").get_all("Project-URL") or [])
    return urls["Documentation"]


@pytest.mark.sampled(among="slow checks")
def test_links_and_pages_are_found_below_the_base_path(ask: Any) -> None:
    from airflow_ft.plugins import CheckpointsPlugin, api

    apps = CheckpointsPlugin.react_apps
    assert len({app["name"] for app in apps}) == 1 and len({app["url_route"] for app in apps}) == len(apps) == 4
    [bundle] = {str(app["bundle_url"]) for app in apps}
    paths = api.create_app().openapi()["paths"]
    routes = [f"airflow-ft{re.sub('{[^}]*}', '1', path)}" for path, methods in paths.items() if "get" in methods]
    assert len(routes) > 10
    scripts = [f"airflow-ft/{path.name}" for path in (ROOT / "plugins").glob("*.js")]
    there = (bundle, documentation(), *routes, *scripts)
    found = ask("/shop/", "/shop/airflow-ft/nothing", *(f"/shop/{path}" for path in there))
    match = re.search(r'<base href="([^"]*)"', found["/shop/"][1])
    assert match is not None
    operator: Any = SimpleNamespace(pipeline="orders & co")
    key: Any = None
    link = PipelineLink().get_link(operator, ti_key=key)
    assert urljoin(f"http://airflow.example{match[1]}", link) == (
        "http://airflow.example/shop/plugin/airflow-ft?pipeline=orders%20%26%20co"
    )
    assert PipelineLink().get_link(SimpleNamespace(), ti_key=key) == ""  # type: ignore[arg-type]
    for path in there:  # they exist, for those who may see them
        assert found[f"/shop/{urljoin(match[1], path).removeprefix('/shop/')}"][0] == 401, path
    assert found["/shop/airflow-ft/nothing"][0] == 404


@pytest.mark.parametrize(
    ("task", "query"),
    [
        ({"pipeline": "orders", "suffix": None}, "?pipeline=orders"),
        ({"pipeline": "orders", "suffix": "eu"}, "?pipeline=orders-eu"),
        ({"pipelines": ["orders", "payments"]}, ""),
    ],
)
def test_a_link_names_the_whole_pipeline(task: dict[str, Any], query: str) -> None:
    operator: Any = SimpleNamespace(**task)
    assert PipelineLink().get_link(operator, ti_key=None) == f"plugin/airflow-ft{query}"  # type: ignore[arg-type]


@pytest.mark.parametrize("task", [{"pipeline": "{{ x }}"}, {"pipeline": "a", "suffix": "{{ x }}"}, {"pipeline": None}])
def test_an_unrendered_pipeline_has_no_link(task: dict[str, Any]) -> None:
    operator: Any = SimpleNamespace(**task)
    assert PipelineLink().get_link(operator, ti_key=None) == ""  # type: ignore[arg-type]


def test_every_page_of_the_documentation_is_served() -> None:
    from airflow_ft.plugins import api
    from fastapi.testclient import TestClient

    app = api.create_app()
    for dependency in app.router.dependencies:
        app.dependency_overrides[dependency.dependency] = lambda: None
    get = cache(TestClient(app).get)  # many pages link to one
    for page in sorted((ROOT / "docs").glob("*.md")):
        answer = get(f"/docs/{page.name}")
        assert answer.status_code == 200 and "<h1 id=" in answer.text, page.name
        [style] = re.findall("<style>(.*?)</style>", answer.text)
        digest = b64encode(sha256(style.encode()).digest()).decode()
        policy = answer.headers["Content-Security-Policy"]
        assert f"'sha256-{digest}'" in policy and "default-src 'none'" in policy
        assert not re.search(r"<script|<[^>]* (style|on\w+)=|javascript:", answer.text), page.name
        for link, heading in re.findall(r'(?:href|src)="([^":#]*)(?:#([^"]*))?"', answer.text):
            there = get(f"/docs/{link}") if link else answer
            assert there.status_code == 200, (page.name, link)
            assert not heading or f' id="{heading}"' in there.text, (page.name, link, heading)
    assert get("/docs/images/pipelines.png").headers["Content-Type"] == "image/png"
    for page in sorted((ROOT / "docs/images").glob("*.svg")):
        assert get(f"/docs/images/{page.name}").headers["Content-Type"] == "image/svg+xml"
        assert "style" not in page.read_text(), "the policy of this page would keep it out"
    for outside in ("nothing.md", "images/nothing.png", "images/..%2Findex.md", "..%2Fsetup.cfg", "%2e%2e/setup.cfg"):
        assert get(f"/docs/{outside}").status_code == 404


def test_each_module_of_the_page_finds_what_it_imports() -> None:
    from airflow_ft.plugins import api
    from fastapi.testclient import TestClient

    app = api.create_app()
    for dependency in app.router.dependencies:
        app.dependency_overrides[dependency.dependency] = lambda: None
    client = TestClient(app)
    for script in (ROOT / "plugins").glob("*.js"):
        text = client.get(f"/{script.name}").text
        assert text == script.read_text()
        for names, module in re.findall(r"import \{([^}]*)\} from \"\./([^\"]+)\"", text):
            exported = set(
                re.findall(r"^export (?:async )?(?:const|function) (\w+)", client.get(f"/{module}").text, re.M)
            )
            wanted = {name.partition(" as ")[0].strip() for name in names.split(",")} - {""}
            assert wanted <= exported, (script.name, module)
    for outside in ("api.py", "nothing.js", "..%2Fpage.js"):
        assert client.get(f"/{outside}").status_code == 404
