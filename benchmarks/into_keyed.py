"""WAL -> Redis, Cassandra, HBase: the sinks against what a user would write into `foreachBatch`, from the same Parquet.

One client process and one server on one machine, so client and server share its cores.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.bench import Bench
from benchmarks.beside import Beside, noting
from benchmarks.data import segment
from benchmarks.into_mysql import INSTALLATION
from benchmarks.measuring import Claim, Comparison, Contender, MeasurementError, timed

if TYPE_CHECKING:
    from airflow_ft import HBaseSink
    from airflow_ft.protocol.sink_spec import SinkSpec

MOST_ROWS = 200_000
BATCH, SMALL_BATCH = 1_000, 10
"""Rows of a batch; Cassandra warns of larger ones."""


def redis(bench: Bench) -> list[Comparison]:
    """`upsert` and `atomic` against pipelines of HSET."""
    return IntoRedis(bench).comparisons()


def cassandra(bench: Bench) -> list[Comparison]:
    """`upsert` against the driver's `execute_concurrent`, with unlogged batches."""
    return IntoCassandra(bench).comparisons()


def hbase(bench: Bench) -> list[Comparison]:
    """`upsert` against batches of happybase."""
    return IntoHBase(bench).comparisons()


class IntoKeyed(ABC):
    """A server with rows by key, and its contenders."""

    title: ClassVar[str]
    wanted: ClassVar[float]

    def __init__(self, bench: Bench, kind: str) -> None:
        self.bench, self.kind = bench, kind
        self.rows = bench.table.slice(0, min(bench.rows, MOST_ROWS))
        self._source = bench.folder / f"{kind}.parquet"
        pq.write_table(self.rows, self._source)
        name = f"{kind}-{next(bench.servers.numbers)}"
        self._segment = segment(bench.folder / "wal", name, {"orders": self.rows})
        self._worker = bench.servers.worker("benchmarks.delivering")

    @property
    @abstractmethod
    def connection(self) -> dict[str, Any]:
        """How tasks reach the server."""

    @abstractmethod
    def sinks(self) -> Iterable[SinkSpec]:
        """Those to measure."""

    @abstractmethod
    def empty(self) -> None:
        """Remove all rows."""

    @abstractmethod
    def by_hand(self, rows: Iterator[dict[str, Any]]) -> None:
        """Write rows as a user would."""

    @abstractmethod
    def codes(self) -> dict[int, str]:
        """Return the column `code` of all rows that are there, by id."""

    def comparisons(self) -> list[Comparison]:
        """Ours, each from opening the participant to the marker, and the usual way; and CPU time of the clients."""
        noted: dict[str, list[float]] = {}
        ours = [
            self._contender(sink.strategy, lambda sink=sink: self._deliver(sink), noted, self._worker.pid)
            for sink in self.sinks()
        ]
        ways = self.ways()
        plain = [
            self._contender(each, lambda write=write: timed(lambda: write(self._given())), noted, os.getpid())
            for each, (write, _) in ways.items()
        ]
        claims = [
            Claim(f"WAL -> {self.kind}, `{ours[0].name}` against {each}", ours[0].name, (each,), wanted)
            for each, (_, wanted) in ways.items()
        ]
        title = f"WAL -> {self.kind}, committed (prepare and commit), against {' and '.join(ways)}, from Parquet"
        found = Comparison(self.kind, title, [*ours, *plain], claims, rows=self.rows.num_rows)
        return [found, Beside.of(found, noted)]

    def ways(self) -> dict[str, tuple[Callable[[Iterator[dict[str, Any]]], None], float | None]]:
        """Return other ways to write rows, by name, and the ratio that is wanted against each, if any."""
        return {self.title: (self.by_hand, self.wanted)}

    def _given(self) -> Iterator[dict[str, Any]]:
        return (row for batch in pq.read_table(self._source).to_batches(10_000) for row in batch.to_pylist())

    def _deliver(self, sink: SinkSpec) -> float:
        from airflow_ft.protocol.model import ParticipantPlan, Plan, Promise

        chosen = ParticipantPlan("store", self.kind, sink.strategy, sink.promise, 0, {"orders": sink.settings()})
        decides = "store" if sink.promise is Promise.ATOMIC else None
        plan = Plan(f"p{next(self.bench.servers.numbers)}", INSTALLATION, 1, (self._segment,), (chosen,), decides)
        seconds: float = self._worker.ask("deliver", plan=plan.to_json(), connection=self.connection)["seconds"]
        return seconds

    def _contender(self, name: str, deliver: Any, noted: dict[str, list[float]], client: int) -> Contender:
        def run() -> float:
            self.empty()
            with noting(noted, name, client):
                seconds: float = deliver()
            self.check(name)
            return seconds

        return Contender(name, run)

    def check(self, name: str) -> None:
        """MeasurementError unless exactly the rows are there; `name` is the contender's."""
        wanted = dict(zip(self.rows["id"].to_pylist(), self.rows["code"].to_pylist(), strict=True))
        if (found := self.codes()) != wanted:
            raise MeasurementError(f"{name}: {len(found):,} rows are there, not just the {len(wanted):,}")


