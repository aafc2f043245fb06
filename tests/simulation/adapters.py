"""What stands between the product's code and the models: patched names, one place for all of them.

Replaced are clocks, random names, threads that only renew leases, and what judges or encodes rows (it is tested by
itself, and no part of the protocol). Everything that decides, orders, fences or proves is the product's own.
"""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import airflow_ft.sinks.files.participant
import airflow_ft.sinks.kafka.held
import airflow_ft.sinks.kafka.plain
import airflow_ft.sinks.kafka.shared_slots
import airflow_ft.sinks.mysql.participant  # noqa: F401  both are loaded before names in them are replaced
from airflow_ft.clients.kafka.topics import TopicLimits
from airflow_ft.protocol import lease, overlap, restart, retention
from airflow_ft.protocol.errors import DeclinedError
from airflow_ft.sinks import ahead, refused
from airflow_ft.sinks.base import branch_system, slices
from airflow_ft.sinks.kafka.records import Records
from airflow_ft.sinks.mysql.catalog import Table
from airflow_ft.sinks.mysql.load import Loader, refusals
from airflow_ft.sinks.mysql.vote import Verdict
from airflow_ft.spark.driver import (
    capacity,
    durable,
    folders,
    idle,
    job_restarts,
    moments,
    publisher,
    query,
    query_run,
    runner,
    state_reports,
    stopper,
)
from airflow_ft.spark.savepoints import (
    converting,
    metadata,
    offline,
    rescaling,
    restorable,
    restoring,
    stopping,
    taking,
)
from airflow_ft.spark.state import (
    beginnings,
    catching_up,
    evolution,
    left_sources,
    location_files,
    locations,
    schema_paths,
    source_changes,
    status,
)
from airflow_ft.spark.state import files as state_files
from airflow_ft.spark.state import operators as state_operators
from airflow_ft.spark.state import reset as state_reset
from airflow_ft.spark.state import schemas as state_schemas
from airflow_ft.spark.state import settings as state_settings
from airflow_ft.spark.task import answers, stage, stream
from airflow_ft.wal import parsing as wal_parsing
from tests.simulation.folders import Bucket, Disk, ModelFiles, obstore
from tests.simulation.kernel import Death, Kernel
from tests.simulation.source import Rows
from tests.simulation.spark import Spark, listening
from tests.simulation.threads import ModelThreading
from tests.simulation.windows import Windows


class Running:
    """The world that is running now: the patched names look here."""

    def __init__(self) -> None:
        self.kernel = Kernel(lambda *_: None)
        self.connect: Callable[[str], Any] = lambda _: None
        self.admin: Callable[[str], Any] = lambda _: None
        self.folder: Callable[[str], Any] = lambda _: None
        self.names = itertools.count(1)
        self.declines: dict[int, int] = {}  # item -> how many votes on it are still refused
        self.store: Any = None
        self.spark: Spark = cast(Any, None)
        self.windows: Windows = cast(Any, None)
        self.files: Any = None

    def sleep(self, seconds: float) -> None:
        self.kernel.sleep(seconds)

    def wait(self, seconds: float, *, ends: bool = False) -> None:
        """In place of `time.sleep`, where a thread waits for others; or for the time, which ends."""
        self.kernel.wait(seconds, ends=ends)

    def exit(self, _: int) -> None:
        """In place of `os._exit`."""
        process = self.kernel.owner
        assert process is not None
        self.kernel.kill(process)
        raise Death

    def monotonic(self) -> float:
        return self.kernel.monotonic()

    def now(self) -> datetime:
        """In place of `airflow_ft.sinks.kafka.tokens.now`."""
        return _BEGINNING + timedelta(seconds=int(self.kernel.wall_clock()))

    def judge(self, item: Any) -> None:
        """The vote on the rows of an item: refused as often as an event has said."""
        if self.declines.get(item.number, 0) > 0:
            self.declines[item.number] -= 1
            raise DeclinedError(f"NULL in a NOT NULL column of item {item.number}.", remedy="mend the job.")

    def judge_segment(self, target: Any, reader: Any) -> Verdict:
        """In place of `airflow_ft.sinks.mysql.vote.check_segment`."""
        self.judge(reader.item)
        return Verdict((), (), ())

    def judge_records(self, rows: Any, *_: Any) -> None:
        """In place of `airflow_ft.sinks.kafka.vote.check_rows`."""
        self.judge(rows.reader.item)

    def name(self, _: int = 0) -> str:
        """32 hexadecimal digits that were never used."""
        return f"{next(self.names):012d}{0:020d}"

    def id(self) -> str:
        """The same; also its first eight were never used."""
        return f"{next(self.names):08d}{0:024d}"


