"""What operator state a location of Spark holds, read from its files without a JVM.

state/<operator>/_metadata/metadata         operator, stores, partitions; `transformWithState`: v2/<batch>
state/<operator>/<partition>[/<store>]/_metadata/schema, state/<operator>/_stateSchema/...    names and types
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from airflow_ft.jobs.uids import Identity
from airflow_ft.protocol.model import SparkPosition
from airflow_ft.spark.state.location_files import keep, note
from airflow_ft.spark.state.locations import SparkLocation
from airflow_ft.spark.state.meaning import Meaning, meaning_of
from airflow_ft.spark.state.settings import PARTITIONS, PROVIDER, kept_settings
from airflow_ft.wal.checksums import read_checked
from airflow_ft.wal.filesystem import FileSystem, filesystem
from airflow_ft.wal.parsing import parsing

UIDS_FILE = "airflow_ft_uids.json"
"""In a location: kind and uid of each operator by its number, as the job's plan said when it was opened."""
CODE_FILE = "airflow_ft_code.json"
_STRUCT = '{"type":"struct"'


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


def remember_code(location: SparkLocation, code: Mapping[str, str]) -> None:
    """Keeps which code works in the location: the job's module, and the SHA-256 of its source."""
    keep(location.uri, CODE_FILE, dict(code))


def code_of(location: SparkLocation) -> dict[str, str]:
    """Return what `remember_code` has kept; {} where it has not."""
    return note(location.uri, CODE_FILE) or {}


def identities(location: SparkLocation) -> tuple[Identity, ...]:
    """Return the identities of the operators that have state: Spark's kinds, with the uids of the recorded plan if it
    matches.
    """
    files = filesystem(location.uri)
    kinds = {int(name): operator_file(files, location, name) for name in numbers(files, location)}
    found = [Identity(told["operatorInfo"]["operatorName"]) for _, told in sorted(kinds.items()) if told is not None]
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
        told = operator_file(files, location, name)
        if told is not None:
            size = sum(bytes for path, bytes in sizes.items() if path.startswith(f"{name}/"))
            with parsing(files.uri(location.uri, "state", name)):
                found.append(_operator(files, location, told, list(sizes), size, partitions))
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


def _operator(
    files: FileSystem,
    location: SparkLocation,
    told: dict[str, Any],
    paths: list[str],
    size: int,
    partitions: int,
) -> Operator:
    number = int(told["operatorInfo"]["operatorId"])
    stores = told["stateStoreInfo"]
    states: dict[str, str] = {}
    for path in sorted(paths):
        folder, _, name = path.rpartition("/")
        of_first = folder.startswith(f"{number}/0/") and folder.endswith("/_metadata") and name == "schema"
        if of_first or (f"{number}/_stateSchema/" in f"{folder}/" and not name.startswith(".")):
            store = folder.split("/")[2] if folder.count("/") > 1 else "default"
            data = read_checked(files, files.uri(location.uri, "state", *path.split("/")))
            states |= _types("default" if store == "_metadata" else store, data)
    for variable in _variables(told):
        states.setdefault(variable, "")
    return Operator(
        id=number,
        name=str(told["operatorInfo"]["operatorName"]),
        partitions=partitions or max((int(each["numPartitions"]) for each in stores), default=0),
        stores=tuple(str(each["storeName"]) for each in stores),
        states=states,
        bytes=size,
    )


def _types(store: str, data: bytes) -> dict[str, str]:
    """Key and value of a store: its schema file has them as JSON, between what Java puts before a text."""
    text = data.decode(errors="replace")
    found: list[str] = []
    at = text.find(_STRUCT)
    while at >= 0 and len(found) < 2:
        try:
            schema, length = json.JSONDecoder().raw_decode(text[at:])
        except ValueError:  # a long one lies there in parts
            break
        found.append(", ".join(f"{each['name']} {_type(each['type'])}" for each in schema["fields"]))
        at = text.find(_STRUCT, at + length)
    return {f"{store} {part}": types for part, types in zip(("key", "value"), found, strict=False)}


def _type(told: Any) -> str:
    return told if isinstance(told, str) else str(told.get("type", "?"))


def _variables(told: dict[str, Any]) -> list[str]:
    properties = told.get("operatorPropertiesJson")
    if not properties:
        return []
    variables = json.loads(properties).get("stateVariables", [])
    return [str(each.get("stateName", "")) for each in variables if isinstance(each, dict)]
