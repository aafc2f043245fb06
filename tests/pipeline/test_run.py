"""`airflow_ft.run`: what it refuses, and when it takes another run for dead (tests/integration has runs)."""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

import airflow_ft
from airflow_ft.pipeline.resolved import resolve
from airflow_ft.pipeline.run import PlainRun, new_run_id
from airflow_ft.pipeline.spec import PipelineSpec
from airflow_ft.pipeline.steps import request
from airflow_ft.protocol import steps
from airflow_ft.protocol.connections import ConnectionInfo, missing_connection
from airflow_ft.protocol.errors import (
    AirflowFtError,
    ConfigurationError,
    JobError,
    SinkAccessError,
    StorageUnavailableError,
    UnfitTargetError,
)
from airflow_ft.protocol.lease import Abandoned, LeaseWatch, Worker, take_epoch
from airflow_ft.protocol.model import RunKey
from airflow_ft.protocol.overview import Condition
from airflow_ft.store import open_store
from airflow_ft.store.decision_log import DecisionLog
from tests.operators.declared import spec
from tests.raising import raises


@pytest.mark.parametrize(
    ("argument", "given", "jinja"),
    [
        ("wal_root", "/wal/{{ ds }}", "/wal/{{ ds }}"),
        ("sources", {"a": airflow_ft.FileSource(path="{{ ds }}", schema="id int")}, "{{ ds }}"),
        ("job", "{{ params.job }}", "{{ params.job }}"),
    ],
)
def test_jinja_is_refused_as_only_airflow_renders_it(argument: str, given: Any, jinja: str) -> None:
    with raises(ConfigurationError, "template_not_rendered", pipeline="orders", argument=argument, value=jinja):
        airflow_ft.run(spec(**{argument: given}))


@pytest.mark.parametrize("argument", ["streaming", "dry_run", "rewind"])
def test_what_needs_airflow_is_refused(argument: str) -> None:
    with raises(ConfigurationError, "needs_airflow", pipeline="orders", argument=argument):
        airflow_ft.run(spec(**{argument: True}))


@pytest.mark.parametrize(("argument", "given"), [("run_id", 5), ("turn_timeout", 60)])
def test_arguments_of_its_own_are_checked(argument: str, given: Any) -> None:
    with raises(ConfigurationError, "argument_invalid", argument=argument, value=str(given)):
        airflow_ft.run(spec(), **{argument: given})


def test_arguments_of_the_pipeline_are_not_given_beside_it() -> None:
    with raises(ConfigurationError, "arguments_conflict", arguments=["spec", "wal_root"]):
        airflow_ft.run(spec(), wal_root="/wal")


def test_an_argument_that_nobody_knows_is_named() -> None:
    with raises(ConfigurationError, "argument_unknown", argument="run_idd") as caught:
        airflow_ft.run(pipeline="orders", run_idd="monday")
    assert caught.error and "run_id?" in caught.error.remedy


def test_no_two_runs_have_one_name() -> None:
    assert len({new_run_id() for _ in range(1000)}) == 1000


def test_a_run_is_over_when_its_lease_is_not_renewed_in_time(tmp_path: Path) -> None:
    dead, dag_run = RunKey("python:orders", "monday"), RunKey("orders", "scheduled__1")
    now = 100.0
    with closing(open_store(f"sqlite:///{tmp_path}/ft.db")) as store:
        store.register("orders")
        is_over = Abandoned(store, "orders", 30.0, LeaseWatch(lambda: now), lambda: now)
        lease = Worker("a process").lease()
        epoch = take_epoch(store, "orders", lease, "a test", lease_seconds=0.0)
        for _ in range(3):
            assert not is_over(dead)
            now += 29.0
            store.renew_lease("orders", epoch, lease.holder, "")
        assert not is_over(dead)
        now += 29.0
        assert not is_over(dead)
        now += 1.0
        assert is_over(dead), "it still has its lease, which nobody renews"
        slept: list[float] = []
        take_epoch(store, "orders", Worker().lease(), "a test", watch=is_over.watch, sleep=slept.append)
        assert not slept, "it waits once"
        assert not is_over(dag_run), "of a DAG run Airflow alone knows"
        assert not is_over(RunKey("python:orders", "tuesday")), "which has just come"


