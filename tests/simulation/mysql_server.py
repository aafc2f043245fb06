"""A model of a MySQL server as far as the strategy `local` can see it: row locks, READ COMMITTED, lost connections.

`ModelSession` stands in for `airflow_ft.sinks.mysql.session.Session`; the statements that it is given are the product's
own (`sql`). What the model claims is compared with real servers in `test_models_and_servers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pymysql

from airflow_ft.sinks.mysql.session import Limits, Statement
from tests.simulation import sql
from tests.simulation.kernel import Blocked, Kernel, Process
from tests.simulation.source import Item

T = TypeVar("T")
Row = dict[str, Any]
Key = tuple[Any, ...]

KEYS = {
    "airflow_ft_head": ("pipeline", "participant"),
    "airflow_ft_ledger": ("pipeline", "participant", "number", "branch"),
}


LIMITS = Limits(tries=3)


def error(code: int, text: str) -> pymysql.err.MySQLError:
    """As PyMySQL raises it."""
    kind = pymysql.err.IntegrityError if code == 1062 else pymysql.err.OperationalError
    return kind(code, text)


@dataclass(eq=False)
class Connection:
    """What the server knows of a client: `undo` holds (table, key, row before) of the open transaction."""

    id: int
    owner: Process | None
    alive: bool = True
    in_transaction: bool = False
    manual: bool = False  # autocommit was switched off, for good
    undo: list[tuple[str, Key, Row | None]] = field(default_factory=list)
    loaded: list[tuple[str, Item]] = field(default_factory=list)
    locks: set[tuple[str, Key]] = field(default_factory=set)
    names: set[str] = field(default_factory=set)  # user-level locks
    used: float = 0.0  # when it was last heard of

    def __repr__(self) -> str:
        return f"connection {self.id}"


@dataclass(frozen=True)
class Commit:
    """What became visible in one transaction: rows by table, markers and head as they are now."""

    server: str
    rows: tuple[tuple[str, Item], ...]
    markers: tuple[Row, ...]
    pruned: tuple[int, ...]
    head_before: Row | None
    head: Row | None


class MySqlServer:
    """The server; `commits` are read (and emptied) by the laws."""

    def __init__(self, kernel: Kernel, name: str) -> None:
        self.kernel = kernel
        self.name = name
        self.tables: dict[str, dict[Key, Row]] = {name: {} for name in KEYS}
        self.visible: dict[str, list[Item]] = {}
        self.connections: dict[int, Connection] = {}
        self.locks: dict[tuple[str, Key], Connection] = {}
        self.commits: list[Commit] = []
        self.refuses: dict[int, int] = {}  # item -> how often its rows are still refused
        self._ids = 0

    # --- connections ----------------------------------------------------------------------------------------------

    def connect(self) -> Connection:
        self._ids += 1
        connection = Connection(self._ids, self.kernel.current)
        self.connections[connection.id] = connection
        return connection

    def end(self, connection: Connection) -> None:
        """The connection is gone: what was open in it is rolled back."""
        if connection.alive:
            connection.alive = False
            self.rollback(connection)
            connection.names.clear()
            del self.connections[connection.id]

    def process_died(self, process: Process) -> None:
        for connection in [c for c in self.connections.values() if c.owner is process]:
            self.end(connection)

    def restart(self) -> None:
        """kill -9 and start: every open transaction is rolled back."""
        for connection in list(self.connections.values()):
            self.end(connection)

    def _open(self, connection: Connection) -> None:
        if not connection.alive:
            raise error(2013, "Lost connection to MySQL server during query")
        connection.used = self.kernel.clock

    # --- transactions ---------------------------------------------------------------------------------------------

    def begin(self, connection: Connection) -> None:
        self._open(connection)
        if connection.in_transaction:  # BEGIN commits what is open
            self.commit(connection)
        connection.in_transaction = connection.manual = True

    def rollback(self, connection: Connection) -> None:
        self._take_back(connection, 0)
        self._release(connection)

    def _take_back(self, connection: Connection, first: int) -> None:
        while len(connection.undo) > first:
            table, key, before = connection.undo.pop()
            if before is None:
                self.tables[table].pop(key, None)
            else:
                self.tables[table][key] = before

    def commit(self, connection: Connection) -> None:
        self._open(connection)
        self._record(connection)
        for table, item in connection.loaded:
            self.visible.setdefault(table, []).append(item)
        self._release(connection)

    def _release(self, connection: Connection) -> None:
        for lock in connection.locks:
            del self.locks[lock]
        connection.locks.clear()
        connection.undo.clear()
        connection.loaded.clear()
        connection.in_transaction = False

    def _record(self, connection: Connection) -> None:
        before: dict[tuple[str, Key], Row | None] = {}
        for table, key, row in connection.undo:
            before.setdefault((table, key), row)
        if not before and not connection.loaded:
            return
        now = {place: self.tables[place[0]].get(place[1]) for place in before}
        heads = [place for place in before if place[0] == "airflow_ft_head"]
        any_head = next(iter(self.tables["airflow_ft_head"].values()), None)
        markers = {place: row for place, row in now.items() if place[0] == "airflow_ft_ledger"}
        self.commits.append(
            Commit(
                self.name,
                tuple(connection.loaded),
                tuple(row for place, row in markers.items() if row is not None and before[place] is None),
                tuple(place[1][2] for place, row in markers.items() if row is None),
                before[heads[0]] if heads else any_head,
                now[heads[0]] if heads else any_head,
            )
        )

    def _lock(self, connection: Connection, table: str, key: Key) -> None:
        holder = self.locks.get((table, key))
        if holder is None:
            self.locks[(table, key)] = connection
            connection.locks.add((table, key))
        elif holder is not connection and self.kernel.clock - holder.used > LIMITS.idle:
            self.end(holder)  # wait_timeout: the server drops a session that stands still
            self._lock(connection, table, key)
        elif holder is not connection:
            late = error(1205, "Lock wait timeout exceeded; try restarting transaction")
            raise Blocked(holder.owner, late, LIMITS.lock_wait)

    def _put(self, connection: Connection, table: str, key: Key, row: Row | None) -> None:
        connection.undo.append((table, key, self.tables[table].get(key)))
        if row is None:
            del self.tables[table][key]
        else:
            self.tables[table][key] = row

    def _committed(self, connection: Connection, table: str, key: Key) -> Row | None:
        """What READ COMMITTED shows: one's own changes, and of others only what they have committed."""
        holder = self.locks.get((table, key))
        if holder is not None and holder is not connection:
            for changed, place, before in holder.undo:
                if (changed, place) == (table, key):
                    return before
        return self.tables[table].get(key)

    # --- statements -----------------------------------------------------------------------------------------------

    def execute(self, connection: Connection, text: str, args: tuple[Any, ...]) -> tuple[int, list[tuple[Any, ...]]]:
        """Affected rows, and the rows of a query. Outside a transaction it commits at once."""
        self._open(connection)
        if not text.startswith(("SELECT `", "SELECT MAX", "INSERT", "UPDATE", "DELETE")):
            return self._function(connection, text, args)
        statement = sql.parse(text)
        connection.in_transaction = connection.in_transaction or connection.manual
        begun = len(connection.undo)
        try:
            result = self._run(connection, statement, args)
        except BaseException:
            self._take_back(connection, begun)  # an error ends the statement, and not the transaction
            if not connection.in_transaction:
                self._release(connection)
            raise
        if not connection.in_transaction:
            self._record(connection)
            self._release(connection)
        return result

    def _run(
        self, connection: Connection, statement: sql.Statement, args: tuple[Any, ...]
    ) -> tuple[int, list[tuple[Any, ...]]]:
        name = statement.table.split(".")[-1].strip("`")
        table = self.tables[name]
        if statement.verb == "INSERT":
            assert statement.values is not None
            row = dict(zip(statement.columns, statement.values({}, args), strict=True))
            key = tuple(row[column] for column in KEYS[name])
            self._lock(connection, name, key)
            if key in table:
                if statement.ignore:
                    return 0, []
                raise error(1062, f"Duplicate entry '{'-'.join(map(str, key))}' for key 'PRIMARY'")
            self._put(connection, name, key, row)
            return 1, []
        assert statement.where is not None
        found: list[tuple[Key, Row]] = []
        locking = statement.verb != "SELECT" or statement.lock
        for key in sorted(table):
            if locking and name == "airflow_ft_head":  # found by its whole key: waited for, whatever is in it
                self._lock(connection, name, key)
            current = table[key] if locking else self._committed(connection, name, key)
            if current is not None and statement.where(current, args):
                found.append((key, current))
        for key, row in [] if statement.maximum else found[: statement.limit]:
            if locking:
                self._lock(connection, name, key)
            if statement.verb == "UPDATE":
                assert statement.values is not None
                changed = dict(zip(statement.columns, statement.values(row, args), strict=True))
                self._put(connection, name, key, {**row, **changed})
            elif statement.verb == "DELETE":
                self._put(connection, name, key, None)
        if statement.maximum:
            return 0, [(max((row[statement.columns[0]] for _, row in found), default=None),)]
        rows = [tuple(row[column] for column in statement.columns) for _, row in found]
        return len(found[: statement.limit]), rows if statement.verb == "SELECT" else []

    def _function(self, connection: Connection, text: str, args: tuple[Any, ...]) -> tuple[int, list[tuple[Any, ...]]]:
        if text.startswith("SELECT GET_LOCK"):
            taken = any(args[0] in other.names for other in self.connections.values() if other is not connection)
            if not taken:
                connection.names.add(args[0])
            return 0, [(0 if taken else 1,)]
        if text.startswith("SELECT IS_USED_LOCK"):
            return 0, [(next((c.id for c in self.connections.values() if args[0] in c.names), None),)]
        if text.startswith("KILL CONNECTION "):
            victim = self.connections.get(int(text.rsplit(" ", 1)[1]))
            if victim is None:
                raise error(1094, "Unknown thread id")
            self.end(victim)
            return 0, []
        raise NotImplementedError(f"the model does not speak: {text}")

    def load(self, connection: Connection, table: str, items: list[Item]) -> int:
        """The rows of a file, inside the open transaction (or, by a mistake, outside)."""
        self._open(connection)
        for item in items:
            if self.refuses.get(item.number, 0) > 0:
                self.refuses[item.number] -= 1
                raise error(1062, f"Duplicate entry '{item.number}' for key '{table}.PRIMARY'")
        connection.loaded += [(table, item) for item in items]
        if not connection.in_transaction:
            self.commit(connection)
        return len(items)


