"""What sinks remember of a pipeline that is adopted, and the choices that only a person can make about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.orphans import Orphan, OrphanKind, PreparedEnding, partly_there
from airflow_ft.protocol.votes import SinkHead


@dataclass(frozen=True, slots=True)
class Estate:
    """A sink's memory of the pipeline: its head (None: no memory), and the orphans of former owners."""

    head: SinkHead | None
    orphans: Sequence[Orphan]

    @property
    def number(self) -> int:
        """The highest number that this log must not give out again: delivered, in parts, or given up in the sink."""
        return max([self.head.number if self.head else 0, *(orphan.number for orphan in self.orphans)])


def require_choices(
    pipeline: str, found: Mapping[str, Estate], ending: PreparedEnding | None, accept_partial: bool
) -> None:
    """ConfigurationError where a person must say what becomes of orphans, and has not."""
    for name, estate in found.items():
        prepared = sorted({r.number for r in estate.orphans if r.kind is OrphanKind.PREPARED})
        dropped = any(r.kind is OrphanKind.PREPARED and not r.commit for r in estate.orphans)
        if prepared and ending is None:
            raise ConfigurationError(
                f"the former owner left prepared rows there{_of(prepared)}. They hold locks.",
                code="prepared_rows_left",
                remedy="If a sink shows that checkpoint or a part of it, it was decided: give --prepared commit to make"
                " the rows visible. If no sink shows any of it, give --prepared rollback to drop them.",
                pipeline=pipeline,
                participant=name,
                numbers=prepared,
            )
        if dropped and ending is PreparedEnding.COMMIT and not accept_partial:
            raise ConfigurationError(
                f"the prepared rows there can only be dropped{_of(prepared)}. Only the lost decision log knew the names"
                " that a commit needs.",
                code="rows_incomplete",
                remedy="Bring the lost log back. Or add --accept-partial: other sinks then show that checkpoint, and"
                " this one never will.",
                pipeline=pipeline,
                participant=name,
                numbers=prepared,
            )
        partial = partly_there(estate.orphans, ending)
        if partial and not accept_partial:
            raise ConfigurationError(
                f"a part of it is visible there{_of(partial)}, and this decision log cannot deliver the rest.",
                code="rows_incomplete",
                remedy="Bring the lost log back: it completes them. Or delete those rows by hand, or add the missing"
                " ones from the old write-ahead log (copy it before a run sweeps it). Then add --accept-partial: the"
                " checkpoint stays as it is.",
                pipeline=pipeline,
                participant=name,
                numbers=partial,
            )
    for name, estate in found.items():
        numbers = {r.number for r in estate.orphans if r.kind is OrphanKind.PREPARED and r.number}
        unknown = sorted(number for number in numbers if not _was_decided(found, number))
        if unknown and ending is PreparedEnding.COMMIT and not accept_partial:
            raise ConfigurationError(
                f"no sink shows that it was decided{_of(unknown)}. The former owner may have died before all of it was"
                " prepared.",
                code="decision_unknown",
                remedy="Give --prepared rollback to drop the prepared rows. If you know that it was decided, or have"
                " counted its rows, add --accept-partial: the prepared rows then become visible.",
                pipeline=pipeline,
                participant=name,
                numbers=unknown,
            )


def _was_decided(found: Mapping[str, Estate], number: int) -> bool:
    """Return whether a sink shows it, or a part of it: then all votes were there, and all of it was prepared."""
    return any(
        (estate.head is not None and estate.head.number >= number)
        or any(r.number == number and r.kind is OrphanKind.COMMITTED for r in estate.orphans)
        for estate in found.values()
    )


def _of(numbers: Sequence[int]) -> str:
    known = [str(number) for number in numbers if number]
    return f" (checkpoint {', '.join(known)} of the lost log)" if known else ""