def test_a_run_that_fails_is_failed_until_one_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declared = spec(store=f"sqlite:///{tmp_path}/ft.db")
    monkeypatch.setattr("airflow_ft.pipeline.decision_log.open_configured_store", lambda url, _: open_store(url))

    def fails(self: PlainRun, store: DecisionLog) -> None:
        store.enter_turn("orders", self._key, None)
        raise JobError("the job raised.", remedy="correct it.")

    def succeeds(self: PlainRun, store: DecisionLog) -> None:
        store.enter_turn("orders", self._key, None)
        store.leave_turn("orders", self._key, confirmed=True)

    with closing(open_store(declared.store)) as store:
        store.register("orders")
        for steps, condition in ((fails, Condition.FAILED), (succeeds, Condition.IDLE)):
            monkeypatch.setattr(PlainRun, "_steps", steps)
            with suppress(JobError):
                PlainRun(declared, lambda _: None, run_id=steps.__name__).deliver()  # type: ignore[arg-type,return-value]
            assert store.overview("orders").condition is condition


@pytest.mark.parametrize(
    ("error", "tries"),
    [
        (SinkAccessError("the login was refused.", code="login_refused"), 1),
        (UnfitTargetError("the column is missing.", code="column_missing"), 1),
        (StorageUnavailableError("the disk is away.", code="disk_away"), 4),
    ],
)
def test_only_what_can_mend_itself_is_retried(
    error: AirflowFtError, tries: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_ft.pipeline.run.time.sleep", lambda _: None)
    seen, watches = [], []

    def step(context: steps.Context) -> None:
        watches.append(context.worker.watch)
        if len(watches) > 2:
            seen.append(context.worker.try_number)
            raise error

    with closing(open_store(f"sqlite:///{tmp_path}/ft.db")) as store:
        run = PlainRun(spec(), lambda _: None)  # type: ignore[arg-type,return-value]
        run._again(store, step)
        run._again(store, step)
        with pytest.raises(type(error)):
            run._again(store, step)
    assert seen == list(range(1, tries + 1))
    assert watches[0] is watches[1] is watches[2], "the steps wait for a dead owner only once"
    assert len({id(each) for each in watches[2:]}) == tries, "an outage of the log may have kept an owner from renewing"


def test_decided_rows_are_delivered_despite_wrong_spark_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    for name in ("recover", "stage", "prepare", "commit", "confirm"):
        monkeypatch.setattr(f"airflow_ft.pipeline.steps.{name}", lambda *_, name=name, **__: seen.append(name))
    wrong = ConfigurationError("spark_conf is no JSON.", code="option_invalid", remedy="correct it.")

    def fails(_: PipelineSpec) -> None:
        raise wrong

    monkeypatch.setattr("airflow_ft.pipeline.run.resolve", fails)
    with closing(open_store(f"sqlite:///{tmp_path}/ft.db")) as store, pytest.raises(ConfigurationError) as caught:
        PlainRun(spec(wal_root=str(tmp_path)), lambda _: None)._steps(store)  # type: ignore[arg-type,return-value]
    assert caught.value is wrong
    assert seen == ["recover", "commit", "confirm"]


def test_a_missing_connection_of_a_source_names_the_pipeline(tmp_path: Path) -> None:
    """Each attempt asks for it, before Spark takes its time to start."""
    source = airflow_ft.KafkaSource(topics=["orders"], conn_id="cluster")
    declared = spec(sources={"orders": source}, wal_root=str(tmp_path), store=f"sqlite:///{tmp_path}/ft.db")

    def missing(conn_id: str) -> ConnectionInfo:
        raise missing_connection(conn_id)

    with closing(open_store(declared.store)) as store:
        row = store.register("orders")
        with raises(SinkAccessError, "connection_missing", pipeline="orders", participant="cluster"):
            request(resolve(declared), RunKey("d", "r"), row, 1, 1, missing)
