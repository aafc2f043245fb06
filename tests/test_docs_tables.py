"""Tables of the pages say what the code says: each setting, field, act, choice and state, with its default."""

from __future__ import annotations

import configparser
import re
from argparse import ArgumentParser, _SubParsersAction
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields
from datetime import timedelta
from enum import Enum
from typing import Any

import pytest

from airflow_ft import (
    CheckpointConfig,
    DeltaSink,
    ExponentialDelay,
    FailureRate,
    FileSource,
    FilesSink,
    FixedDelay,
    KafkaSink,
    KafkaSource,
    MySqlSink,
    NoRestart,
    PipelineSpec,
    PostgresSink,
    SqliteSink,
    pipeline_params,
)
from airflow_ft.clients.connection_types import CONNECTION_TYPES
from airflow_ft.clients.postgres import LIBPQ
from airflow_ft.clients.s3 import KEYS as _KEYS
from airflow_ft.operators.external import ExternalStageOperator
from airflow_ft.operators.maintenance import maintenance_dag
from airflow_ft.operators.recover import RecoverOperator
from airflow_ft.operators.savepoint import savepoint_params
from airflow_ft.operators.stage import StageOperator
from airflow_ft.pipeline.actions.names import ACTIONS
from airflow_ft.protocol.confirmed import Confirmed
from airflow_ft.protocol.flink import KEYS
from airflow_ft.protocol.overview import Condition
from airflow_ft.protocol.problems import Problem
from airflow_ft.protocol.restart import RestartStrategy
from airflow_ft.protocol.secrets import SECRET
from airflow_ft.provider_info import get_provider_info
from airflow_ft.spark.request import DEFAULT_CONF
from airflow_ft.spark.task.doctor import MINIMUM_JAVA
from tests.protocol.test_flink import shown_keys
from tests.test_docs import PROJECT, TEXT

OPTIONS: dict[type, str] = {
    MySqlSink: "mysql",
    PostgresSink: "postgres",
    SqliteSink: "sqlite",
    KafkaSink: "kafka",
    FilesSink: "files",
    DeltaSink: "delta",
    KafkaSource: "sources",
    FileSource: "sources",
}
RESTARTS = (NoRestart, FixedDelay, FailureRate, ExponentialDelay)
UNITS = {timedelta(days=1): "day", timedelta(hours=1): "h", timedelta(minutes=1): "min", timedelta(seconds=1): "s"}


def tables(page: str) -> Iterator[tuple[str, list[list[str]]]]:
    """The head of each table of a page, and the cells of its rows."""
    for block in re.findall(r"(?:^\|.*\n)+", TEXT[page], re.MULTILINE):
        head, _, *rows = block.splitlines()
        yield head, [[cell.strip() for cell in row.strip()[1:-1].split("|")] for row in rows]


def table(page: str, head: str) -> list[list[str]]:
    """The rows of the only table of a page whose head begins so."""
    [rows] = [rows for found, rows in tables(page) if found.startswith(head)]
    return rows


def named(cell: str) -> list[str]:
    """What stands in backticks."""
    return re.findall(r"`([^`]+)`", cell)


