"""Systems are found by entry points: ours, and those of a distribution that this one does not know."""

from __future__ import annotations

import re
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from airflow_ft import DeltaSink, FilesSink, IcebergSink, KafkaSink, RedisSink
from airflow_ft.admin.commands import setup
from airflow_ft.pipeline import sink_doctor
from airflow_ft.pipeline.actions import verifying
from airflow_ft.pipeline.spec import PipelineSpec
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.model import ParticipantPlan, Promise
from airflow_ft.sinks import fitting, open_participant, registry
from airflow_ft.sinks.base.settings import refuse_jinja
from airflow_ft.sources import FileSource
from tests.raising import raises

PACKAGE = Path(registry.__file__).parents[1]
PARTS = ("participant", "requirements", "verify")
LOGS = {"sqlite", "postgres"}  # the decision log may lie there, too
SYSTEM = """
from airflow_ft.sinks.registry import System
from tests.raising import raises

SYSTEM = System(kind="shelf", title="Shelves", package="shelf", clients={clients!r}, extra={extra!r})
"""
PARTICIPANT = """
def open_participant(plan, connection, wal):
    return "the participant", plan.name, connection.conn_id, wal
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path, for distributions."""
    monkeypatch.syspath_prepend(str(tmp_path))
    forget()
    yield tmp_path
    forget()


def forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "shelf"]:
        del sys.modules[name]
    for found in (registry._ours, registry._all, registry._load):
        found.cache_clear()


def install(
    site: Path, name: str = "shelf", value: str = "shelf.system:SYSTEM", kind: str = "shelf", **more: Any
) -> None:
    """A distribution that names a system."""
    folder = site / f"{name.replace('-', '_')}-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (folder / "entry_points.txt").write_text(f"[airflow_ft.sinks]\n{kind} = {value}\n")
    package = site / "shelf"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").touch()
    (package / "system.py").write_text(SYSTEM.format(**{"clients": (), "extra": ""} | more))
    (package / "participant.py").write_text(PARTICIPANT)


@dataclass(frozen=True)
class Shelf:
    """What a DAG author writes for it."""

    conn_id: str = "a_shelf"
    kind: str = "shelf"
    strategy: str = "local"
    promise: Promise = Promise.ATOMIC

    def at_least_once(self) -> Promise:
        return Promise.AT_LEAST_ONCE

    def settings(self) -> dict[str, Any]:
        return {}


def plan(kind: str = "shelf") -> ParticipantPlan:
    return ParticipantPlan("a_shelf", kind, "local", Promise.ATOMIC, 0, {"rows": {}})


@dataclass(frozen=True)
class Indexed(Shelf):
    """It has a setting that is no attribute."""

    named: str = ""

    def settings(self) -> dict[str, Any]:
        refuse_jinja(self.named)
        return {"index": self.named}


def spec(sinks: Mapping[str, Any] | None = None) -> PipelineSpec:
    return PipelineSpec(
        pipeline="orders",
        job="jobs:Orders",
        sources={"orders": FileSource(path="/orders", schema="id bigint")},
        sinks=sinks or {"rows": Shelf()},
    )


def test_ours_have_every_part() -> None:
    assert {each.kind for each in registry.systems()} >= {each.kind for each in registry.own_systems()}
    assert [(each.kind, each.title) for each in registry.own_systems()] == [
        ("cassandra", "Cassandra"),
        ("delta", "Delta Lake"),
        ("files", "files"),
        ("hbase", "HBase"),
        ("hive", "Hive"),
        ("iceberg", "Iceberg"),
        ("kafka", "Kafka"),
        ("mysql", "MySQL, MariaDB"),
        ("paimon", "Paimon"),
        ("postgres", "PostgreSQL"),
        ("redis", "Redis"),
        ("sqlite", "SQLite"),
    ]
    for each in registry.own_systems():
        each.require_clients()
        assert all(each.part(name) is not None for name in PARTS) and each.part("nothing") is None


def test_a_system_of_another_distribution_is_delivered_into(site: Path) -> None:
    install(site)
    assert spec().sinks["rows"].kind == "shelf"
    opened: Any = open_participant(plan(), lambda name: ConnectionInfo(name, "shelf"), "the log")  # type: ignore[arg-type]
    assert opened == ("the participant", "a_shelf", "a_shelf", "the log")
    assert "shelf" in [each.kind for each in registry.systems()]
    assert "shelf" not in [each.kind for each in registry.own_systems()]


def test_a_system_may_be_one_module_with_all_its_parts(site: Path) -> None:
    install(site)
    system_of = SYSTEM.format(clients=(), extra="").replace('package="shelf"', 'package="shelf.participant"')
    (site / "shelf" / "system.py").write_text(system_of)
    (site / "shelf" / "participant.py").write_text(f"{PARTICIPANT}\ndef verify():\n    return []\n")
    shelf = registry.system("shelf")
    assert shelf.part("participant") is shelf.part("verify") is not None
    assert shelf.part("doctor") is None and shelf.part("lineage") is None


