"""One process: a run's steps, as Airflow's tasks make them, over real participants; something may befall it.

It stages rows as a Spark driver does, chunk by chunk from the pipeline's base on (each chunk is a checkpoint), then
prepares, commits and confirms. An order (JSON) says which pipeline and which fault; the control socket tells how it
ended. Which rows a chunk has is known outside; what `draw` they have is drawn here: all sinks must hold the same.
"""

from __future__ import annotations

import json
import logging
import os
import random
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from airflow_ft.protocol import retention
from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError, NotDeliveredError, StageError, TransientError
from airflow_ft.protocol.lease import Worker, new_epoch
from airflow_ft.protocol.model import ParticipantPlan, RunKey, Segment, SparkPosition
from airflow_ft.protocol.participant import Participant
from airflow_ft.protocol.planning import plan_delivery
from airflow_ft.protocol.sink_spec import SinkSpec
from airflow_ft.protocol.steps import Context, commit_step, confirm_step, prepare_step, recover_step
from airflow_ft.sinks.base import slices
from airflow_ft.sinks.kafka import KafkaSink, tokens, vote  # noqa: F401  (imported before the fork)
from airflow_ft.sinks.kafka import participant as kafka_participant
from airflow_ft.sinks.kafka.held import HeldParticipant  # noqa: F401
from airflow_ft.sinks.kafka.transaction import Transaction
from airflow_ft.sinks.kafka.transaction_coordinator import TransactionCoordinator
from airflow_ft.sinks.mysql import column_fit, doctor, verify  # noqa: F401
from airflow_ft.sinks.mysql.limits import Limits
from airflow_ft.sinks.mysql.participant import open_participant as open_mysql
from airflow_ft.sinks.mysql.session import Session
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.store import open_store, postgres, sqlite  # noqa: F401
from airflow_ft.store.decision_log import DecisionLog
from airflow_ft.wal import open_wal
from airflow_ft.wal.retention import WalArchive
from airflow_ft.wal.writer import SegmentFolder, write_segment
from tests.chaos.deliveries import child_systems
from tests.chaos.deliveries.clock import jump
from tests.chaos.deliveries.defects import DEFECTS
from tests.chaos.deliveries.hot_keys import CHUNK
from tests.chaos.deliveries.points import Point, Points, statement_name

LEASE_SECONDS = 1.0
LIMITS = Limits(connect=5, answer=60, lock_wait=1, metadata_wait=2, head_wait=20)
SOURCE = "rows"
DAG = "chaos"
FULL = 4096  # bytes that any file may have once the disk is said to be full

log = logging.getLogger(__name__)


class Control:
    """The line to whoever ordered this process. Everything is one line of JSON."""

    def __init__(self, connection: socket.socket) -> None:
        self._file = connection.makefile("rw")

    def receive(self) -> dict[str, Any]:
        """The next message; SystemExit when nobody is there any more."""
        line = self._file.readline()
        if not line:
            sys.exit(0)
        message: dict[str, Any] = json.loads(line)
        return message

    def send(self, **message: Any) -> None:
        """Tells something."""
        self._file.write(json.dumps(message) + "\n")
        self._file.flush()


