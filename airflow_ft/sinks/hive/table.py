"""One version of a table in the metastore, and requests that add partitions to exactly that one."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
from thriftpy2.thrift import TException

from airflow_ft.clients.buckets import is_bucket
from airflow_ft.clients.s3 import SCHEME
from airflow_ft.protocol.errors import AirflowFtError, SinkAccessError, UnfitTargetError
from airflow_ft.sinks.base.document import OvertakenError
from airflow_ft.sinks.base.table_columns import Column, unsupported
from airflow_ft.sinks.files.partitions import NULL, escaped
from airflow_ft.sinks.hive.columns import fields_of, keys_of, lacks_columns, of_table
from airflow_ft.sinks.hive.formats import CLASSES, format_of
from airflow_ft.sinks.hive.memory import Ledger, newest, packed, unpacked, value_of_memory, value_of_rows
from airflow_ft.sinks.hive.metastore import Connected, lacking_folder
from airflow_ft.sinks.hive.spec import KEY
from airflow_ft.sinks.hive.thrift import API
from airflow_ft.wal.filesystem import FileSystem, filesystem, is_remote
from airflow_ft.wal.local import LocalFileSystem, local_path

OURS = "_airflow_ft"
"""The folder in the table's own that holds all files of deliveries. Readers and MSCK REPAIR pass such names."""
_COLUMNS = "airflow_ft.columns"
_S3A = "s3a"
"""Hadoop's scheme for buckets. Others have no client here that metastore, Hive and Spark have, too."""
_RETENTION = "partition.retention.period"
_FILLED = 32
"""Documents that are kept. A process that reads one has not slept for so many replacements."""


@dataclass(frozen=True, slots=True)
class Part:
    """A partition of one delivery: its values without the sink's own, by name, and the folder of its files."""

    values: Mapping[str, str | None]
    folder: str


