"""The stage of rows that another task computes: the group in a DAG, and its tasks over SQLite, one after the other."""

from __future__ import annotations

import errno
import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.sdk import DAG, CronDataIntervalTimetable, task
from airflow.sdk.exceptions import AirflowSkipException
from airflow.serialization.serialized_objects import DagSerialization

from airflow_ft import (
    CheckpointedPipeline,
    ExternalFolderOperator,
    ExternalStageOperator,
    NoRestart,
    PipelineSpec,
    SqliteSink,
)
from airflow_ft.operators.stage import StageOperator
from airflow_ft.pipeline.decision_log import participant_factory
from airflow_ft.protocol import steps
from airflow_ft.protocol.errors import ConfigurationError, ExternalRowsError, FencedError
from airflow_ft.protocol.lease import Worker
from airflow_ft.protocol.model import CheckpointState, RunKey
from airflow_ft.store import open_store
from airflow_ft.wal import incoming
from airflow_ft.wal.local import LocalFileSystem
from airflow_ft.wal.owners import PREFIX
from tests.operators.declared import spec
from tests.raising import raises

pytestmark = pytest.mark.airflow
INTERVAL = {"start": "{{ data_interval_start }}", "end": "{{ data_interval_end }}"}
ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})


class Flow:
    """A DAG whose tasks are run here."""

    def __init__(self, folder: Path, *sinks: str, wal_root: str = "", log: str = "ft") -> None:
        self.folder, self.store = folder, open_store(f"sqlite:///{folder}/{log}.db")
        with DAG("d", schedule=None) as self.dag:
            self.group = CheckpointedPipeline(
                pipeline="orders",
                position="{{ ds }}",
                sinks={name: SqliteSink(table=name, conn_id="shop") for name in sinks or ("orders",)},
                store=f"sqlite:///{folder}/{log}.db",
                wal_root=wal_root or str(folder / "wal"),
                restart=NoRestart(),
            )
            with self.group:

                @task
                def compute(folder: str) -> None: ...

                compute(self.group.folder) >> self.group.stage

    def do(self, name: str, day: str, run_id: str = "", **fields: Any) -> Any:
        """The step of a task in the run of a day."""
        task: Any = self.dag.get_task(f"orders.{name}")
        for field, value in {"position": day, **fields}.items():
            if field in task.template_fields:
                setattr(task, field, value)
        return task.step(task.rendered(), self.context(name, run_id or day), {"outlet_events": {}})

    def context(self, name: str, run_id: str) -> steps.Context[Any]:
        return steps.Context(
            store=self.store,
            pipeline="orders",
            run=RunKey("d", run_id),
            participants=participant_factory(),
            worker=Worker(f"d/{run_id}/orders.{name}"),
            lease_seconds=1.0,
            is_own_stage=lambda staged_by: staged_by.endswith("orders.stage"),
        )

    def deliver(self, day: str) -> None:
        for name in ("prepare.shop", "commit.shop"):
            self.do(name, day)

    def leave(self, day: str) -> None:
        self.store.leave_turn("orders", RunKey("d", day), confirmed=True)

    def rows(self, table: str = "orders") -> list[int]:
        with closing(sqlite3.connect(self.folder / "shop.db")) as shop:
            return [id for (id,) in shop.execute(f"SELECT id FROM {table} ORDER BY 1")]


@pytest.fixture
def flow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps({"conn_type": "sqlite", "host": str(tmp_path / "shop.db")}))
    flow = Flow(tmp_path)
    with closing(flow.store):
        yield flow


def write(folder: str, *tables: pa.Table, name: str = "part-{}.parquet") -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)
    for number, table in enumerate(tables or (ROWS,)):
        pq.write_table(table, Path(folder) / name.format(number))


def test_a_task_between_folder_and_stage_computes_the_rows(flow: Flow) -> None:
    upstream = {task.task_id: task.upstream_task_ids for task in flow.dag.tasks}
    assert upstream["orders.folder"] == {"orders.recover"}
    assert upstream["orders.compute"] == {"orders.folder"}
    assert upstream["orders.stage"] == {"orders.folder", "orders.compute"}
    assert upstream["orders.prepare.shop"] == {"orders.stage"}
    [compute] = [task for task in flow.dag.tasks if task.task_id == "orders.compute"]
    assert compute.downstream_task_ids == {"orders.stage"}
    read = DagSerialization.from_dict(DagSerialization.to_dict(flow.dag))
    assert len(read.task_group.topological_sort()) == 1


