"""Redis, HBase, Cassandra, Iceberg, Paimon and Hive from outside: tables, readers, and what the sinks remember.

Each has clients of its own, past the proxies; nothing of the package under test is used.
"""

from __future__ import annotations

import base64
import json
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any

import happybase
import pyarrow.parquet as pq
import redis
from cassandra import ConsistencyLevel
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.policies import ConstantReconnectionPolicy
from cassandra.query import SimpleStatement
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table
from thriftpy2.parser import load_fp
from thriftpy2.rpc import client_context

from tests.chaos.deliveries.hot_keys import CHUNK, FIRST, IDS, after
from tools.paimon import Paimon
from tools.servers import Cassandra, HBase, Hive, IcebergRest, Redis

SPACE = "chaos"
ROWS = "rows"

Row = tuple[int, int]

_METASTORE: Any = load_fp(
    StringIO("""
struct Storage { 2: string location }
struct Partition { 1: list<string> values, 6: Storage storage, 7: map<string, string> parameters }
exception MetaException { 1: string message }
exception NoSuchObjectException { 1: string message }
service Metastore {
  list<Partition> get_partitions(1: string db_name, 2: string tbl_name, 3: i16 max_parts)
    throws (1: NoSuchObjectException o1, 2: MetaException o2)
}
"""),
    "chaos_metastore_thrift",
)


class System(ABC):
    """One of these systems. By key, unless `appends`: then it has no keys that change.

    `connection`: what the processes need for it besides its host and port; `place`: where tables are, if they have to
    know it.
    """

    appends = False
    place = ""
    connection: Mapping[str, Any]

    @abstractmethod
    def set_up(self) -> None:
        """Makes its tables."""

    @abstractmethod
    def rows(self, pipeline: str) -> list[Row]:
        """All rows of a pipeline, as (id, draw)."""

    @abstractmethod
    def watched(self, pipeline: str) -> Mapping[Hashable, object]:
        """What is watched while something befalls a delivery, as quickly as it can be read."""

    @abstractmethod
    def document(self, pipeline: str, participant: str) -> str | bytes | None:
        """Head and markers of the sink, as JSON. None: it has none."""

    def wholes(self, chunks: Sequence[int], begun: int) -> list[object]:
        """What may be watched, in order, while the chunks from `begun` on are delivered, each at once."""
        return [after(count) for count in range(begun, len(chunks) + 1)]

    def close(self) -> None:  # noqa: B027  (most have nothing to end)
        """Ends its clients."""


class OfRedis(System):
    def __init__(self, server: Redis) -> None:
        self._db = redis.Redis(port=server.port, password=server.password)
        self.connection = {"conn_type": "redis", "password": server.password}

    def set_up(self) -> None:
        """Keys need nothing."""

    def rows(self, pipeline: str) -> list[Row]:
        keys = list(self._db.scan_iter(f"{ROWS}:{pipeline}:*", count=10_000))
        pipe = self._db.pipeline(transaction=False)
        for key in keys:
            pipe.hmget(key, "id", "draw")
        return [(int(id), int(draw)) for id, draw in pipe.execute()]

    def watched(self, pipeline: str) -> Mapping[Hashable, object]:
        pipe = self._db.pipeline(transaction=True)
        for id in IDS:
            pipe.hget(f"{ROWS}:{pipeline}:{id}", "draw")
        return {id: draw and int(draw) for id, draw in zip(IDS, pipe.execute(), strict=True)}

    def document(self, pipeline: str, participant: str) -> str | bytes | None:
        return self._db.hget(f"airflow_ft:{pipeline}:{participant}", "document")

    def close(self) -> None:
        self._db.close()


class OfHBase(System):
    """Opens a connection for each look: one serves a single thread, and the gateway closes it after an idle minute."""

    connection: Mapping[str, Any] = {"conn_type": "hbase"}

    def __init__(self, server: HBase) -> None:
        self._server = server

    @contextmanager
    def _table(self, name: str = ROWS) -> Iterator[Any]:
        with closing(happybase.Connection(self._server.host, self._server.port, timeout=30_000)) as connection:
            yield connection.table(name)

    def set_up(self) -> None:
        with closing(happybase.Connection(self._server.host, self._server.port, timeout=60_000)) as connection:
            connection.create_table(ROWS, {"f": {"max_versions": 1}})

    def rows(self, pipeline: str) -> list[Row]:
        with self._table() as table:
            found = table.scan(row_prefix=f"{pipeline}:".encode(), columns=[b"f:id", b"f:draw"], batch_size=5_000)
            return [(int(row[b"f:id"]), int(row[b"f:draw"])) for _, row in found]

    def watched(self, pipeline: str) -> Mapping[Hashable, object]:
        keys = {f"{pipeline}:{id}".encode(): id for id in IDS}
        with self._table() as table:
            found = {keys[key]: int(row[b"f:draw"]) for key, row in table.rows(list(keys), columns=[b"f:draw"])}
        return {id: found.get(id) for id in IDS}

    def document(self, pipeline: str, participant: str) -> str | bytes | None:
        with self._table("airflow_ft") as table:
            found: bytes | None = table.row(f"{pipeline}:{participant}".encode()).get(b"f:document")
            return found


