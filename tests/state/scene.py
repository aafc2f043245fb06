"""A pipeline whose state was written by hand, as Spark writes it on the HDFS-backed map: counts by a text."""

import json
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_ft.protocol.model import SparkPosition
from airflow_ft.state.rows import StateColumn, write_row
from airflow_ft.state.xxhash import xxh32
from airflow_ft.store import open_store
from tests.store.scene import PIPELINE, Scene, a_segment

PROVIDERS = "org.apache.spark.sql.execution.streaming.state."
CONF = {
    "spark.sql.streaming.stateStore.providerClass": f"{PROVIDERS}HDFSBackedStateStoreProvider",
    "spark.sql.shuffle.partitions": "1",
}
OPERATOR = {
    "operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"},
    "stateStoreInfo": [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 1}],
}
KEY, VALUE = (StateColumn("k", "string"),), (StateColumn("count", "long"),)


def schema(columns: tuple[StateColumn, ...]) -> dict[str, Any]:
    fields = [{"name": each.name, "type": each.kind, "nullable": True, "metadata": {}} for each in columns]
    return {"type": "struct", "fields": fields}


def text(data: str) -> bytes:
    """As Java's `writeUTF`: a character beyond U+FFFF is two surrogates."""
    units = data.encode("utf-16-be", "surrogatepass")
    each = [units[at : at + 2].decode("utf-16-be", "surrogatepass") for at in range(0, len(units), 2)]
    written = "".join(each).encode(errors="surrogatepass").replace(b"\0", b"\xc0\x80")
    return struct.pack(">H", len(written)) + written


def schema_file(key: tuple[StateColumn, ...] = KEY, value: tuple[StateColumn, ...] = VALUE) -> bytes:
    parts = (
        struct.pack(">i", 1) + text(json.dumps(schema(each), separators=(",", ":"), ensure_ascii=False))
        for each in (key, value)
    )
    return text("v2") + b"".join(parts)


def compressed(data: bytes) -> bytes:
    """As lz4-java's `LZ4BlockOutputStream`: a block, and the empty one at the end."""
    part = pa.Codec("lz4_raw").compress(data, asbytes=True)
    head = struct.pack("<8sBiiI", b"LZ4Block", 0x2F, len(part), len(data), xxh32([data], 0x9747B28C)[0] & 0x0FFFFFFF)
    return head + part + struct.pack("<8sBiiI", b"LZ4Block", 0x15, 0, 0, 0)


def records(values: Mapping[bytes, bytes | None]) -> bytes:
    """The first form of a file of changes."""
    found = b""
    for key, value in values.items():
        found += struct.pack(">i", len(key)) + key
        found += struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value
    return found + struct.pack(">i", -1)


class Counts:
    """A location of Spark."""

    def __init__(self, path: Path) -> None:
        self.path, self.operator = path, 0
        self.write_operator(0)
        self.write_schema(KEY, VALUE)

    def write_operator(self, number: int, name: str = "stateStoreSave") -> None:
        info = {**OPERATOR, "operatorInfo": {"operatorId": number, "operatorName": name}}
        self._write(f"state/{number}/_metadata/metadata", b"v1\n" + json.dumps(info).encode())

    def write_schema(self, key: tuple[StateColumn, ...], value: tuple[StateColumn, ...]) -> None:
        self.key, self.value = key, value
        self._write("state/0/0/_metadata/schema", schema_file(key, value))

    def batch(self, number: int, counts: Mapping[Any, float | None]) -> SparkPosition:
        rows = {
            write_row(self.key, [k]): None if count is None else write_row(self.value, [count])
            for k, count in counts.items()
        }
        self._write(f"state/{self.operator}/0/{number + 1}.delta", compressed(records(rows)))
        self._write(f"offsets/{number}", "\n".join(["v1", json.dumps({"conf": CONF}), '{"logOffset":0}']).encode())
        self._write(f"commits/{number}", b"v1\n{}")
        return SparkPosition(self.path.as_uri(), number)

    def read(self, name: str) -> None:
        """All batches have read one file, of a source of files."""
        self._write(
            "sources/0/0", b"v1\n" + json.dumps({"path": f"file:///in/{name}", "timestamp": 1, "batchId": 0}).encode()
        )

    def snapshot(self, number: int, counts: Mapping[str, int]) -> None:
        rows = {write_row(KEY, [k]): write_row(VALUE, [count]) for k, count in counts.items()}
        self._write(f"state/0/0/{number + 1}.snapshot", compressed(records(rows)))

    def forget(self, number: int) -> None:
        """As Spark's maintenance does."""
        self.file(number).unlink()

    def file(self, number: int) -> Path:
        return self.path / f"state/0/0/{number + 1}.delta"

    def _write(self, name: str, data: bytes) -> None:
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_bytes(data)


class Pipeline(Scene):
    """A decision log, and the location in which its checkpoints lie."""

    def at(self, root: Path) -> Counts:
        self.root, self.counts = root, Counts(root / PIPELINE / "spark" / "1-1")
        self.batches = 0
        return self.counts

    def published(self, counts: Mapping[Any, float | None]) -> int:
        if not self.epoch:
            self.take()
        number = self.trigger()
        position = self.counts.batch(self.batches, counts)
        self.batches += 1
        before = self.store.pipeline(PIPELINE).last_published
        self.store.publish(PIPELINE, self.epoch, number, before, a_segment(number), position, {"orders": number}, None)
        return number

    def confirmed(self, counts: Mapping[Any, float | None]) -> int:
        number = self.published(counts)
        self.complete(number)
        return number

    def restarts(self) -> None:
        """Another attempt goes on in a copy."""
        import shutil

        copy = self.counts.path.with_name("2-1")
        shutil.copytree(self.counts.path, copy)
        self.counts = Counts(copy)


@contextmanager
def pipeline(folder: Path) -> Iterator[Pipeline]:
    store = open_store(f"sqlite:///{folder}/ft.db")
    scene = Pipeline(store)
    scene.at(folder / "wal")
    yield scene
    store.close()