RUNNING = Running()
NO_TIMERS = SimpleNamespace(any=False, forced=None, ending=nullcontext, begin=lambda: False)  # of the clock
_FILED = (
    beginnings,
    catching_up,
    evolution,
    left_sources,
    folders,
    location_files,
    locations,
    metadata,
    offline,
    rescaling,
    restorable,
    schema_paths,
    source_changes,
    status,
    state_files,
    state_operators,
    state_schemas,
    state_settings,
    wal_parsing,
)
_BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)


class NoThread:
    """A lease that is never renewed: leases are politeness, and the laws must hold without them (I5)."""

    def __init__(self, **_: Any) -> None:
        pass

    def start(self) -> None:
        pass

    def join(self) -> None:
        pass


class ModelLoader(Loader):
    """See `airflow_ft.sinks.mysql.load.Loader`, whose way around refused rows it goes."""

    def __init__(self, session: Any, limits: Any, way: Any) -> None:
        self._session = session

    def _way_of(self, reader: Any, target: Any, columns: Any) -> Any:
        def put(made: Any, target: Any, columns: Any, file: Any) -> int:
            affected = 0
            for _, items in made:
                with refusals(target, file, affected):
                    affected += self._session.load(target.sink, items)
            return affected

        return list, put

    def _pieces(self, reader: Any, target: Any, file: Any) -> Any:
        return reader.batches(target.sink, file)

    def send(self, reader: Any, target: Any) -> int:
        affected = 0
        for file in reader.files(target.sink):
            for items in reader.batches(target.sink, file):
                with refusals(target, file, affected):
                    affected += self._session.load(target.sink, items)
        return affected


class ModelUpserter(ModelLoader):
    """See `airflow_ft.sinks.mysql.upsert.Upserter`: an item is the row of its number, and carries the checkpoint's."""

    def __init__(self, session: Any, limits: Any, way: Any, sinks: Any, number: int) -> None:
        super().__init__(session, limits, way)


class OneByOne(Executor):
    """In place of a pool of threads: what is submitted runs at once, in the thread of the process."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work(*args, **kwargs))
        except Exception as error:  # a Death goes through: all threads of a process die with it
            future.set_exception(error)
        return future


def at_once(call: Callable[[], Any], name: str) -> Future[Any]:
    """In place of `airflow_ft.protocol.background.beside`."""
    return OneByOne().submit(call)


class ModelEncoder:
    """See `airflow_ft.sinks.kafka.records.RecordEncoder`: the value is the item itself."""

    def __init__(self, sink: Any, schema: Any) -> None:
        pass

    def columns(self, batch: Any) -> Iterator[ModelColumns]:
        yield ModelColumns(batch)


class ModelColumns:
    """See `airflow_ft.sinks.kafka.records.RecordColumns`. The model's producer takes its records one by one."""

    timestamps = headers = None

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def rows(self) -> Records:
        return Records(values=self._batch, keys=None, partitions=None, timestamps=None, headers=None)


def _modules(package: str, replaced: Mapping[str, Any]) -> list[tuple[ModuleType, dict[str, Any]]]:
    """The modules of a sink that use one of these names, with what they shall use instead; each must be in use."""
    prefix = f"airflow_ft.sinks.{package}."
    modules = [module for name, module in list(sys.modules.items()) if name.startswith(prefix)]
    found = [(module, {n: value for n, value in replaced.items() if hasattr(module, n)}) for module in modules]
    unused = set(replaced) - {name for _, names in found for name in names}
    assert not unused, f"the product has no {unused} any more: the simulator would simulate something else"
    return [(module, names) for module, names in found if names]


