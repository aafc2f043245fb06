"""What former owners of a pipeline left in its sinks, and the choices that a person who adopts must make about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_ft.protocol.decision_log import QueryLog
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.orphans import Orphan, OrphanKind, PreparedEnding, partly_there
from airflow_ft.protocol.overview import Noted
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


def choice_of(found: Mapping[str, Estate], ending: PreparedEnding | None) -> dict[str, Any]:
    """Return the choice for prepared rows that could end in either way, as the decision log keeps it; {}: no such rows.

    Of several adoptions each may end some of these rows, in any order. So all of them must choose the same.
    """
    prepared = sorted(
        {
            (name, each.installation, each.number)
            for name, estate in found.items()
            for each in estate.orphans
            if each.kind is OrphanKind.PREPARED and each.commit
        }
    )
    return {"ending": ending.value, "prepared": [[*each] for each in prepared]} if prepared and ending else {}


def require_choices(
    store: QueryLog,
    pipeline: str,
    found: Mapping[str, Estate],
    ending: PreparedEnding | None,
    accept_partial: bool,
) -> None:
    """ConfigurationError unless a person has made all choices, and the same as an earlier adoption of these rows."""
    _require_endings(pipeline, found, ending, accept_partial)
    adopted, mine = store.noted(pipeline, Noted.ADOPTED), choice_of(found, ending)
    before = adopted.detail.get("choice") if adopted is not None else None
    if not before or not mine or before["ending"] == mine["ending"]:
        return
    # By owner and number, not by sink: a sink may have hidden its rows from the first look.
    known = [each[1:] for each in before["prepared"]]
    if same := [each for each in mine["prepared"] if each[1:] in known]:
        name, _, number = same[0]
        raise ConfigurationError(
            f"an earlier adoption chose --prepared {before['ending']} for prepared rows{_of([number])}. It may have"
            " ended some of them, or still run.",
            code="ending_differs",
            remedy=f"Give --prepared {before['ending']}. If that choice was wrong, end all prepared rows by hand, with"
            " the statements that `airflow ft adopt` prints. Then run it again.",
            pipeline=pipeline,
            participant=name,
            number=number,
            ending=before["ending"],
        )


def _require_endings(
    pipeline: str, found: Mapping[str, Estate], ending: PreparedEnding | None, accept_partial: bool
) -> None:
    for name, estate in found.items():
        prepared = sorted({r.number for r in estate.orphans if r.kind is OrphanKind.PREPARED})
        dropped = any(r.kind is OrphanKind.PREPARED and not r.commit for r in estate.orphans)
        if prepared and ending is None:
            raise ConfigurationError(
                f"a lost decision log left prepared rows in this sink{_of(prepared)}. They hold locks.",
                code="prepared_rows_left",
                remedy="If a sink shows that checkpoint or a part of it, it was decided: give --prepared commit to make"
                " the rows visible. If no sink shows any of it, give --prepared rollback to drop them.",
                pipeline=pipeline,
                participant=name,
                numbers=prepared,
            )
        if dropped and ending is PreparedEnding.COMMIT and not accept_partial:
            raise ConfigurationError(
                f"prepared rows in this sink can only be dropped{_of(prepared)}. Only the lost decision log knew the"
                " names that a commit needs.",
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
                f"only a part of the rows is visible in this sink{_of(partial)}, and this decision log cannot deliver"
                " the rest.",
                code="rows_incomplete",
                remedy="Bring the lost log back: it delivers the rest. Or delete those rows by hand, or add the missing"
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
                f"no sink shows that the prepared rows were decided{_of(unknown)}. The process that prepared them may"
                " have died before it had prepared all.",
                code="decision_unknown",
                remedy="Give --prepared rollback to drop the prepared rows. If you know that they were decided, or have"
                " counted them, add --accept-partial: the prepared rows then become visible.",
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
