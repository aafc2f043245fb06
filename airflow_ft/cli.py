"""`airflow ft ...`: the commands as Airflow's parser wants them; every start of `airflow` imports this module.

What they do is in `airflow_ft.commands`, which is imported when one of them runs.
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
    """Airflow's formatter takes brackets in a help text for markup, but for this: escape what stands in them."""
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
_ANY_NUMBER = _arg("number", metavar="NUMBER", type=_from(1), nargs="?", default=None, help="of one checkpoint only")
_STORE = _arg("--store", default=None, help="decision log: URL or connection id (default: [airflow_ft] store)")
_LIMIT = _arg("--limit", type=_from(1), default=20, help="how many, newest first (default: 20)")
_REWIND = _arg(
    "--rewind",
    action="store_true",
    help="compute its rows again (default: the next checkpoint delivers them as they are)",
)
_REASON = _arg("--reason", default="", help="why, for the event log")
_MIN_AGE = _arg(
    "--min-age",
    type=seconds,
    default=0.0,
    help="leave alone what is in doubt for fewer seconds than this: a run may be between two of its tasks (default: 0)",
)


_DAG = _arg("--dag", default=None, metavar="FILE", help="DAG file, for sources, and for what never ran")
_OF_DAG = _arg("--dag", required=True, metavar="FILE", help="DAG file that declares it")
_SAMPLES = _arg("--samples", type=_from(0), default=5, metavar="N", help="rows of each sink to show (default: 5)")
_EVERYTHING = _arg("--all", action="store_true", help="all that there is to read (default: its first checkpoint)")
_NUMBERS = _arg(
    "numbers", metavar="NUMBER", type=_from(1), nargs="*", help="of these checkpoints (default: all in the log)"
)
_ALLOW_REPEATED = _arg(
    "--allow-repeated",
    action="store_true",
    help="rows that equal delivered ones may be there more often: others write such rows too",
)
_FULL = _arg("--full", action="store_true", help="count other rows in every table, which reads it as a whole")
_PRINT = _arg("--print", action="store_true", help="only print the statements and commands, for whoever may run them")
_TABLES = _arg("--tables", action="store_true", help="also a CREATE TABLE for the columns of the job (starts Spark)")
_END = _arg("--end", action="store_true", help="end those that wait")
_PREPARED = _arg(
    "--prepared",
    choices=("commit", "rollback"),
    default=None,
    help="how to end rows that the lost log has left prepared (xa, prepared, held): make them visible, or drop them",
)
_ACCEPT_PARTIAL = _arg(
    "--accept-partial",
    action="store_true",
    help="go past checkpoints of the lost log of which a part is visible (with --prepared commit: may become visible)"
    " and the rest cannot be delivered any more",
)
_NOW = _arg("--now", action="store_true", help="at once: what is not published is computed again")
_DRAIN = _arg(
    "--drain",
    action="store_true",
    help="for good: a last checkpoint delivers what is open in windows, joins and event-time timers",
)
_WAIT = _arg("--wait", type=seconds, default=120.0, help="seconds to wait for it (default: 120; 0: do not wait)")
_BARRIER = _arg("barrier", metavar="ID", help="the barrier: a line of text that is no time")
_ANY_BARRIER = _arg(
    "barrier", metavar="ID", nargs="?", default=None, help="of this barrier, and how far each of its pipelines is"
)
_PIPELINES = _arg("pipelines", metavar="PIPELINE", nargs="+", help="names of the pipelines")
_IN_PIPELINE = _arg("--pipeline", default=None, metavar="PIPELINE", help="of this pipeline only")


