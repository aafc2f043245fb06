"""From which columns of which sources a sink's columns come, in the terms of OpenLineage's facet `columnLineage`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class How(StrEnum):
    """Use of a column: direct (its value is in the output) or indirect (it selects, groups or orders rows)."""

    IDENTITY = "IDENTITY"
    TRANSFORMATION = "TRANSFORMATION"
    AGGREGATION = "AGGREGATION"
    CONDITIONAL = "CONDITIONAL"
    WINDOW = "WINDOW"
    FILTER = "FILTER"
    JOIN = "JOIN"
    GROUP_BY = "GROUP_BY"
    SORT = "SORT"

    @property
    def is_direct(self) -> bool:
        """Return whether the value itself is used."""
        return self in _DIRECT

    def then(self, later: How) -> How:
        """Return the combined use of two steps: indirect wins over direct, and of two direct uses the stronger wins."""
        if not self.is_direct or not later.is_direct:
            return later if self.is_direct else self
        return max(self, later, key=_DIRECT.index)


_DIRECT = (How.IDENTITY, How.TRANSFORMATION, How.AGGREGATION)


@dataclass(frozen=True, slots=True)
class Input:
    """A column of a source, by the name that the DAG gives to the source, and what it is used for."""

    source: str
    column: str
    how: How = How.IDENTITY

    def then(self, later: How) -> Input:
        """The same after one more step."""
        how = self.how.then(later)
        return self if how is self.how else Input(self.source, self.column, how)


Inputs = frozenset[Input]


@dataclass(frozen=True, slots=True)
class ColumnLineage:
    """`columns`: by column of the rows, the inputs of its values. `rows`: the inputs that decide which rows exist."""

    columns: Mapping[str, Inputs]
    rows: Inputs = field(default_factory=frozenset)

    @property
    def size(self) -> int:
        """Return how many inputs it names, each as often as it does."""
        return len(self.rows) + sum(map(len, self.columns.values()))

    def to_json(self) -> dict[str, Any]:
        """Plain data, always in the same order."""
        return {
            "columns": {name: _to_json(inputs) for name, inputs in self.columns.items()},
            "rows": _to_json(self.rows),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ColumnLineage:
        """The inverse of `to_json`."""
        return cls({name: _inputs(inputs) for name, inputs in data["columns"].items()}, _inputs(data["rows"]))


def _to_json(inputs: Inputs) -> list[list[str]]:
    return sorted([each.source, each.column, each.how.value] for each in inputs)


def _inputs(data: list[list[str]]) -> Inputs:
    return frozenset(Input(source, column, How(how)) for source, column, how in data)
