"""`DryRun`: the result of a dry run, as data and as lines for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_ft.protocol.doctor import Check, Verdict, worst
from airflow_ft.protocol.failure import with_fix
from airflow_ft.protocol.numbers import Numbers, count_text


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """Result of a dry run.

    Attributes:
        rows: by sink.
        checkpoints: how many there would be.
        has_more: the sources hold more than was read.
        columns: by sink, name and Arrow type of each, where known.
        samples: by sink, its first rows as Python values.
        checks: the sinks' objections to these columns and rows, as in `airflow ft doctor`; also too many dead letters.
        waiting: rows by sink of published, undelivered checkpoints, by number. The next run delivers them first. `rows`
            does not include them.
        tables: statements that create missing tables for these columns.
    """

    pipeline: str
    checkpoints: int
    rows: Mapping[str, int]
    has_more: bool
    columns: Mapping[str, Mapping[str, str]]
    samples: Mapping[str, Sequence[Mapping[str, Any]]] = field(repr=False)
    checks: Sequence[Check]
    waiting: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    tables: Sequence[str] = ()

    @property
    def would_be_refused(self) -> bool:
        """Return whether a check found a problem: a run would fail, and not all of it would be delivered."""
        return worst(list(self.checks)) is Verdict.PROBLEM

    @property
    def problems(self) -> Sequence[Check]:
        """The checks that found one."""
        return [check for check in self.checks if check.verdict is Verdict.PROBLEM]

    @property
    def waiting_rows(self) -> Mapping[str, int]:
        """Return the rows of `waiting`, over all of these checkpoints."""
        found: Counter[str] = Counter()
        for rows in self.waiting.values():
            found.update(rows)
        return dict(found)

    def to_json(self) -> dict[str, Any]:
        """Plain data, without samples."""
        return {
            "pipeline": self.pipeline,
            "checkpoints": self.checkpoints,
            "rows": dict(self.rows),
            "has_more": self.has_more,
            "waiting": {**Numbers.of(self.waiting).to_json(), "rows": self.waiting_rows},
            "columns": {sink: dict(columns) for sink, columns in self.columns.items()},
            "problems": [check.to_json() for check in self.problems],
            "tables": list(self.tables),
        }

    def lines(self) -> Iterator[str]:
        """In lines, for people: counts, columns, samples, and what the sinks say."""
        if not self.checkpoints:
            yield f"{self.pipeline}: nothing is new{'' if self.waiting else ', so nothing would be delivered'}"
        else:
            more = "; there is more to read after it" if self.has_more else ""
            yield f"{self.pipeline}: {count_text(self.checkpoints, 'checkpoint')} would be delivered{more}"
        if self.waiting:
            counts = ", ".join(f"{sink} {rows:,}" for sink, rows in self.waiting_rows.items())
            numbers = Numbers.of(self.waiting)
            yield (
                f"the next run also delivers what earlier runs have published, which is not counted below:"
                f" checkpoint{'' if numbers.count == 1 else 's'} {numbers} (rows: {counts})"
            )
        for sink in dict.fromkeys([*self.columns, *self.rows]):
            columns = ", ".join(f"{name} {kind}" for name, kind in self.columns.get(sink, {}).items())
            yield f"{sink}: {count_text(self.rows.get(sink, 0), 'row')}{f' of ({columns})' if columns else ''}"
            for row in self.samples.get(sink, ()):
                yield "  " + ", ".join(f"{name}={_short(value)}" for name, value in row.items())
        for check in self.checks:
            if check.verdict is not Verdict.OK:
                yield with_fix(f"{check.verdict.upper()} {check.subject}: {check.coded}: {check.text}", check.remedy)
        yield from self.tables
        if not self.would_be_refused:
            yield "the sinks would take it" if self.checkpoints else "the sinks are ready"


def _short(value: Any) -> str:
    text = value.isoformat() if hasattr(value, "isoformat") else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