@contextmanager
def product_over_models() -> Iterator[Running]:
    """The product's modules speak to the models inside this block. One thread, one world at a time."""
    clock = SimpleNamespace(sleep=RUNNING.sleep, monotonic=RUNNING.monotonic, time=RUNNING.monotonic)
    threading = SimpleNamespace(Thread=NoThread, Event=lambda: SimpleNamespace(set=lambda: None))
    names = SimpleNamespace(uuid4=lambda: SimpleNamespace(hex=RUNNING.name()), token_hex=RUNNING.name)
    take = partial(lease.take_epoch, sleep=RUNNING.sleep, monotonic=RUNNING.monotonic)
    mysql = {
        "time": clock,
        "secrets": names,
        "Session": lambda info, limits: RUNNING.connect(info.conn_id),
        "Loader": ModelLoader,
        "check_server": lambda *_, **__: [],
        "ensure_ledger": lambda *_: "",
        "keep_table": lambda *_: None,
        "all_short": lambda *_: True,
        "read_table": lambda session, table: Table(table, {}, [], {}),
        "check_segment": RUNNING.judge_segment,
        "check_rows": lambda *_: None,
        "check_privileges": lambda *_: None,
        "Upserter": ModelUpserter,
        "check_keys": lambda *_: None,
        "check_changes_allowed": lambda *_, **__: None,
        "refuse_ahead": lambda *_: None,
    }
    kafka = {
        "time": clock,
        "random": SimpleNamespace(uniform=lambda low, high: low),
        "now": RUNNING.now,
        "describe": lambda clients, names: {name: TopicLimits(name, 1, 1, 1, 0, True) for name in names},
        "topic_ids": lambda clients, names: dict.fromkeys(names, ""),
        "cluster_id": lambda _: "",
        "require_same_topics": lambda *_: None,
        "create_token_topic": lambda *_: None,
        "await_readable": lambda *_: None,
        "check_topic": lambda *_: {},
        "check_rows": RUNNING.judge_records,
        "refused_rows": lambda *_: (),
        "client_limits": lambda *_: {"message.max.bytes": 1_000_000},
        "RecordEncoder": ModelEncoder,
        "ThreadPoolExecutor": OneByOne,
        "longest_transaction": lambda _: 900_000,
        "bounded": lambda call, _: call(),
        "client_settings": lambda settings: {"conn_id": settings.conn_id},
        "KafkaAdminClient": lambda conn_id, **_: RUNNING.admin(conn_id),
    }
    files = {
        "filesystem": lambda folder: Disk(RUNNING.folder(folder.strip("/"))),
        "Files": ModelFiles,
        "large": lambda files, *_: files,
        "schema_problems": lambda *_: [],
        "uuid": SimpleNamespace(uuid4=lambda: SimpleNamespace(hex=RUNNING.name())),
        "ThreadPoolExecutor": OneByOne,
        "store_of": lambda bucket, config: Bucket(lambda name: RUNNING.folder(name)),
    }
    filed = {
        "filesystem": lambda _: RUNNING.files,
        "link_tree": lambda *arguments: RUNNING.files.link_tree(*arguments),
        "is_hdfs": lambda _: False,
    }
    threads = ModelThreading(lambda: RUNNING.kernel).namespace()
    waiting = SimpleNamespace(sleep=RUNNING.wait, monotonic=RUNNING.monotonic, time=lambda: RUNNING.kernel.wall_clock())
    pausing = SimpleNamespace(sleep=partial(RUNNING.wait, ends=True), monotonic=RUNNING.monotonic)
    holding = SimpleNamespace(
        sleep=lambda seconds: RUNNING.wait(seconds, ends=RUNNING.spark.pauses()), monotonic=RUNNING.monotonic
    )
    middle = SimpleNamespace(random=lambda: 0.5)
    streams: list[tuple[Any, dict[str, Any]]] = [
        (overlap, {
            "threading": threads,
            "time": waiting,
            "give_back": lambda: None,
            "RETAINED_TOGETHER": 2,
            "PRUNED_EACH": 8.0,
            "FOLLOWED_EACH": float("inf"),  # sources are told with each second checkpoint
        }),
        (stage, {
            "threading": threads,
            "run_stage": lambda *args, **named: RUNNING.spark.run_stage(*args, **named),
            "drain_of": lambda *asked: RUNNING.windows.drain_of(*asked),
        }),
        (restart, {"time": waiting, "random": middle}),
        (stream, {"time": pausing, "drain_of": lambda *asked: RUNNING.windows.drain_of(*asked)}),
        (answers, {
            "drain_of": lambda *asked: RUNNING.windows.drain_of(*asked),
            "has_state": lambda uri: RUNNING.windows.has_state(uri),
        }),
        (capacity, {"time": holding}),
        (publisher, {"time": waiting, "threading": threads, "beside": at_once}),
        (query, {
            "time": waiting,
            "threading": threads,
            "filesystem": lambda _: SimpleNamespace(hadoop_path=lambda uri: uri),
            "write_batch": lambda *args, few=False, bounded=False, made_of=None: RUNNING.spark.write_batch(*args),
            "drain_of": lambda *asked: RUNNING.windows.drain_of(*asked),
            "terminal_copy": lambda *of: RUNNING.windows.terminal_copy(*of),
            "has_state": lambda uri: RUNNING.windows.has_state(uri),
            "upload": lambda _: None,
            "batch_listings": lambda *_: [],
            "lacking": lambda *_: None,
            "check_listings": lambda *_: None,
            "named_positions": lambda *_: {},
            "record_ids": lambda *of: RUNNING.spark.record_ids(*of),
            "recorded_ids": lambda location: RUNNING.spark.recorded_ids(location),
            "Timers": lambda *_: NO_TIMERS,
        }),
        (durable, {"seal": lambda *_, **how: None}),
        (state_reports, {"time": waiting, "sizes": lambda *_: None, "give_back": lambda: None}),
        (stopper, {"time": waiting, "threading": threads, "os": SimpleNamespace(_exit=RUNNING.exit)}),
        *((module, {"time": waiting}) for module in (idle, moments)),
        (idle.Idle, {"listening": listening}),
        (state_reset, {
            "SparkLocation": lambda *of: RUNNING.windows.location(*of),
            "location_root": lambda _: "file:///wal",
            "require_batch": lambda location: RUNNING.windows.require_batch(location),
            "location_of_epoch": lambda *of: RUNNING.windows.location_of_epoch(*of),
            "write_source_positions": lambda *arguments: RUNNING.windows.write_source_positions(*arguments),
            "has_state": lambda uri: RUNNING.windows.has_state(uri),
            "filesystem": lambda _: RUNNING.files,
        }),
        (taking, {
            "claim": lambda *_: None,
            "filesystem": lambda _: RUNNING.files,
            "uuid": SimpleNamespace(uuid4=RUNNING.id),
            "drain_of": lambda *asked: RUNNING.windows.drain_of(*asked),
            "_versions": dict,
        }),
        (stopping, {"time": waiting}),
        (restoring, {
            "register": lambda *_: "",
            "note_restored": lambda *of, **more: RUNNING.files.by_operator and evolution.note_restored(*of, **more),
        }),
        *(
            (module, {name: value for name, value in filed.items() if hasattr(module, name)})
            for module in _FILED
        ),
        *((module, {"drive": lambda *of: RUNNING.spark.drive(*of)}) for module in (rescaling, converting)),
        (runner, {"open_store": lambda _: RUNNING.store}),
        (job_restarts, {"time": waiting, "is_alive": lambda _: True}),
        (query_run, {
            "remember_given": lambda *_: None,
            "log_changed_settings": lambda *_: None,
            "Beginnings": SimpleNamespace(of=lambda request: RUNNING.spark.frozen(request)),
            "compute_planned": lambda frame, mode, location, **_: RUNNING.spark.compute_planned(location, frame.job),
            "gauges_of": lambda *_: {},  # so no thread asks how far it is behind its sources
        }),
    ]  # fmt: skip
    core = {"threading": threading, "uuid": names, "take_epoch": take}
    places: list[tuple[Any, dict[str, Any]]] = [
        (lease, core),
        (ahead, {"ThreadPoolExecutor": OneByOne}),
        (branch_system, {"ThreadPoolExecutor": OneByOne}),
        (slices, {"MIN_ROWS": 1}),
        (refused, {"_table": lambda rows: Rows(item for row in rows for item in row.values)}),
        (retention, {"MARKERS_TOGETHER": 1}),
        *streams,
        *_modules("mysql", mysql),
        *_modules("kafka", kafka),
        *_modules("files", files),
    ]
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with ExitStack() as stack:
            for module, changed in places:
                stack.enter_context(patch.multiple(module, **changed))
            stack.enter_context(patch.dict(sys.modules, {"obstore": obstore()}))
            yield RUNNING
    finally:
        logging.disable(before)
