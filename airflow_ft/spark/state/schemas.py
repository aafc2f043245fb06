"""Schemas of operator state: which changes a job made, and which ones Spark accepts although they lose values.

    state/<operator>/_stateSchema/<store>/<batch>_<id>              `transformWithState`: all of its state variables
    state/<operator>/<partition>[/<store>]/_metadata/schema         others: key and value of a store

With the encoding `avro` (`spark.sql.streaming.stateStore.encodingFormat`, pinned when state is created) Spark
continues when fields of a state variable are added or widened. It also continues when a field is removed, and reads a
renamed one as a new one without a value. Both lose values, so both are refused here before that micro-batch publishes
anything. Spark refuses other changes itself, with messages that name neither operator nor variable.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from airflow_ft.protocol.errors import JobError
from airflow_ft.protocol.model import SparkPosition
from airflow_ft.spark.state.locations import SparkLocation
from airflow_ft.spark.state.operators import identities, numbers, operator_file, stored_schemas
from airflow_ft.spark.state.settings import ENCODING, kept_settings
from airflow_ft.spark.state.types import Fields, differences, lost, of_json, of_scala
from airflow_ft.wal.filesystem import filesystem

_KEYED = "transformWithState"
_REFUSED = (
    re.compile(r"Existing (value|key)_schema=(?P<old>StructType\(.*?\)) and new \w+=(?P<new>StructType\(.*\))\."),
    re.compile(r"new (value)_schema=(?P<new>StructType\(.*?\)) and old \w+=(?P<old>StructType\(.*\))"),
)


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


def changed(message: str, base: SparkPosition | None) -> tuple[str, str]:
    """Return the change and its remedy for an error of Spark that refuses a schema; else ("", "")."""
    found = next(filter(None, (pattern.search(message) for pattern in _REFUSED)), None)
    if found is None:
        return "", ""
    before, after = of_scala(found["old"]), of_scala(found["new"])
    what = differences(before, after) or "the order of its fields"
    if found[1] == "key":
        return f"a key of the state has changed: {what}", "Keys of state cannot change. "
    known = {} if base is None else states(SparkLocation.of(base))
    same = [each for each in known.values() if each.fields == before]
    return f"the schema of {' or '.join(map(str, same)) or 'the state'} has changed: {what}", _way(base, same)


def _way(base: SparkPosition | None, same: list[State]) -> str:
    """Return what such state can be changed to at all."""
    if not all(each.is_variable for each in same):
        return f"Only state variables of {_KEYED} can change their schema. "
    if kept_settings(base).get(ENCODING) == "avro":
        return "Only add fields, or widen them (int to bigint, float to double). "
    return f"Only state that was created with {ENCODING}=avro takes more or wider fields. "
