"""Schemas of operator state: which changes a job made, and which ones Spark accepts although they lose values.

    state/<operator>/_stateSchema/<store>/<batch>_<id>              `transformWithState`: all of its state variables
    state/<operator>/<partition>[/<store>]/_metadata/schema         others: key and value of a store

With the encoding `avro` (`spark.sql.streaming.stateStore.encodingFormat`, pinned when state is created) Spark
continues when fields of a state variable are added or widened. It also continues when a field is removed, and reads a
renamed one as a new one without a value. Both lose values, so both are refused here before that micro-batch publishes
anything. Spark refuses other changes itself, with messages that name neither operator nor variable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_ft.protocol.errors import JobError
from airflow_ft.spark.state.locations import SparkLocation
from airflow_ft.spark.state.operators import identities, numbers, operator_file, stored_schemas
from airflow_ft.spark.state.types import Fields, differences, lost, of_json
from airflow_ft.wal.filesystem import filesystem

_KEYED = "transformWithState"


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
