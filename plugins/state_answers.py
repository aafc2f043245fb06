"""Answers of the page's API on savepoints and state; see `answers`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from typing_extensions import TypedDict

from airflow_ft.spark.state.operators import Operator

# --- savepoints ------------------------------------------------------------------------------------------------------


class SavepointDamaged(TypedDict):
    """One that cannot be used."""

    name: str
    uri: str
    problem: str
    readable: Literal[False]


class Savepoint(TypedDict):
    """One of a pipeline."""

    name: str
    uri: str
    problem: str
    readable: Literal[True]
    checkpoint: int
    taken_at: str
    taken_by: str
    bytes: int
    drained: bool


class Retained(TypedDict):
    """A checkpoint of which a savepoint can be taken."""

    number: int
    at: str


class Savepoints(TypedDict):
    """A pipeline's savepoints, newest first. `left_out`: folders that were not looked at."""

    folder: str
    savepoints: Sequence[Savepoint | SavepointDamaged]
    left_out: int
    checkpoints: Sequence[Retained]


class SavepointWhole(Savepoint):
    """Contents of a savepoint. `operators`: those whose state is in it."""

    installation: str
    batch: int
    rows: Mapping[str, int]
    positions: Mapping[str, Any]
    operators: Sequence[Operator]
    backend: str
    versions: Mapping[str, str]
    files: int
    job: str


# --- state -----------------------------------------------------------------------------------------------------------


class Column(TypedDict):
    """A column of a value."""

    name: str
    type: str


class KeyColumn(Column):
    """A column of a key. `example`: "" if no text can represent a value."""

    example: str


class State(TypedDict):
    """State of an operator by key."""

    name: str
    kind: str
    key: Sequence[KeyColumn]
    value: Sequence[Column]
    ttl: bool


class StatefulOperator(TypedDict):
    """An operator of the job that keeps state."""

    id: int
    name: str
    uid: str
    partitions: int
    bytes: int
    problem: str
    states: Sequence[State]


class Operators(TypedDict):
    """Stateful operators at a checkpoint. `may_look_up`: whether the user may see values."""

    checkpoint: int
    checkpoints: Sequence[int]
    operators: Sequence[StatefulOperator]
    may_look_up: bool


class Entry(TypedDict):
    """A value. `at`: where in a list or a map; `expires`: null: never."""

    at: Any
    value: Any
    expires: str | None


class Found(TypedDict):
    """Entries of a state for a key. `cut`: it has more."""

    name: str
    kind: str
    entries: Sequence[Entry]
    cut: bool


class LookedUp(TypedDict):
    """States of an operator for a key."""

    checkpoint: int
    states: Sequence[Found]