class ModelSession:
    """See `airflow_ft.sinks.mysql.session.Session`."""

    product = "MariaDB 10.11.6"
    can_load_local = True
    is_mariadb = True
    version = (10, 11, 6)
    max_allowed_packet = 1 << 24

    def __init__(self, server: MySqlServer, limits: Limits) -> None:
        self._server = server
        self._usable = True
        self._connection = self._ask("connect", server.connect)

    @property
    def id(self) -> int:
        return self._connection.id

    @property
    def is_open(self) -> bool:
        return self._usable

    def run(self, text: str, args: Iterable[Any] | None = None) -> Statement:
        return Statement(self._execute(text, args)[0], 0)

    def rows(self, text: str, args: Iterable[Any] | None = None) -> list[tuple[Any, ...]]:
        return self._execute(text, args)[1]

    def row(self, text: str, args: Iterable[Any] | None = None) -> tuple[Any, ...] | None:
        found = self.rows(text, args)
        return found[0] if found else None

    def begin(self) -> None:
        self._ask("BEGIN", lambda: self._server.begin(self._connection))

    def commit(self) -> None:
        self._ask("COMMIT", lambda: self._server.commit(self._connection))

    def load(self, table: str, items: list[Item]) -> int:
        """Stands in for LOAD DATA LOCAL (see `adapters.ModelLoader`)."""
        return self._ask(
            f"LOAD DATA {table} {', '.join(map(str, items))}", lambda: self._server.load(self._connection, table, items)
        )

    def close(self) -> None:
        process = self._server.kernel.current
        if self._usable and not (process is not None and process.dead):
            self._server.end(self._connection)
        self._usable = False

    def _execute(self, text: str, args: Iterable[Any] | None) -> tuple[int, list[tuple[Any, ...]]]:
        values = tuple(args) if args is not None else ()
        what = _shown(text, values) if self._server.kernel.telling else text
        return self._ask(
            what,
            lambda: self._server.execute(self._connection, text, values),
            writes=not text.startswith("SELECT") or "FOR UPDATE" in text,
        )

    def _ask(self, what: str, act: Callable[[], T], *, writes: bool = True) -> T:
        if not self._usable:
            raise error(2006, "MySQL server has gone away")
        try:
            return self._server.kernel.call(f"{self._server.name} {what}", act, self._lost, writes=writes)
        except pymysql.err.MySQLError as failure:
            if failure.args[0] in (2006, 2013):
                self._usable = False
            raise

    def _lost(self, sent: bool) -> Exception:
        """The connection is gone. What is still under way in it (DELAY) ends it on the server's side."""
        self._usable = False
        connection = getattr(self, "_connection", None)
        if connection is not None and not self._under_way(connection):
            self._server.end(connection)
        return error(2013, "Lost connection to MySQL server during query")

    def _under_way(self, connection: Connection) -> bool:
        done = self._server.kernel.done
        if not done or done[-1].act.name != "DELAY":
            return False
        late = self._server.kernel.processes[-1]
        connection.owner = late  # the server ends the connection when it has served the request
        return True


def _shown(text: str, args: tuple[Any, ...]) -> str:
    short = text.replace("`airflow_ft_", "`").replace("`", "")
    given = ", ".join(str(arg)[:16] for arg in args)
    return f"{short[:90]}{'...' if len(short) > 90 else ''} ({given})"
