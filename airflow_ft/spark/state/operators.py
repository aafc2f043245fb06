"""Operator state in a location of Spark, read from its files without a JVM.

state/<operator>/_metadata/metadata         operator, stores, partitions; `transformWithState`: v2/<batch>
state/<operator>/<partition>[/<store>]/_metadata/schema, state/<operator>/_stateSchema/...    names and types
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from airflow_ft.jobs.uids import Identity
from airflow_ft.protocol.model import SparkPosition
from airflow_ft.spark.state.location_files import keep, note
from airflow_ft.spark.state.locations import SparkLocation
from airflow_ft.spark.state.meaning import Meaning, meaning_of
from airflow_ft.spark.state.schema_files import Schema, UnknownFormatError, schemas
from airflow_ft.spark.state.schema_paths import schema_file
from airflow_ft.spark.state.settings import PARTITIONS, PROVIDER, kept_settings
from airflow_ft.wal.checksums import read_checked
from airflow_ft.wal.filesystem import FileSystem, filesystem
from airflow_ft.wal.parsing import parsing

UIDS_FILE = "airflow_ft_uids.json"
"""In a location: kind and uid of each operator by its number, as the job's plan said when it was opened."""


@dataclass(frozen=True, slots=True)
class Operator:
    """A stateful operator of the job, as Spark numbers it: 0 is the nearest to the sink.

    `name`: Spark's. `uid`: the job's name of it (`airflow_ft.jobs.uids`; "": none). `stores`: names of its state
    stores. `states`: names and types of keys and values, where Spark has recorded them. `partitions`: number of its
    state partitions. `bytes`: size of its files. `meaning`: its keys, functions and settings
    (`airflow_ft.spark.state.meaning`; {}: not recorded).
    """

    id: int
    name: str
    partitions: int
    stores: tuple[str, ...] = ()
    states: Mapping[str, str] = field(default_factory=dict)
    bytes: int = 0
    uid: str = ""
    meaning: Meaning = field(default_factory=dict)


def remember(location: SparkLocation, plan: Sequence[Identity]) -> None:
    """Keeps what the job's plan says of its operators, in Spark's order."""
    keep(location.uri, UIDS_FILE, [asdict(each) for each in plan])


def remembered(location: SparkLocation) -> tuple[Identity, ...] | None:
    """Return what `remember` has kept; None where it has not."""
    found = note(location.uri, UIDS_FILE)
    return None if found is None else tuple(Identity(**each) for each in found)


def identities(location: SparkLocation) -> tuple[Identity, ...]:
    """Return the identities of the operators that have state: Spark's kinds, with the uids of the recorded plan if it
    matches.
    """
    files = filesystem(location.uri)
    kinds = {int(name): operator_file(files, location, name) for name in numbers(files, location)}
    found = [
        Identity(metadata["operatorInfo"]["operatorName"])
        for _, metadata in sorted(kinds.items())
        if metadata is not None
    ]
    plan = remembered(location)
    return plan if plan is not None and [each.kind for each in plan] == [each.kind for each in found] else tuple(found)


def backend(location: SparkLocation) -> str:
    """The class of the state store, which Spark has pinned in its offsets; "" before the first batch."""
    return _pinned(location).get(PROVIDER, "").rpartition(".")[2]


def _pinned(location: SparkLocation) -> dict[str, str]:
    return kept_settings(SparkPosition(location.uri, location.batch))


def operators(location: SparkLocation) -> tuple[Operator, ...]:
    """In Spark's order; empty where nothing has state."""
    files = filesystem(location.uri)
    # An operator's file keeps the old number of partitions when the state is redistributed.
    with parsing(f"{location.uri}/offsets"):
        partitions = int(_pinned(location).get(PARTITIONS, 0))
    sizes = files.tree(files.uri(location.uri, "state"))
    found = []
    for name in numbers(files, location):
        metadata = operator_file(files, location, name)
        if metadata is not None:
            size = sum(bytes for path, bytes in sizes.items() if path.startswith(f"{name}/"))
            with parsing(files.uri(location.uri, "state", name)):
                found.append(_operator(files, location, name, metadata, size, partitions))
    uids = identities(location)
    memory = meaning_of(location)
    meanings: tuple[Meaning, ...] = () if memory is None else memory.operators
    if len(meanings) != len(found):
        meanings = ({},) * len(found)
    return tuple(
        replace(each, uid=named.uid, meaning=meaning)
        for each, named, meaning in zip(found, uids, meanings, strict=True)
    )


def numbers(files: FileSystem, location: SparkLocation) -> list[str]:
    """The operators' folders, in order."""
    return sorted((each for each in files.names(files.uri(location.uri, "state")) if each.isdigit()), key=int)


def operator_file(files: FileSystem, location: SparkLocation, operator: str) -> dict[str, Any] | None:
    """Spark's own words on an operator, as of the location's batch."""
    folder = files.uri(location.uri, "state", operator, "_metadata")
    batches = [int(name) for name in files.names(files.uri(folder, "v2")) if name.isdigit()]
    where = ["metadata"]
    if batches := [batch for batch in batches if batch <= location.batch]:
        where = ["v2", str(max(batches))]
    uri = files.uri(folder, *where)
    if not files.exists(uri):
        return None
    data = read_checked(files, uri)
    with parsing(uri):
        found: dict[str, Any] = json.loads(data.decode().partition("\n")[2])
        if not ("operatorInfo" in found and "stateStoreInfo" in found):
            raise ValueError("it names no operator")
        return found


def stored_schemas(
    files: FileSystem, location: SparkLocation, operator: str, metadata: Mapping[str, Any]
) -> Iterator[Schema]:
    """Yield the newest schemas that the metadata name, but those in a format of a later Spark."""
    for store in metadata["stateStoreInfo"]:
        where = schema_file(files, location.uri, operator, store)
        if files.exists(where):
            with suppress(UnknownFormatError):
                yield from schemas(read_checked(files, where), store["storeName"])


def _operator(
    files: FileSystem, location: SparkLocation, number: str, metadata: Mapping[str, Any], size: int, partitions: int
) -> Operator:
    stores = metadata["stateStoreInfo"]
    states: dict[str, str] = {}
    for each in stored_schemas(files, location, number, metadata):
        if not each.name.startswith("$"):  # Spark's own, such as indexes of timers
            states |= {f"{each.name} key": _types(each.key), f"{each.name} value": _types(each.value)}
    return Operator(
        id=int(number),
        name=str(metadata["operatorInfo"]["operatorName"]),
        partitions=partitions or max((int(each["numPartitions"]) for each in stores), default=0),
        stores=tuple(str(each["storeName"]) for each in stores),
        states=states,
        bytes=size,
    )


def _types(schema: Mapping[str, Any]) -> str:
    types = ((each["name"], each["type"]) for each in schema["fields"])
    return ", ".join(f"{name} {type if isinstance(type, str) else type.get('type', '?')}" for name, type in types)
