"""Places that cannot be written are noticed before Spark starts, and by the doctor."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_ft import IcebergSink
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.doctor import Verdict
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.participant import Participant
from airflow_ft.protocol.planning import plan_delivery
from airflow_ft.sinks import doctor, open_participant, ready
from airflow_ft.sinks.base.requirements import lacks
from airflow_ft.sinks.iceberg.requirements import required
from airflow_ft.testing.world import OURS, World
from airflow_ft.wal import open_wal
from tests.disks import obeying
from tests.sinks.iceberg.world import Table, in_file

NEW, THERE = "lake.shop.new", "lake.shop.orders"


def problems(connection: ConnectionInfo, table: str) -> list[tuple[str, str]]:
    """Return code and path of each problem found before Spark starts; the doctor must find the same."""
    plan = plan_delivery({"rows": IcebergSink(table=table)}).participants[0]
    found = lacks(required("p", plan, connection))
    examined = doctor.examine("p", plan, connection, [])
    assert [each.code for each in examined if each.verdict is Verdict.PROBLEM] == [each.code for each in found]
    return [(each.code, str(each.fields.get("path", ""))) for each in found]


def ask() -> None:
    """Print the problems of each table, in a process that obeys file modes, as root would not."""
    for extra, table in json.load(sys.stdin):
        print(json.dumps(problems(ConnectionInfo("lake", "iceberg", extra=extra), table)))


def asked(*tables: tuple[ConnectionInfo, str]) -> list[list[list[str]]]:
    program = "from tests.sinks.iceberg.test_places import ask; ask()"
    given = json.dumps([(connection.extra, table) for connection, table in tables])
    command = [*obeying(), sys.executable, "-c", program]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@contextmanager
def unwritable(*places: Path) -> Iterator[None]:
    modes = {place: place.stat().st_mode for place in places}
    try:
        for place, mode in modes.items():
            place.chmod(mode & ~0o222)
        yield
    finally:
        for place, mode in modes.items():
            place.chmod(mode)


def with_table(folder: Path) -> ConnectionInfo:
    """Return a catalog with the table THERE, to which rows were delivered."""
    folder.mkdir()
    target = Table(in_file(folder))
    target.sink = IcebergSink(table=THERE, name="orders")
    with closing(World(target, folder)) as world:
        world.deliver(world.plan())
    return target.connection


def test_a_place_that_cannot_be_written_is_noticed(tmp_path: Path) -> None:
    cases = [
        ("lake", NEW, "lake", "folder_unusable"),
        ("lake/shop", NEW, "lake/shop", "folder_unusable"),
        ("lake/shop/orders/data", THERE, "lake/shop/orders/data", "folder_unusable"),
        ("lake/shop/orders/metadata", THERE, "lake/shop/orders/metadata", "folder_unusable"),
        ("catalog.db", THERE, "catalog.db", "file_unusable"),
        (".", THERE, ".", "folder_unusable"),
        ("empty", NEW, "empty", "folder_unusable"),
    ]
    there = [with_table(tmp_path / str(number)) for number in range(len(cases))]
    roots = [tmp_path / str(number) for number in range(len(cases))]
    (roots[0] / "lake" / "shop").rename(roots[0] / "shop")
    (roots[-1] / "empty").mkdir()
    there[-1] = replace(there[-1], extra={**there[-1].extra, "uri": f"sqlite:///{roots[-1]}/empty/catalog.db"})
    assert asked(*zip(there, [NEW] * len(cases), strict=True)) == [[]] * len(cases)
    with unwritable(*(root / case[0] for root, case in zip(roots, cases, strict=True))):
        found = asked(*((connection, case[1]) for connection, case in zip(there, cases, strict=True)))
    expected = [[[code, str(root / path)]] for root, (_, _, path, code) in zip(roots, cases, strict=True)]
    assert found == expected


@pytest.mark.parametrize(
    ("extra", "code"),
    [
        ({"warehouse": None}, "connection_invalid"),
        ({"warehouse": "nothing://bucket/lake"}, "connection_invalid"),
        ({"warehouse": "file:///proc/x/lake"}, "folder_unusable"),
        ({"uri": "sqlite:////no/such/folder/catalog.db"}, "folder_unusable"),
    ],
    ids=str,
)
@pytest.mark.parametrize("exists", [False, True])
def test_a_catalog_without_a_place_for_tables_is_noticed(
    tmp_path: Path, extra: dict[str, Any], code: str, exists: bool
) -> None:
    connection = with_table(tmp_path / "there") if exists else in_file(tmp_path)
    given = replace(connection, extra={**connection.extra, **extra})
    [(found, _)] = problems(given, NEW)
    assert found == code
    if code == "connection_invalid":
        [error] = lacks(required("p", plan_delivery({"rows": IcebergSink(table=NEW)}).participants[0], given))
        assert error.remedy.startswith("Correct warehouse" if extra["warehouse"] else "Set warehouse")


@pytest.mark.parametrize(
    ("warehouse", "codes"),
    [
        ("gcs://bucket/lake", []),
        ("abfss://lake@account.dfs.core.windows.net/lake", ["package_missing"]),
        ("wasb://lake@account.blob.core.windows.net/lake", ["connection_invalid"]),
    ],
)
def test_pyiceberg_says_which_places_it_reaches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warehouse: str, codes: list[str]
) -> None:
    monkeypatch.setitem(sys.modules, "adlfs", None)
    connection = in_file(tmp_path)
    given = replace(connection, extra={**connection.extra, "warehouse": warehouse})
    assert [code for code, _ in problems(given, NEW)] == codes


@pytest.mark.release  # the client tries for ten seconds
def test_the_doctor_asks_an_object_store(tmp_path: Path) -> None:
    connection = in_file(tmp_path)
    keys = {"s3.access-key-id": "key", "s3.secret-access-key": "0ur-Secret", "s3.region": "us-east-1"}
    store = {"warehouse": "s3://bucket/lake", "s3.endpoint": "http://127.0.0.1:9", **keys}
    given = replace(connection, extra={**connection.extra, **store})
    plan = plan_delivery({"rows": IcebergSink(table=NEW)}).participants[0]
    assert not lacks(required("p", plan, given))  # a task does not wait for it
    [found] = [each for each in doctor.examine("p", plan, given, []) if each.verdict is Verdict.PROBLEM]
    shown = f"{found.to_json()}"
    assert found.code == "sink_unavailable" and "0ur-Secret" not in shown


def test_a_misspelled_table_is_named_before_its_place(tmp_path: Path) -> None:
    connection = with_table(tmp_path / "there")
    for warehouse in (None, "file:///proc/nope/lake"):
        given = replace(connection, extra={**connection.extra, "warehouse": warehouse})
        plan = plan_delivery({"rows": IcebergSink(table="lake.shop.ordrs", create=False)}).participants[0]
        assert [found.code for found in lacks(required("p", plan, given))] == ["table_missing"]


def test_a_missing_type_is_refused_on_a_slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready, "LOOK_SECONDS", 0.0)
    plan = plan_delivery({"rows": IcebergSink(table=NEW)}).participants[0]

    def connections(conn_id: str) -> ConnectionInfo:
        return ConnectionInfo(conn_id, "iceberg", extra={"warehouse": "file:///data/lake"})

    def opener(plan: ParticipantPlan) -> Participant:
        return open_participant(plan, connections, open_wal())

    [found] = ready.lacking("p", [plan], connections, opener, OURS)
    assert found.code == "connection_invalid" and "type" in found.fields["fields"]
    assert found.headline.startswith("connection 'lake': ")


def test_a_namespace_of_the_catalog_has_its_own_place(tmp_path: Path) -> None:
    connection = in_file(tmp_path)
    connection = replace(connection, extra={**connection.extra, "warehouse": None})
    with closing(Table(connection).catalog()) as catalog:
        catalog.create_namespace("shop", {"location": f"file://{tmp_path}/own"})
        catalog.create_namespace("far", {"location": "s3://bucket/far"})
    assert problems(connection, NEW) == []
    far = plan_delivery({"rows": IcebergSink(table="lake.far.new")}).participants[0]
    assert not lacks(required("p", far, connection))
    assert [code for code, _ in problems(connection, "lake.other.new")] == ["connection_invalid"]