class Process:
    """The steps of one run's try, with fault points around everything that it does."""

    def __init__(self, order: Mapping[str, Any], control: Control) -> None:
        self._order, self._control = order, control
        point = order.get("point")
        self.points = Points(Point(**point) if point else None, self._strike)
        self._delivery = plan_delivery({name: self._spec(name) for name in order["sinks"]})

    # --- what befalls it ---

    def _strike(self, point: Point) -> None:
        log.info("%s at %s", self._order["action"], point)
        match self._order["action"]:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "ask":
                self._control.send(at=str(point))
                self._control.receive()
            case "clock":
                self._control.send(at=str(point))
                self._control.receive()
                jump(self._order["seconds"])
            case "limit":
                self._control.send(at=str(point))
                self._control.receive()
                resource.setrlimit(resource.RLIMIT_FSIZE, (FULL, resource.RLIM_INFINITY))
            case action:
                raise ValueError(action)

    def _instrument(self) -> None:
        """Points around the statements and requests of the sinks."""
        child_systems.instrument(self.points, self._order["sinks"])

        def in_session(name: str) -> Callable[..., str]:
            def label(session: Any, sql: Any = "", *_: Any) -> str:
                text = getattr(sql, "sql", sql)
                return f"{session.chaos_label}: {statement_name(text) if text and isinstance(text, str) else name}"

            return label

        begin = Session.__init__

        def connect(session: Any, info: ConnectionInfo, limits: Limits) -> None:
            session.chaos_label = info.conn_id
            self.points.around(f"{info.conn_id}: connect", lambda: begin(session, info, limits))

        setattr(Session, "__init__", connect)  # noqa: B010
        for method in ("run", "load", "post", "answer", "rows", "begin", "commit"):
            self.points.instrument(Session, method, in_session(method.upper()))
        for method in ("begin", "send", "flush", "write", "commit", "release"):
            self.points.instrument(Transaction, method, _of_client(f"producer.{method}"))
        self.points.instrument(Transaction, "__init__", lambda _, clients, *__: f"{clients.conn_id}: producer.init")
        for method in ("end", "describe"):
            self.points.instrument(TransactionCoordinator, method, _of_client(f"coordinator.{method}"))

    # --- what it does ---

    def run(self) -> list[int]:
        """All steps; returns the numbers that are confirmed. With `all_done` a failed commit stops no other step."""
        slices.MIN_ROWS = 2
        retention.MARKERS_TOGETHER = 1
        if self._order["defect"]:
            DEFECTS[self._order["defect"]]()
        self._instrument()
        store = self.points.around("store.open", lambda: open_store(self._order["store"]))
        context = self._context(self.points.through(store, "store"))
        config = CheckpointConfig(max_delivery_rows=self._order["max_delivery_rows"], num_retained=2)
        recover_step(context)
        self._stage(context)
        failure: AirflowFtError | None = None
        for name in self._delivery.names:
            prepare_step(context, self._delivery, config, name)
        for name in self._delivery.names:
            try:
                commit_step(context, name)
            except TransientError as error:
                failure = failure or error
                if not self._order["all_done"]:
                    raise
        archive = self.points.through(WalArchive(self._order["wal"]), "archive")
        try:
            confirmation = confirm_step(context, config, archive)
        except NotDeliveredError as error:
            if failure is not None:
                raise failure from error  # it says why
            raise
        return list(confirmation.confirmed.numbers.newest)

    def _context(self, store: DecisionLog) -> Context:
        run = RunKey(DAG, self._order["run"])
        return Context(
            store=store,
            pipeline=self._order["pipeline"],
            run=run,
            participants=lambda plan: self.points.through(self._open(plan), plan.name),
            worker=Worker(f"{run}/step", self._order["try"]),
            lease_seconds=LEASE_SECONDS,
            # Those before it have failed for good. To a process of an older run a newer one is at work, as in Airflow.
            run_is_over=lambda other: _number(other) < _number(run),
        )

    def _stage(self, context: Context) -> None:
        """Publishes the chunks that are lacking, under an epoch of its own."""
        store, pipeline, order = context.store, context.pipeline, self._order
        with new_epoch(store, pipeline, context.worker, "stage", LEASE_SECONDS) as (epoch, keeper):
            attempt = store.begin_stage(pipeline, epoch, context.run)
            base = store.pipeline(pipeline).base
            done = base.batch + 1 if base is not None else 0
            for chunk in range(done, len(order["chunks"])):
                number = store.trigger(pipeline, epoch, context.run)
                folder = SegmentFolder(order["wal"], pipeline, epoch, attempt, chunk)
                rows = self._rows(chunk, order["chunks"][chunk])
                segment = self.points.around("wal.write_segment", lambda: self._write(folder, number, rows, chunk))  # noqa: B023
                positions = {SOURCE: {"start": {"chunk": chunk} if chunk else None, "end": {"chunk": chunk + 1}}}
                before = store.pipeline(pipeline).last_published
                position = SparkPosition(f"file:///spark/{epoch}-{attempt}", chunk)
                store.publish(pipeline, epoch, number, before, segment, position, positions)
                keeper.check()
            store.end_stage(pipeline, epoch, context.run, None)

    def _write(self, folder: SegmentFolder, number: int, rows: pa.Table, chunk: int) -> Segment:
        """As a driver that cannot write: its task fails, and the next attempt computes again."""
        try:
            sinks = self._order["sinks"].items()
            tables = {name: child_systems.rows_for(server, rows, chunk) for name, (server, _) in sinks}
            return write_segment(folder, number, tables)
        except (OSError, pa.ArrowException) as error:
            raise StageError(f"the rows could not be written: {error}") from error

    def _rows(self, chunk: int, count: int) -> pa.Table:
        draw = random.SystemRandom().getrandbits(31)
        ids = range(chunk * CHUNK, chunk * CHUNK + count)
        return pa.table(
            {
                "pipeline": pa.array([self._order["pipeline"]] * count),
                "id": pa.array(ids, pa.int64()),
                "draw": pa.array([draw] * count, pa.int64()),
            }
        )

    # --- its sinks ---

    def _spec(self, name: str) -> SinkSpec:
        server, strategy = self._order["sinks"][name]
        place, conn_id = self._order["places"][name], f"{server}-{strategy}"
        if server in child_systems.SINKS:
            return child_systems.SINKS[server](self._order["pipeline"], conn_id, strategy, place)
        if server == "kafka":
            return KafkaSink(topic=place, conn_id=conn_id, strategy=strategy)
        keys: dict[str, Any] = (
            {"key_columns": ["pipeline", "id"], "version_column": "version"} if strategy == "upsert" else {}
        )
        return MySqlSink(table=place, conn_id=conn_id, strategy=strategy, **keys)

    def _open(self, plan: ParticipantPlan) -> Participant:
        connection = self._order["connections"][plan.name.partition("-")[0]]
        if plan.kind == "kafka":
            return kafka_participant.open_participant(
                plan, ConnectionInfo(plan.name, "kafka", extra=connection), open_wal()
            )
        if plan.kind != "mysql":
            return child_systems.opened(plan, connection)
        info = ConnectionInfo(plan.name, "mysql", extra={"ssl_mode": "DISABLED"}, **connection)
        return open_mysql(plan, info, open_wal(), LIMITS)


