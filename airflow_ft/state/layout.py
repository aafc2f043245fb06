"""Contents of an operator's stores in the job's terms: its states, each with keys and values.

| operator of Spark | its states | a key has |
| --- | --- | --- |
| aggregation, dropDuplicates, limit, applyInPandasWithState | `default` | one value |
| session windows | `default` | the values of its sessions |
| stream-stream join | `left`, `right` | the rows that wait on that side |
| transformWithState | each by its name; `timers` | a value, a list, a map; times |

How keys become bytes is from `RocksDBStateEncoder.scala`; numbers in them are little-endian:

    one row                 [column family, 2 bytes] [0] [row]
    some columns first      [column family, 2 bytes] [length of the next two] [0] [row] [0] [row of the other columns]
    HDFS-backed map         [row]
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.state.records import strings
from airflow_ft.state.rows import RowReader, StateColumn, columns_of, in_order, with_other_zeros, write_row
from airflow_ft.state.schemas import PREFIX, RANGE, Family
from airflow_ft.state.versions import Store

_TTL = "ttlExpirationMs"
_JOINED = "keyWithIndexToValue"
TIMERS = "timers"
_KEY_TO_TIME = "Timers_keyToTimestamp"


class Shape(StrEnum):
    """Shape of a key's state: one value, or several."""

    VALUE = "value"
    LIST = "list"
    """Several in one value of the store."""
    MAP = "map"
    """Several, each by a key of its own."""
    SESSIONS = "sessions"
    JOINED = "joined"
    TIMERS = "timers"


@dataclass(frozen=True, slots=True)
class Entry:
    """One value of a key; `at` says which of several: the key in a map, the place in a list, a time.

    expires: when its time to live ends, in milliseconds since 1970; None: never.
    """

    key: Mapping[str, Any]
    value: Mapping[str, Any]
    at: Mapping[str, Any] | None = None
    expires: int | None = None


