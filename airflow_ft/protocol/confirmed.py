"""The confirmed checkpoints of a run, for the tasks after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_ft.protocol.decision_log import QueryLog
from airflow_ft.protocol.model import RunKey
from airflow_ft.protocol.numbers import Numbers
from airflow_ft.protocol.set_aside import SetAside, of_checkpoint, together


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

    def to_json(self) -> dict[str, Any]:
        """Plain data for other tasks."""
        aside = {sink: each.rows for sink, each in self.set_aside.items()}
        return {
            **self.numbers.to_json(),
            "rows": self.rows,
            "recovered": self.recovered.to_json()["numbers"],
            "recovered_rows": self.recovered_rows,
            "set_aside": aside,
        }


def confirmed_of(store: QueryLog, pipeline: str, numbers: Iterable[int], run: RunKey | None = None) -> Confirmed:
    """Return what is confirmed with some numbers, ascending. Those that another run than `run` staged are recovered."""
    found = {number: store.checkpoint(pipeline, number) for number in numbers}
    deliveries = sorted({c.delivered_by for c in found.values() if c.delivered_by is not None})
    rows = Counter[str]()
    for checkpoint in found.values():
        rows.update(checkpoint.segment.rows if checkpoint.segment else {})
    others = [c for c in found.values() if run is not None and c.run != run]
    return Confirmed(
        Numbers.of(found),
        dict(rows),
        together(of_checkpoint(found.get(number) or store.checkpoint(pipeline, number)) for number in deliveries),
        Numbers.of(c.number for c in others),
        sum(c.segment.total_rows for c in others if c.segment),
    )