def test_a_system_that_needs_no_connection_is_asked_for_none(site: Path) -> None:
    install(site)
    (site / "shelf" / "system.py").write_text(SYSTEM.format(clients=(), extra="").replace("extra=''", "connects=False"))
    given: list[ConnectionInfo] = []
    for part, name in (("requirements", "schema_problems"), ("doctor", "examine"), ("verify", "verify")):
        (site / "shelf" / f"{part}.py").write_text(
            f"def {name}(*arguments, **_):\n    asked(*arguments)\n    return []\n"
        )
        registry.system("shelf").part(part).asked = lambda *of: given.extend(
            each for each in of if isinstance(each, ConnectionInfo)
        )
    opened: Any = open_participant(plan(), pytest.fail, "the log")  # type: ignore[arg-type]
    assert opened == ("the participant", "a_shelf", "a_shelf", "the log")
    schemas: Any = MappingProxyType({"rows": object()})
    assert fitting.schema_problems([plan()], pytest.fail, schemas) == []
    nothing: Any = lambda _: SimpleNamespace(head=lambda _: None, close=lambda: None)  # noqa: E731
    assert sink_doctor.examine_sink("orders", plan(), pytest.fail, [], nothing, None) == []
    assert verifying.verify_participant([], plan(), connections=pytest.fail) == []
    assert given == [ConnectionInfo("a_shelf", "")] * 3


