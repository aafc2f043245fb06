"""`airflow ft verify`: the write-ahead log against what is really in the sinks."""

from __future__ import annotations

from argparse import Namespace

from airflow_ft.admin.commands.common import actor, command, open_store, print_table, say
from airflow_ft.pipeline.actions import verifying


@command
def verify(args: Namespace) -> None:
    """`airflow ft verify PIPELINE [NUMBER ...]`; ends with status 1 when rows are missing, doubled, or not compared."""
    with open_store(args) as store:
        reports = verifying.verify(actor(args, "verify"), store, args.pipeline, args.numbers)
    if args.output != "table":
        print_table([report.to_json() for report in reports], args.output)
    else:
        for line in verifying.lines(reports):
            say(line)
    if not verifying.are_as_they_should(reports, allow_repeated=args.allow_repeated):
        raise SystemExit(1)
