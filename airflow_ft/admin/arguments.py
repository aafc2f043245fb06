"""The arguments and options of the commands `airflow ft ...`, which `airflow_ft.admin.cli` puts together.

Every start of `airflow` imports this module.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from typing import Any

from airflow.cli.cli_config import Arg


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


PIPELINE = _arg("pipeline", metavar="PIPELINE", help="name of the pipeline")
ANY_NUMBER = _arg("number", metavar="NUMBER", type=_from(1), nargs="?", default=None, help="show only this checkpoint")
STORE = _arg(
    "--store", default=None, help="decision log: URL without a password, or connection id (default: [airflow_ft] store)"
)
LIMIT = _arg("--limit", type=_from(1), default=20, help="maximum number of lines, newest first (default: 20)")
REWIND = _arg(
    "--rewind",
    action="store_true",
    help="compute the rows again (default: deliver them unchanged with the next checkpoint)",
)
GONE_SINK = _arg("--sink", metavar="NAME", help="with --give-up: the sink, as this command lists it")
REASON = _arg("--reason", default="", help="reason, recorded in the event log")
FORGET_SOURCE = _arg(
    "--forget-source",
    dest="forget_sources",
    metavar="NAME",
    action="append",
    default=None,
    help="also forget the position of this source, which the job no longer reads; may be repeated. If the job reads it"
    " again, it begins at its start",
)
MIN_AGE = _arg(
    "--min-age",
    type=seconds,
    default=0.0,
    help="skip checkpoints that have been in doubt for less than this many seconds (default: 0)",
)
DAG = _arg(
    "--dag",
    default=None,
    metavar="FILE",
    help="DAG file: needed for a dry run, and for a pipeline that has never run; otherwise adds its sources",
)
SAMPLES = _arg("--samples", type=_from(0), default=5, metavar="N", help="rows of each sink to show (default: 5)")
EVERYTHING = _arg("--all", action="store_true", help="read all new rows (default: the next checkpoint only)")
NUMBERS = _arg(
    "numbers",
    metavar="NUMBER",
    type=_from(1),
    nargs="*",
    help="compare only these checkpoints (default: all in the write-ahead log)",
)
ALLOW_REPEATED = _arg(
    "--allow-repeated",
    action="store_true",
    help="accept extra copies of delivered rows, because other programs write such rows, too",
)
PRINT = _arg("--print", action="store_true", help="print the statements and commands instead of running them")
TABLES = _arg(
    "--tables", action="store_true", help="also print a CREATE TABLE for the columns of the job (starts Spark)"
)
END = _arg("--end", action="store_true", help="stop idle sessions")
TO = _arg("--to", required=True, metavar="FOLDER", help="folder on HDFS: hdfs://NAMENODE:PORT/FOLDER")
PREPARED = _arg(
    "--prepared",
    choices=("commit", "rollback"),
    default=None,
    help="commit or roll back the transactions that the lost decision log left prepared (xa, prepared, held)",
)
ACCEPT_PARTIAL = _arg(
    "--accept-partial",
    action="store_true",
    help="accept that one sink has rows of a lost checkpoint (with --prepared commit: may have) that another sink will"
    " never get",
)
NOW = _arg("--now", action="store_true", help="stop at once; the next run computes unpublished rows again")
DRAIN = _arg(
    "--drain",
    action="store_true",
    help="deliver open windows, joins and event-time timers in a last checkpoint",
)
WAIT = _arg(
    "--wait", type=seconds, default=120.0, help="seconds to wait for the stream to stop (default: 120; 0: do not wait)"
)
BARRIER = _arg("barrier", metavar="ID", help="id of the barrier: one line of text that is not a time")
ANY_BARRIER = _arg(
    "barrier", metavar="ID", nargs="?", default=None, help="show this barrier and the progress of each pipeline"
)
PIPELINES = _arg("pipelines", metavar="PIPELINE", nargs="+", help="names of the pipelines")
IN_PIPELINE = _arg("--pipeline", default=None, metavar="PIPELINE", help="show only this pipeline; an action needs it")
SAVEPOINT = _arg("path", metavar="PATH", help="folder of the savepoint; for restore also: beginning")
DIR = _arg(
    "--dir", default=None, metavar="FOLDER", help="folder of the savepoints (default: [airflow_ft] savepoint_dir)"
)
OF_CHECKPOINT = _arg(
    "--checkpoint",
    type=_from(1),
    default=None,
    metavar="NUMBER",
    help="take it from this retained checkpoint (default: the newest confirmed one)",
)
PARTITIONS = _arg("--partitions", type=_from(1), required=True, metavar="NUMBER", help="new number of state partitions")
BACKEND = _arg("--backend", choices=("rocksdb", "hdfs"), required=True, help="target state backend")
UNDER_NAME = _arg(
    "--pipeline", default=None, metavar="PIPELINE", help="restore it under this name (default: the savepoint's own)"
)
LATER = _arg(
    "--later",
    choices=("refuse", "continue", "write-again"),
    default="refuse",
    help="what to do about checkpoints delivered after the savepoint. refuse: fail. continue: keep the delivered rows"
    " and only rebuild state. write-again: compute and deliver their input again (default: refuse)",
)
CLAIM_MODE = _arg(
    "--claim-mode",
    default="NO_CLAIM",
    help="NO_CLAIM keeps the savepoint, CLAIM deletes it after the restore (default: NO_CLAIM)",
)
ALLOW_NON_RESTORED = _arg(
    "--allow-non-restored-state",
    action="store_true",
    help="drop the state of operators that the job no longer has",
)
ALLOW_CHANGED = _arg(
    "--allow-changed-state",
    action="store_true",
    help="accept a job whose keys, functions or settings differ from those that made the state",
)
RENAME = _arg(
    "--rename",
    action="store_true",
    help="with --pipeline: rename the savepoint's pipeline. Resolves its checkpoints first, and needs a savepoint of"
    " its newest one. The old name stops working; folders of FilesSink pass to the new name",
)
WAL_ROOT = _arg(
    "--wal-root",
    default=None,
    help="write-ahead log for a pipeline that this decision log does not know (default: [airflow_ft] wal_root)",
)
STATE_OF = _arg("pipeline", metavar="PIPELINE", help="name of the pipeline, or folder of a savepoint (with a slash)")
OPERATOR = _arg("operator", metavar="OPERATOR", help="number of the operator, or its uid")
KEY = _arg("key", metavar="KEY", nargs="*", help="one value per key column: text, ISO 8601, null or JSON")
ONE_STATE = _arg("--state", default=None, metavar="NAME", help="name of the state, if the operator has several")
AT = _arg(
    "--at",
    type=_from(1),
    default=None,
    metavar="NUMBER",
    help="show state as of this retained checkpoint (default: the newest confirmed one)",
)
FILE = _arg("file", metavar="FILE", help="target file: .parquet, .csv or .json (one line per entry)")
SINCE = _arg("--since", type=_from(1), required=True, metavar="NUMBER", help="older checkpoint, which must be retained")
UNTIL = _arg(
    "--until",
    dest="at",
    type=_from(1),
    default=None,
    metavar="NUMBER",
    help="newer checkpoint (default: the newest confirmed one)",
)
PAGE = _arg("page", metavar="PAGE", nargs="?", default=None, help="page to print (default: list all)")
SEARCH = _arg("--search", default=None, metavar="WORD", help="find sections with this phrase, or with all of its words")
WITH_SAVEPOINT = _arg(
    "--savepoint",
    action="store_true",
    help="take a savepoint of the last checkpoint, into --dir",
)


def action(name: str, about: str) -> Arg:
    """Return an option that takes the number of the checkpoint to act on."""
    return _arg(f"--{name}", type=_from(1), metavar="NUMBER", default=None, help=about)
