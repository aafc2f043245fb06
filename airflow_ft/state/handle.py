"""A pipeline's operator state at one checkpoint, looked up by key without Spark.

A handle stays at its checkpoint until `refresh`. It reads Spark's files in place, one state partition at a time and
only on demand, and keeps them open. So a first answer takes as long as one partition takes to open, and later ones a
lookup. It takes no lock and writes nothing, so it does not affect the pipeline. If the pipeline removes files before
they are read, the handle moves to the newest confirmed checkpoint, once. A handle that was opened at a number raises
that the number is pruned.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_ft.protocol.errors import ConfigurationError, TransientError, WalCorruptError
from airflow_ft.spark.state.locations import require_batch
from airflow_ft.spark.state.operators import Operator, operators
from airflow_ft.state.bounds import TOO_LARGE, Bounds
from airflow_ft.state.catalog import Catalog, catalog, numbers, require_whole
from airflow_ft.state.hashing import partition_of
from airflow_ft.state.layout import Entry, Shape, Table
from airflow_ft.state.positions import Position
from airflow_ft.state.versions import Store, bytes_to_read, open_version

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_T = TypeVar("_T")
_Key = tuple[int, int, str]


class State:
    """Handle that `airflow_ft.state.open` returns; a context manager. Do not share it between threads.

    `pipeline`: its name. `number`: its checkpoint.
    """

    def __init__(
        self,
        pipeline: str,
        find: Callable[[int | None], Position],
        *,
        at: int | None = None,
        clock: Callable[[], float] = time.time,
        close: Callable[[], None] = lambda: None,
        bounds: Bounds | None = None,
    ) -> None:
        """`find` gives the position of a number, of None: of the newest confirmed one. `close` is called at the end."""
        self.pipeline, self._bounds, self._read = pipeline, bounds, 0
        self._find, self._at, self._clock, self._close = find, at, clock, close
        self._stores: dict[_Key, Store] = {}
        self._catalogs: dict[int | str, Catalog] = {}
        self._operators: tuple[Operator, ...] | None = None
        self._position = find(at)

    @property
    def number(self) -> int:
        """The checkpoint that is looked at."""
        return self._position.number

    @property
    def restored(self) -> bool:
        """Return whether the state was restored or reset after `number`: then it is not that checkpoint's state."""
        return self._position.restored

    @property
    def label(self) -> str:
        """Name its checkpoint in words: "checkpoint 5"."""
        return f"a restore or reset after checkpoint {self.number}" if self.restored else f"checkpoint {self.number}"

    def operators(self) -> tuple[Operator, ...]:
        """The operators that have state, in Spark's order: 0 is the nearest to the sink."""
        if self._operators is None:
            self._operators = self._reading(self._listed)
        return self._operators

    def states(self, op: int | str) -> tuple[Table, ...]:
        """The states of an operator, each with the columns of its keys and values."""
        return self._reading(lambda: tuple(self._catalog(op).tables.values()))

    def get(self, op: int | str, key: Any, state: str | None = None) -> Any:
        """Return the operator's state for a key; None: no state.

        op: its number, or its uid. key: a value for a key of one column, else a tuple or a dict. state: one of several
        states (`states`). None: the value of an operator's only state, else {state: value} of its states with a value.
        A value is {column: value}. Lists, sessions, sides of a join and timers give a list of values, maps give {key:
        value}.
        """
        return self._reading(lambda: self._get(op, key, state))

    def entries(self, op: int | str, key: Any, state: str | None = None) -> Mapping[str, tuple[Entry, ...]]:
        """The same as `get`, value by value: those of each state that has some, in order; {}: nothing."""
        earlier = self._read
        try:
            return self._reading(lambda: self._entries_of_key(op, key, state))
        except ConfigurationError as error:
            if error.code != TOO_LARGE or not earlier:
                raise
        self._forget()  # the bound is for one lookup, and earlier ones have used a part of it
        return self._reading(lambda: self._entries_of_key(op, key, state))

    def scan(self, op: int | str, state: str | None = None) -> Iterator[Entry]:
        """Yield all values of a state, without order; None: of the operator's only one. Reads files on demand.

        Raises:
            TransientError: the pipeline removed the files before they were read. Start over.
        """
        found = self._reading(lambda: self.one(op, state))
        now, position = self._now(), self._position
        for partition in range(self.partitions(op)):
            if self._position != position:
                raise TransientError(
                    "the handle moved to another checkpoint during a scan.",
                    code="state_moved",
                    remedy="Start the scan again. Use one handle for scans and another one for lookups.",
                    pipeline=self.pipeline,
                )
            store = self.store(op, partition, found.store)
            yield from found.entries(store, now)

    def count(self, op: int | str, state: str | None = None) -> int:
        """Return how many keys a state has; reads all of it."""

        def counted() -> int:
            found = self.one(op, state)
            stores = [self.store(op, each, found.store) for each in range(self.partitions(op))]
            if found.shape in (Shape.VALUE, Shape.LIST) and not found.ttl:
                return sum(sum(1 for _ in store.items(found.prefix(store))) for store in stores)
            return len({repr(entry.key) for entry in self.scan(op, found.name)})

        return self._reading(counted)

    def to_arrow(self, op: int | str, state: str | None = None) -> pa.Table:
        """A state as a table of `key`, `at` (which of several) and `value`: structs, as Spark's reader has them."""
        from airflow_ft.state.export import arrow_table

        return self._reading(lambda: arrow_table(self.one(op, state), self.scan(op, state)))

    def to_pandas(self, op: int | str, state: str | None = None) -> Any:
        """The same as a DataFrame of pandas, with a column for each of key and value (`key.k`, `value.count`)."""
        return self.to_arrow(op, state).flatten().to_pandas()

    def export(self, op: int | str, path: str | Path, state: str | None = None) -> int:
        """Writes a state into a file that ends in .parquet, .csv or .json (a line for each entry); how many entries."""
        from airflow_ft.state.export import write_file

        return self._reading(lambda: write_file(self.one(op, state), self.scan(op, state), Path(path)))

    def dataframe(self, spark: SparkSession, op: int | str, state: str | None = None) -> DataFrame:
        """A state as Spark's own reader has it: of any encoding and backend that Spark knows."""
        from airflow_ft.state.export import spark_frame

        return spark_frame(spark, self._position.spark, self._operator(op), state)

    def changes(
        self, op: int | str, since: int, until: int | None = None, state: str | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield what changed between two retained checkpoints, by key: {"change", "key", "before", "after"}.

        "change" is added, changed or removed; before and after are what `get` gives. until: None: the checkpoint that
        the handle is at.
        """
        from airflow_ft.state.feed import changes

        if self.restored and until in (None, self.number):
            raise ConfigurationError(
                "the state was restored or reset after that checkpoint, so the differences are not changes of a job.",
                code="state_replaced",
                remedy="Give an earlier checkpoint (until=), or wait until the next one is confirmed.",
                pipeline=self.pipeline,
                checkpoint=self.number,
            )
        end = self if until is None or until == self.number else self._beside(until)
        begin = self._beside(since)
        try:
            was, now = begin._operator_beside(op, end), end._operator_beside(op, begin)
            if was.name != now.name or (was.uid != now.uid and was.uid and now.uid):
                raise ConfigurationError(
                    f"operator {op} was {was.uid or was.name} at checkpoint {since}, and is {now.uid or now.name}.",
                    code="operators_unmatched",
                    remedy="Give the uid of an operator that both checkpoints have.",
                    pipeline=self.pipeline,
                    operator=op,
                    since=since,
                )
            yield from changes(begin, end, (was.id, now.id), state)
        finally:
            begin.close()
            if end is not self:
                end.close()

    def refresh(self) -> bool:
        """Goes to the newest confirmed checkpoint; whether that is another one. A handle with a number stays there."""
        position = self._find(self._at)
        if position == self._position:
            return False
        self._forget()
        self._position = position
        return True

    def close(self) -> None:
        """Lets go of all files."""
        self._forget()
        self._close()

    def __enter__(self) -> State:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- for this package alone --------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """Return the version of the state stores."""
        return self._position.version

    def partitions(self, op: int | str) -> int:
        """Return how many state partitions an operator has."""
        return self._catalog(op).folders.partitions

    def folder(self, op: int | str, partition: int, name: str) -> str:
        """Return where a store lies."""
        return self._catalog(op).folders.of(partition, name)

    def _get(self, op: int | str, key: Any, state: str | None) -> Any:
        tables = self._catalog(op).tables
        if state is not None or len(tables) == 1:
            return self.value(op, self.one(op, state), key)
        found = {name: self.value(op, each, key) for name, each in tables.items()}
        return {name: value for name, value in found.items() if value is not None} or None

    def _entries_of_key(self, op: int | str, key: Any, state: str | None) -> Mapping[str, tuple[Entry, ...]]:
        tables = tuple(self._catalog(op).tables.values()) if state is None else (self.one(op, state),)
        found = self._entries(op, tables, key)
        return {each.name: tuple(found[each.name]) for each in tables if each.name in found}

    def value(self, op: int | str, table: Table, key: Any, *, exact: bool = False) -> Any:
        """Return what a key has in a state, as `get` gives it."""
        entries = self._entries(op, (table,), key, exact=exact).get(table.name)
        if not entries:
            return None
        if table.shape is Shape.VALUE:
            return entries[0].value
        if table.shape is Shape.MAP:
            return {_scalar(entry.at or {}): entry.value for entry in entries}
        if table.shape is Shape.TIMERS:
            return [entry.at for entry in entries]
        return [entry.value for entry in entries]

    def _entries(
        self, op: int | str, tables: Sequence[Table], key: Any, *, exact: bool = False
    ) -> dict[str, list[Entry]]:
        """Return entries by table: of the partition that the key hashes to, else of another. Opens each store once."""
        partitions, now = self._catalog(op).folders.partitions, self._now()
        left = sorted(tables, key=lambda table: table.store)  # few stores may be open at a time
        first = [partition_of(each.key, each.key_row(key), partitions) for each in left]
        found: dict[str, list[Entry]] = {}
        for partition in dict.fromkeys((*first, *range(partitions))):
            for table in [each for each in left if each.name not in found]:
                store = self.store(op, partition, table.store)
                entries = table.entries_of(store, key, now, exact=exact)
                if values := list(islice(entries, self._bounds.entries if self._bounds else None)):
                    if table.shape in (Shape.SESSIONS, Shape.TIMERS):
                        values.sort(key=lambda entry: tuple((entry.at or {}).values()))
                    found[table.name] = values
            if len(found) == len(left):
                break
        return found

    def store(self, op: int | str, partition: int, name: str) -> Store:
        """A store, opened when it is asked for the first time."""
        known = self._catalog(op)
        key = (known.folders.operator, partition, name)
        if key not in self._stores:
            id = known.folders.unique_id(partition, name, known.stores)
            folder = known.folders.of(partition, name)
            if self._bounds is not None:
                self._make_room(bytes_to_read(folder, self.version, id), self._bounds)
            self._stores[key] = open_version(folder, self.version, id)
        return self._stores[key]

    def _make_room(self, more: int, bounds: Bounds) -> None:
        bounds.require(self.pipeline, self._read + more)
        self._read += more
        if len(self._stores) >= bounds.stores:
            self._close_stores()

    def _catalog(self, op: int | str) -> Catalog:
        if op not in self._catalogs:
            self._catalogs[op] = catalog(self._position, self._number(op))
        return self._catalogs[op]

    def one(self, op: int | str, state: str | None) -> Table:
        """A state by its name; None: the only one."""
        tables = self._catalog(op).tables
        if state is None and len(tables) == 1:
            return next(iter(tables.values()))
        if state is not None and state in tables:
            return tables[state]
        if not tables:
            raise ConfigurationError(
                f"airflow-ft cannot read the state of operator {op} without Spark.",
                code="state_unreadable",
                remedy="Read it with Spark: `dataframe(spark, operator)` of the same handle.",
                pipeline=self.pipeline,
                operator=op,
            )
        raise ConfigurationError(
            f"operator {op} has the states {', '.join(sorted(tables))}, "
            + ("and `state` is missing." if state is None else f"and no {state!r}."),
            code="argument_missing" if state is None else "argument_invalid",
            remedy="Name one of them (state=, --state).",
            pipeline=self.pipeline,
            argument="state",
            value=state,
            known=sorted(tables),
        )

    def _listed(self) -> tuple[Operator, ...]:
        require_batch(self._position.spark)  # of a location that was swept nothing would be listed
        for number in numbers(self._position):
            require_whole(self._position, number)
        return operators(self._position.spark)

    def _number(self, op: int | str) -> int:
        """By a number without a look at all files of the state, which `operators` takes for their sizes."""
        if (isinstance(op, int) or op.isdecimal()) and int(op) in numbers(self._position):
            return int(op)
        return self._operator(op).id

    def _found(self, op: int | str) -> Operator | None:
        wanted = int(op) if isinstance(op, int) or op.isdecimal() else op
        return next((each for each in self.operators() if wanted in (each.id, each.uid or each.id)), None)

    def _operator_beside(self, op: int | str, other: State) -> Operator:
        """Return an operator. If it has its uid at the `other` checkpoint alone: the only one of its kind without."""
        if self._found(op) is None and (named := other._found(op)) is not None and named.uid == op:
            unnamed = [x for x in self.operators() if x.name == named.name and not x.uid]
            if len(unnamed) == 1 and all(x.uid or x.name != named.name for x in other.operators()):
                return unnamed[0]
        return self._operator(op)

    def _operator(self, op: int | str) -> Operator:
        if (found := self._found(op)) is not None:
            return found
        known = self.operators()
        names = ", ".join(f"{each.id} ({each.uid or each.name})" for each in known)
        raise ConfigurationError(
            f"the pipeline has no operator {op!r} with state at checkpoint {self.number}. It has {names or 'none'}.",
            code="operator_unknown",
            remedy=f"Give one of the operators that `airflow ft state show {self.pipeline}` lists.",
            pipeline=self.pipeline,
            operator=op,
            known={each.id: each.uid or each.name for each in known},
        )

    def _reading(self, read: Callable[[], _T]) -> _T:
        """Return the result of `read`. If files were removed meanwhile, read again at the newest checkpoint."""
        try:
            return read()
        except (TransientError, WalCorruptError):
            if not self.refresh():
                raise
        return read()

    def _beside(self, number: int) -> State:
        """Another handle, at a number."""
        return State(self.pipeline, self._find, at=number, clock=self._clock)

    def _now(self) -> int:
        return int(self._clock() * 1000)

    def _forget(self) -> None:
        self._close_stores()
        self._catalogs, self._operators, self._read = {}, None, 0

    def _close_stores(self) -> None:
        for store in self._stores.values():
            with suppress(OSError):
                store.close()
        self._stores = {}


def _scalar(key: Any) -> Any:
    """A map's key, as one writes it: of one column its value, else a tuple."""
    values = tuple(key.values())
    return values[0] if len(values) == 1 else values