def test_what_it_writes_is_delivered_once(flow: Flow) -> None:
    flow.do("recover", "monday")
    folder = flow.do("folder", "monday")
    assert list(Path(folder).iterdir()) == []
    write(folder)
    found = flow.do("stage", "monday", folder=folder)
    assert found == {
        "numbers": [1],
        "count": 1,
        "first": 1,
        "last": 1,
        "checkpoint": 1,
        "position": "monday",
        "repeated": False,
    }
    assert not Path(folder).exists(), "its rows are in the log"
    write(folder, ROWS, ROWS)  # a zombie, into a folder that is not read again
    assert flow.do("stage", "monday", folder=folder) == found, "a retry returns the same"
    flow.deliver("monday")
    assert flow.rows() == [1, 2]
    with pytest.raises(AirflowSkipException):
        flow.do("folder", "monday")
    flow.leave("monday")
    flow.do("recover", "tuesday")
    folder = flow.do("folder", "tuesday")
    assert [path.name for path in Path(folder).parent.iterdir()] == [Path(folder).name], "of the zombie nothing is left"
    write(folder)
    again = flow.do("stage", "monday", "tuesday", folder=folder)
    assert (again["numbers"], again["checkpoint"], again["repeated"]) == ([], 1, True)


def test_rows_may_lie_below_the_folder(flow: Flow) -> None:
    earlier, folder = (flow.do("folder", "monday") for _ in range(2))
    for each in (earlier, folder):
        write(f"{each}/out")
    with raises(ExternalRowsError, "folder_replaced"):
        flow.do("stage", "monday", folder=f"{earlier}/out")
    assert flow.do("stage", "monday", folder=f"{folder}/out")["numbers"] == [2]
    assert not Path(folder).exists()


def test_a_cleared_folder_of_staged_rows_does_not_stop_them(flow: Flow) -> None:
    folder = flow.do("folder", "monday")
    write(folder)
    found = flow.do("stage", "monday", folder=folder)
    folder = flow.do("folder", "monday")
    write(folder, ROWS, ROWS)
    assert flow.do("stage", "monday", folder=folder) == found
    flow.deliver("monday")
    assert flow.rows() == [1, 2]


def test_a_run_that_repeats_a_position_waits_for_its_rows(flow: Flow) -> None:
    """I9: also while a later run, which could not deliver them either, has the turn."""
    for day, run in (("monday", "1"), ("monday", "2"), ("tuesday", "3")):
        folder = flow.do("folder", day, run)
        write(folder)
        flow.do("stage", day, run, folder=folder)
        flow.store.leave_turn("orders", RunKey("d", run), confirmed=False)
    flow.store.enter_turn("orders", RunKey("d", "3"), None)
    second = flow.context("prepare.shop", "2")
    assert not second.is_finished()
    for name in ("prepare.shop", "commit.shop"):
        flow.do(name, "tuesday", "3")
    assert flow.rows() == [1, 1, 2, 2]
    assert second.is_finished()


def test_a_run_waits_for_rows_published_by_others(flow: Flow) -> None:
    """I9: also if it has published numbers itself, which are confirmed."""
    for day, run in (("monday", "1"), ("tuesday", "2")):
        folder = flow.do("folder", day, run)
        write(folder)
        flow.do("stage", day, run, folder=folder)
        if run == "1":
            for name in ("prepare.shop", "commit.shop"):
                flow.do(name, day, run)
        flow.store.leave_turn("orders", RunKey("d", run), confirmed=False)
    first = flow.context("prepare.shop", "1")
    assert first.is_finished()
    epoch = flow.store.pipeline("orders").epoch
    flow.store.begin_stage("orders", epoch, first.run)
    flow.store.end_stage("orders", epoch, first.run, None)
    assert not first.is_finished()


JOB = "5d1c8c2e-0000-4000-8000-00000000000"


def two_jobs(folder: str) -> None:
    for job in "12":
        write(folder, name=f"part-00000-{JOB}{job}-c000.snappy.parquet")


def two_jobs_of_databricks(folder: str) -> None:
    for job in "12":
        write(folder, name=(name := f"part-00000-tid-{job}-{JOB}{job}-7-1-c000.snappy.parquet"))
        Path(folder, f"_committed_{job}").write_text(json.dumps({"added": [name], "removed": []}))


def cut_job(folder: str) -> None:
    for part in range(6, 10):
        write(folder, name=f"part-{part:05}-{JOB}1-c000.snappy.parquet")