@dataclass(frozen=True)
class Version:
    """A table as it was read."""

    place: Connected
    table: Any

    @classmethod
    def newest(cls, place: Connected) -> Self | None:
        """None: there is no table."""
        table = place.table()
        return cls(place, table) if table is not None else None

    @classmethod
    def made(cls, place: Connected, schema: pa.Schema | None, by: Sequence[str], format: str) -> Self:
        """Create an external table; without a schema one that has no columns yet.

        OvertakenError: another process was faster.
        """
        plain, keys = fields_of(schema, by)
        classes, rows = CLASSES[format]
        storage = API.StorageDescriptor(
            cols=plain, inputFormat=f"{classes}InputFormat", outputFormat=f"{classes}OutputFormat", compressed=False,
            numBuckets=-1, bucketCols=[], sortCols=[], parameters={},
            serdeInfo=API.SerDeInfo(serializationLib=rows, parameters={"serialization.format": "1"}),
        )  # fmt: skip
        parameters = {"EXTERNAL": "TRUE", _COLUMNS: "none" if schema is None else "rows"}
        schema_name, name = place.identifier
        _make_schema(place)
        table = API.Table(
            tableName=name, dbName=schema_name, owner="airflow_ft", createTime=0, lastAccessTime=0, retention=0,
            sd=storage, partitionKeys=keys, parameters=parameters, tableType="EXTERNAL_TABLE",
        )  # fmt: skip
        storage.location = new_location(place)
        _make_folder(storage.location, place.aws_conn_id)
        try:
            _create(place, table)
        except API.MetaException as error:
            if lacking_folder(error):
                raise
            storage.location = None  # Hive 4 refuses an external table in the place of managed ones
            _create(place, table)
        if (made := place.table()) is None:  # others have dropped it
            raise OvertakenError
        return cls(place, made)

    # --- the table ---------------------------------------------------------------------------------------------------

    @cached_property
    def columns(self) -> list[Column]:
        return of_table(self.table)

    @cached_property
    def keys(self) -> list[str]:
        """Return the columns that the rows are partitioned by."""
        return keys_of(self.table)

    @property
    def format(self) -> str:
        """Return the format of the table's files; "": another than the sink writes."""
        return format_of(self.table)

    @property
    def root(self) -> str:
        """The table's folder. A path on disk is without a scheme: Hadoop takes percent signs literally."""
        return path_of(self.table.sd.location, self.place.aws_conn_id)

    @property
    def files(self) -> FileSystem:
        return filesystem(self.root)

    def uri(self, *names: str) -> str:
        """Return the URI of a folder of ours."""
        return self.files.uri(self.root, OURS, *names)

    def require_folder(self) -> None:
        """Raise SinkAccessError if a local folder is missing: the metastore made it, so readers see another disk."""
        if not is_remote(self.root) and not (folder := local_path(self.root)).exists():
            what = f"{folder}, the folder of {self.place}, does not exist on this machine."
            remedy = f"Mount the disk of {folder} where tasks run. If the folder was deleted, create it."
            raise SinkAccessError(what, code="folder_unusable", remedy=remedy, path=str(folder))

    def oddities(self) -> Iterator[UnfitTargetError]:
        """Yield what keeps rows from being added here."""
        table, storage = self.table, self.table.sd
        parameters = {name.lower(): str(value).lower() for name, value in (table.parameters or {}).items()}
        keys = {key.name: key.type for key in table.partitionKeys or ()}
        if keys.get(KEY) != "string":
            what = f"the table has no partition column {KEY} of type string, by which deliveries differ"
            yield _unsupported(what, "partitioned by")
        if parameters.get("transactional") == "true":
            yield _unsupported("the table is transactional (ACID)", "transactional")
        if table.tableType not in ("EXTERNAL_TABLE", "MANAGED_TABLE"):
            yield _unsupported(f"the table is a {table.tableType}", "tableType")
        if not self.format:
            yield _unsupported(f"the table has files of {storage.inputFormat}", "stored as")
        if parameters.get(_RETENTION, "0") not in ("", "0"):
            yield _unsupported("the metastore drops old partitions, and with them the sink's own", _RETENTION)
        if storage.numBuckets is not None and storage.numBuckets > 0:
            yield _unsupported("the table has buckets", "clustered by")
        scheme = (storage.location or "").partition(":/")[0] if ":/" in (storage.location or "") else "file"
        if scheme not in ("file", "hdfs", _S3A):
            yield _unsupported(f"the table is at {storage.location}", "location")

    def evolve(self, schema: pa.Schema, by: Sequence[str], group: str) -> bool:
        """Give columns to a table that was made without; False: it had them.

        OvertakenError: another process has replaced the memory since it was read.
        """
        if not lacks_columns(self.table):
            return False
        if self.place.seen.get(group) != self.ledger(group).number:
            raise OvertakenError
        new = copy(self.table)
        new.sd = copy(self.table.sd)
        new.sd.cols, new.partitionKeys = fields_of(schema, by)
        new.parameters = {**self.table.parameters, _COLUMNS: "rows"}
        # Hive 4 refuses it where another process was faster. Hive 3 does not: the last process sets the columns.
        demand = {"expected_parameter_key": _COLUMNS, "expected_parameter_value": "none"}
        try:
            self.place.client.alter_table_with_environment_context(
                *self.place.identifier, new, API.EnvironmentContext(properties=demand)
            )
        except API.MetaException:
            if (there := self.place.table()) is not None and lacks_columns(there):
                raise
        return True

    # --- the memory --------------------------------------------------------------------------------------------------

    def ledger(self, group: str) -> Ledger:
        """Return what is remembered now. OvertakenError: it was replaced many times while it was read."""
        number, there = newest(lambda numbers: self._memories(group, numbers), self.place.seen.get(group, 0))
        where = f"the document in partition {value_of_memory(group, number)} of {self.place}"
        text = unpacked(there.parameters, where) if there is not None else None
        if there is not None and text is None:
            self.place.seen.pop(group, None)
            raise OvertakenError
        self.place.seen[group] = number
        return Ledger(text, where, number)

    def sync(self, _: Ledger) -> None:
        """The metastore's database keeps what it has acknowledged, and files were synced before."""

    def _memories(self, group: str, numbers: Collection[int]) -> Mapping[int, Any]:
        names = [self._name({}, value_of_memory(group, number)) for number in numbers]
        at = self._position
        found = {part.values[at]: part for part in self.place.partitions(names)}
        return {number: found[value] for number in numbers if (value := value_of_memory(group, number)) in found}

    # --- requests ----------------------------------------------------------------------------------------------------

    def commit(self, group: str, ledger: Ledger, number: int, parts: Sequence[Part], says: Mapping[str, str]) -> None:
        """Add partitions, and replace the memory, in one request. OvertakenError: it was replaced since it was read.

        What if the process dies before the metastore has the request: nothing happened. Behind it: it is committed, and
        the next one finds the marker.
        """
        mine = value_of_memory(group, ledger.number + 1)
        memory = self._partition({}, mine, self._memory_folder(), {**says, **packed(ledger.text)})
        rows = [self._partition(part.values, value_of_rows(group, number), part.folder, {}) for part in parts]
        try:
            self.place.client.add_partitions([*rows, memory])
        except (API.AlreadyExistsException, API.InvalidObjectException, API.MetaException) as error:
            there = self._memories(group, [ledger.number + 1]).get(ledger.number + 1)
            if there is None and not isinstance(error, API.AlreadyExistsException):
                raise
            text = unpacked(there.parameters, mine) if there is not None else None
            if text != ledger.text:  # else the metastore itself has repeated the request
                self.place.seen.pop(group, None)
                raise OvertakenError(nothing=text is not None or there is None) from error
        self.place.seen[group] = ledger.number + 1
        if (ledger.number + 1) % _FILLED == 0:
            self._empty(group, range(max(1, ledger.number + 2 - 2 * _FILLED), ledger.number + 2 - _FILLED))

    def _memory_folder(self) -> str:
        """Make the folder of partitions without rows. Where a request fails, the metastore removes those it made."""
        folder = self.uri("memory")
        with suppress(FileExistsError):
            self.files.make_folder(folder)
        return folder

    def _empty(self, group: str, numbers: range) -> None:
        """Keep of old documents the names alone. Nothing rests on it."""
        folder = self.uri("memory")
        old = [self._partition({}, value_of_memory(group, number), folder, {}) for number in numbers]
        with suppress(TException):
            self.place.client.alter_partitions(*self.place.identifier, old)

    def _partition(self, values: Mapping[str, str | None], own: str, folder: str, parameters: Mapping[str, str]) -> Any:
        storage = copy(self.table.sd)
        storage.location = self.files.hadoop_path(folder)
        schema, table = self.place.identifier
        return API.Partition(
            values=[own if key.name == KEY else _text(values, key.name) for key in self.table.partitionKeys],
            dbName=schema, tableName=table, createTime=0, lastAccessTime=0, sd=storage, parameters=dict(parameters),
        )  # fmt: skip

    @property
    def _position(self) -> int:
        return [key.name for key in self.table.partitionKeys].index(KEY)

    def _name(self, values: Mapping[str, str | None], own: str) -> str:
        """Return a partition's name, as Hive makes it."""
        keys = self.table.partitionKeys
        parts = [(key.name, own if key.name == KEY else _text(values, key.name)) for key in keys]
        return "/".join(f"{escaped(name)}={escaped(value)}" for name, value in parts)


