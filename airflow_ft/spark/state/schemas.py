"""Schemas of operator state: which changes a job made, and which ones Spark accepts although they lose values.

    state/<operator>/_stateSchema/<store>/<batch>_<id>              `transformWithState`: all of its state variables
    state/<operator>/<partition>[/<store>]/_metadata/schema         others: key and value of a store

With the encoding `avro` (`spark.sql.streaming.stateStore.encodingFormat`, pinned when state is created) Spark
continues when fields of a state variable are added or widened. It also continues when a field is removed, and reads a
renamed one as a new one without a value. Both lose values, so both are refused here before that micro-batch publishes
anything. Spark refuses other changes itself, with messages that name neither operator nor variable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_ft.protocol.errors import JobError
from airflow_ft.spark.state.locations import SparkLocation
from airflow_ft.spark.state.operators import identities, numbers, operator_file, stored_schemas
from airflow_ft.wal.filesystem import filesystem

_KEYED = "transformWithState"

Fields = Mapping[str, Any]
"""Types of fields by their names: text, or of a structure its fields. Order as in the schema."""
# Spark's names of types in JSON where SQL has others.
_SQL_NAMES = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}


def of_json(schema: Mapping[str, Any]) -> Fields:
    """The fields of a structure, of its schema as JSON."""
    return {each["name"]: _of_json(each["type"]) for each in schema["fields"]}


def differences(before: Fields, after: Fields, within: str = "") -> str:
    """Return what has changed, field by field: `n int -> bigint, note string added`."""
    found = []
    for name, old in before.items():
        if name not in after:
            found.append(f"{within}{name} {_text(old)} is gone")
        elif isinstance(old, dict) and isinstance(after[name], dict):
            found.append(differences(old, after[name], f"{within}{name}."))
        elif old != after[name]:
            found.append(f"{within}{name} {_text(old)} -> {_text(after[name])}")
    found += [f"{within}{name} {_text(new)} added" for name, new in after.items() if name not in before]
    return ", ".join(each for each in found if each)


def lost(before: Fields, after: Fields, within: str = "") -> Iterator[str]:
    """The fields that are gone, with their types."""
    for name, old in before.items():
        if name not in after:
            yield f"{within}{name} {_text(old)}"
        elif isinstance(old, dict) and isinstance(after[name], dict):
            yield from lost(old, after[name], f"{within}{name}.")


def _of_json(data: Any) -> Any:
    if isinstance(data, str):
        return _simple(data)
    if data["type"] == "struct":
        return of_json(data)
    if data["type"] == "array":
        return _collection([_of_json(data["elementType"])])
    if data["type"] == "map":
        return _collection([_of_json(data["keyType"]), _of_json(data["valueType"])])
    return str(data["type"])


def _collection(parts: list[Any]) -> Any:
    """An array of one type, or a map of two; with structures in it, these are looked into as fields are."""
    names = ["key", "value"][-len(parts) :] if len(parts) > 1 else ["element"]
    if any(isinstance(each, dict) for each in parts):
        return dict(zip(names, parts, strict=True))
    return f"{'map' if len(parts) > 1 else 'array'}<{','.join(parts)}>"


def _text(found: Any) -> str:
    if isinstance(found, dict):
        return f"struct<{','.join(f'{name}:{_text(each)}' for name, each in found.items())}>"
    return str(found)


def _simple(name: str) -> str:
    return _SQL_NAMES.get(name, name)


@dataclass(frozen=True, slots=True)
class State:
    """A state variable, or what another operator keeps in a store; `fields` are those of its value."""

    operator: int
    operator_name: str
    name: str
    fields: Fields
    uid: str = ""

    def __str__(self) -> str:
        what = "state variable" if self.is_variable else "store"
        uid = f", uid {self.uid!r}" if self.uid else ""
        return f"{what} {self.name!r} of operator {self.operator} ({self.operator_name}{uid})"

    @property
    def is_variable(self) -> bool:
        """Return whether it belongs to `transformWithState`, the only operator that may change its schema."""
        return self.operator_name.startswith(_KEYED)


def states(location: SparkLocation) -> dict[tuple[int, str], State]:
    """All of a location as of its batch, by operator and name; {} where nothing has state."""
    files = filesystem(location.uri)
    uids = {number: each.uid for number, each in enumerate(identities(location))}
    found = {}
    for operator in numbers(files, location):
        if (metadata := operator_file(files, location, operator)) is not None:
            named = metadata["operatorInfo"]["operatorName"]
            for each in stored_schemas(files, location, operator, metadata):  # Spark compares later formats itself
                state = State(int(operator), named, each.name, of_json(each.value), uids.get(int(operator), ""))
                found[int(operator), each.name] = state
    return found


def refuse_lost(held: Mapping[tuple[int, str], State], location: SparkLocation) -> None:
    """JobError when a state variable, as the location's batch has planned it, lacks fields that it `held` before.

    To be called before anything of the first micro-batch of an attempt is published.
    """
    now = states(location)
    for key, before in held.items():
        after = now.get(key)
        if after is not None and before.is_variable and (gone := ", ".join(lost(before.fields, after.fields))):
            raise JobError(
                f"the schema of {before} has changed: {differences(before.fields, after.fields)}. The values of {gone}"
                " would be lost, even if the job only renamed it.",
                code="state_schema_changed",
                pipeline=location.pipeline,
                remedy="Keep the field under its old name, and add others. Or drop the state and keep the positions:"
                f" `airflow ft reset-state {location.pipeline}`.",
                fields_lost=gone,
                operator=before.operator,
                state=before.name,
            )
