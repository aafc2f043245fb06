"""What the model of a MySQL server keeps: connections, transactions, locks; and what it tells the laws of a commit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pymysql

from airflow_ft.sinks.mysql.limits import Limits
from tests.simulation.kernel import Process
from tests.simulation.source import Item

Row = dict[str, Any]
Key = tuple[Any, ...]

LIMITS = Limits(tries=3)


def error(code: int, text: str) -> pymysql.err.MySQLError:
    """As PyMySQL raises it."""
    kind = pymysql.err.IntegrityError if code == 1062 else pymysql.err.OperationalError
    return kind(code, text)


@dataclass(eq=False)
class Work:
    """What a transaction has done, and what it holds: `undo` is (table, key, row before).

    `connection` is the one that it is open in, or (MariaDB) that still holds it prepared; None: prepared, and let go.
    """

    connection: Connection | None
    undo: list[tuple[str, Key, Row | None]] = field(default_factory=list)
    loaded: list[tuple[str, Item]] = field(default_factory=list)
    locks: set[tuple[str, Key]] = field(default_factory=set)
    savepoint: tuple[int, int] | None = None  # how much of `undo` and `loaded` there was

    def __repr__(self) -> str:
        return f"the work of {self.connection or 'a prepared branch'}"


@dataclass(eq=False)
class Lock:
    """A row's lock."""

    holders: list[Work]
    shared: bool


class Connection:
    """What the server knows of a client."""

    def __init__(self, number: int, owner: Process | None) -> None:
        self.id = number
        self.owner = owner
        self.alive = True
        self.in_transaction = False
        self.manual = False  # autocommit was switched off, for good
        self.work = Work(self)
        self.names: set[str] = set()  # user-level locks
        self.used = 0.0  # when it was last heard of
        self.xid = ""  # of the branch that it is in
        self.branch_is = ""  # active, idle or prepared

    def __repr__(self) -> str:
        return f"connection {self.id}"


@dataclass(frozen=True, slots=True, order=True)
class BranchName:
    """What an xid of the product says: which branch of which number, prepared by whom."""

    number: int
    rank: tuple[int, int]
    label: str

    def __str__(self) -> str:
        return f"{self.label} of {self.number} by {self.rank}"


@dataclass(frozen=True)
class Commit:
    """What became visible in one transaction: rows by table, markers and head as they are now.

    `branch` names the prepared branch that it was; `taken_back`: a crash has made it prepared again.
    """

    server: str
    rows: tuple[tuple[str, Item], ...]
    markers: tuple[Row, ...]
    pruned: tuple[int, ...]
    head_before: Row | None
    head: Row | None
    branch: BranchName | None = None
    taken_back: bool = False
