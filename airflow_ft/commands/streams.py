"""Commands that ask something of a stream that runs."""

from __future__ import annotations

import time
from argparse import Namespace

from airflow_ft.commands.common import command, open_store, say, signature
from airflow_ft.core.errors import StateConflictError
from airflow_ft.core.model import RequestKind

_LOOK_SECONDS = 0.5


@command
def stop(args: Namespace) -> None:
    """`airflow ft stop PIPELINE`."""
    with open_store(args) as store:
        # Between two restarts nobody has a lease, but the run still has the turn.
        if not store.leases(args.pipeline) and store.pipeline(args.pipeline).turn is None:
            say(f"nobody is at work on {args.pipeline}")
            return
        asked = store.ask(args.pipeline, RequestKind.STOP, {"at_once": bool(args.now)}, signature(args, "stop"))
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