@dataclass(frozen=True)
class Table:
    """A state: the place of its bytes, and its encoding.

    `store`: its name. `family`: its column family ("": the store has none). `key`: columns of the job's key. `rest`:
    columns after it that identify one of several values. `stored`: the key's columns as the store has them, which may
    be one struct. `rocks`: keys are as in RocksDB.
    """

    name: str
    store: str
    shape: Shape
    family: str
    key: tuple[StateColumn, ...]
    rest: tuple[StateColumn, ...]
    value: tuple[StateColumn, ...]
    stored: tuple[StateColumn, ...]
    is_prefixed: bool
    ttl: bool
    rocks: bool
    _readers: dict[str, RowReader] = field(default_factory=dict, compare=False, repr=False)

    def key_row(self, given: Any) -> bytes:
        """Return the row of a requested key.

        Raises:
            ConfigurationError: it does not fit these columns.
        """
        return write_row(self.key, in_order(self.key, given))

    def entries_of(self, store: Store, given: Any, now: int, *, exact: bool = False) -> Iterator[Entry]:
        """The values of a key, as the job would see them at `now` (milliseconds): what has expired is left out.

        exact: do not look for 0.0 if the store lacks -0.0, nor the other way round.
        """
        values = in_order(self.key, given)
        for each in [values] if exact else with_other_zeros(self.key, values):
            entries = self._entries_of(store, each, now)
            if (first := next(entries, None)) is not None:
                yield first
                yield from entries
                return

    def _entries_of(self, store: Store, values: Sequence[Any], now: int) -> Iterator[Entry]:
        if self.shape is Shape.JOINED:
            yield from self._joined(store, values, now)
            return
        row = write_row(self.key, values)
        if self.shape in (Shape.VALUE, Shape.LIST):
            key = self.prefix(store) + (b"\0" + row if self.rocks else row)
            value = store.get(key)
            if value is not None:
                yield from self.read(store, key, value, now)
        elif self.rocks:
            first = write_row(self.stored, [values]) if self._is_nested else row
            prefix = self.prefix(store) + struct.pack("<i", len(first) + 1) + b"\0" + first
            for key, value in store.items(prefix):
                yield from self.read(store, key, value, now)
        else:  # keys that begin alike do not lie together there
            for key, value in store.items():
                for entry in self.read(store, key, value, now):
                    if write_row(self.key, list(entry.key.values())) == row:
                        yield entry

    def entries(self, store: Store, now: int) -> Iterator[Entry]:
        """All."""
        for key, value in store.items(self.prefix(store)):
            yield from self.read(store, key, value, now)

    def read(self, store: Store, key: bytes, value: bytes, now: int) -> Iterator[Entry]:
        """Yield what a pair of the store says."""
        named, rest = self._read_key(key[len(self.prefix(store)) :])
        rows = strings(value) if self.shape is Shape.LIST else [value]
        for place, row in enumerate(rows):
            found = self._reader("value", self.value).read(row, 1 if self.rocks else 0)
            expires = None
            if self.ttl:
                expires = found[_TTL] if found[_TTL] is not None and found[_TTL] >= 0 else None
                if expires is not None and expires <= now:
                    continue
                found = found["value"]
            at = {"index": place} if self.shape is Shape.LIST else rest
            yield Entry(named, found if self.shape is not Shape.TIMERS else {}, at, expires)

    def key_of(self, store: Store, data: bytes) -> Mapping[str, Any]:
        """The job's key in a key of the store."""
        return self._read_key(data[len(self.prefix(store)) :])[0]

    @property
    def _is_nested(self) -> bool:
        return self.stored != self.key

    def prefix(self, store: Store) -> bytes:
        """With which all keys of the state begin in a store."""
        if not self.family:
            return b""
        if self.family not in store.families:
            raise _unknown(f"has no full snapshot that shows where {self.name!r} is")
        return struct.pack("<h", store.families[self.family])

    def _read_key(self, data: bytes) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
        if not self.is_prefixed or not self.rocks:
            found = self._reader("whole", (*self.stored, *self.rest)).read(data, 1 if self.rocks else 0)
            return self._split(found)
        (length,) = struct.unpack_from("<i", data)
        found = self._reader("first", self.stored).read(data, 5)
        found |= self._reader("rest", self.rest).read(data, 4 + length + 1)
        return self._split(found)

    def _split(self, found: dict[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
        rest = {each.name: found.pop(each.name) for each in self.rest}
        if self.shape is Shape.MAP:
            rest = next(iter(rest.values()))
        return (next(iter(found.values())) if self._is_nested else found), (rest or None)

    def _joined(self, store: Store, values: Sequence[Any], now: int) -> Iterator[Entry]:
        """Rows are numbered without a gap."""
        number = 0
        while True:
            row = write_row((*self.key, *self.rest), [*values, number])
            key = self.prefix(store) + (b"\0" + row if self.rocks else row)
            value = store.get(key)
            if value is None:
                return
            yield from self.read(store, key, value, now)
            number += 1

    def _reader(self, which: str, columns: tuple[StateColumn, ...]) -> RowReader:
        if which not in self._readers:
            self._readers[which] = RowReader(columns)
        return self._readers[which]

    @property
    def at_columns(self) -> tuple[StateColumn, ...]:
        """Columns of `Entry.at`."""
        if self.shape is Shape.LIST:
            return (StateColumn("index", "integer"),)
        return columns_of(self.rest[0].kind) if self.shape is Shape.MAP else self.rest

    @property
    def value_columns(self) -> tuple[StateColumn, ...]:
        """Columns of `Entry.value`."""
        if self.shape is Shape.TIMERS:
            return ()
        return columns_of(self.value[0].kind) if self.ttl else self.value


def table(store: str, family: Family, *, rocks: bool, variable: Mapping[str, Any] | None, prefix: int) -> Table | None:
    """The state that a column family holds; None for what Spark needs for itself alone.

    variable: what Spark says of it, if it is one of `transformWithState`. prefix: columns of the key that come first,
    in a store that has no column families.
    """
    shape, key, rest, name = Shape.VALUE, family.key, family.key[len(family.key) :], family.name
    is_timer = name.startswith("$") and name.endswith(_KEY_TO_TIME)
    if (name.startswith("$") and not is_timer) or family.encoder == RANGE:
        return None
    side, _, what = (store if name == "default" else name).partition("-")
    if what:
        if what != _JOINED:
            return None
        shape, name, key, rest = Shape.JOINED, side, key[:-1], key[-1:]
    elif is_timer:
        shape, name, key, rest = Shape.TIMERS, TIMERS, key[:1], key[1:]
    elif variable is not None:
        shape = {"ListState": Shape.LIST, "MapState": Shape.MAP}.get(variable["stateVariableType"], shape)
        if shape is Shape.MAP:
            key, rest = key[:1], key[1:]
    elif prefix:
        shape, key, rest = Shape.SESSIONS, key[:prefix], key[prefix:]
    stored = key
    if shape in (Shape.MAP, Shape.TIMERS):
        key = columns_of(key[0].kind)
    return Table(
        name=name,
        store=store,
        shape=shape,
        family="" if family.name == "default" else family.name,
        key=key,
        rest=rest,
        value=family.value,
        stored=stored,
        is_prefixed=bool(prefix) or family.encoder == PREFIX,
        ttl=bool(variable and variable.get("ttlEnabled")),
        rocks=rocks,
    )


def require_readable(conf: Mapping[str, str]) -> None:
    """ConfigurationError when the state was written in a way that is not known here."""
    encoding = conf.get("spark.sql.streaming.stateStore.encodingFormat", "unsaferow")
    if encoding != "unsaferow":
        raise _unknown(f"is encoded as {encoding}")
    if conf.get("spark.sql.streaming.stateStore.rowChecksum.enabled", "false").lower() == "true":
        raise _unknown("has a checksum in each row")
    provider = conf.get("spark.sql.streaming.stateStore.providerClass", "").rpartition(".")[2]
    if provider not in ("RocksDBStateStoreProvider", "HDFSBackedStateStoreProvider"):
        raise _unknown(f"has the state store provider {provider or '(none)'}")


def _unknown(how: str) -> ConfigurationError:
    return ConfigurationError(
        f"the pipeline's state {how}, and airflow-ft cannot read it without Spark.",
        code="state_unreadable",
        remedy="Read it with Spark: `dataframe(spark, operator)` of the same handle.",
        reason=how,
    )