def default_text(value: Any) -> str:
    """A value as the pages say it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, timedelta):
        unit = next((each for each in UNITS if not value % each), timedelta(seconds=1))
        return f"{value // unit} {UNITS[unit]}" if value else "0"
    if isinstance(value, Enum):
        return str(value.value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def test_the_table_of_checkpoint_settings_states_their_defaults() -> None:
    """It also says for which pipelines each setting holds."""
    config = CheckpointConfig()
    scheduled, streams = (config.effective(streaming=each) for each in (False, True))
    rows = {named(row[0])[0]: row[1:3] for row in table("docs/checkpoints.md", "| setting | default |")}
    for name, (default, whose) in rows.items():
        assert default == default_text(getattr(config, name)), name
        of = {(True, True): "all", (True, False): "scheduled", (False, True): "streams"}
        assert whose == of[name in scheduled, name in streams], name
    assert rows.keys() == scheduled.keys() | streams.keys()


def test_what_is_said_of_sparks_state_is_what_a_driver_is_given() -> None:
    rows = {named(row[0])[0]: row[1] for row in table("docs/checkpoints.md", "| in `spark_conf` |")}
    given = {name: DEFAULT_CONF.get(name, "") for name in rows}
    assert given.pop("spark.sql.streaming.stateStore.encodingFormat") == "", "Spark's own"
    for name, value in given.items():
        assert value in (rows[name], f"org.apache.spark.sql.execution.streaming.state.{rows[name]}StateStoreProvider")


@pytest.mark.parametrize("strategy", RESTARTS)
def test_a_restart_strategy_has_these_settings_and_defaults(strategy: type[RestartStrategy]) -> None:
    rows = {
        row[0].strip("`").partition("(")[0]: row for row in table("docs/restarts.md", "| strategy | `type` | tries")
    }
    assert rows.keys() == {each.__name__ for each in RESTARTS}
    call, kind, what = rows[strategy.__name__]
    known = {each.name: each.default for each in fields(strategy)}  # type: ignore[arg-type]
    assert call == f"`{strategy.__name__}({', '.join(f'{name}=' for name in known)})`"
    assert kind == f"`{strategy.kind}`"
    words = [
        r"(?:once|1)" if each == 1 else re.escape("without end" if each is None else default_text(each))
        for each in known.values()
    ]
    bracket = re.search(r"\[(.*)\]$", what)
    assert bool(bracket) is bool(words)
    assert not bracket or re.search(r".*".join(rf"(?<![\d.]){each}(?![\d.])" for each in words), bracket[1]), bracket[1]


@pytest.mark.parametrize("key", [key for key, meaning in KEYS.items() if type(meaning).__name__ != "_Idle"])
def test_what_holds_without_a_key_of_flink_is_as_the_page_says(key: str) -> None:
    """In brackets: our default where it is another one, or the only value that is not refused."""
    meaning: Any = KEYS[key]
    bracket = re.search(r"(?:`CheckpointConfig\.\w+`|^refused) \[([^],]+)", shown_keys(1)[key])
    if hasattr(meaning, "same"):
        assert (bracket[1] if bracket else None) == (meaning.same[0] if meaning.same else None)
    elif bracket:
        assert bracket[1] == default_text(getattr(CheckpointConfig(), meaning.name))


def as_documented(field: Field[Any], kind: type) -> set[str]:
    """How a page may say the default of a field; empty: in words."""
    value = field.default if field.default_factory is MISSING else field.default_factory()
    if field.name == "branches":
        value = kind.default_branches  # type: ignore[attr-defined]
    if value is MISSING or (value is None and field.name == "schema") or field.name in ("topics", "pattern"):
        return {"-"}
    if value in (None, "", (), {}):
        return set()
    return {f"{value >> 20} MB"} if field.name == "file_bytes" else {str(value), f"`{value}`", f'"{value}"'}


@pytest.mark.parametrize("kind", OPTIONS, ids=lambda kind: kind.__name__)
def test_each_table_of_options_lists_all_options_and_defaults(kind: type) -> None:
    known = {each.name: each for each in fields(kind) if each.init}
    found = [rows for head, rows in tables(f"docs/{OPTIONS[kind]}.md") if head == "| option | default | |"]
    [rows] = [each for each in found if named(each[0][0])[0] in {"path" if kind is FileSource else next(iter(known))}]
    shown = [(name, row[1]) for row in rows for name in named(row[0])]
    assert sorted(name for name, _ in shown) == sorted(known)
    for name, default in shown:
        expected = as_documented(known[name], kind)
        assert default in expected or (not expected and not re.fullmatch(r"[`\"]?(True|False|\d+)[`\"]?", default)), (
            name
        )


def test_the_settings_of_the_provider_have_these_defaults() -> None:
    known = get_provider_info()["config"]["airflow_ft"]["options"]
    for name, default in (row[:2] for row in table("docs/configuration.md", "| option | default | meaning |")):
        setting = known[named(name)[0]]
        if setting["default"]:
            assert default.strip("`") == setting["default"], name
        elif path := re.search(r"\$AIRFLOW_HOME/\S+(?<!\.)", setting["description"].partition("Empty: ")[2]):
            assert f"`{path[0]}`" in default, name


def test_the_documented_actions_are_those_that_a_run_accepts() -> None:
    rows = table("docs/ui.md", "| action | needs |")
    assert sorted(name for row in rows for name in named(row[0])) == sorted(ACTIONS)
    form = set(maintenance_dag("form").params)
    needed = {name for row in rows for name in re.findall(r"`(\w+)`", row[1])} - {"pipeline"}
    section = TEXT["docs/ui.md"].partition("\n## Acting\n")[2].partition("\n## ")[0]
    said = set(re.findall(r"`(pipeline|reason|action)`|\"(action)\"", section))
    assert needed | {name for pair in said for name in pair if name} == form


def test_the_fields_of_the_trigger_form_are_those_of_the_page() -> None:
    rows = table("docs/jobs.md", "| field | what it does |")
    assert [name for row in rows for name in named(row[0])] == list(pipeline_params())
    assert set(named(rows[-1][0])) == set(savepoint_params())


def test_the_states_are_documented_in_the_order_of_their_urgency() -> None:
    assert [row[0] for row in table("docs/ui.md", "| state | means |")] == [
        each.replace("_", " ") for each in Condition
    ]


def test_the_tabs_are_those_of_the_page() -> None:
    words = (PROJECT / "plugins/words.js").read_text().partition("export const pipeline =")[2]
    known = re.findall(r'^  (\w+): "(\w+)",$', words.partition("});")[0], re.MULTILINE)
    shown = [name for row in table("docs/ui.md", "| tab | shows |") for name in row[0].split(", ")]
    assert sorted(shown) == sorted(name for _, name in known)


@pytest.fixture(scope="module")
def commands() -> Mapping[str, ArgumentParser]:
    """The parsers of `airflow ft` by command, "savepoint restore" among them."""
    from airflow.cli.cli_parser import get_parser

    def below(parser: ArgumentParser, names: tuple[str, ...]) -> Iterator[tuple[str, ArgumentParser]]:
        yield " ".join(names), parser
        for action in parser._actions:
            if isinstance(action, _SubParsersAction):
                for name, each in action.choices.items():
                    yield from below(each, (*names, name))

    [ft] = [action.choices["ft"] for action in get_parser()._actions if isinstance(action, _SubParsersAction)]
    return dict(below(ft, ()))


@pytest.mark.airflow
def test_the_choices_of_an_option_are_in_the_table_of_choices(commands: Mapping[str, ArgumentParser]) -> None:
    [later] = [each for each in commands["savepoint restore"]._actions if "--later" in each.option_strings]
    rows = table("docs/savepoints.md", "| `--later` | does |")
    assert [named(row[0])[0] for row in rows] == list(later.choices or ())
    assert [named(row[0])[0] for row in rows if "(default)" in row[0]] == [later.default]
    adopt = commands["adopt"]
    shown = {text for row in table("docs/recovery.md", "| found | choose |") for text in named(row[1])}
    [prepared] = [each for each in adopt._actions if "--prepared" in each.option_strings]
    assert shown == {f"--prepared {each}" for each in prepared.choices or ()} | {"--accept-partial"}


@pytest.mark.airflow
def test_every_option_is_on_a_page(commands: Mapping[str, ArgumentParser]) -> None:
    airflows = {"--help", "--output", "--yes"}
    pages = "\n".join(text for page, text in TEXT.items() if page != "CHANGELOG.md")
    for name, parser in commands.items():
        for option in {*parser._option_string_actions} - airflows:
            assert not option.startswith("--") or re.search(rf"(?<![\w-]){option}(?![\w-])", pages), (name, option)


@pytest.mark.airflow
def test_the_actions_of_in_doubt_are_options_of_the_command(commands: Mapping[str, ArgumentParser]) -> None:
    rows = {named(row[0])[0].partition(" ")[0] for row in table("docs/recovery.md", "| action | on | does |")}
    known = {each.option_strings[0] for each in commands["in-doubt"]._actions if each.metavar == "NUMBER"}
    assert rows == known


@pytest.mark.airflow
def test_airflows_settings_have_these_defaults() -> None:
    """Of Airflow as it is installed; `[celery...]` are of a provider that need not be."""
    from airflow.configuration import conf

    for name, default in (row[:2] for row in table("docs/streaming.md", "| setting | default | when the API server")):
        section, option = re.findall(r"\[(\w+)\] (\w+)", name)[0]
        assert float(default.removesuffix(" s")) == float(conf.get_default_value(section, option)), name
    known = conf.configuration_description
    for page, text in TEXT.items():
        for section, option in re.findall(r"`\[(\w+)\] (\w+)", text):
            if not section.startswith("celery"):
                assert option in known.get(section, {"options": ()})["options"], (page, section, option)


def test_every_package_has_its_place_among_the_parts() -> None:
    rows = table("docs/architecture.md", "| package | holds | knows |")
    shown = {name.removeprefix("airflow_ft.").partition(".")[0] for row in rows for name in named(row[0])}
    packages = {folder.parent.name for folder in (PROJECT / "airflow_ft").glob("*/__init__.py")}
    assert packages <= shown <= packages | {file.stem for file in (PROJECT / "airflow_ft").glob("*.py")}


def test_pages_list_exactly_the_connection_extras_that_are_read() -> None:
    code = "\n".join(file.read_text() for file in (PROJECT / "airflow_ft/sinks/mysql").glob("*.py"))
    code = re.sub(r"_OTHERS = \(.*?\)", "", code)
    read = set(re.findall(r'extra(?:\.get\(|\[)"(\w+)"', code)) | set(re.findall(r'"(ssl_\w+)"(?!:)', code))
    section = TEXT["docs/mysql.md"].partition("\n## The connection\n")[2].partition("\n## ")[0]
    assert {name for cell in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE) for name in named(cell)} == read
    [libpq] = [row[2] for row in table("docs/postgres.md", "| option | default |") if row[0] == "`conn_id`"]
    shown = set(named(libpq.partition("libpq gets ")[2])) - {"keepalives..."}
    assert shown == {"ssl...", *(each for each in LIBPQ if not each.startswith("keepalives"))}
    s3 = " ".join(TEXT["docs/files.md"].split()).partition("The extra may have ")[2].partition(". ")[0]
    assert set(named(s3)) == set(_KEYS)


def test_the_page_names_the_connection_types_of_the_package() -> None:
    [found] = re.findall("The connection types (.*?) come", " ".join(TEXT["docs/configuration.md"].split()))
    assert named(found) == [each["connection-type"] for _, each in CONNECTION_TYPES]


def test_what_it_requires_is_what_it_can_be_installed_with() -> None:
    setup = configparser.ConfigParser()
    setup.read(PROJECT / "setup.cfg")
    least, below = re.findall(r"3\.(\d+)", setup["options"]["python_requires"])
    demanded = setup["options"]["install_requires"]
    spark, next_spark = re.findall(r"^pyspark >=(4\.\d+), <4\.(\d+)$", demanded, re.MULTILINE)[0]
    [airflow] = re.findall(r"^apache-airflow >=([\d.]+), ", demanded, re.MULTILINE)
    python = f"Linux, Python 3.{least} to 3.{int(below) - 1}"
    requirements = " ".join(TEXT["README.md"].partition("\n## Requirements\n")[2].partition("\n## ")[0].split())
    text = (
        f"{python}, Apache Airflow {airflow}, Java {MINIMUM_JAVA} or newer, pyspark {spark} to 4.{int(next_spark) - 1}."
    )
    assert requirements.startswith(text)
    assert f"{python}, and Java {MINIMUM_JAVA} or newer" in TEXT["docs/tutorial.md"]


def test_names_that_are_hidden_are_hidden() -> None:
    [said] = re.findall(r"names sound like a secret \((.*?)\)", " ".join(TEXT["docs/security.md"].split()))
    hidden, plain = said.split(", but not ")
    assert all(SECRET.search(name) for name in named(hidden)) and not any(SECRET.search(name) for name in named(plain))


def test_what_is_handed_on_of_a_run_has_these_parts() -> None:
    """Of `confirmed`, in the guide; of `ProblemNotifier`, in the page on metrics."""
    parts = {*Confirmed().to_json(), "latest"}
    sentence = (
        TEXT["docs/operators.md"].partition("`orders.output` is the result of `confirmed`:")[2].partition(". ")[0]
    )
    assert set(named(sentence)) == parts
    templates = TEXT["docs/observability.md"].partition("whose templates know `problem`:")[2].partition(".\n")[0]
    assert {name.removeprefix("problem.") for name in named(templates)} == {
        *(each.name for each in fields(Problem)),
        *(name for name, each in vars(Problem).items() if isinstance(each, property)),
    }


def test_the_arguments_of_a_pipeline() -> None:
    rows = re.findall(
        r"^\| (`[^|]*) \|", TEXT["docs/operators.md"].partition("### Arguments")[2].partition("\n## ")[0], re.M
    )
    listed = {name: star == " *" for row in rows for name, star in re.findall(r"`(\w+)`( \*)?", row)}
    rendered = {
        name for each in (RecoverOperator, StageOperator, ExternalStageOperator) for name in each.template_fields
    }
    of_spec = {field.name for field in fields(PipelineSpec)} - {"configured"}
    of_group = {"delivery", "from_params", "group_id", "default_args"}
    assert listed.keys() == of_spec | of_group | {"retries", "pool"}
    assert {name for name, star in listed.items() if star} == rendered & of_spec
