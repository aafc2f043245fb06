"""Pipelines of scripts: what errors, `airflow ft setup` and `airflow ft doctor` say before the first plan."""

from __future__ import annotations

import json
import sqlite3
from argparse import Namespace
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import airflow_ft
from airflow_ft.admin.commands.looking import show
from airflow_ft.admin.commands.setup import setup
from airflow_ft.clients.kafka.topics import missing_topic
from airflow_ft.pipeline import steps
from airflow_ft.pipeline.actions.examining import configured
from airflow_ft.pipeline.connections import server_connections
from airflow_ft.pipeline.decision_log import participant_factory
from airflow_ft.pipeline.doctor import examine, examine_sinks
from airflow_ft.pipeline.given_rows import GivenRows
from airflow_ft.pipeline.run import PlainRun
from airflow_ft.pipeline.script_errors import for_scripts
from airflow_ft.protocol.adoption import declared_sinks
from airflow_ft.protocol.errors import (
    PROPOSED,
    AirflowFtError,
    ConfigurationError,
    DeclinedError,
    SinkAccessError,
    UnfitTargetError,
    together,
)
from airflow_ft.protocol.planning import plan_delivery
from airflow_ft.sinks.proposals import of_missing
from airflow_ft.store import open_store
from tests.raising import raises

ROWS = pa.table({"id": pa.array([1, 2], pa.int64()), "what": ["a", "b"]})


