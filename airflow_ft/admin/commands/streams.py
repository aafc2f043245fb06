"""Commands that ask something of a stream that runs."""

from __future__ import annotations

from argparse import Namespace

from airflow_ft.admin.commands.common import actor, command, open_store
from airflow_ft.admin.commands.savepoints import savepoint_folder
from airflow_ft.pipeline.actions.savepoints import stop as stop_stream


@command
def stop(args: Namespace) -> None:
    """`airflow ft stop PIPELINE`."""
    with open_store(args) as store:
        stop_stream(
            actor(args, "stop"),
            store,
            args.pipeline,
            at_once=bool(args.now),
            drain=bool(args.drain),
            savepoint_dir=savepoint_folder(args) if args.savepoint else "",
            wait=float(args.wait),
        )