_SAVEPOINT = _arg("path", metavar="PATH", help="folder of the savepoint; of restore also: beginning")
_DIR = _arg("--dir", default=None, metavar="FOLDER", help="where savepoints lie (default: [airflow_ft] savepoint_dir)")
_OF_CHECKPOINT = _arg(
    "--checkpoint", type=_from(1), default=None, metavar="NUMBER", help="of this one, which has to be retained still"
)
_PARTITIONS = _arg("--partitions", type=_from(1), required=True, metavar="NUMBER", help="so many state partitions")
_BACKEND = _arg("--backend", choices=("rocksdb", "hdfs"), required=True, help="the state store that it shall lie in")
_UNDER_NAME = _arg(
    "--pipeline", default=None, metavar="PIPELINE", help="restore it under this name (default: the savepoint's own)"
)
_LATER = _arg(
    "--later",
    choices=("refuse", "continue", "write-again"),
    default="refuse",
    help="when checkpoints were delivered after it: refuse; continue behind them, computed once more for the state"
    " alone; or write what is computed of their input once more (default: refuse)",
)
_CLAIM_MODE = _arg(
    "--claim-mode",
    default="NO_CLAIM",
    help="NO_CLAIM leaves the savepoint as it is, CLAIM deletes it once it is restored (default: NO_CLAIM)",
)
_ALLOW_NON_RESTORED = _arg(
    "--allow-non-restored-state",
    action="store_true",
    help="the job may lack operators whose state is in the savepoint: that is left behind then",
)
_ALLOW_CHANGED = _arg(
    "--allow-changed-state",
    action="store_true",
    help="accept a job whose keys, functions or settings differ from those that made the state",
)
_RENAME = _arg(
    "--rename",
    action="store_true",
    help="with --pipeline: the savepoint's pipeline gets that name. It is settled first, has to stand at the savepoint,"
    " and runs no more under its old name; folders of FilesSink pass to the new one",
)
_WAL_ROOT = _arg(
    "--wal-root",
    default=None,
    help="write-ahead log of a pipeline that is new here (default: [airflow_ft] wal_root)",
)
_STATE_OF = _arg("pipeline", metavar="PIPELINE", help="name of the pipeline, or folder of a savepoint (with a slash)")
_OPERATOR = _arg("operator", metavar="OPERATOR", help="number of the operator, or its uid")
_KEY = _arg("key", metavar="KEY", nargs="*", help="a value for each column of the key: text, ISO 8601, null, JSON")
_ONE_STATE = _arg("--state", default=None, metavar="NAME", help="of an operator with several states this one")
_AT = _arg("--at", type=_from(1), default=None, metavar="NUMBER", help="of this checkpoint, which is retained still")
_FILE = _arg("file", metavar="FILE", help="ends in .parquet, .csv or .json (a line for each entry)")
_SINCE = _arg(
    "--since", type=_from(1), required=True, metavar="NUMBER", help="the older checkpoint, which is retained still"
)
_UNTIL = _arg(
    "--until", dest="at", type=_from(1), default=None, metavar="NUMBER", help="default: the newest confirmed one"
)
_PAGE = _arg("page", metavar="PAGE", nargs="?", default=None, help="print this one (default: list all)")
_SEARCH = _arg("--search", default=None, metavar="WORD", help="find it in pages and headings")
_WITH_SAVEPOINT = _arg(
    "--savepoint",
    action="store_true",
    help="take a savepoint of where it has stopped, into --dir",
)


def _act(name: str, about: str) -> Arg:
    return _arg(f"--{name}", type=_from(1), metavar="NUMBER", default=None, help=about)


def _command(name: str, where: str, about: str, *args: Arg, reads_log: bool = True) -> ActionCommand:
    func = lazy_load_command(f"airflow_ft.commands.{where}.{name.replace('-', '_')}")
    return ActionCommand(name=name, help=about, func=func, args=(*args, _STORE) if reads_log else args)


def get_ft_cli_commands() -> list[CLICommand]:
    """The group `ft`, named in `provider_info`."""
    return [
        GroupCommand(
            name="ft",
            help="Exactly-once pipelines: look at their checkpoints, settle what is in doubt",
            subcommands=(*_looking(), *_settling(), _savepoints(), _state()),
        )
    ]