class OfCassandra(System):
    def __init__(self, server: Cassandra) -> None:
        self._server = server
        self.connection = {
            "conn_type": "cassandra",
            "login": server.user,
            "password": server.password,
            "schema": SPACE,
        }

    @cached_property
    def _session(self) -> Session:
        login = PlainTextAuthProvider(self._server.user, self._server.password)
        self._cluster = Cluster(
            [self._server.host],
            self._server.port,
            auth_provider=login,
            protocol_version=5,
            reconnection_policy=ConstantReconnectionPolicy(0.2, None),
            execution_profiles={EXEC_PROFILE_DEFAULT: ExecutionProfile(request_timeout=30)},
        )
        return self._cluster.connect()

    def set_up(self) -> None:
        for statement in (
            f"CREATE KEYSPACE {SPACE} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}",
            f"CREATE TABLE {SPACE}.{ROWS} (pipeline text, id bigint, draw bigint, PRIMARY KEY (pipeline, id))",
        ):
            self._session.execute(statement)

    def rows(self, pipeline: str) -> list[Row]:
        query = f"SELECT id, draw FROM {SPACE}.{ROWS} WHERE pipeline = %s"
        return [(row.id, row.draw) for row in self._session.execute(query, (pipeline,))]

    def watched(self, pipeline: str) -> Mapping[Hashable, object]:
        query = f"SELECT id, draw FROM {SPACE}.{ROWS} WHERE pipeline = %s AND id >= {FIRST}"
        found = {row.id: row.draw for row in self._session.execute(query, (pipeline,))}
        return {id: found.get(id) for id in IDS}

    def document(self, pipeline: str, participant: str) -> str | bytes | None:
        query = SimpleStatement(
            f"SELECT document FROM {SPACE}.airflow_ft WHERE pipeline = %s AND participant = %s",
            consistency_level=ConsistencyLevel.SERIAL,
        )
        row = self._session.execute(query, (pipeline, participant)).one()
        return str(row.document) if row else None

    def close(self) -> None:
        if "_session" in vars(self):
            self._cluster.shutdown()


