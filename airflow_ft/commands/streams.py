"""Commands that ask something of a stream that runs."""

from __future__ import annotations

from argparse import Namespace

from airflow_ft.commands.common import command, open_store, say, signature
from airflow_ft.commands.savepoints import savepoint_folder
from airflow_ft.savepoints.stopping import stop as stop_stream


@command
def stop(args: Namespace) -> None:
    """`airflow ft stop PIPELINE`."""
    with open_store(args) as store:
        outcome = stop_stream(
            store,
            args.pipeline,
            signature(args, "stop"),
            at_once=bool(args.now),
            drain=bool(args.drain),
            savepoint_dir=savepoint_folder(args) if args.savepoint else "",
            wait=float(args.wait),
        )
    say(outcome)
