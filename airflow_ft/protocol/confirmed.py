"""The confirmed checkpoints of a run, for the tasks after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_ft.protocol.numbers import Numbers
from airflow_ft.protocol.set_aside import SetAside


@dataclass(frozen=True, slots=True)
class Confirmed:
    """Numbers of a run whose rows are proven to be in every sink, and their rows, by sink.

    `set_aside`, by sink: of all that was delivered together with these numbers. `recovered`: those of them that other
    runs staged, with `recovered_rows` over all sinks.
    """

    numbers: Numbers = field(default_factory=Numbers)
    by_sink: Mapping[str, int] = field(default_factory=dict)
    set_aside: Mapping[str, SetAside] = field(default_factory=dict)
    recovered: Numbers = field(default_factory=Numbers)
    recovered_rows: int = 0

    @property
    def rows(self) -> int:
        """Over all sinks."""
        return sum(self.by_sink.values())

    def told(self) -> dict[str, Any]:
        """Plain data for other tasks."""
        aside = {sink: each.rows for sink, each in self.set_aside.items()}
        return {
            **self.numbers.told(),
            "rows": self.rows,
            "recovered": self.recovered.told()["numbers"],
            "recovered_rows": self.recovered_rows,
            "set_aside": aside,
        }
