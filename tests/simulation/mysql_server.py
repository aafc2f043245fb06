"""A model of a MySQL or MariaDB server: row locks, READ COMMITTED, lost connections, prepared branches.

It is asked through `mysql_session`, by the product's own statements (`sql`); those about branches are in `mysql_xa`.
What the model claims is compared with real servers in `test_models_and_servers`.
"""

from __future__ import annotations

from typing import Any

from tests.simulation import sql
from tests.simulation.kernel import Blocked, Kernel, Process
from tests.simulation.mysql_state import LIMITS, BranchName, Commit, Connection, Key, Lock, Row, Work, error
from tests.simulation.mysql_xa import Branches
from tests.simulation.source import Item

KEYS = {
    "airflow_ft_head": ("pipeline", "participant"),
    "airflow_ft_ledger": ("pipeline", "participant", "number", "branch"),
}


class MySqlServer:
    """The server; `commits` are read (and emptied) by the laws."""

    def __init__(self, kernel: Kernel, name: str, *, is_mariadb: bool = True) -> None:
        self.kernel = kernel
        self.name = name
        self.is_mariadb = is_mariadb
        self.tables: dict[str, dict[Key, Row]] = {name: {} for name in KEYS}
        self.visible: dict[str, list[Item]] = {}
        self.connections: dict[int, Connection] = {}
        self.locks: dict[tuple[str, Key], Lock] = {}
        self.commits: list[Commit] = []
        self.refuses: dict[int, int] = {}  # item -> how often its rows are still refused
        self.forbids: set[int] = set()  # items of which it refuses the last of several rows, by a constraint
        self.forbade: set[int] = set()  # and at any time
        self.branches = Branches(self)
        self._ids = 0

    # --- connections ----------------------------------------------------------------------------------------------

    def connect(self) -> Connection:
        self._ids += 1
        connection = Connection(self._ids, self.kernel.owner)
        connection.used = self.kernel.clock
        self.connections[connection.id] = connection
        return connection

    def end(self, connection: Connection) -> None:
        """The connection is gone: what was open in it is rolled back, what it had prepared is there for all."""
        if connection.alive:
            connection.alive = False
            self.rollback(connection)
            self.branches.let_go(connection)
            connection.names.clear()
            del self.connections[connection.id]

    def process_died(self, process: Process) -> None:
        for connection in [c for c in self.connections.values() if c.owner is process]:
            self.end(connection)

    def restart(self) -> None:
        """kill -9 and start: every open transaction is rolled back, prepared ones stay."""
        for connection in list(self.connections.values()):
            self.end(connection)

    def open(self, connection: Connection) -> None:
        """Raises when the connection is gone."""
        if not connection.alive:
            raise error(2013, "Lost connection to MySQL server during query")
        connection.used = self.kernel.clock

    # --- transactions ---------------------------------------------------------------------------------------------

    def begin(self, connection: Connection) -> None:
        self.open(connection)
        connection.manual = True  # SET autocommit=0 goes before BEGIN
        self.branches.refuse_transaction(connection)
        if connection.in_transaction:  # BEGIN commits what is open
            self.commit(connection)
        connection.in_transaction = True

    def rollback(self, connection: Connection) -> None:
        self.take_back(connection.work, 0)
        self.release(connection.work)
        connection.in_transaction = False

    def take_back(self, work: Work, first: int) -> None:
        """Undoes the changes from `first` on."""
        while len(work.undo) > first:
            table, key, before = work.undo.pop()
            if before is None:
                self.tables[table].pop(key, None)
            else:
                self.tables[table][key] = before

    def commit(self, connection: Connection) -> None:
        self.open(connection)
        self.branches.refuse_transaction(connection)
        self.show(connection.work)
        connection.in_transaction = False

    def show(self, work: Work, branch: BranchName | None = None) -> None:
        """Makes visible what was done, and lets the locks go."""
        self._record(work, branch)
        for table, item in work.loaded:
            self.visible.setdefault(table, []).append(item)
        self.release(work)

    def release(self, work: Work) -> None:
        """Lets all locks go, and forgets what was done."""
        for place in list(work.locks):
            self.unlock(work, place)
        work.undo.clear()
        work.loaded.clear()
        work.savepoint = None

    def unlock(self, work: Work, place: tuple[str, Key]) -> None:
        work.locks.discard(place)
        lock = self.locks[place]
        lock.holders.remove(work)
        if not lock.holders:
            del self.locks[place]

    def _record(self, work: Work, branch: BranchName | None) -> None:
        before: dict[tuple[str, Key], Row | None] = {}
        for table, key, row in work.undo:
            before.setdefault((table, key), row)
        if not before and not work.loaded:
            return
        if branch is None:
            self.branches.nothing_is_forgotten()  # what is on disk now, is behind all that was said before
        now = {place: self.tables[place[0]].get(place[1]) for place in before}
        heads = [place for place in before if place[0] == "airflow_ft_head"]
        any_head = next(iter(self.tables["airflow_ft_head"].values()), None)
        markers = {place: row for place, row in now.items() if place[0] == "airflow_ft_ledger"}
        self.commits.append(
            Commit(
                self.name,
                tuple(work.loaded),
                tuple(row for place, row in markers.items() if row is not None and before[place] is None),
                tuple(place[1][2] for place, row in markers.items() if row is None and before[place] is not None),
                before[heads[0]] if heads else any_head,
                now[heads[0]] if heads else any_head,
                branch,
            )
        )

    def lock(self, connection: Connection, table: str, key: Key, *, shared: bool = False) -> None:
        """Takes a row's lock, or raises Blocked."""
        work, place = connection.work, (table, key)
        lock = self.locks.get(place)
        if lock is None:
            self.locks[place] = Lock([work], shared)
            work.locks.add(place)
            return
        if work in lock.holders and (shared or len(lock.holders) == 1):
            lock.shared = lock.shared and shared
            return
        if work not in lock.holders and shared and lock.shared:
            lock.holders.append(work)
            work.locks.add(place)
            return
        holder = next(holder for holder in lock.holders if holder is not work).connection
        if holder is not None and self.kernel.clock - holder.used > LIMITS.idle:
            self.end(holder)  # wait_timeout: the server drops a session that stands still
            self.lock(connection, table, key, shared=shared)
            return
        late = error(1205, "Lock wait timeout exceeded; try restarting transaction")
        raise Blocked(holder.owner if holder is not None else None, late, LIMITS.lock_wait)

    def _put(self, connection: Connection, table: str, key: Key, row: Row | None) -> None:
        connection.work.undo.append((table, key, self.tables[table].get(key)))
        if row is None:
            del self.tables[table][key]
        else:
            self.tables[table][key] = row

    def _committed(self, connection: Connection, table: str, key: Key) -> Row | None:
        """What READ COMMITTED shows: one's own changes, and of others only what they have committed."""
        lock = self.locks.get((table, key))
        if lock is not None and connection.work not in lock.holders:
            for changed, place, before in lock.holders[0].undo:
                if (changed, place) == (table, key):
                    return before
        return self.tables[table].get(key)

    # --- statements -----------------------------------------------------------------------------------------------

    def execute(self, connection: Connection, text: str, args: tuple[Any, ...]) -> tuple[int, list[tuple[Any, ...]]]:
        """Affected rows, and the rows of a query. Outside a transaction it commits at once."""
        self.open(connection)
        if text.startswith("XA "):
            return self.branches.execute(connection, text)
        self.branches.refuse_statement(connection)
        if "SAVEPOINT " in text:
            return self._savepoint(connection, text.partition("SAVEPOINT ")[0])
        if "`airflow_ft_" not in text:
            return self._function(connection, text, args)
        statement = sql.parse(text)
        connection.in_transaction = connection.in_transaction or connection.manual
        begun = len(connection.work.undo)
        try:
            result = self._run(connection, statement, args)
        except BaseException:
            self.take_back(connection.work, begun)  # an error ends the statement, and not the transaction
            if not connection.in_transaction:
                self.release(connection.work)
            raise
        if not connection.in_transaction:
            self.show(connection.work)
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
            self.lock(connection, name, key, shared=key in table and not statement.ignore)
            if key in table:
                if statement.ignore:
                    return 0, []
                raise error(1062, f"Duplicate entry '{'-'.join(map(str, key))}' for key 'PRIMARY'")
            self._put(connection, name, key, row)
            return 1, []
        assert statement.where is not None
        found: list[tuple[Key, Row]] = []
        same = 0
        locking = statement.verb != "SELECT" or statement.lock
        for key in sorted(table):
            if locking and name == "airflow_ft_head":  # found by its whole key: waited for, whatever is in it
                self.lock(connection, name, key, shared=statement.shared)
            current = table[key] if locking else self._committed(connection, name, key)
            if current is not None and statement.where(current, args):
                found.append((key, current))
        for key, row in [] if statement.maximum else found:
            if locking:
                self.lock(connection, name, key, shared=statement.shared)
            if key not in table:
                continue  # it was another's, who has ended
            if statement.verb == "UPDATE":
                assert statement.values is not None
                changed = dict(zip(statement.columns, statement.values(row, args), strict=True))
                same += row == {**row, **changed}  # the server counts rows that differ afterwards
                self._put(connection, name, key, {**row, **changed})
            elif statement.verb == "DELETE":
                self._put(connection, name, key, None)
        if statement.maximum:
            return 0, [(max((row[statement.columns[0]] for _, row in found), default=None),)]
        rows = [tuple(row[column] for column in statement.columns) for _, row in found]
        return len(found) - same, rows if statement.verb == "SELECT" else []

    def _function(self, connection: Connection, text: str, args: tuple[Any, ...]) -> tuple[int, list[tuple[Any, ...]]]:
        if text.startswith("SELECT GET_LOCK"):
            taken = any(args[0] in other.names for other in self.connections.values() if other is not connection)
            if not taken:
                connection.names.add(args[0])
            return 0, [(0 if taken else 1,)]
        if text.startswith("SELECT IS_USED_LOCK"):
            return 0, [tuple(next((c.id for c in self.connections.values() if n in c.names), None) for n in args)]
        if text.startswith("SELECT 1 FROM information_schema.PROCESSLIST"):
            return 0, [(1,)] if args[0] in self.connections else []
        if text.startswith("KILL CONNECTION "):
            victim = self.connections.get(int(text.rsplit(" ", 1)[1]))
            if victim is None:
                raise error(1094, "Unknown thread id")
            self.end(victim)
            return 0, []
        raise NotImplementedError(f"the model does not speak: {text}")

    def _savepoint(self, connection: Connection, verb: str) -> tuple[int, list[tuple[Any, ...]]]:
        """One is enough: SAVEPOINT, RELEASE SAVEPOINT, ROLLBACK TO SAVEPOINT. Locks are kept."""
        work = connection.work
        if not verb:
            work.savepoint = (len(work.undo), len(work.loaded)) if connection.in_transaction else None
            return 0, []
        if work.savepoint is None:
            raise error(1305, "SAVEPOINT airflow_ft_part does not exist")
        if verb == "RELEASE ":
            work.savepoint = None
            return 0, []
        undone, loaded = work.savepoint
        self.take_back(work, undone)
        del work.loaded[loaded:]
        return 0, []

    def load(self, connection: Connection, table: str, items: list[Item]) -> int:
        """The rows of a file, inside the open transaction (or, by a mistake, outside)."""
        self.open(connection)
        self.branches.refuse_statement(connection)
        for item in items:
            if self.refuses.get(item.number, 0) > 0:
                self.refuses[item.number] -= 1
                raise error(1062, f"Duplicate entry '{item.number}' for key '{table}.PRIMARY'")
            if item.number in self.forbids and item.part > 1:
                raise error(1062, f"Duplicate entry '{item}' for key '{table}.new'")
        connection.work.loaded += [(table, item) for item in items]
        if not connection.in_transaction:
            self.commit(connection)
        return len(items)
