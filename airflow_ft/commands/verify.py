"""`airflow ft verify`: the write-ahead log against what is really in the sinks."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from functools import partial
from typing import cast

from airflow_ft.commands.common import command, open_store, print_table, say
from airflow_ft.core.errors import ConfigurationError
from airflow_ft.core.model import ParticipantPlan
from airflow_ft.core.verify import Delivered, SinkReport
from airflow_ft.core.verify import verify as compare
from airflow_ft.hooks.connections import server_connections
from airflow_ft.sinks.registry import system


@command
def verify(args: Namespace) -> None:
    """`airflow ft verify PIPELINE [NUMBER ...]`; ends with status 1 when rows are missing, doubled, or not compared."""
    with open_store(args) as store:
        verifier = partial(verify_participant, full=args.full)
        reports = compare(store, args.pipeline, verifier, args.numbers)
    if args.output != "table":
        print_table([report.to_json() for report in reports], args.output)
    elif not reports:
        say("no confirmed checkpoint has rows in the log any more: there is nothing to compare")
    else:
        for report in reports:
            for line in describe(report):
                say(line)
    if not all(report.is_complete if args.allow_repeated else report.is_exact for report in reports):
        raise SystemExit(1)


def verify_participant(
    delivered: Sequence[Delivered], plan: ParticipantPlan, *, full: bool = False
) -> Sequence[SinkReport]:
    """What is delivered of one participant, compared with what is in its system."""
    from airflow_ft.wal import open_wal

    of_kind = system(plan.kind)
    module = of_kind.part("verify")
    if module is None:
        raise ConfigurationError(f"sinks of kind {plan.kind!r} cannot be compared.")
    connection = of_kind.connection(plan, server_connections)
    return cast("Sequence[SinkReport]", module.verify(delivered, plan, connection, open_wal(), full=full))


def describe(report: SinkReport) -> Iterator[str]:
    """One sink in lines: counts, and each difference by its file."""
    numbers = f"{report.numbers[0]} to {report.numbers[-1]}" if len(report.numbers) > 1 else f"{report.numbers[0]}"
    yield f"{report.participant}: sink {report.sink} into {report.target or '?'}, checkpoint {numbers}"
    if report.error:
        yield f"  NOT COMPARED: {report.error}"
        return
    there = report.expected - report.missing
    yield f"  {'complete' if report.is_complete else 'INCOMPLETE'}: {there:,} of {report.expected:,} rows are there"
    if report.repeated:
        yield (
            f"  DOUBLED: {report.repeated:,} more rows equal delivered ones; if somebody else, or a checkpoint that is"
            " not compared, wrote them, say --allow-repeated"
        )
    if report.set_aside:
        yield f"  {report.set_aside:,} rows of the log were refused and set aside: `airflow ft show` says where"
    if report.other:
        yield f"  {report.other:,} other rows"
    for note in report.notes:
        yield f"  note: {note}"
    for difference in report.differences:
        yield f"  missing: {difference.rows:,} rows of checkpoint {difference.number}, {difference.file}"
        for sample in difference.samples:
            yield f"    {sample}"