class IntoRedis(IntoKeyed):
    """Redis with `appendfsync always`."""

    title = f"HSET, {BATCH:,} a pipeline"
    wanted = 2.0

    def __init__(self, bench: Bench, folder: str = "redis") -> None:
        import redis

        from tools.servers import Redis

        super().__init__(bench, "redis")
        options = {"appendfsync": "always"}
        self._server = bench.stack.enter_context(Redis(bench.servers.folder / folder, options=options))
        self._db = redis.Redis(port=self._server.port, password=self._server.password)

    @property
    def connection(self) -> dict[str, Any]:
        return {
            "conn_id": "store", "conn_type": "redis", "host": self._server.host, "port": self._server.port,
            "password": self._server.password,
        }  # fmt: skip

    def sinks(self) -> Iterable[SinkSpec]:
        from airflow_ft import RedisSink

        strategies = ("upsert", "atomic") if self.rows.num_rows <= 100_000 else ("upsert",)
        return [RedisSink(key="orders:{id}", conn_id="store", strategy=strategy) for strategy in strategies]

    def empty(self) -> None:
        self._db.flushall()

    def by_hand(self, rows: Iterator[dict[str, Any]]) -> None:
        pipe = self._db.pipeline(transaction=False)
        for number, row in enumerate(rows, 1):
            pipe.hset(f"orders:{row['id']}", mapping={name: str(value) for name, value in row.items()})
            if number % BATCH == 0:
                pipe.execute()
        pipe.execute()

    def codes(self) -> dict[int, str]:
        keys = list(self._db.scan_iter("orders:*", count=10_000))
        found = {}
        for start in range(0, len(keys), 10_000):
            pipe = self._db.pipeline(transaction=False)
            for key in keys[start : start + 10_000]:
                pipe.hget(key, "code")
            for key, code in zip(keys[start : start + 10_000], pipe.execute(), strict=True):
                found[int(key.rpartition(b":")[2])] = code.decode()
        return found


class IntoCassandra(IntoKeyed):
    """One node."""

    title = f"execute_concurrent, {SMALL_BATCH} rows an unlogged batch"
    wanted = 1.0

    def __init__(self, bench: Bench) -> None:
        from tools.servers import Cassandra

        super().__init__(bench, "cassandra")
        options = {"write_request_timeout": "60s", "native_transport_timeout": "60s"}  # on a machine that is busy
        options["concurrent_writes"] = "32"  # Cassandra's default: each waits for the disk
        self._server = bench.stack.enter_context(Cassandra(bench.servers.folder / "cassandra", options=options))
        with self._opened("") as session:
            session.execute(
                "CREATE KEYSPACE bench WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
            )
            session.execute(
                "CREATE TABLE bench.orders (id bigint PRIMARY KEY, code text, score double, at timestamp, note text,"
                " flag tinyint, quantity int, amount decimal)"
            )
        # Cassandra keeps milliseconds, and the sink refuses what is finer.
        at = self.rows.schema.get_field_index("at")
        milliseconds = self.rows["at"].cast(pa.timestamp("ms", "UTC"), safe=False).cast(self.rows["at"].type)
        self.rows = self.rows.set_column(at, self.rows.schema.field(at), milliseconds)
        pq.write_table(self.rows, self._source)
        name = f"cassandra-{next(bench.servers.numbers)}"
        self._segment = segment(bench.folder / "wal", name, {"orders": self.rows})

    @property
    def connection(self) -> dict[str, Any]:
        server = self._server
        return {
            "conn_id": "store", "conn_type": "cassandra", "host": server.host, "port": server.port,
            "login": server.user, "password": server.password, "schema": "bench",
        }  # fmt: skip

    @contextmanager
    def _opened(self, keyspace: str = "bench") -> Iterator[Any]:
        from cassandra.auth import PlainTextAuthProvider
        from cassandra.cluster import Cluster

        login = PlainTextAuthProvider(self._server.user, self._server.password)
        cluster = Cluster([self._server.host], port=self._server.port, auth_provider=login)
        try:
            session = cluster.connect(keyspace or None)
            session.default_timeout = 60
            yield session
        finally:
            cluster.shutdown()

    def sinks(self) -> Iterable[SinkSpec]:
        from airflow_ft import CassandraSink

        return [CassandraSink(table="orders", conn_id="store")]

    def empty(self) -> None:
        with self._opened() as session:
            session.execute("TRUNCATE orders")

    def by_hand(self, rows: Iterator[dict[str, Any]]) -> None:
        from cassandra.concurrent import execute_concurrent
        from cassandra.query import BatchStatement, BatchType

        names = self.rows.schema.names
        with self._opened() as session:
            statement = f"INSERT INTO orders ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
            insert = session.prepare(statement)

            def batches() -> Iterator[tuple[Any, tuple[()]]]:
                while some := list(islice(rows, SMALL_BATCH)):
                    batch = BatchStatement(BatchType.UNLOGGED)
                    for row in some:
                        batch.add(insert, tuple(row.values()))
                    yield batch, ()

            execute_concurrent(session, batches(), concurrency=64)

    def codes(self) -> dict[int, str]:
        with self._opened() as session:
            return {row.id: row.code for row in session.execute("SELECT id, code FROM orders")}