class OfIceberg(System):
    """A table for each pipeline, into which rows are appended; `properties` are those of pyiceberg's catalog."""

    appends = True

    def __init__(self, properties: Mapping[str, str], extra: Mapping[str, str]) -> None:
        self._properties = properties
        self.connection = {"conn_type": "iceberg", "extra": {"catalog_name": "lake", **extra}}

    def _table(self, catalog: Catalog, pipeline: str) -> Table | None:
        try:
            return catalog.load_table((SPACE, pipeline.replace("-", "_")))
        except (NoSuchTableError, NoSuchNamespaceError):
            return None

    @contextmanager
    def _opened(self, pipeline: str) -> Iterator[Table | None]:
        with closing(load_catalog("lake", **self._properties)) as catalog:
            yield self._table(catalog, pipeline)

    def set_up(self) -> None:
        """The sink makes its tables."""

    def _ids(self, pipeline: str, *columns: str) -> list[Mapping[str, int]]:
        with self._opened(pipeline) as table:
            if table is None or table.schema().as_struct().fields == ():
                return []
            found: list[Mapping[str, int]] = table.scan(selected_fields=columns).to_arrow().to_pylist()
            return found

    def rows(self, pipeline: str) -> list[Row]:
        return [(row["id"], row["draw"]) for row in self._ids(pipeline, "id", "draw")]

    def watched(self, pipeline: str) -> Mapping[Hashable, object]:
        """How many rows each chunk has."""
        return dict(Counter(row["id"] // CHUNK for row in self._ids(pipeline, "id")))

    def document(self, pipeline: str, participant: str) -> str | bytes | None:
        with self._opened(pipeline) as table:
            memory = table and table.metadata.snapshot_by_name(f"airflow_ft/{pipeline}/{participant}")
            return memory.summary.additional_properties["airflow-ft.document"] if memory and memory.summary else None

    def wholes(self, chunks: Sequence[int], begun: int) -> list[object]:
        return [dict(enumerate(chunks[:count])) for count in range(begun, len(chunks) + 1)]


class OfPaimon(System):
    """A table for each pipeline in a folder, into which rows are appended. It is read by pypaimon."""

    appends = True
    connection: Mapping[str, Any] = {"conn_type": ""}

    def __init__(self, folder: Path) -> None:
        self._paimon = Paimon(folder)
        self.place = str(folder / f"{SPACE}.db")

    def set_up(self) -> None:
        """The sink makes its tables."""

    def _read(self, pipeline: str) -> list[Row]:
        table = f"{SPACE}.{pipeline.replace('-', '_')}"
        if not self._paimon.has(table):
            return []
        found = self._paimon.rows(table)
        return list(zip(found["id"].to_pylist(), found["draw"].to_pylist(), strict=True))

    def rows(self, pipeline: str) -> list[Row]:
        return self._read(pipeline)

    def watched(self, pipeline: str) -> Mapping[Hashable, object]:
        """How many rows each chunk has."""
        return dict(Counter(id // CHUNK for id, _ in self._read(pipeline)))

    def document(self, pipeline: str, participant: str) -> str | bytes | None:
        """The newest one, with what it awaits if that is a snapshot of the table."""
        table = Path(self.place) / pipeline.replace("-", "_")
        names = sorted((table / "_airflow_ft" / pipeline / participant).glob("*.json"))
        if not names:
            return None
        document = json.loads(names[-1].read_bytes())
        memory, awaited = document["memory"], document["awaits"]
        if awaited:
            snapshot = table / "snapshot" / f"snapshot-{awaited['snapshot']}"
            if not snapshot.exists() or json.loads(snapshot.read_bytes())["uuid"] != awaited["uuid"]:
                memory = awaited["without"]
        return json.dumps(memory) if memory is not None else None

    def wholes(self, chunks: Sequence[int], begun: int) -> list[object]:
        return [dict(enumerate(chunks[:count])) for count in range(begun, len(chunks) + 1)]

    def close(self) -> None:
        self._paimon.close()


class OfHive(System):
    """A table for each pipeline, into which rows are appended, and whose partitions the metastore names."""

    appends = True
    connection: Mapping[str, Any] = {"conn_type": "hive_metastore"}

    def __init__(self, server: Hive) -> None:
        self._server = server

    def set_up(self) -> None:
        """The sink makes its tables."""

    def _partitions(self, pipeline: str) -> list[Any]:
        """All partitions, by one request."""
        service, where = _METASTORE.Metastore, (self._server.host, self._server.port)
        with client_context(service, *where, socket_timeout=60_000, connect_timeout=60_000) as client:
            try:
                found: list[Any] = client.get_partitions(SPACE, pipeline.replace("-", "_"), -1)
                return found
            except _METASTORE.NoSuchObjectException:
                return []

    def rows(self, pipeline: str) -> list[Row]:
        found: list[Row] = []
        for partition in self._partitions(pipeline):
            for file in Path(partition.storage.location.removeprefix("file:")).iterdir():
                if not file.name.startswith(("_", ".")):
                    read = pq.ParquetFile(file).read(["id", "draw"])
                    found += zip(read["id"].to_pylist(), read["draw"].to_pylist(), strict=True)
        return found

    def watched(self, pipeline: str) -> Mapping[Hashable, object]:
        """How many rows each chunk has."""
        return dict(Counter(id // CHUNK for id, _ in self.rows(pipeline)))

    def document(self, pipeline: str, participant: str) -> str | bytes | None:
        """In the parameters of the newest partition that holds one."""
        found = {}
        for partition in self._partitions(pipeline):
            group, _, name = partition.values[-1].rpartition("/")
            if group == f"{pipeline}/{participant}" and name.startswith("memory-"):
                found[int(name.removeprefix("memory-"))] = partition.parameters
        if not found:
            return None
        named = "airflow_ft.memory."
        newest = {int(key.removeprefix(named)): v for key, v in found[max(found)].items() if key.startswith(named)}
        return zlib.decompress(base64.b64decode("".join(newest[part] for part in sorted(newest))))

    def wholes(self, chunks: Sequence[int], begun: int) -> list[object]:
        return [dict(enumerate(chunks[:count])) for count in range(begun, len(chunks) + 1)]


def of_rest(server: IcebergRest) -> OfIceberg:
    """Iceberg's REST catalog."""
    return OfIceberg({"type": "rest", "uri": server.url}, {})


def of_file(folder: Path) -> OfIceberg:
    """A SQL catalog in a file of SQLite, without a server."""
    folder.mkdir(parents=True, exist_ok=True)
    place = {"type": "sql", "warehouse": f"file://{folder}/lake"}
    uri = f"sqlite:///{folder}/catalog.db?timeout="
    return OfIceberg({**place, "uri": f"{uri}60"}, {**place, "uri": f"{uri}3"})
