"""README and docs: examples run, links lead somewhere, and what they name exists."""

import ast
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol import errors
from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.model import CheckpointState
from airflow_ft.protocol.pipelines import HaltReason
from airflow_ft.provider_info import get_provider_info
from tests.model.check import rules_of_the_models

PROJECT = Path(__file__).resolve().parents[1]
RECORDS = sorted((PROJECT / "docs/adr").glob("*.md"))
PAGES = [PROJECT / "README.md", PROJECT / "CHANGELOG.md", *sorted((PROJECT / "docs").glob("*.md")), *RECORDS]
TEXT = {page.relative_to(PROJECT).as_posix(): page.read_text() for page in PAGES}
EXAMPLES = [
    pytest.param(code, id=f"{name}-{position}")
    for name, text in TEXT.items()
    for position, code in enumerate(re.findall(r"```python\n(.*?)```", text, re.DOTALL), 1)
    if not re.match(r"# \S+\.py\n", code)  # a part of an example, which a test of its own installs (`example_sinks`)
]


@pytest.mark.parametrize("page", sorted(TEXT))
def test_no_merge_is_half_done(page: str) -> None:
    assert not re.search(r"^(<{7} |={7}$|>{7} )", TEXT[page], re.MULTILINE)


@pytest.mark.parametrize("code", EXAMPLES)
def test_an_example_runs(code: str, tmp_path: Path) -> None:
    file = tmp_path / "example.py"  # the source of a job is taken out of its file
    names: dict[str, Any] = {"__name__": "example", "__file__": str(file)}
    file.write_text(code)
    exec(compile(ast.parse(code), str(file), "exec"), names)


@pytest.mark.parametrize("code", [each for each in EXAMPLES if "DAG(" in f"{each.values[0]}"])
def test_airflow_takes_the_dags_of_an_example(code: str, tmp_path: Path) -> None:
    from airflow.dag_processing.dagbag import DagBag

    file = tmp_path / "example.py"
    file.write_text(code)
    bag: Any = DagBag(dag_folder=str(file), safe_mode=False)
    assert bag.import_errors == {}
    assert bag.dags


def test_the_readme_example_builds_the_tasks_that_it_names() -> None:
    names: dict[str, Any] = {"__name__": "example"}
    code = next(p.values[0] for p in EXAMPLES if "with DAG" in f"{p.values[0]}")
    exec(compile(ast.parse(str(code)), "example", "exec"), names)
    assert set(names["orders"].dag.task_ids) == {
        "orders.recover",
        "orders.stage",
        "orders.prepare.mysql_default",
        "orders.prepare.kafka_default",
        "orders.commit.mysql_default",
        "orders.commit.kafka_default",
        "orders.confirmed",
        "report",
    }


@pytest.mark.parametrize("name", TEXT)
def test_links_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", TEXT[name]):
        if not target.startswith("http"):
            path, _, anchor = target.partition("#")
            page = (PROJECT / name).parent / path if path else PROJECT / name
            assert page.exists(), target
            if anchor:
                titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
                assert anchor in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}, target


def test_the_first_page_leads_to_every_other() -> None:
    linked = {f"docs/{page}" for page in re.findall(r"\]\(([a-z-]+\.md)\)", TEXT["docs/index.md"])}
    assert linked == {name for name in TEXT if re.fullmatch(r"docs/[a-z-]+\.md", name)} - {"docs/index.md"}
    assert "../docs/adr/index.md" in TEXT["docs/index.md"]


def test_the_list_of_decisions_has_each_record_with_its_title() -> None:
    listed = re.findall(r"^\| (\d+) \| \[(.+)\]\((.+)\) \|$", TEXT["docs/adr/index.md"], re.MULTILINE)
    records = [file for file in RECORDS if file.name != "index.md"]
    assert [name for _, _, name in listed] == [file.name for file in records]
    for position, (number, title, name) in enumerate(listed, 1):
        assert (int(number), int(name[:4])) == (position, position)
        assert TEXT[f"docs/adr/{name}"].startswith(f"# {number}. {title}\n")