def _looking() -> tuple[ActionCommand, ...]:
    return (
        _command("pipelines", "looking", "List the pipelines", ARG_OUTPUT),
        _command("checkpoints", "looking", "List a pipeline's newest checkpoints", _PIPELINE, _LIMIT, ARG_OUTPUT),
        _command("events", "looking", "Print the event log, newest first", _PIPELINE, _ANY_NUMBER, _LIMIT, ARG_OUTPUT),
        _command(
            "doctor",
            "doctor",
            "Examine everything that a pipeline needs, in words; writes nothing that stays but the decision log",
            _PIPELINE,
            _DAG,
            ARG_OUTPUT,
        ),
        _command(
            "dry-run",
            "doctor",
            "Compute what the next run would deliver, show it and what the sinks would say, and deliver nothing",
            _PIPELINE,
            _OF_DAG,
            _SAMPLES,
            _EVERYTHING,
            ARG_OUTPUT,
        ),
        _command(
            "sinks",
            "sinks",
            "List what can be delivered into from here, and what each strategy promises",
            ARG_OUTPUT,
            reads_log=False,
        ),
        _command(
            "verify",
            "verify",
            "Compare the write-ahead log with what is in the sinks; only reports",
            _PIPELINE,
            _NUMBERS,
            _ALLOW_REPEATED,
            _FULL,
            ARG_OUTPUT,
        ),
        _command(
            "setup",
            "setup",
            "Make what the sinks need before the first delivery (ledger tables, topic of tokens), or print how",
            _PIPELINE,
            _DAG,
            _PRINT,
            _TABLES,
            ARG_OUTPUT,
        ),
        _command(
            "class-archive",
            "archive",
            "Make Spark drivers on this machine start faster: an archive of the classes that they load",
            reads_log=False,
        ),
        _command(
            "sessions",
            "sessions",
            "List the Spark sessions that wait on this machine for the next run",
            _END,
            ARG_OUTPUT,
            reads_log=False,
        ),
        _command(
            "barriers",
            "barriers",
            "List barriers and where they were injected, newest first",
            _ANY_BARRIER,
            _LIMIT,
            ARG_OUTPUT,
        ),
        _command("docs", "docs", "Read the documentation here", _PAGE, _SEARCH, ARG_OUTPUT, reads_log=False),
        _command(
            "show",
            "looking",
            "Show one checkpoint: its plan and the reasons, votes, proofs",
            _PIPELINE,
            _NUMBER,
            ARG_OUTPUT,
        ),
        _command(
            "spec",
            "looking",
            "Show what a checkpoint was made with: job, sources, sinks, settings; without a NUMBER the newest",
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
            "List what is not settled and what each sink says of it; with a NUMBER: act on it",
            _IN_PIPELINE,
            _act("commit", "deliver this checkpoint under its marker"),
            _act("abort", "give this checkpoint up, if it is not decided"),
            _act("quarantine", "keep this checkpoint as it is; nothing later is delivered meanwhile"),
            _act("redeliver", "deliver this decided checkpoint, also into a sink that has lost its token"),
            _act("dead-letter", "deliver this decided checkpoint, and set aside the rows that a sink refuses"),
            _REWIND,
            _REASON,
            ARG_YES,
            ARG_OUTPUT,
        ),
        _command("recover", "settling", "Settle what is in doubt, from the stored plans", _PIPELINE, _MIN_AGE),
        _command(
            "abort", "settling", "Abort a checkpoint that is not decided", _PIPELINE, _NUMBER, _REWIND, _REASON, ARG_YES
        ),
        _command(
            "rewind", "settling", "Compute all rows that are not delivered yet again", _PIPELINE, _REASON, ARG_YES
        ),
        _command(
            "reset-state",
            "settling",
            "Drop a pipeline's operator state and keep its positions: counts begin anew, no row is read again",
            _PIPELINE,
            _REASON,
            ARG_YES,
        ),
        _command(
            "stop",
            "streams",
            "Stop a stream after the checkpoint under way; a new run of its DAG goes on from there",
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
            "Put a barrier into pipelines: what is in their sources now is before it; the first injection counts",
            _BARRIER,
            _PIPELINES,
            ARG_OUTPUT,
        ),
        _command("retire", "settling", "Silence a pipeline's alerts until its next run", _PIPELINE, ARG_YES),
        _command("resume", "settling", "Let a HALTED pipeline continue", _PIPELINE, _REASON, ARG_YES),
        _command(
            "adopt",
            "settling",
            "List what a lost decision log has left in the sinks, and take them over",
            _PIPELINE,
            _PREPARED,
            _ACCEPT_PARTIAL,
            ARG_YES,
        ),
    )


def _savepoints() -> GroupCommand:
    return GroupCommand(
        name="savepoint",
        help="Keep where a pipeline stands, with its state, in a folder of its own; go on from there",
        subcommands=(
            _command(
                "trigger",
                "savepoints",
                "Take a savepoint of a pipeline's newest confirmed checkpoint (or another one), whether it runs or not",
                _PIPELINE,
                _OF_CHECKPOINT,
                _DIR,
                ARG_OUTPUT,
            ),
            _command("list", "savepoints", "List savepoints, newest first", _DIR, ARG_OUTPUT, reads_log=False),
            _command("show", "savepoints", "Show what a savepoint holds", _SAVEPOINT, ARG_OUTPUT, reads_log=False),
            _command(
                "restore",
                "savepoints",
                "Have a pipeline go on from a savepoint; its next run does",
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
                "Make another savepoint of one, with another number of state partitions",
                _SAVEPOINT,
                _PARTITIONS,
                _DIR,
                ARG_OUTPUT,
                reads_log=False,
            ),
            _command(
                "convert",
                "savepoints",
                "Make another savepoint of one, with its state in Spark's other state store",
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
        help="Look up what a pipeline's operators know, while it runs: as of its newest confirmed checkpoint",
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
            _command(
                "export", "state", "Write all of a state into a file", _STATE_OF, _OPERATOR, _FILE, _ONE_STATE, _AT
            ),
            _command(
                "changes",
                "state",
                "Print what changed between two checkpoints, a line of JSON for each key",
                _STATE_OF,
                _OPERATOR,
                _SINCE,
                _UNTIL,
                _ONE_STATE,
                ARG_OUTPUT,
            ),
        ),
    )
