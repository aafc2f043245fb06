"""What sentences of the pages name exists: tests and files, errors, arguments, metrics, addresses, lines of logs."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG

import airflow_ft
from airflow_ft import notifications, operators, sensors, triggers
from airflow_ft.operators.base import A_TEST
from airflow_ft.pipeline.metrics import METRICS, PREFIX
from airflow_ft.pipeline.runs import asked_by
from airflow_ft.protocol import errors
from airflow_ft.protocol.delivery_progress import Taken
from airflow_ft.protocol.lag import Lag, Unit
from airflow_ft.protocol.model import StateSizes
from airflow_ft.protocol.reasons import AbortReason, failure_text
from tests.test_docs import PROJECT, TEXT
from tests.test_docs_tables import table

pytestmark = pytest.mark.airflow

PAGES = {page: text for page, text in TEXT.items() if page != "CHANGELOG.md"}
"""Without the changelog, which uses the names of earlier times."""
SHELF = "docs/writing-a-sink.md"
"""The page of another distribution, with tests and errors of its own."""
THEIRS = {"dags/orders.py", "dags/maintenance.py"}
"""Files of a reader."""


def prose(page: str) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", TEXT[page], flags=re.MULTILINE | re.DOTALL)


def quoted(page: str) -> Iterator[str]:
    """What stands in backticks in its sentences and tables, each on one line."""
    for text in re.findall(r"`([^`]+)`", prose(page)):
        yield text.replace("\n", " ")


@cache
def functions() -> frozenset[str]:
    """The names of all tests and their helpers, with those of the conformance kit; and of their modules."""
    files = [file for folder in ("tests", "airflow_ft/testing") for file in (PROJECT / folder).rglob("*.py")]
    code = "\n".join(file.read_text() for file in files)
    return frozenset(re.findall(r"def (\w+)\(", code)) | {file.stem for file in files}


@pytest.mark.parametrize("page", sorted(set(TEXT) - {"CHANGELOG.md", SHELF}))
def test_tests_and_files_that_a_page_names_are_there(page: str) -> None:
    text = prose(page)
    assert set(re.findall(r"\btest_\w+", text)) <= functions() | {"test_connection"}  # a setting of Airflow
    folders = "airflow_ft|benchmarks|dags|docker|plugins|tests|tools"
    for path in re.findall(rf"(?<![\w/])(?:\.\./)?((?:{folders})/[\w/.*-]*\.(?:py|md|yml|json|sh|js))\b", text):
        assert path in THEIRS or list(PROJECT.glob(path)), path
    for path, name in re.findall(r"(tests/\S+?\.py)::(\w+)", text):
        assert f"def {name}(" in (PROJECT / path).read_text(), (path, name)


@pytest.mark.parametrize("page", sorted(set(PAGES) - {SHELF}))
def test_an_error_that_a_page_names_is_one(page: str) -> None:
    assert set(re.findall(r"\b[A-Z]\w+Error\b", PAGES[page])) <= {*vars(errors), *vars(builtins)}


@cache
def public() -> MappingProxyType[str, Any]:
    """What a page may call without naming its module."""
    found = {name: getattr(airflow_ft, name) for name in airflow_ft.__all__}
    for package in (operators, sensors, triggers, notifications):
        for module in iter_modules(package.__path__, f"{package.__name__}."):
            for name, each in vars(import_module(module.name)).items():
                if inspect.isclass(each) and each.__module__.startswith(package.__name__):
                    found[name] = each
    return MappingProxyType(found)


HANDS_TO = {"CheckpointedPipeline": airflow_ft.PipelineSpec, "maintenance_dag": DAG}
"""What takes the other arguments of these."""


def takes(name: str, argument: str) -> bool:
    """Whether a class or function has this argument, itself or, where it hands arguments on, one that it hands to."""
    found = public()[name]
    signatures = [inspect.signature(found)]
    if inspect.isclass(found):
        signatures += [inspect.signature(vars(each)["__init__"]) for each in found.__mro__ if "__init__" in vars(each)]
    if name in HANDS_TO:
        signatures.append(inspect.signature(HANDS_TO[name]))
    return any(argument in each.parameters for each in signatures)


def test_every_argument_that_a_sentence_gives_exists() -> None:
    seen = 0
    for page in PAGES:
        for text in quoted(page):
            try:
                tree = ast.parse(re.sub(r"(?<!=)\.\.\.(?=\))", "**_", text))
            except SyntaxError:  # no call
                continue
            for call in ast.walk(tree):
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in public():
                    for argument in (each.arg for each in call.keywords if each.arg):
                        assert takes(call.func.id, argument), (page, text)
                        seen += 1
    assert seen > 30


def test_every_metric_that_a_sentence_names_has_the_stated_tags() -> None:
    """`airflow_ft.failed.<pipeline>.<reason>`: pipeline and tags, in their order. What is no metric is a module."""
    others = {file.stem for file in (PROJECT / "airflow_ft").iterdir()} | {"example_dags", "plugins", "tokens"}
    seen = 0
    for page in PAGES:
        for text in quoted(page):
            match = re.fullmatch(rf"{PREFIX}\.([a-z]\w*)((?:\.<\w+>)*)", text)
            if match and match[1] in METRICS:
                labels = re.findall(r"<(\w+)>", match[2])
                assert labels in ([], ["pipeline", *METRICS[match[1]].tags]), (page, text)
                seen += 1
            elif match:
                assert match[1] in others.union(airflow_ft.__all__), (page, text)
    assert seen > 25


def test_flinks_metrics_are_the_same_ones_on_both_pages() -> None:
    ours = {
        name: set(re.findall(r"`(\w+)`", row[-1]))
        for row in table("docs/observability.md", "| metric | type |")
        for name in re.findall(r"`([\w.]+)`", row[0])
    }
    looking = TEXT["docs/from-flink.md"].partition("\n## Monitoring\n")[2]
    rows = re.findall(rf"^\| (`[a-z].*?) \| (.*`{PREFIX}\..*) \|$", looking, re.MULTILINE)
    assert len(rows) == 3
    for flink, here in rows:
        for name in re.findall(rf"`({PREFIX}\.\w+)", here):
            assert ours[name] & set(re.findall(r"`(\w+)`", flink)), (flink, name)


ACTION = {
    "dag_id": "airflow_ft_maintenance",
    "run_id": "manual__2026-01-02T10:00:00",
    "task_id": "action",
    "map_index": -1,
}
BY_ADA: Any = {"dag_run": SimpleNamespace(triggering_user_name="ada"), "ti": SimpleNamespace(**ACTION)}
SHOWN = {
    A_TEST.partition(". ")[0] % "airflow dags test" + ".": "backfill",
    f"state     {StateSizes(51200, 8388608, 42)}": "checkpoints",
    failure_text("flights", 7, AbortReason.EXPIRED, "not staged within 600 s")[:102]: "failures",
    str(Taken("orders", 7, "shop", "orders", 3_400_000, 10_000_000, 60_000.0)): "ui",
    str(Lag("orders", Unit.RECORDS, 8_000_000, 100_000.0, 2_000_000, 10_000_000)): "ui",
    f"by {asked_by(BY_ADA)}: the token is back": "ui",
}
"""What a log or a command says, made by the code, and the page that shows it."""
IN_PARTS = {
    ("sources", "source refunds is new"): ("spark/state/source_changes", "source %s is new"),
    ("sources", "no longer reads source refunds"): ("spark/state/source_changes", "no longer reads source %s"),
    ("sources", "is used again"): ("spark/state/source_changes", "source %s is used again"),
    ("checkpoints", "no checkpoint is triggered"): ("spark/driver/capacity", "no checkpoint is triggered for"),
    ("errors", "the sinks are ready"): ("sinks/ready", "the sinks are ready: "),
}
"""A page with words of a line that it quotes; the module that says it, and in which words."""


@pytest.mark.parametrize("line", SHOWN)
def test_a_line_that_a_page_shows_is_what_the_code_says(line: str) -> None:
    assert line in TEXT[f"docs/{SHOWN[line]}.md"]


@pytest.mark.parametrize(("page", "words"), IN_PARTS)
def test_words_that_a_page_quotes_of_a_line_are_in_the_code(page: str, words: str) -> None:
    module, said = IN_PARTS[page, words]
    assert words in TEXT[f"docs/{page}.md"]
    assert said in (PROJECT / f"airflow_ft/{module}.py").read_text()


def test_an_address_of_the_api_that_a_page_names_is_answered() -> None:
    from airflow_ft.plugins.api import create_app

    known = create_app().openapi()["paths"].keys() | {"/v1/openapi.json", "/v1/..."}
    named = [path for text in PAGES.values() for path in re.findall(r"`/airflow-ft(/v\d[^`?]*)`", text)]
    assert len(named) > 2 and set(named) <= known


def test_every_column_that_a_page_names_is_in_the_pipeline_list() -> None:
    from airflow_ft.admin.commands import looking

    sentences = " ".join("\n".join(PAGES.values()).split())
    named = re.findall(r"`airflow ft pipelines` (?:\(|shows nothing under )`(\w+)`", sentences)
    named += re.findall(r"in `airflow ft pipelines`, `(\w+)`", sentences)
    assert len(named) > 3
    assert all(f'"{name}":' in inspect.getsource(looking.pipelines) for name in named), named