def new_location(place: Connected) -> str:
    """Return where the sink makes a table that is missing."""
    return f"{_schema_location(place)[0]}/{place.identifier[1]}"


def _schema_location(place: Connected) -> tuple[str, bool]:
    """Return the folder of the table's schema, and whether the schema exists."""
    name, _ = place.identifier
    with suppress(API.NoSuchObjectException):
        return place.client.get_database(name).locationUri, True
    return f"{place.client.get_database('default').locationUri}/{name}.db", False


def _make_schema(place: Connected) -> None:
    """Create the table's schema if it is missing."""
    location, exists = _schema_location(place)
    if exists:
        return
    _make_folder(location, place.aws_conn_id)
    try:
        place.client.create_database(API.Database(name=place.identifier[0], parameters={}))
    except (API.AlreadyExistsException, API.MetaException):
        if not _schema_location(place)[1]:  # else another process was faster
            raise


def _create(place: Connected, table: Any) -> None:
    try:
        place.client.create_table(table)
    except (API.AlreadyExistsException, API.MetaException) as error:
        if isinstance(error, API.MetaException) and place.table() is None:
            raise
        raise OvertakenError from error


def _make_folder(location: str, aws_conn_id: str) -> None:
    """Make the folder of a schema or a table where the metastore would make it. Give it the mode of the folder above.

    Of several requests that create the same one, the metastore fails all but one. Each that has made the folder then
    removes it with all that it holds, also rows of the one that was faster. A folder that exists is left alone.
    """
    folder = path_of(location, aws_conn_id)
    above = folder.rpartition("/")[0]
    with suppress(OSError, AirflowFtError):  # then the metastore makes it
        files = filesystem(folder)
        if is_bucket(folder) or files.exists(above):
            files.make_folder(folder)
            if isinstance(files, LocalFileSystem):
                there = Path(above).stat()
                Path(folder).chmod(stat.S_IMODE(there.st_mode))
                os.chown(folder, there.st_uid, there.st_gid)  # only root may


def path_of(location: str, aws_conn_id: str = "") -> str:
    """Return a location as the package's file systems take it."""
    if location.startswith(f"{_S3A}://"):
        authority = f"{aws_conn_id}@" if aws_conn_id else ""
        return location.replace(f"{_S3A}://", f"{SCHEME}://{authority}", 1)
    return f"/{location.removeprefix('file:').lstrip('/')}" if location.startswith("file:") else location


def _text(values: Mapping[str, str | None], name: str) -> str:
    value = values.get(name)
    return NULL if value is None else value


def _unsupported(what: str, setting: str) -> UnfitTargetError:
    remedy = "Deliver into another table: one that the sink creates, or as docs/hive.md shows."
    return unsupported(what, remedy, setting=setting)