class IntoHBase(IntoKeyed):
    """One server and its gateway."""

    title = f"happybase, {BATCH:,} cells a batch"
    wanted = 2.0

    def __init__(self, bench: Bench) -> None:
        from tools.servers import HBase

        super().__init__(bench, "hbase")
        self._server = bench.stack.enter_context(HBase(bench.servers.folder / "hbase"))
        self._requests = self._encoded()

    @property
    def connection(self) -> dict[str, Any]:
        return {"conn_id": "store", "conn_type": "hbase", "host": self._server.host, "port": self._server.port}

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        import happybase

        with closing(happybase.Connection(self._server.host, self._server.port, timeout=120_000)) as db:
            yield db

    def sinks(self) -> list[HBaseSink]:
        from airflow_ft import HBaseSink

        return [HBaseSink(table="orders", row_key="{id}", family="d", conn_id="store")]

    def empty(self) -> None:
        with self._opened() as db:
            if b"orders" in db.tables():
                db.delete_table("orders", disable=True)
            db.create_table("orders", {"d": {}})

    def by_hand(self, rows: Iterator[dict[str, Any]]) -> None:
        with self._opened() as db, db.table("orders").batch(batch_size=BATCH) as batch:
            for row in rows:
                batch.put(str(row["id"]), {f"d:{name}": str(value) for name, value in row.items() if value is not None})

    def ways(self) -> dict[str, tuple[Callable[[Iterator[dict[str, Any]]], None], float | None]]:
        by_hand = f"mutateRows, {BATCH:,} rows a request"
        return {**super().ways(), by_hand: (self._by_requests, 1.0), "requests made before": (self._replayed, None)}

    def _replayed(self, _: Iterator[dict[str, Any]]) -> None:
        """Send what the sink would send, over as many connections, and nothing else: the server sets the pace."""
        from airflow_ft.protocol.connections import ConnectionInfo
        from airflow_ft.sinks.hbase.requests import AT_ONCE
        from airflow_ft.sinks.hbase.server import opened

        left = iter(self._requests)

        def send(connection: ConnectionInfo) -> None:
            with opened(connection) as client:
                for request in left:
                    client.mutate_rows(request)

        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(send, [ConnectionInfo(**self.connection)] * AT_ONCE))

    def _encoded(self) -> list[bytes]:
        import numpy as np

        from airflow_ft.sinks.base.keyed import Chunk
        from airflow_ft.sinks.hbase.participant import mutations
        from airflow_ft.sinks.hbase.wire import BINARY

        (sink,), stamp, found = self.sinks(), time.time_ns() // 1_000_000, []
        for start in range(0, self.rows.num_rows, BATCH):
            rows = self.rows.slice(start, BATCH).combine_chunks().to_batches()[0]
            made = mutations(sink, Chunk(start, "orders", rows, np.zeros(rows.num_rows, np.bool_), {}), BINARY)
            found.append(BINARY.request(sink.table, list(made.values()), stamp))
        return found

    def _by_requests(self, rows: Iterator[dict[str, Any]]) -> None:
        from Hbase_thrift import BatchMutation, Mutation  # type: ignore[import-not-found]  # of happybase

        with self._opened() as db:
            while some := list(islice(rows, BATCH)):
                requests = []
                for row in some:
                    cells = [
                        Mutation(False, f"d:{name}".encode(), str(value).encode(), True)
                        for name, value in row.items()
                        if value is not None
                    ]
                    requests.append(BatchMutation(str(row["id"]).encode(), cells))
                db.client.mutateRows(b"orders", requests, {})

    def codes(self) -> dict[int, str]:
        with self._opened() as db:
            found = db.table("orders").scan(columns=["d:code"], batch_size=10_000)
            return {int(key): row[b"d:code"].decode() for key, row in found}