class Shop:
    """A SQLite file without tables, in which no sink creates any."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder, f"sqlite:///{folder}/ft.db"

    def deliver(self, rows: object, *tables: str, position: int = 1) -> None:
        airflow_ft.deliver(
            rows,
            pipeline="orders",
            position=position,
            sinks={each: airflow_ft.SqliteSink(table=each, conn_id="shop", create=False) for each in tables},
            store=self.store,
            wal_root=str(self.folder / "wal"),
            restart=airflow_ft.NoRestart(),
        )

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.folder / "shop.db", isolation_level=None)) as db:
            return db.execute(statement).fetchall()


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps({"conn_type": "sqlite", "host": str(tmp_path / "shop.db")}))
    return Shop(tmp_path)


def test_rows_of_a_program_have_no_job(shop: Shop) -> None:
    shop.sql("CREATE TABLE orders (id INTEGER) STRICT")
    with raises(UnfitTargetError, "column_missing") as refused:
        shop.deliver(ROWS, "orders")
    assert refused.error is not None and "drop the column in your program." in refused.error.remedy


def test_a_removed_sink_is_declared_or_its_position_given_again(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for table in ("orders", "copies"):
        shop.sql(f"CREATE TABLE {table} (id INTEGER, what TEXT)")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(steps, "prepare", die)
        shop.deliver({"orders": ROWS, "copies": ROWS}, "orders", "copies")
    with raises(ConfigurationError, "sink_undeclared", sink="copies") as refused:
        shop.deliver(ROWS, "orders")
    assert refused.error is not None and "the next run" not in refused.error.remedy


def test_an_error_quotes_paths_as_they_are() -> None:
    path, remedy = "/data/in the job/x.parquet", "Cast it in the job."
    one, other = (DeclinedError(f"file {path} is refused.", remedy=remedy) for _ in range(2))
    topic = SinkAccessError("no column.", remedy="Have the job return one column 'key'.")
    for error in together([one, other]), one, topic:
        for_scripts(error, "orders", gives_rows=True)
        text = str(error)
        assert (error is topic or path in text) and "job" not in text.replace(path, "")


def test_rows_without_columns_get_no_advice_that_needs_a_job(shop: Shop) -> None:
    (shop.folder / "bad.parquet").write_text("no parquet")
    with raises(UnfitTargetError, "table_missing") as refused:
        shop.deliver(shop.folder / "bad.parquet", "orders")
    assert refused.error is not None and refused.error.remedy.startswith("Create the table orders. ")
    assert "dry_run" not in refused.error.remedy
    topic = missing_topic("orders", "broker")
    for_scripts(topic, "orders", gives_rows=True)
    assert "`airflow ft setup orders --print`" in topic.remedy and "dry_run" not in topic.remedy


@pytest.mark.parametrize("in_files", [False, True])
def test_the_error_has_the_statement_for_the_table(shop: Shop, in_files: bool) -> None:
    rows: Any = ROWS
    if in_files:
        import pyarrow.parquet as pq

        pq.write_table(ROWS, shop.folder / "rows.parquet")
        rows = shop.folder / "rows.parquet"
    with raises(UnfitTargetError, "table_missing") as refused:
        shop.deliver(rows, "orders")
    assert refused.error is not None and "--dag" not in refused.error.remedy
    [statement] = [line for line in refused.error.remedy.splitlines() if line.startswith("CREATE")]
    shop.sql(statement)
    shop.deliver(rows, "orders")
    assert shop.sql("SELECT * FROM orders ORDER BY id") == [(1, "a"), (2, "b")]


def test_unreadable_columns_hide_no_error(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise ValueError

    monkeypatch.setattr(GivenRows, "columns", fail)
    with raises(UnfitTargetError, "table_missing"):
        shop.deliver(ROWS, "orders")


def test_several_tables_have_their_statements_in_one_error(shop: Shop) -> None:
    with raises(UnfitTargetError, "table_missing") as refused:
        shop.deliver({"orders": ROWS, "copies": ROWS}, "orders", "copies")
    text = str(refused.error)
    assert text.count("\nCREATE TABLE") == 2 and "--tables" not in text
    lines = text.splitlines()
    for sink in ("orders", "copies"):
        assert f'"{sink}"' in lines[lines.index(f"-- sink {sink}:") + 1]
    assert lines[0].endswith(" [table_missing]") and not any(line.endswith("[table_missing]") for line in lines[-5:])


def test_only_missing_tables_have_statements(shop: Shop) -> None:
    shop.sql("CREATE TABLE there (id INTEGER, what TEXT)")
    names = ["there", "gone", "lost"]
    with raises(UnfitTargetError, "table_missing") as refused:
        shop.deliver(dict.fromkeys(names, ROWS), *names)
    text = str(refused.error)
    statements = [line for line in text.splitlines() if line.startswith("CREATE TABLE IF NOT EXISTS")]
    assert len(statements) == 2 and '"there"' not in "".join(statements)
    sinks = {each: airflow_ft.SqliteSink(table=each, conn_id="shop", create=False) for each in names}
    plans = plan_delivery(sinks).participants
    with closing(open_store(shop.store)) as store:
        opener = participant_factory(server_connections)
        checks = examine_sinks("orders", plans, [], server_connections, opener, store)
    assert of_missing(checks, plans, server_connections, dict.fromkeys(names, ROWS.schema)) == statements


def test_a_refused_run_names_the_sinks_for_setup_and_doctor(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    """No plan does: it was refused before it published anything."""
    asked = Namespace(pipeline="orders", dag=None, store=shop.store, print=True, tables=False, output="table")
    with closing(open_store(shop.store)) as store:
        store.register("orders")
    with pytest.raises(SystemExit) as unknown:
        setup(asked)
    assert "[sinks_unknown]" in str(unknown.value) and "--dag FILE" in str(unknown.value)
    assert "adopt" not in str(unknown.value)
    with pytest.raises(AirflowFtError):
        shop.deliver(ROWS, "orders")
    setup(asked)
    assert "connection shop" in capsys.readouterr().out
    checks = examine(
        configured("orders"),
        lambda: open_store(shop.store),
        server_connections,
        participant_factory(server_connections),
    )
    assert ("connection shop", "table_missing") in {(check.subject, check.code) for check in checks}


def test_doctor_and_show_name_no_dag_to_a_script(shop: Shop) -> None:
    with pytest.raises(AirflowFtError):
        shop.deliver(ROWS, "orders")

    def examined() -> str:
        checks = examine(
            configured("orders"),
            lambda: open_store(shop.store),
            server_connections,
            participant_factory(server_connections),
        )
        return "\n".join(f"{check.text} {check.remedy}" for check in checks)

    failed = examined()
    assert "table orders" in failed and "--dag" not in failed and "`airflow ft dry-run" not in failed
    with raises(SystemExit, "checkpoint_unknown") as unknown:
        show(Namespace(pipeline="orders", number=None, store=shop.store, output="table"))
    assert unknown.error is not None and "script" in unknown.error.remedy
    shop.sql("CREATE TABLE orders (id INTEGER, what TEXT)")
    shop.deliver(ROWS, "orders")
    shop.sql("DROP TABLE orders")
    assert "table orders" in (delivered := examined()) and "--dag" not in delivered


def test_sinks_of_a_failure_that_is_over_are_forgotten(shop: Shop) -> None:
    shop.sql("CREATE TABLE orders (id INTEGER, what TEXT)")
    with pytest.raises(AirflowFtError):
        shop.deliver({"orders": ROWS, "copies": ROWS}, "orders", "copies")
    with closing(open_store(shop.store)) as store:
        [failed] = declared_sinks(store, "orders").values()
        assert sorted(failed.sinks) == ["copies", "orders"]
        shop.deliver(ROWS, "orders")
        [planned] = declared_sinks(store, "orders").values()
        assert sorted(planned.sinks) == ["orders"]


def test_a_failure_after_a_delivery_is_stored_with_its_sinks(shop: Shop) -> None:
    shop.sql("CREATE TABLE orders (id INTEGER, what TEXT)")
    shop.deliver(ROWS, "orders")
    with raises(UnfitTargetError, "table_missing"):
        shop.deliver(ROWS, "copies", position=2)
    with closing(open_store(shop.store)) as store:
        failure = store.overview("orders").failure
        assert failure is not None and failure.code == "table_missing"
        assert [event.kind for event in store.events("orders")].count("FAILED") == 1
        [failed] = declared_sinks(store, "orders").values()
    assert sorted(failed.sinks) == ["copies"]


def test_an_interrupt_does_not_hide_the_failure_before_it(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("airflow_ft.pipeline.steps.confirm", interrupted)
    with pytest.raises(KeyboardInterrupt):
        shop.deliver(ROWS, "copies")
    with closing(open_store(shop.store)) as store:
        failure = store.overview("orders").failure
        assert failure is not None and failure.code == "table_missing"
        assert [event.kind for event in store.events("orders")].count("FAILED") == 1


def test_a_script_is_shown_no_command_that_needs_a_dag(shop: Shop) -> None:
    def stage(*_: object) -> None:
        lacking = UnfitTargetError("there is no table a.", remedy=f"Create it. {PROPOSED}")
        wrong = UnfitTargetError("rows are refused.", remedy="Run `airflow ft setup PIPELINE --dag FILE --print`.")
        raise together([lacking, wrong])

    sinks = {"orders": airflow_ft.SqliteSink(table="orders", conn_id="shop")}
    spec = airflow_ft.PipelineSpec(
        pipeline="orders",
        job="jobs.orders",
        sources={"in": airflow_ft.FileSource(path=str(shop.folder), schema="id int")},
        sinks=sinks,
        store=shop.store,
        wal_root=str(shop.folder / "wal"),
        restart=airflow_ft.NoRestart(),
    )
    with pytest.raises(UnfitTargetError) as refused:
        PlainRun(spec, server_connections, stage=stage).deliver()
    problems = refused.value.what
    shown = {"airflow_ft.dry_run(...)", "airflow ft setup orders --print"}
    assert "--dag" not in problems and shown <= set(problems.split("`"))
    with closing(open_store(shop.store)) as store:
        failure = store.overview("orders").failure
    assert failure is not None and "--dag" not in failure.message
