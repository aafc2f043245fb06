"""Shared parts of the commands: decision log, the question before an action, tables, and errors without a traceback."""

from __future__ import annotations

import getpass
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from enum import Enum
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pendulum
from airflow.cli.simple_table import AirflowConsole
from rich.markup import escape

from airflow_ft.admin.dag_runs import is_stranded, known_to_have_ended
from airflow_ft.clients.buckets import resolve_with
from airflow_ft.pipeline import settings
from airflow_ft.pipeline.actions.actor import Actor
from airflow_ft.pipeline.connections import server_connections
from airflow_ft.pipeline.decision_log import check_store, open_configured_store, participant_factory
from airflow_ft.protocol.errors import AirflowFtError, StoreUnavailableError
from airflow_ft.protocol.lease import Worker
from airflow_ft.protocol.lookup import require_known
from airflow_ft.store.events import bytes_text
from airflow_ft.store.url import parse_url

if TYPE_CHECKING:
    from airflow_ft.protocol.participant import ParticipantFactory
    from airflow_ft.store.decision_log import DecisionLog


Command = Callable[[Namespace], None]
UNCHANGED = "Nothing was changed."
"""The last words of a command whose question was not answered with yes."""


def command(function: Command) -> Command:
    """Errors of ours end the command with their message and status 1, without a traceback.

    So does Ctrl-C. If the reader of a pipe has gone (`| head`), the command ends silently.
    """

    @wraps(function)
    def run(args: Namespace) -> None:
        resolve_with(server_connections)  # a path may lie in a bucket
        try:
            check_store(getattr(args, "store", None))
            function(args)
            sys.stdout.flush()
        except AirflowFtError as error:
            pipeline, dag_file = (getattr(args, name, None) or "" for name in ("pipeline", "dag"))
            named = "" if "/" in pipeline else pipeline  # else it is a savepoint, of `state`
            raise SystemExit(str(error.filled(named, dag_file))) from error
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at its end
            raise SystemExit(1) from None
        except KeyboardInterrupt:
            raise SystemExit("Interrupted.") from None

    return run


@contextmanager
def open_store(args: Namespace) -> Iterator[DecisionLog]:
    """The decision log that `--store` or the configuration names; ConfigurationError for an unknown pipeline.

    Creates no file where `--store` names none: a misspelled path would show an empty log.
    """
    _require_file(args.store)
    with closing(open_configured_store(args.store, server_connections)) as store:
        if pipeline := getattr(args, "pipeline", None):
            require_known(store, pipeline, " For another decision log, add --store.")
        yield store


def _require_file(url: str | None) -> None:
    if url and "://" in url and parse_url(url).is_missing:
        raise StoreUnavailableError(
            f"there is no decision log {url}.",
            code="store_file_missing",
            remedy="Correct --store. The first run of a pipeline creates its decision log.",
            store=url,
        )


def location(text: str) -> str:
    """A path of the command line, which may be relative, or a URI."""
    return text if "://" in text or text.startswith("file:") else str(Path(text).expanduser().absolute())


def participants() -> ParticipantFactory:
    """Opens participants over the connections that the command line may read."""
    return participant_factory(server_connections)


def signature(args: Namespace, command: str) -> str:
    """For the event log: which command, by whom, and why."""
    return f"`airflow ft {command}` by {_person(args)}"


def person() -> str:
    """The user of this machine; in a container that has no name for its user: the number."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"


def actor(args: Namespace, command: str) -> Actor:
    """Return the person who typed the command; asked there, unless --yes was given."""
    return Actor(
        signature=signature(args, command),
        person=_person(args),
        say=say,
        sure=partial(sure, args),
        connections=server_connections,
        participants=participants(),
        is_over=lambda run: run in known_to_have_ended([run]),
        worker=Worker(task="", try_number=1),
        lease_seconds=settings.lease_seconds(),
        is_stranded=is_stranded,
    )


def _person(args: Namespace) -> str:
    """Return who acts, and why."""
    return person() + (f": {reason}" if (reason := getattr(args, "reason", "")) else "")


class Size(int):
    """Bytes."""


def print_table(rows: Sequence[dict[str, Any]], output: str) -> None:
    """Rows for `-o`: for people (table, plain) as text, for programs (json, yaml) as values of their own type.

    Airflow's own `print_as` makes text of all values, and its tables take `[...]` in them for markup.
    """
    console: Any = AirflowConsole()
    if output == "json":
        console.print_as_json([{name: _value(value) for name, value in row.items()} for row in rows])
    elif output == "yaml":
        console.print_as_yaml([{name: _value(value) for name, value in row.items()} for row in rows])
    else:
        protect = escape if output == "table" else str
        texts = [{name: protect(_text(value)) for name, value in row.items()} for row in rows]
        console.print_as(data=texts, output=output)


def _value(value: Any) -> Any:
    """Times as ISO 8601 with their zone, durations as seconds, sizes as bytes."""
    if isinstance(value, datetime):
        return pendulum.instance(value).to_iso8601_string()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return int(value) if isinstance(value, Size) else str(value) if isinstance(value, Enum) else value


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return time_text(value)
    if isinstance(value, timedelta):
        return age_text(value)
    if isinstance(value, Size):
        return bytes_text(value)
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_text, value))
    return str(value)


def say(text: str) -> None:
    """A line for the user."""
    sys.stdout.write(text + "\n")


def sure(args: Namespace, question: str) -> None:
    """Asks, unless --yes was given; ends the command when the answer is not yes."""
    if args.yes:
        return
    try:
        answer = input(f"{question} [y/N] ")
    except EOFError:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise SystemExit(UNCHANGED)


def time_text(at: datetime | None) -> str:
    """Seconds, UTC."""
    return f"{at:%Y-%m-%d %H:%M:%S}Z" if at else ""


def age_text(age: timedelta) -> str:
    """`3d 4h`, `2h 5m`, `41s`: the two largest units."""
    seconds = max(0, int(age.total_seconds()))
    parts = [(seconds // 86400, "d"), (seconds // 3600 % 24, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s")]
    while len(parts) > 1 and parts[0][0] == 0:
        parts.pop(0)
    return " ".join(f"{value}{unit}" for value, unit in parts[:2])
