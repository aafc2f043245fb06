"""Reads back what a demonstration has copied, by each system's own client.

It belongs to the judge, so it imports nothing of the package under test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.demo.data import COLUMNS, Row

if TYPE_CHECKING:
    import pyarrow as pa

EXTRA = ("carrier_count", "random")
"""The columns that the job adds."""
NAMES = (*COLUMNS, *EXTRA)
METASTORE = """
struct StorageDescriptor { 2: string location }
struct Partition { 1: list<string> values, 6: StorageDescriptor sd }
exception MetaException { 1: string message }
service Metastore {
  list<Partition> get_partitions(1: string db_name, 2: string tbl_name, 3: i16 max_parts) throws (2: MetaException o2)
}
"""
"""What the reader needs of the Thrift interface of a Hive metastore."""
TEXTS = frozenset({"carrier", "tailnum", "origin", "dest"})


def read_postgres(settings: Mapping[str, Any]) -> list[Row]:
    """All rows of the table `flights` in PostgreSQL."""
    import psycopg2

    login = {"user": settings["login"], "password": settings["password"], "dbname": settings["schema"]}
    with (
        closing(psycopg2.connect(host=settings["host"], port=settings["port"], **login)) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(f"SELECT {', '.join(NAMES)} FROM flights")
        return [_in_utc(row) for row in cursor]


def read_files(folder: str) -> list[Row]:
    """All rows of the Parquet files in folders of checkpoints."""
    import pyarrow.parquet as pq

    paths = sorted(Path(folder).glob("checkpoint=*/*.parquet"))
    return [row for path in paths for row in _rows_of(pq.ParquetFile(path).read())]


def read_delta(folder: str) -> list[Row]:
    """All rows of the newest version of a Delta table."""
    from deltalake import DeltaTable

    return _rows_of(DeltaTable(folder).to_pyarrow_table())


def read_iceberg(settings: Mapping[str, str]) -> list[Row]:
    """All rows of the newest snapshot of an Iceberg table in a SQL catalog."""
    from pyiceberg.catalog.sql import SqlCatalog

    return _rows_of(SqlCatalog("lake", **settings).load_table("shop.flights").scan().to_arrow())


def read_paimon(warehouse: str) -> list[Row]:
    """All rows of the newest snapshot of a Paimon table, by pypaimon."""
    from tools.paimon import Paimon

    with Paimon(warehouse) as paimon:
        return _rows_of(paimon.rows("shop.flights"))


def read_hive(settings: Mapping[str, Any]) -> list[Row]:
    """All rows in the folders of a table's partitions, as a metastore names them."""
    import pyarrow.parquet as pq
    from thriftpy2.parser import load_fp
    from thriftpy2.rpc import client_context

    service = load_fp(StringIO(METASTORE), "demo_metastore_thrift").Metastore
    with client_context(service, settings["host"], settings["port"], timeout=60_000) as client:
        folders = {part.sd.location.removeprefix("file:") for part in client.get_partitions("shop", "flights", -1)}
    paths = sorted(path for folder in folders for path in Path(folder).glob("[!_.]*"))
    return [row for path in paths for row in _rows_of(pq.ParquetFile(path).read())]


def read_redis(settings: Mapping[str, Any]) -> list[Row]:
    """All hashes whose key begins with `flight:`."""
    import redis

    with closing(redis.Redis(**settings, decode_responses=True)) as db:
        keys = sorted(set(db.scan_iter("flight:*", count=10_000)))  # a scan may return a key twice
        rows = []
        for start in range(0, len(keys), 10_000):
            pipe = db.pipeline(transaction=False)
            for key in keys[start : start + 10_000]:
                pipe.hgetall(key)
            rows += [row_of_texts(fields) for fields in pipe.execute()]
        return rows


def read_hbase(settings: Mapping[str, Any]) -> list[Row]:
    """All rows of the table `flights`, over the Thrift gateway."""
    import happybase

    with closing(happybase.Connection(**settings, timeout=120_000)) as db:
        found = db.table("flights").scan(batch_size=5_000)
        return [
            row_of_texts({name.decode().removeprefix("f:"): value.decode() for name, value in cells.items()})
            for _, cells in found
        ]


def read_cassandra(settings: Mapping[str, Any]) -> list[Row]:
    """All rows of the table `flights` of a keyspace."""
    from cassandra.auth import PlainTextAuthProvider
    from cassandra.cluster import Cluster
    from cassandra.query import tuple_factory

    login = PlainTextAuthProvider(settings["login"], settings["password"])
    cluster = Cluster([settings["host"]], port=settings["port"], auth_provider=login)
    try:
        session = cluster.connect(settings["schema"])
        session.row_factory, session.default_timeout = tuple_factory, 60
        return list(session.execute(f"SELECT {', '.join(NAMES)} FROM flights"))
    finally:
        cluster.shutdown()


READERS: Mapping[str, Callable[[Any], list[Row]]] = {
    "postgres": read_postgres,
    "files": read_files,
    "delta": read_delta,
    "iceberg": read_iceberg,
    "paimon": read_paimon,
    "hive": read_hive,
    "redis": read_redis,
    "hbase": read_hbase,
    "cassandra": read_cassandra,
}
"""How each copy is read: by its own settings."""


def row_of_texts(fields: Mapping[str, str]) -> Row:
    """Return the flight that is kept as texts, in which a missing value is missing."""
    return tuple(_value(name, fields.get(name)) for name in NAMES)


def _value(name: str, text: str | None) -> Any:
    if text is None or name in TEXTS:
        return text
    if name == "time_hour":
        return datetime.fromisoformat(text).astimezone(UTC).replace(tzinfo=None)
    return float(text) if name == "random" else int(text)


def _rows_of(table: pa.Table) -> list[Row]:
    return [_in_utc(row) for row in zip(*(table[name].to_pylist() for name in NAMES), strict=True)]


def _in_utc(row: Sequence[Any]) -> Row:
    """With times as MySQL has them."""
    at = COLUMNS.index("time_hour")
    return (*row[:at], row[at].astimezone(UTC).replace(tzinfo=None), *row[at + 1 :])
