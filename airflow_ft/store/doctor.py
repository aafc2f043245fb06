"""Is the decision log durable, and are its clock and its disk in order? Reads only."""

from __future__ import annotations

import shutil
import time

from airflow_ft.protocol.doctor import Check, Examination
from airflow_ft.store.database import Database
from airflow_ft.store.decision_log import DecisionLog
from airflow_ft.store.url import parse_url

MINIMUM_FREE = 256 << 20  # bytes
CLOCK_TOLERANCE = 5.0  # seconds


def examine_store(store: DecisionLog) -> list[Check]:
    """The checks of an open decision log, whichever database it lies in."""
    exam = Examination(f"decision log {store.url}")
    exam.ok("reachable", f"its id is {store.installation}")
    if store.url.startswith("sqlite:"):
        _examine_sqlite(exam, store.url)
    else:
        exam.attempt("durability", lambda: _examine_postgres(exam, store._database))
    before = time.time()
    difference = store.now().timestamp() - (before + time.time()) / 2
    if abs(difference) > CLOCK_TOLERANCE:
        exam.warn(
            "clock",
            f"its clock and the clock of this machine differ by {difference:+.1f} s",
            "Synchronise both by NTP. Ages and timeouts use the clock of the decision log. No rows are at risk.",
        )
    else:
        exam.ok("clock", f"it differs from the clock of this machine by less than {CLOCK_TOLERANCE:g} s")
    return exam.checks


def _examine_sqlite(exam: Examination, url: str) -> None:
    path = parse_url(url).path
    assert path is not None
    # That the journal is 'wal' and synchronous FULL is demanded of each connection when it is opened.
    exam.ok("durability", "SQLite on a local disk, write-ahead journal, synchronous FULL")
    free = shutil.disk_usage(path).free
    if free < MINIMUM_FREE:
        exam.problem("disk", f"{free >> 20} MB are free on the disk of {path}", "Free space on that disk.")
    else:
        exam.ok("disk", f"{free >> 30} GB are free" if free >> 30 else f"{free >> 20} MB are free")
    exam.ok("reach", "works for tasks on one machine; tasks on several machines need PostgreSQL")


def _examine_postgres(exam: Examination, database: Database) -> None:
    names = ("server_version", "fsync", "full_page_writes", "synchronous_commit", "synchronous_standby_names")
    fields = ", ".join(f"current_setting('{name}') AS {name}" for name in names)
    [found] = database.read(f"SELECT {fields}, (SELECT count(*) FROM pg_stat_replication) AS standbys")
    text = ", ".join(f"{name}={found[name]}" for name in names[1:4])
    if found["standbys"] and not found["synchronous_standby_names"]:
        exam.warn(
            "standbys",
            "its standbys are asynchronous: one that is promoted lacks the last decisions",
            "Set synchronous_standby_names. See 'The decision log fails over' in docs/recovery.md.",
        )
    if found["fsync"] != "on" or found["full_page_writes"] != "on":
        exam.problem(
            "durability",
            f"{text}: a power cut can lose or damage acknowledged decisions",
            "Set fsync=on and full_page_writes=on in postgresql.conf.",
        )
    else:
        exam.ok("durability", f"PostgreSQL {found['server_version']}, {text} (set for each session)")
