"""Commands that ask something of a stream that runs."""

from __future__ import annotations

import time
from argparse import Namespace
from typing import Any

from airflow_ft.commands.common import command, open_store, say, signature
from airflow_ft.commands.savepoints import savepoint_folder
from airflow_ft.core.errors import ConfigurationError, StateConflictError
from airflow_ft.core.model import RequestKind
from airflow_ft.savepoints.taking import take

_LOOK_SECONDS = 0.5


@command
def stop(args: Namespace) -> None:
    """`airflow ft stop PIPELINE`."""
    if args.now and args.drain:
        raise ConfigurationError(
            "--now gives up the checkpoint under way, and --drain makes one more.", remedy="give one of them."
        )
    with open_store(args) as store:
        # Between two restarts nobody has a lease, but the run still has the turn.
        if not store.leases(args.pipeline) and store.pipeline(args.pipeline).turn is None:
            if args.drain:
                raise StateConflictError(
                    "nobody is at work on it, so nobody could drain it.",
                    remedy="start a run of the stream, and ask again.",
                    pipeline=args.pipeline,
                )
            say(f"nobody is at work on {args.pipeline}")
            if args.savepoint:
                uri, taken = take(store, args.pipeline, savepoint_folder(args), signature(args, "stop"))
                say(f"savepoint of checkpoint {taken.number}: {uri}")
            return
        how: dict[str, Any] = {"at_once": bool(args.now)} | ({"drain": True} if args.drain else {})
        if args.savepoint:
            how |= {"savepoint": savepoint_folder(args)}
        asked = store.ask(args.pipeline, RequestKind.STOP, how, signature(args, "stop"))
        deadline = time.monotonic() + args.wait
        while not (outcome := store.request(args.pipeline, asked).outcome):
            if time.monotonic() > deadline:
                if not args.wait:
                    say(f"{args.pipeline} was asked to stop")
                    return
                raise StateConflictError(
                    f"it has not stopped within {args.wait:g} s; the request stays.",
                    remedy="look at the log of its task: is it a stream, and does it run?",
                    pipeline=args.pipeline,
                )
            time.sleep(_LOOK_SECONDS)
        say(outcome)