@pytest.mark.parametrize(
    ("fill", "code"),
    [
        (lambda folder: None, "files_none"),
        (shutil.rmtree, "folder_replaced"),
        (two_jobs, "writers_mixed"),
        (two_jobs_of_databricks, "writers_mixed"),
        (cut_job, "part_missing"),
        (lambda folder: Path(folder, "a.parquet").write_bytes(b"torn"), "parquet_unreadable"),
    ],
)
def test_a_refused_folder_of_rows_can_be_written_again(flow: Flow, fill: Callable[[str], Any], code: str) -> None:
    flow.do("recover", "monday")
    folder = flow.do("folder", "monday")
    fill(folder)
    with raises(ExternalRowsError, code):
        flow.do("stage", "monday", folder=folder)
    [refused] = flow.store.checkpoints("orders")
    assert (refused.state, refused.segment) == (CheckpointState.ABORTED, None)
    folder = flow.do("folder", "monday")
    write(folder)
    assert flow.do("stage", "monday", folder=folder)["numbers"] == [2]


@pytest.mark.parametrize("names", [("part-00000-{}1-c000", "part-00009-{}1-c001"), ("part-00003-{}1_00000.c000",)])
def test_a_spark_job_may_leave_out_empty_parts(flow: Flow, names: tuple[str, ...]) -> None:
    folder = flow.do("folder", "monday")
    for name in names:
        write(folder, name=f"{name.format(JOB)}.snappy.parquet")
    assert flow.do("stage", "monday", folder=folder)["numbers"] == [1]


