"""The sink for rows that the job itself rejects, and the largest number of them."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_ft.protocol.argument_names import by_name
from airflow_ft.protocol.arguments import check_type, shown, wrong
from airflow_ft.protocol.config import check_name
from airflow_ft.protocol.errors import DeadLettersError
from airflow_ft.protocol.numbers import count_text


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetters:
    """The sink of dead letters, and how many a checkpoint may have. Beyond the limit the checkpoint fails before any
    row is published: the run ends, and nothing of the checkpoint becomes visible.

    Args:
        sink: one of the pipeline's sinks, which receives the rows that `split` returns under its name. Without `split`
            it receives the rows that `parse_json(..., on_malformed="keep")` marks, and the other sink receives the
            rest.
        max_rows: most dead letters in a checkpoint; None: any number.
        max_share: largest share of the rows that the job returns for a checkpoint, from 0 and below 1: 0.01 is one in
            a hundred; None: any. One dead letter is always allowed unless it is 0.
    """

    sink: str
    max_rows: int | None = None
    max_share: float | None = None

    def __post_init__(self) -> None:
        check_name("sink", self.sink)
        check_type("max_rows", self.max_rows, int, "Give a number as max_rows.", optional=True, of="DeadLetters")
        share = "Give a part of 1, such as 0.01, as max_share. Leave it out to allow any number."
        check_type("max_share", self.max_share, (int, float), share, optional=True, of="DeadLetters")
        if self.max_rows is not None and self.max_rows < 0:
            raise wrong("max_rows", shown(self.max_rows), "Give 0 or more rows as max_rows.", of="DeadLetters")
        if self.max_share is not None and not 0 <= self.max_share < 1:
            raise wrong("max_share", shown(self.max_share), share, of="DeadLetters")

    @classmethod
    def of(cls, given: object) -> DeadLetters | None:
        """Return what a pipeline's author says: the name of a sink, or the whole."""
        remedy = 'Give the name of a sink, such as "rejected", or DeadLetters(sink="rejected").'
        check_type("dead_letters", given, (str, DeadLetters), remedy, optional=True)
        return cls(sink=given) if isinstance(given, str) else given  # type: ignore[return-value]

    @property
    def without_bounds(self) -> DeadLetters:
        """The sink alone, which may get any number."""
        return DeadLetters(sink=self.sink)

    def exceeded(self, dead: int, rows: int) -> str:
        """Return why a checkpoint with this many dead letters fails; "": they are allowed."""
        allowed = []
        if self.max_rows is not None and dead > self.max_rows:
            allowed.append(f"max_rows={self.max_rows:,}")
        if self.max_share is not None and dead > max(self.max_share * rows, 1 if self.max_share else 0):
            allowed.append(f"max_share={self.max_share:g}")
        if not allowed:
            return ""
        are = "is a dead letter" if dead == 1 else "are dead letters"
        return f"{dead:,} of {count_text(rows, 'row')} {are}, more than {' and '.join(allowed)} allow."

    def check(self, pipeline: str, number: int, dead: int, rows: int) -> None:
        """Raise DeadLettersError if a checkpoint has more dead letters than the limits allow."""
        if exceeded := self.exceeded(dead, rows):
            raise DeadLettersError(
                exceeded,
                pipeline=pipeline,
                checkpoint=number,
                sink=self.sink,
                remedy="Look at some of them with `airflow ft dry-run`. Correct the source or the job, or allow more."
                " Nothing was published.",
                dead=dead,
                rows=rows,
            )