def test_every_setting_is_documented_and_no_other() -> None:
    page = TEXT["docs/configuration.md"]
    known = set(get_provider_info()["config"]["airflow_ft"]["options"])
    section = page.partition("## Settings")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)`", section, re.MULTILINE)) == known
    settings = re.findall(r"^\| `(\w+)` \|", TEXT["docs/checkpoints.md"], re.MULTILINE)
    assert settings == [each.name for each in fields(CheckpointConfig) if each.metadata]


def test_a_page_stores_no_bare_id_that_airflow_would_mask() -> None:
    shown = [
        each for text in TEXT.values() for each in re.findall(r"^(?:export .*__STORE|store) ?= ?(.*)$", text, re.M)
    ]
    assert shown and all(re.match(r"conn:|\w+://", each) for each in shown), shown


def test_every_command_that_a_page_shows_exists() -> None:
    from airflow_ft.admin.cli import get_ft_cli_commands

    (group,) = get_ft_cli_commands()
    known = {command.name for command in group.subcommands}  # type: ignore[union-attr]
    shown = {name for text in TEXT.values() for name in re.findall(r"airflow ft ([a-z-]+)", text)}
    assert shown <= known
    assert known == set(re.findall(r"^\|.*\| `airflow ft ([a-z-]+).*` \|$", TEXT["docs/cli.md"], re.MULTILINE))


def test_every_error_is_explained() -> None:
    page = TEXT["docs/errors.md"]
    bases = {errors.AirflowFtError, errors.TransientError, errors.TerminalError, errors.HaltError}
    for name, error in vars(errors).items():
        if isinstance(error, type) and issubclass(error, errors.AirflowFtError) and error not in bases:
            if issubclass(error, errors.HaltError):
                continue  # shown by the reason
            again = "yes" if issubclass(error, errors.TransientError) else "no"
            assert re.search(rf"^\| `\w+` \| {name} \| {again} \|", page, re.MULTILINE), name


@pytest.mark.slow
def test_every_error_that_a_user_can_mend_has_a_remedy() -> None:
    """As docs/errors.md promises."""
    written = {"ConfigurationError", "JobError", "SinkAccessError", "UnfitTargetError", "DeclinedError"}
    without = []
    for file in sorted((PROJECT / "airflow_ft").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in written:
                given = {keyword.arg for keyword in node.keywords}
                if not given & {"remedy", None} and ast.unparse(node) != "JobError(_ENOUGH)":  # nobody reads that one
                    without.append(f"{file.relative_to(PROJECT)}:{node.lineno}")
    assert not without


@pytest.mark.parametrize("value", HaltReason)
def test_every_reason_is_explained(value: str) -> None:
    assert value in TEXT["docs/errors.md"]


@pytest.mark.parametrize("state", CheckpointState)
def test_every_state_is_explained(state: str) -> None:
    assert f"| {state} |" in TEXT["docs/protocol.md"]
    assert f">{state}</text>" in (PROJECT / "docs/images/states.svg").read_text()


def test_every_test_and_defect_that_the_protocol_names_exists() -> None:
    code = "\n".join(path.read_text() for path in (PROJECT / "tests").rglob("*.py"))
    known = set(re.findall(r"def (\w+)\(", code))
    rules = TEXT["docs/protocol.md"].partition("\n## Rules")[2].partition("\n## ")[0]
    numbered, shown = (re.findall(rf"^\| {mark} ", rules, re.MULTILINE) for mark in (r"\*\*R\d+\*\*", r"R\d+"))
    assert len(numbered) == len(shown) > 20
    named = set(re.findall(r"`(test_\w+)`", TEXT["docs/protocol.md"])) | set(re.findall(r"`([a-z]\w+)`", rules))
    assert len(named) > 40 and named <= known
    assert set(re.findall(r"`([A-Z_]{4,})`", rules)) <= set(rules_of_the_models())


@pytest.mark.parametrize("number", range(1, 11))
def test_every_invariant_is_there(number: int) -> None:
    assert f"**I{number} " in TEXT["docs/protocol.md"]
