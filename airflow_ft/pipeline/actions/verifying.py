"""Compare the write-ahead log with the sinks, and print the result as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, cast

from airflow_ft.pipeline.actions.actor import Actor
from airflow_ft.protocol.connections import ConnectionResolver
from airflow_ft.protocol.errors import ConfigurationError, FoundProblemsError
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.verify import Delivered, SinkReport, lost_and_pruned
from airflow_ft.protocol.verify import verify as compare
from airflow_ft.sinks.registry import system

if TYPE_CHECKING:
    from airflow_ft.protocol.decision_log import QueryLog


def verify(by: Actor, store: QueryLog, pipeline: str, numbers: Iterable[int] = ()) -> list[SinkReport]:
    """Compare these checkpoints, or all whose rows are still in the log, sink by sink.

    Without `numbers` also reports checkpoints that a sink has lost and that can no longer be compared.
    """
    verifier, numbers = partial(verify_participant, connections=by.connections), tuple(numbers)
    lost = () if numbers else lost_and_pruned(store, pipeline, by.participants)
    return [*compare(store, pipeline, verifier, numbers, _place), *lost]


def _place(plan: ParticipantPlan, sink: str) -> str:
    """Return the table, topic or folder of a sink, as its author wrote it."""
    with suppress(ConfigurationError):  # a kind that this version does not know
        return str(plan.sinks[sink].get(system(plan.kind).place, ""))
    return ""


def lines(reports: Sequence[SinkReport], *, samples: bool = True) -> Iterator[str]:
    """Yield all reports as lines. With `samples` they show values of rows that differ."""
    if not reports:
        yield "the write-ahead log has no rows of confirmed checkpoints: there is nothing to compare"
    for report in reports:
        yield from describe(report, samples=samples)


def are_as_they_should(reports: Iterable[SinkReport], *, allow_repeated: bool = False) -> bool:
    """Return whether all was compared, and all rows are there, each as often as it was delivered."""
    return all(report.is_complete if allow_repeated else report.is_exact for report in reports)


def require(reports: Sequence[SinkReport], pipeline: str, *, allow_repeated: bool = False) -> None:
    """FoundProblemsError unless they `are_as_they_should`. It counts, and shows no row."""
    if are_as_they_should(reports, allow_repeated=allow_repeated):
        return
    counts = {
        ("row is missing", "rows are missing"): sum(report.missing for report in reports),
        ("extra copy of a delivered row is there", "extra copies of delivered rows are there"): sum(
            report.repeated for report in reports
        ),
        ("sink could not be compared", "sinks could not be compared"): sum(bool(report.error) for report in reports),
    }
    raise FoundProblemsError(
        "; ".join(count_text(count, *words) for words, count in counts.items() if count) + ".",
        remedy="Read the lines above: they name sink, checkpoint and file. Rows that other programs changed or deleted"
        " count as missing. If other programs write such rows, too, set `allow_repeated`.",
        pipeline=pipeline,
        missing=sum(report.missing for report in reports),
        repeated=sum(report.repeated for report in reports),
        not_compared=sum(bool(report.error) for report in reports),
    )


def verify_participant(
    delivered: Sequence[Delivered], plan: ParticipantPlan, *, connections: ConnectionResolver
) -> Sequence[SinkReport]:
    """Return what is delivered of one participant, compared with what is in its system."""
    from airflow_ft.wal import open_wal

    of_kind = system(plan.kind)
    module = of_kind.part("verify")
    if module is None:
        raise ConfigurationError(
            f"sinks of kind {plan.kind!r} cannot be compared.",
            code="verify_unsupported",
            remedy="Compare their rows by hand, or add a module `verify` to the package of this sink.",
            kind=plan.kind,
        )
    connection = of_kind.connection(plan, connections)
    return cast("Sequence[SinkReport]", module.verify(delivered, plan, connection, open_wal()))


def describe(report: SinkReport, *, samples: bool = True) -> Iterator[str]:
    """Yield one report as lines: counts, and each difference with its file; see `lines` for `samples`."""
    numbers = f"{report.numbers[0]} to {report.numbers[-1]}" if len(report.numbers) > 1 else f"{report.numbers[0]}"
    into = f" into {report.target}" if report.target else ""
    yield f"{report.participant}: sink {report.sink}{into}, checkpoint {numbers}"
    if report.error:
        yield f"  NOT COMPARED: {report.error}"
        return
    there = report.expected - report.missing
    whole = "complete" if report.is_complete else "INCOMPLETE"
    verb = "is" if there == 1 else "are"
    yield f"  {whole}: {there:,} of {count_text(report.expected, 'row')} {verb} there"
    if report.repeated:
        yield (
            f"  DUPLICATED: {count_text(report.repeated, 'extra copy', 'extra copies')} of delivered rows. If another"
            " program, or a checkpoint that is not compared, wrote them, add --allow-repeated"
        )
    if report.set_aside:
        aside = count_text(report.set_aside, "row was", "rows were")
        yield f"  {aside} refused and set aside: `airflow ft show` says where"
    if report.other:
        yield f"  {count_text(report.other, 'other row')}"
    for note in report.notes:
        yield f"  note: {note}"
    for difference in report.differences:
        yield f"  missing: {count_text(difference.rows, 'row')} of checkpoint {difference.number}, {difference.file}"
        for sample in difference.samples if samples else ():
            yield f"    {sample}"
    if not samples and any(each.samples for each in report.differences):
        yield "  `airflow ft verify` shows some of these rows"