def test_what_it_does_not_offer_is_said(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(site)
    schemas: Any = MappingProxyType({"rows": object()})
    assert fitting.schema_problems([plan()], pytest.fail, schemas) == []
    [check] = sink_doctor.examine_sink("orders", plan(), pytest.fail, [], pytest.fail, None)
    assert (check.verdict, check.name) == ("warning", "examination") and "'shelf' have none" in check.text
    monkeypatch.setattr(setup, "_declared", lambda _: ({"a_shelf": plan()}, {}))
    for printed, expected in ((False, ""), (True, "-- ")):
        setup.setup(Namespace(pipeline="orders", print=printed, tables=False, output=None))
        assert capsys.readouterr().out.startswith(f"{expected}connection a_shelf: nothing to do")
    (site / "shelf" / "setup.py").write_text("def create(pipeline, plan, connection):\n    return 'a shelf'\n")
    monkeypatch.setattr(setup, "server_connections", lambda name: ConnectionInfo(name, "shelf"))
    for printed, said in ((False, "connection a_shelf: a shelf created"), (True, "-- connection a_shelf: its sink")):
        setup.setup(Namespace(pipeline="orders", print=printed, tables=False, output=None))
        assert capsys.readouterr().out.startswith(said)
    with raises(ConfigurationError, "verify_unsupported", kind="shelf"):
        verifying.verify_participant([], plan(), connections=pytest.fail)


def test_parsing_a_dag_names_a_missing_client_and_its_extra(site: Path) -> None:
    install(site, clients=("json", "no_such_client"), extra="shelf")
    with raises(ConfigurationError, "package_missing", packages=["no_such_client"]) as raised:
        spec()
    assert raised.error and "pip install 'airflow-ft[shelf]'" in raised.error.remedy


def test_parsing_a_dag_names_the_missing_clients_of_all_sinks(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(site, clients=("no-such-client",))
    lacking = ("pyiceberg", "redis", "no-such-client")
    monkeypatch.setattr(registry, "_is_installed", lambda client: client not in lacking)
    sinks = {
        "lake": IcebergSink(table="lake.shop.orders"),
        "cache": RedisSink(conn_id="cache", key="a:{id}"),
        "other": RedisSink(conn_id="cache", key="b:{id}"),
        "rows": Shelf(),
    }
    with raises(ConfigurationError, "package_missing", extras=["iceberg", "redis"]) as raised:
        spec(sinks)
    assert raised.error and raised.error.fields["packages"] == [*lacking]
    assert "`pip install 'airflow-ft[iceberg,redis]' no-such-client`" in raised.error.remedy


def test_one_error_has_the_missing_packages_of_a_pipeline(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(site, clients=("no-such-client",))
    for module in ("kafka.spec", "base.places"):
        monkeypatch.setattr(f"airflow_ft.sinks.{module}.find_spec", lambda name: None)
    monkeypatch.setattr(registry, "_is_installed", lambda client: client not in ("deltalake", "no-such-client"))
    sinks = {
        "rows": Shelf(),
        "alerts": KafkaSink(topic="alerts", strategy="held"),
        "lake": DeltaSink(table="s3://bucket/lake"),
        "files": FilesSink(folder="hdfs://namenode:8020/files"),
    }
    packages = ["no-such-client", "deltalake", "kafka-python", "obstore", "hdfs-native"]
    with raises(ConfigurationError, "package_missing", packages=packages) as raised:
        spec(sinks)
    assert raised.error and raised.error.fields["extras"] == ["delta", "held", "s3", "hdfs"]
    assert "`pip install 'airflow-ft[delta,held,s3,hdfs]' no-such-client`" in raised.error.remedy


def test_a_log_in_a_bucket_needs_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    made = spec({"files": FilesSink(folder="/files")})
    monkeypatch.setattr("airflow_ft.sinks.base.places.find_spec", lambda name: None)
    assert replace(made, wal_root="/wal").wal_root == "/wal"
    with raises(ConfigurationError, "package_missing", packages=["obstore"], extras=["s3"]):
        replace(made, wal_root="s3://keys@bucket/wal")


def test_pip_is_given_each_missing_client_by_itself(site: Path) -> None:
    install(site, clients=("no_such_client", "no-such-driver>=2"))
    missing = ["no_such_client", "no-such-driver>=2"]
    with raises(ConfigurationError, "package_missing", packages=missing, extras=[]) as raised:
        spec()
    assert raised.error and "`pip install no_such_client 'no-such-driver>=2'`" in raised.error.remedy


def test_a_client_may_have_the_name_of_its_distribution(site: Path) -> None:
    install(site, clients=("json", "a-driver", "pyarrow>=1", "apache-airflow-core[async]"))
    assert registry.system("shelf").missing_clients() == ["a-driver"]
    (site / "a_driver-2.dist-info").mkdir()
    (site / "a_driver-2.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: a-driver\nVersion: 2\n")
    assert spec().sinks["rows"].kind == "shelf"


def test_by_key_two_sinks_of_one_index_are_refused(site: Path) -> None:
    install(site)
    system_of = SYSTEM.format(clients=(), extra="").replace("extra=''", "place='index', by_key=True")
    (site / "shelf" / "system.py").write_text(system_of)
    with raises(ConfigurationError, "target_duplicated", sinks=["a", "b"], target="books"):
        spec({"a": Indexed(named="books"), "b": Indexed(named="books")})
    assert spec({"a": Indexed(named="books"), "b": Indexed(named="maps")})
    assert spec({"a": Indexed(named="{{ ds }}"), "b": Indexed(named="{{ ds }}")}), "they are known only in a run"


def test_an_unknown_system_is_named_when_the_dag_is_parsed() -> None:
    kinds = sorted(each.kind for each in registry.own_systems())
    with raises(ConfigurationError, "sink_kind_unknown", kind="shelf", kinds=kinds):
        spec()
    with raises(ConfigurationError, "sink_kind_unknown", kind="shelf"):
        open_participant(plan(), pytest.fail, pytest.fail)


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        ("shelf.nothing:SYSTEM", ModuleNotFoundError),
        ("shelf.system:NOTHING", AttributeError),
        ("shelf.participant:open_participant", None),
    ],
)
def test_a_broken_entry_point_is_told_with_its_distribution(
    site: Path, value: str, cause: type[BaseException] | None
) -> None:
    install(site, value=value)
    with raises(ConfigurationError, "sink_kind_broken", kind="shelf", offer=f"{value} of shelf") as raised:
        registry.system("shelf")
    assert raised.value and type(raised.value.__cause__) is (cause or type(None))


def test_two_distributions_with_one_kind_are_told(site: Path) -> None:
    install(site)
    install(site, "shelf-two", "shelf.other:SYSTEM")
    with raises(ConfigurationError, "sink_kind_conflict", kind="shelf") as raised:
        registry.system("shelf")
    assert raised.error and "shelf.other:SYSTEM of shelf-two" in raised.error.fields["offers"]
    assert registry.system("mysql").kind == "mysql", "ours are found without a look at the others"


def test_a_part_that_fails_to_import_is_not_taken_for_missing(site: Path) -> None:
    install(site)
    (site / "shelf" / "setup.py").write_text("import no_such_client\n")
    with pytest.raises(ModuleNotFoundError) as raised:
        registry.system("shelf").part("setup")
    assert raised.value.name == "no_such_client"


@pytest.mark.parametrize(
    "room",
    [
        "protocol",
        "admin/commands",
        "pipeline/doctor.py",
        "pipeline/sink_doctor.py",
        "operators/preload.py",
        "provider_info.py",
    ],
)
def test_no_system_is_named_where_all_are_served(room: str) -> None:
    files = sorted((PACKAGE / room).rglob("*.py")) if (PACKAGE / room).is_dir() else [PACKAGE / room]
    served = {*LOGS, "delta", "files"}  # these words stand there for other things
    kinds = {each.kind for each in registry.own_systems()} - served
    named = re.compile(
        "|".join(
            [
                *(rf"(?<![a-z]){kind}" for kind in kinds),
                "mariadb",
                "DeltaSink",
                "FilesSink",
                *(f"sinks.{kind}" for kind in served),
            ]
        ),
        re.IGNORECASE,
    )
    assert files and not [file.name for file in files if named.search(file.read_text())]