def _number(run: RunKey) -> int:
    return int(run.run_id.rpartition("-")[2])


def _of_client(what: str) -> Callable[..., str]:
    return lambda instance, *_: f"{instance._clients.conn_id}: {what}"


# --- its life --------------------------------------------------------------------------------------------------------


@contextmanager
def _reported(control: Control) -> Iterator[None]:
    """An error is told, with what it means to whoever tries again; any other than the package's own is a defect."""
    try:
        yield
    except AirflowFtError as error:
        log.info("ended", exc_info=True)
        again = isinstance(error, (TransientError, NotDeliveredError))  # the latter: by the next try or run
        control.send(error=type(error).__name__, message=str(error), again=again)
    except Exception as error:
        log.exception("ended by a defect")
        control.send(error=type(error).__name__, message=f"a defect: {error}", again=False)


def live(connection: socket.socket) -> None:
    """What the forked process does with its life. Never returns."""
    control = Control(connection)
    order = control.receive()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    process = Process(order, control)
    with _reported(control):
        numbers = process.run()
        trace = [[p.when, p.name, p.nth] for p in process.points.trace] if order.get("trace") else []
        control.send(done=numbers, trace=trace)
    sys.stderr.flush()
    os._exit(0)  # what a killed process would not do either, it need not do: no destructors
