"""`airflow ft ...`: the commands as Airflow's parser wants them; every start of `airflow` imports this module.

What they do is in `airflow_ft.admin.commands`, which is imported when one of them runs.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from typing import Any

from airflow.cli.cli_config import (
    ARG_OUTPUT,
    ARG_YES,
    ActionCommand,
    Arg,
    CLICommand,
    GroupCommand,
    lazy_load_command,
)


def _arg(*flags: str, help: str, **options: Any) -> Arg:
    """Return an argument. Airflow's formatter reads brackets in a help text as markup, so they are escaped."""
    return Arg(flags, help=help.replace("[", r"\["), **options)  # type: ignore[no-untyped-call]


def _from(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise ArgumentTypeError(f"give a number from {least}, not {value}")
        return value

    return number


def seconds(text: str) -> float:
    """Read a number of seconds; argparse names this function in its error."""
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ArgumentTypeError(f"give a number of seconds, 0 or more, not {text}")
    return value


_PIPELINE = _arg("pipeline", metavar="PIPELINE", help="name of the pipeline")
_NUMBER = _arg("number", metavar="NUMBER", type=_from(1), help="number of the checkpoint")
_ANY_NUMBER = _arg("number", metavar="NUMBER", type=_from(1), nargs="?", default=None, help="show only this checkpoint")
_STORE = _arg("--store", default=None, help="decision log: URL or connection id (default: [airflow_ft] store)")
_LIMIT = _arg("--limit", type=_from(1), default=20, help="maximum number of lines, newest first (default: 20)")
_REWIND = _arg(
    "--rewind",
    action="store_true",
    help="compute the rows again (default: deliver them unchanged with the next checkpoint)",
)
_REASON = _arg("--reason", default="", help="reason, recorded in the event log")
_MIN_AGE = _arg(
    "--min-age",
    type=seconds,
    default=0.0,
    help="skip checkpoints that have been in doubt for less than this many seconds (default: 0)",
)


_DAG = _arg(
    "--dag",
    default=None,
    metavar="FILE",
    help="DAG file: needed for a pipeline that has never run; otherwise adds its sources",
)
_OF_DAG = _arg("--dag", required=True, metavar="FILE", help="DAG file that declares the pipeline")
_SAMPLES = _arg("--samples", type=_from(0), default=5, metavar="N", help="rows of each sink to show (default: 5)")
_EVERYTHING = _arg("--all", action="store_true", help="read all new rows (default: the next checkpoint only)")
_NUMBERS = _arg(
    "numbers",
    metavar="NUMBER",
    type=_from(1),
    nargs="*",
    help="compare only these checkpoints (default: all in the write-ahead log)",
)
_ALLOW_REPEATED = _arg(
    "--allow-repeated",
    action="store_true",
    help="accept extra copies of delivered rows, because other programs write such rows, too",
)
_FULL = _arg("--full", action="store_true", help="also count rows from elsewhere; reads each table completely")
_PRINT = _arg("--print", action="store_true", help="print the statements and commands instead of running them")
_TABLES = _arg(
    "--tables", action="store_true", help="also print a CREATE TABLE for the columns of the job (starts Spark)"
)
_END = _arg("--end", action="store_true", help="stop idle sessions")
_PREPARED = _arg(
    "--prepared",
    choices=("commit", "rollback"),
    default=None,
    help="commit or roll back the transactions that the lost decision log left prepared (xa, prepared, held)",
)
_ACCEPT_PARTIAL = _arg(
    "--accept-partial",
    action="store_true",
    help="accept lost checkpoints of which one sink shows rows (with --prepared commit: may show rows) and another"
    " sink never will",
)
_NOW = _arg("--now", action="store_true", help="stop at once; the next run computes unpublished rows again")
_DRAIN = _arg(
    "--drain",
    action="store_true",
    help="deliver open windows, joins and event-time timers in a last checkpoint",
)
_WAIT = _arg(
    "--wait", type=seconds, default=120.0, help="seconds to wait for the stream to stop (default: 120; 0: do not wait)"
)
_BARRIER = _arg("barrier", metavar="ID", help="id of the barrier: one line of text that is not a time")
_ANY_BARRIER = _arg(
    "barrier", metavar="ID", nargs="?", default=None, help="show this barrier and the progress of each pipeline"
)
_PIPELINES = _arg("pipelines", metavar="PIPELINE", nargs="+", help="names of the pipelines")
_IN_PIPELINE = _arg("--pipeline", default=None, metavar="PIPELINE", help="show only this pipeline")


_SAVEPOINT = _arg("path", metavar="PATH", help="folder of the savepoint; restore also takes the word: beginning")
_DIR = _arg(
    "--dir", default=None, metavar="FOLDER", help="folder of the savepoints (default: [airflow_ft] savepoint_dir)"
)
_OF_CHECKPOINT = _arg(
    "--checkpoint",
    type=_from(1),
    default=None,
    metavar="NUMBER",
    help="take it of this retained checkpoint (default: the newest confirmed one)",
)
_PARTITIONS = _arg(
    "--partitions", type=_from(1), required=True, metavar="NUMBER", help="new number of state partitions"
)
_BACKEND = _arg("--backend", choices=("rocksdb", "hdfs"), required=True, help="target state backend")
_UNDER_NAME = _arg(
    "--pipeline", default=None, metavar="PIPELINE", help="restore it under this name (default: the savepoint's own)"
)
_LATER = _arg(
    "--later",
    choices=("refuse", "continue", "write-again"),
    default="refuse",
    help="what to do about checkpoints delivered after the savepoint. refuse: fail. continue: keep the delivered rows"
    " and only rebuild state. write-again: compute and deliver their input again (default: refuse)",
)
_CLAIM_MODE = _arg(
    "--claim-mode",
    default="NO_CLAIM",
    help="NO_CLAIM keeps the savepoint, CLAIM deletes it after the restore (default: NO_CLAIM)",
)
_ALLOW_NON_RESTORED = _arg(
    "--allow-non-restored-state",
    action="store_true",
    help="drop the state of operators that the job no longer has",
)
_ALLOW_CHANGED = _arg(
    "--allow-changed-state",
    action="store_true",
    help="accept a job whose keys, functions or settings differ from those that made the state",
)
_RENAME = _arg(
    "--rename",
    action="store_true",
    help="with --pipeline: rename the savepoint's pipeline. Resolves its checkpoints first, and needs a savepoint of"
    " its newest one. The old name stops working; folders of FilesSink pass to the new name",
)
_WAL_ROOT = _arg(
    "--wal-root",
    default=None,
    help="write-ahead log for a pipeline that this decision log does not know (default: [airflow_ft] wal_root)",
)
_STATE_OF = _arg("pipeline", metavar="PIPELINE", help="name of the pipeline, or folder of a savepoint (with a slash)")
_OPERATOR = _arg("operator", metavar="OPERATOR", help="number of the operator, or its uid")
_KEY = _arg("key", metavar="KEY", nargs="*", help="one value per key column: text, ISO 8601, null or JSON")
_ONE_STATE = _arg("--state", default=None, metavar="NAME", help="name of the state, if the operator has several")
_AT = _arg(
    "--at",
    type=_from(1),
    default=None,
    metavar="NUMBER",
    help="show state as of this retained checkpoint (default: the newest confirmed one)",
)
_FILE = _arg("file", metavar="FILE", help="target file: .parquet, .csv or .json (one line per entry)")
_SINCE = _arg(
    "--since", type=_from(1), required=True, metavar="NUMBER", help="older checkpoint, which must be retained"
)
_UNTIL = _arg(
    "--until",
    dest="at",
    type=_from(1),
    default=None,
    metavar="NUMBER",
    help="newer checkpoint (default: the newest confirmed one)",
)
_PAGE = _arg("page", metavar="PAGE", nargs="?", default=None, help="page to print (default: list all)")
_SEARCH = _arg("--search", default=None, metavar="WORD", help="search pages and headings for this word")
_WITH_SAVEPOINT = _arg(
    "--savepoint",
    action="store_true",
    help="take a savepoint of the last checkpoint, into --dir",
)


def _action(name: str, about: str) -> Arg:
    return _arg(f"--{name}", type=_from(1), metavar="NUMBER", default=None, help=about)


def _command(name: str, where: str, about: str, *args: Arg, reads_log: bool = True) -> ActionCommand:
    func = lazy_load_command(f"airflow_ft.admin.commands.{where}.{name.replace('-', '_')}")
    return ActionCommand(name=name, help=about, func=func, args=(*args, _STORE) if reads_log else args)


def get_ft_cli_commands() -> list[CLICommand]:
    """The group `ft`, named in `provider_info`."""
    return [
        GroupCommand(
            name="ft",
            help="Inspect and repair exactly-once pipelines",
            subcommands=(*_looking(), *_settling(), _savepoints(), _state()),
        )
    ]


def _looking() -> tuple[ActionCommand, ...]:
    return (
        _command("pipelines", "looking", "List all pipelines with their condition", ARG_OUTPUT),
        _command("checkpoints", "looking", "List a pipeline's newest checkpoints", _PIPELINE, _LIMIT, ARG_OUTPUT),
        _command("events", "looking", "Print the event log, newest first", _PIPELINE, _ANY_NUMBER, _LIMIT, ARG_OUTPUT),
        _command(
            "doctor",
            "doctor",
            "Check everything that a pipeline needs, and print the fix for what is missing",
            _PIPELINE,
            _DAG,
            ARG_OUTPUT,
        ),
        _command(
            "dry-run",
            "doctor",
            "Compute what the next run would deliver and check it against the sinks; deliver nothing",
            _PIPELINE,
            _OF_DAG,
            _SAMPLES,
            _EVERYTHING,
            ARG_OUTPUT,
        ),
        _command(
            "sinks",
            "sinks",
            "List the sinks and strategies that are installed, with their guarantees",
            ARG_OUTPUT,
            reads_log=False,
        ),
        _command(
            "verify",
            "verify",
            "Compare the write-ahead log with the sinks; changes nothing",
            _PIPELINE,
            _NUMBERS,
            _ALLOW_REPEATED,
            _FULL,
            ARG_OUTPUT,
        ),
        _command(
            "setup",
            "setup",
            "Create what the sinks need before the first delivery (ledger tables, marker topic), or print how",
            _PIPELINE,
            _DAG,
            _PRINT,
            _TABLES,
            ARG_OUTPUT,
        ),
        _command(
            "sessions",
            "sessions",
            "List the Spark sessions that this machine keeps for later runs",
            _END,
            ARG_OUTPUT,
            reads_log=False,
        ),
        _command(
            "barriers",
            "barriers",
            "List barriers, newest first",
            _ANY_BARRIER,
            _LIMIT,
            ARG_OUTPUT,
        ),
        _command("docs", "docs", "Read the documentation in the terminal", _PAGE, _SEARCH, ARG_OUTPUT, reads_log=False),
        _command(
            "show",
            "looking",
            "Show a checkpoint: plan, votes, proofs and the reason of a failure",
            _PIPELINE,
            _NUMBER,
            ARG_OUTPUT,
        ),
        _command(
            "spec",
            "looking",
            "Show the job, sources, sinks and settings of a checkpoint (default: the newest)",
            _PIPELINE,
            _ANY_NUMBER,
            ARG_OUTPUT,
        ),
    )


def _settling() -> tuple[ActionCommand, ...]:
    return (
        _command(
            "in-doubt",
            "doubt",
            "List checkpoints in doubt with each sink's answer; an option with a NUMBER acts on one",
            _IN_PIPELINE,
            _action("commit", "deliver this checkpoint"),
            _action("abort", "abort this checkpoint; fails if it is decided"),
            _action("quarantine", "hold this checkpoint and all later ones until you decide"),
            _action(
                "redeliver",
                "deliver this decided checkpoint, even into a sink that lost its marker and has none of its rows",
            ),
            _action("dead-letter", "deliver this decided checkpoint, and set aside the rows that a sink refuses"),
            _REWIND,
            _REASON,
            ARG_YES,
            ARG_OUTPUT,
        ),
        _command(
            "recover", "settling", "Complete or abort the checkpoints in doubt of a pipeline", _PIPELINE, _MIN_AGE
        ),
        _command(
            "abort",
            "settling",
            "Abort a checkpoint that is not decided yet",
            _PIPELINE,
            _NUMBER,
            _REWIND,
            _REASON,
            ARG_YES,
        ),
        _command(
            "rewind",
            "settling",
            "Discard all undelivered rows; the next run computes them again",
            _PIPELINE,
            _REASON,
            ARG_YES,
        ),
        _command(
            "reset-state",
            "settling",
            "Drop a pipeline's operator state but keep its source positions",
            _PIPELINE,
            _REASON,
            ARG_YES,
        ),
        _command(
            "stop",
            "streams",
            "Stop a stream after its current checkpoint; the next run continues from there",
            _PIPELINE,
            _NOW,
            _DRAIN,
            _WITH_SAVEPOINT,
            _DIR,
            _WAIT,
        ),
        _command(
            "inject-barrier",
            "barriers",
            "Inject a barrier into pipelines: rows now in their sources lie before it",
            _BARRIER,
            _PIPELINES,
            ARG_OUTPUT,
        ),
        _command("retire", "settling", "Silence a pipeline's alerts until its next run", _PIPELINE, ARG_YES),
        _command("resume", "settling", "Let a HALTED pipeline continue", _PIPELINE, _REASON, ARG_YES),
        _command(
            "adopt",
            "settling",
            "Take over the sinks of a lost decision log; lists first what it left there",
            _PIPELINE,
            _PREPARED,
            _ACCEPT_PARTIAL,
            ARG_YES,
        ),
    )


def _savepoints() -> GroupCommand:
    return GroupCommand(
        name="savepoint",
        help="Take, inspect, restore, change and delete savepoints",
        subcommands=(
            _command(
                "trigger",
                "savepoints",
                "Take a savepoint of a confirmed checkpoint; the pipeline may be running",
                _PIPELINE,
                _OF_CHECKPOINT,
                _DIR,
                ARG_OUTPUT,
            ),
            _command("list", "savepoints", "List savepoints, newest first", _DIR, ARG_OUTPUT, reads_log=False),
            _command("show", "savepoints", "Show the contents of a savepoint", _SAVEPOINT, ARG_OUTPUT, reads_log=False),
            _command(
                "restore",
                "savepoints",
                "Restore a pipeline from a savepoint; its next run continues from there",
                _SAVEPOINT,
                _UNDER_NAME,
                _RENAME,
                _LATER,
                _CLAIM_MODE,
                _ALLOW_NON_RESTORED,
                _ALLOW_CHANGED,
                _WAL_ROOT,
                ARG_YES,
            ),
            _command(
                "rescale",
                "savepoints",
                "Copy a savepoint with another number of state partitions",
                _SAVEPOINT,
                _PARTITIONS,
                _DIR,
                ARG_OUTPUT,
                reads_log=False,
            ),
            _command(
                "convert",
                "savepoints",
                "Copy a savepoint into the other state backend",
                _SAVEPOINT,
                _BACKEND,
                _DIR,
                ARG_OUTPUT,
                reads_log=False,
            ),
            _command("dispose", "savepoints", "Delete a savepoint", _SAVEPOINT, ARG_YES, reads_log=False),
        ),
    )


def _state() -> GroupCommand:
    return GroupCommand(
        name="state",
        help="Query operator state as of a confirmed checkpoint; the pipeline may be running",
        subcommands=(
            _command("show", "state", "List operators with their states, keys and sizes", _STATE_OF, _AT, ARG_OUTPUT),
            _command(
                "get",
                "state",
                "Print an operator's state for a key",
                _STATE_OF,
                _OPERATOR,
                _KEY,
                _ONE_STATE,
                _AT,
                ARG_OUTPUT,
            ),
            _command("export", "state", "Export a state into a file", _STATE_OF, _OPERATOR, _FILE, _ONE_STATE, _AT),
            _command(
                "changes",
                "state",
                "Print what changed between two checkpoints, one line of JSON per key",
                _STATE_OF,
                _OPERATOR,
                _SINCE,
                _UNTIL,
                _ONE_STATE,
                ARG_OUTPUT,
            ),
        ),
    )