def test_a_stage_of_an_earlier_folder_publishes_nothing(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    flow.do("recover", "monday")
    earlier = flow.do("folder", "monday")
    write(earlier, ROWS, ROWS)
    seal = incoming.write_rows
    newer = []

    def overtaken(*given: Any) -> None:
        seal(*given)
        for lease in flow.store.leases("orders"):  # it is suspended, and its lease has expired
            flow.store.release_lease("orders", lease.holder)
        newer.append(flow.do("folder", "monday"))

    with monkeypatch.context() as patch:
        patch.setattr(incoming, "write_rows", overtaken)
        with raises(FencedError, "fenced"):
            flow.do("stage", "monday", folder=earlier)
    write(earlier, ROWS, ROWS)
    with raises(ExternalRowsError, "folder_replaced"):
        flow.do("stage", "monday", folder=earlier)
    write(newer[0])
    assert flow.do("stage", "monday", folder=newer[0])["numbers"] == [3]
    flow.deliver("monday")
    assert flow.rows() == [1, 2]


def test_a_zombie_does_not_replace_the_folder_of_its_successor(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    flow.do("recover", "monday")
    listed = LocalFileSystem.names
    newer: list[str] = []

    def overtaken(self: LocalFileSystem, uri: str) -> list[str]:
        if not newer and uri.endswith("/inbox"):
            newer.append("")
            for lease in flow.store.leases("orders"):  # it is suspended, and its lease has expired
                flow.store.release_lease("orders", lease.holder)
            newer[0] = flow.do("folder", "monday")
            write(newer[0])
        return listed(self, uri)

    late = []
    with monkeypatch.context() as patch, suppress(FencedError):  # which it may notice at once
        patch.setattr(LocalFileSystem, "names", overtaken)
        late.append(flow.do("folder", "monday"))
    for folder in late:
        with raises(ExternalRowsError, "folder_replaced"):
            flow.do("stage", "monday", folder=folder)
    assert flow.do("stage", "monday", folder=newer[0])["numbers"] == [len(late) + 1]  # after a refused one
    flow.deliver("monday")
    assert flow.rows() == [1, 2]


def test_a_folder_of_another_user_stops_no_run(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(shutil, "rmtree", refuse)
    for day in ("monday", "tuesday"):
        folder = flow.do("folder", day)
        write(folder)
        for _ in range(2):
            assert flow.do("stage", day, folder=folder)["count"] == 1
        flow.deliver(day)
        flow.leave(day)
    assert flow.rows() == [1, 1, 2, 2]


def test_two_logs_with_one_root_leave_each_other_their_folders(flow: Flow, tmp_path: Path) -> None:
    for _ in range(2):
        folder = flow.do("folder", "monday")
    write(folder, name="first.parquet")
    other = Flow(tmp_path, log="other")
    with closing(other.store):
        of_other = other.do("folder", "monday")
        write(folder, name="second.parquet")
        write(of_other)
        with raises(ExternalRowsError, "folder_replaced"):
            other.do("stage", "monday", folder=folder)
        for _ in range(2):  # the second time it finds the position, and removes nothing of the other log
            assert flow.do("stage", "monday", folder=folder)["numbers"] == [1]
            folder = of_other
        assert other.do("stage", "monday", folder=of_other)["numbers"] == [2]
    [first] = flow.store.checkpoints("orders")
    assert first.segment is not None and first.segment.rows == {"orders": 4}


def test_a_folder_of_a_lost_log_is_removed(flow: Flow, tmp_path: Path) -> None:
    other = Flow(tmp_path, log="other")
    with closing(other.store):
        folder = other.do("folder", "monday")
        (tmp_path / "wal" / "orders" / f"{PREFIX}{other.store.installation}").unlink()  # as the warning says
    flow.do("folder", "monday")
    assert not Path(folder).exists()


def test_a_task_that_writes_is_missing(tmp_path: Path) -> None:
    flow = Flow.__new__(Flow)
    flow.store = open_store(f"sqlite:///{tmp_path}/ft.db")
    with closing(flow.store), DAG("d", schedule=None) as flow.dag:
        CheckpointedPipeline(
            pipeline="orders",
            position="{{ ds }}",
            sinks={"orders": SqliteSink(table="orders", conn_id="shop")},
            wal_root=str(tmp_path / "wal"),
        )
        with raises(ConfigurationError, "writer_missing"):
            flow.do("stage", "monday", folder=str(tmp_path / "wal" / "orders" / "inbox" / "1"))


@pytest.mark.parametrize(("position", "code"), [(None, "template_without_value"), ("{{ x }}", "template_not_rendered")])
def test_a_position_has_a_value_in_a_run(flow: Flow, position: Any, code: str) -> None:
    with raises(ConfigurationError, code, argument="position"):
        flow.do("stage", position, folder="/data")


@pytest.mark.parametrize(
    ("folder", "code"),
    [
        (None, "template_without_value"),
        ("None", "template_without_value"),
        ("", "argument_invalid"),
        (["a"], "path_invalid"),
        ("out", "path_invalid"),
    ],
)
def test_a_folder_without_a_value_is_no_folder_of_the_worker(flow: Flow, folder: Any, code: str) -> None:
    with raises(ConfigurationError, code, argument="folder"):
        flow.do("stage", "monday", folder=folder)
    assert [row.name for row in flow.store.pipelines()] == [], "the position is free"
    if isinstance(folder, str) and folder != "None":
        declared = flow.dag.get_task("orders.stage").spec  # type: ignore[union-attr]
        with raises(ConfigurationError, code, argument="folder"):
            ExternalStageOperator(task_id="stage", spec=declared, folder=folder)


def test_operators_fit_their_pipeline() -> None:
    external = PipelineSpec(
        pipeline="orders", position="{{ ds }}", sinks={"orders": SqliteSink(table="orders", conn_id="shop")}
    )
    with raises(ConfigurationError, "arguments_conflict", arguments=["position", "job"]):
        StageOperator(task_id="stage", spec=external)
    for make in (ExternalFolderOperator, lambda **given: ExternalStageOperator(folder="/data", **given)):
        with raises(ConfigurationError, "argument_missing", argument="position"):
            make(task_id="stage", spec=spec())


@pytest.mark.parametrize(
    ("schedule", "is_empty"),
    [
        ("@daily", True),
        (timedelta(hours=1), True),
        (CronDataIntervalTimetable("@daily", timezone="UTC"), False),
        (None, False),
    ],
    ids=["cron", "delta", "with intervals", "by hand"],
)
def test_the_interval_of_a_run_is_no_position_where_it_is_empty(schedule: Any, is_empty: bool) -> None:
    def declare() -> None:
        with DAG("d", schedule=schedule, max_active_runs=1):
            CheckpointedPipeline(
                pipeline="orders", position=INTERVAL, sinks={"orders": SqliteSink(table="orders", conn_id="shop")}
            )

    if is_empty:
        with raises(ConfigurationError, "position_empty", argument="position"):
            declare()
    else:
        declare()


def test_runs_with_intervals_follow_one_another() -> None:
    """Of two active runs the later one may go first. Then the earlier interval is refused for ever."""

    def declare(position: Any = INTERVAL, **given: Any) -> None:
        with DAG("d", schedule=CronDataIntervalTimetable("@daily", timezone="UTC"), max_active_runs=2):
            sinks = {"orders": SqliteSink(table="orders", conn_id="shop")}
            CheckpointedPipeline(**{"pipeline": "orders", **given}, position=position, sinks=sinks)

    for interval in (INTERVAL, {"start": "{{ ds }}", "end": "{{ macros.ds_add(ds, 1) }}"}):
        with raises(ConfigurationError, "argument_invalid", argument="max_active_runs", value=2):
            declare(interval)
    declare("{{ ds }}")
    declare(pipeline="orders-{{ ds_nodash }}", group_id="orders")
    declare(suffix="{{ ds_nodash }}")


def test_a_position_that_is_the_same_in_each_run_is_refused() -> None:
    given = {"pipeline": "orders", "sinks": {"orders": SqliteSink(table="orders", conn_id="shop")}}
    with DAG("d", schedule=None):
        with raises(ConfigurationError, "position_constant", argument="position"):
            CheckpointedPipeline(**given, position="today")
        CheckpointedPipeline(**given, position={"day": "{{ ds }}", "table": "orders"})
