"""A folder in a bucket that is not there yet, and its readers."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import Any

import obstore
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import FileSelector, FileType, S3FileSystem

from airflow_ft import FilesSink
from airflow_ft.clients import s3
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.sink_spec import SinkSpec
from airflow_ft.sinks.files.objects import Objects
from airflow_ft.testing import Values, plain
from airflow_ft.testing.world import Target
from tests.conformance.values import CLOCK, FINITE, NESTED, NOT_FINITE
from tools.servers import S3

REGION = "us-east-1"
ELSEWHERE = {
    "AWS_SESSION_TOKEN": "stale", "AWS_ENDPOINT": "http://127.0.0.1:1", "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1",
    "AWS_ACCESS_KEY_ID": "another", "AWS_SECRET_ACCESS_KEY": "else", "AWS_REGION": "eu-north-1",
    "AWS_SKIP_SIGNATURE": "true", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true",
}  # fmt: skip
"""An environment that leads to another store."""


@contextmanager
def environment_elsewhere() -> Iterator[pytest.MonkeyPatch]:
    """Lead new clients to another store, and forget those of before."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ELSEWHERE.items():
            patch.setenv(name, value)
        s3._store.cache_clear()
        yield patch


def connection_of(server: S3) -> ConnectionInfo:
    """As Airflow has it."""
    return ConnectionInfo(
        "aws", "aws", host=server.host, port=server.port, login=server.login, password=server.password,
        schema="http", extra={"region_name": REGION},
    )  # fmt: skip


class Bucket(Target):
    """Read by listing it, by a client that is not the sink's."""

    def __init__(self, server: S3, **settings: Any) -> None:
        self.server, self.path = server, f"{server.bucket}/{uuid.uuid4().hex}/orders"
        self.sink = FilesSink(folder=f"s3://aws@{self.path}", name="lake", **settings)
        self.connection = connection_of(server)
        self._read: dict[Any, list[int]] = {}
        self.reader = S3FileSystem(
            access_key=server.login, secret_key=server.password, endpoint_override=server.url, region=REGION
        )

    def fresh(self) -> Bucket:
        """A folder belongs to one pipeline."""
        other = copy(self)
        other.path, other._read = f"{self.server.bucket}/{uuid.uuid4().hex}/orders", {}
        other.sink = replace(self.sink, folder=f"s3://aws@{other.path}")
        return other

    def names(self) -> dict[str, int]:
        """All objects with their bytes, by name below the folder."""
        return {each.path.removeprefix(f"{self.path}/"): each.size for each in self._infos()}

    def _infos(self) -> list[Any]:
        found = self.reader.get_file_info(FileSelector(self.path, recursive=True, allow_not_found=True))
        return [each for each in found if each.is_file]

    def files(self) -> list[str]:
        """What readers see, by name: nothing that begins with an underscore or a dot."""
        return sorted(name for name in self.names() if not any(part[0] in "._" for part in name.split("/")))

    def staged(self) -> list[str]:
        """What is prepared and nobody sees."""
        return sorted(name for name in self.names() if name.startswith("_airflow_ft/staged/"))

    def ids(self) -> list[int]:
        """By PyArrow, in files of their own schemas; what was read is read again when it was replaced."""
        found = []
        for info in self._infos():
            name = info.path.removeprefix(f"{self.path}/")
            if not any(part[0] in "._" for part in name.split("/")):
                key = (name, info.mtime_ns, info.size)
                if key not in self._read:
                    table = ds.dataset(info.path, format=self.sink.format, filesystem=self.reader).to_table()
                    self._read[key] = table["id"].to_pylist()
                found += self._read[key]
        return sorted(found)

    def text(self, name: str) -> str:
        with self.reader.open_input_file(f"{self.path}/{name}") as file:
            return bytes(file.read()).decode()

    def manifest(self, number: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.text(f"checkpoint={number:010}/_airflow_ft"))
        return found

    def put(self, name: str, data: bytes) -> None:
        """An object, as somebody else would, whatever is there."""
        obstore.put(self._store, self._key(name), data)

    def delete(self, *names: str) -> None:
        """Objects, as somebody else would. PyArrow would leave empty ones in the place of their folders."""
        obstore.delete(self._store, [self._key(name) for name in names])

    @property
    def _store(self) -> Any:
        return Objects.of(self.sink.folder, self.connection, "").store

    def _key(self, name: str) -> str:
        return f"{self.path.partition('/')[2]}/{name}"

    def delete_checkpoint(self, number: int) -> None:
        self.delete(*(name for name in self.names() if name.startswith(f"checkpoint={number:010}/")))

    def plant(self, what: str, id: int) -> int:
        """With all rows of the file."""
        for name in self.files():
            with self.reader.open_input_file(f"{self.path}/{name}") as file:
                data = file.read()
            found = ds.dataset(f"{self.path}/{name}", format=self.sink.format, filesystem=self.reader).to_table()["id"]
            if id in found.to_pylist():
                if what == "loss":
                    self.delete(name)
                elif what == "double":
                    self.put(f"{name.rpartition('/')[0]}/again.{self.sink.format}", data)
                else:
                    self.put(name, data[: len(data) // 2] + b"x" + data[len(data) // 2 + 1 :])
                return len(found)
        return 0

    def values(self) -> Values | None:
        if self.sink.partition_by:
            return None
        path = f"{self.path.rpartition('/')[0]}/kinds"

        def read() -> list[dict[str, Any]]:
            if self.reader.get_file_info(path).type == FileType.NotFound:
                return []
            found = ds.dataset(path, format="parquet", filesystem=self.reader).files
            return [
                row for file in found for row in plain(pq.read_table(file, filesystem=self.reader, partitioning=None))
            ]

        return Values(replace(self.sink, folder=f"s3://aws@{path}"), {**FINITE, **NOT_FINITE, **CLOCK, **NESTED}, read)

    def mistaken(self) -> Mapping[str, tuple[SinkSpec, ConnectionInfo]]:
        nowhere = FilesSink(folder="s3://aws@nobody/orders", name="lake")
        return {**super().mistaken(), "no such bucket": (nowhere, self.connection)}
