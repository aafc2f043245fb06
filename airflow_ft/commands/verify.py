"""`airflow ft verify`: the write-ahead log against what is really in the sinks."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import cast

from airflow_ft.commands.common import command, open_store, print_table, say
from airflow_ft.core.errors import ConfigurationError
from airflow_ft.core.model import ParticipantPlan
from airflow_ft.core.verify import Delivered, SinkReport
from airflow_ft.core.verify import verify as compare
from airflow_ft.hooks.connections import server_connections


@command
def verify(args: Namespace) -> None:
    """`airflow ft verify PIPELINE [NUMBER ...]`; ends with status 1 when rows are missing or could not be compared."""
    with open_store(args) as store:
        reports = compare(store, args.pipeline, verify_participant, args.numbers)
    if args.output != "table":
        print_table([report.to_json() for report in reports], args.output)
    elif not reports:
        say("no confirmed checkpoint has rows in the log any more: there is nothing to compare")
    else:
        for report in reports:
            for line in describe(report):
                say(line)
    if not all(report.is_complete for report in reports):
        raise SystemExit(1)


def verify_participant(delivered: Sequence[Delivered], plan: ParticipantPlan) -> Sequence[SinkReport]:
    """Every sink package has `verification.verify(delivered, plan, connection, wal)`."""
    from airflow_ft.wal import open_wal

    name = f"airflow_ft.sinks.{plan.kind}.verification"
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        if not name.startswith(error.name or ""):
            raise
        raise ConfigurationError(f"sinks of kind {plan.kind!r} cannot be compared.") from error
    return cast("Sequence[SinkReport]", module.verify(delivered, plan, server_connections(plan.name), open_wal()))


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
        yield f"  {report.repeated:,} more rows equal delivered ones: doubled, unless somebody else wrote them"
    if report.other:
        yield f"  {report.other:,} other rows"
    for note in report.notes:
        yield f"  note: {note}"
    for difference in report.differences:
        yield f"  missing: {difference.rows:,} rows of checkpoint {difference.number}, {difference.file}"
        for sample in difference.samples:
            yield f"    {sample}"
