"""Changes of a state between two checkpoints, key by key.

If both are in one location, the files of changes between them name the written keys. Otherwise both states are
compared as a whole: after a restart (which works in a copy), without change logs, and after a repartitioning. A
written key with an equal value is no change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.state.layout import Table
from airflow_ft.state.versions import Store, changed_keys


class Side(Protocol):
    """A state as of a checkpoint: what this module needs of a handle."""

    pipeline: str

    @property
    def number(self) -> int: ...

    @property
    def version(self) -> int: ...

    def one(self, op: int | str, state: str | None) -> Table: ...

    def value(self, op: int | str, table: Table, key: Any, *, exact: bool = False) -> Any: ...

    def partitions(self, op: int) -> int: ...

    def folder(self, op: int, partition: int, name: str) -> str: ...

    def store(self, op: int, partition: int, name: str) -> Store: ...


def changes(begin: Side, end: Side, ops: tuple[int, int], state: str | None) -> Iterator[dict[str, Any]]:
    """{"change", "key", "before", "after"} of each key, in no order; ConfigurationError when `end` is the older one.

    ops: the operator's number at `begin` and at `end`.
    """
    if end.number < begin.number:
        raise ConfigurationError(
            f"checkpoint {end.number} is older than checkpoint {begin.number}.",
            code="arguments_conflict",
            remedy="Give the older one as since=, and the newer one as until=.",
            pipeline=end.pipeline,
            since=begin.number,
            until=end.number,
        )
    old, new = ops
    table = end.one(new, state)
    if begin.one(old, table.name) != table:
        raise ConfigurationError(
            f"the state {table.name!r} of operator {new} had other types at checkpoint {begin.number}.",
            code="state_schema_changed",
            remedy="Open a handle at each of the two checkpoints (at=), and export both.",
            pipeline=end.pipeline,
            state=table.name,
            operator=new,
            since=begin.number,
        )
    for key in _candidates(begin, end, ops, table):
        before, after = begin.value(old, table, key, exact=True), end.value(new, table, key, exact=True)
        if not _is_same(before, after):
            change = "added" if before is None else "removed" if after is None else "changed"
            yield {"change": change, "key": dict(key), "before": before, "after": after}


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two values are equal. NaN is equal to itself."""
    if isinstance(one, dict) and isinstance(other, dict):
        one, other = ({repr(key): value for key, value in each.items()} for each in (one, other))
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return bool(one == other or (one != one and other != other))


def _candidates(begin: Side, end: Side, ops: tuple[int, int], table: Table) -> Iterator[Mapping[str, Any]]:
    """The keys, once each, that may have changed."""
    seen: set[bytes] = set()
    for store, raw in _raw(begin, end, ops, table):
        key = table.key_of(store, raw)
        mark = repr(key).encode()
        if mark not in seen:
            seen.add(mark)
            yield key


def _raw(begin: Side, end: Side, ops: tuple[int, int], table: Table) -> Iterator[tuple[Store, bytes]]:
    """Keys of the stores that may have changed, and a store to read them by."""
    partitions = end.partitions(ops[1])
    if begin.partitions(ops[0]) != partitions:
        for handle, op in zip((begin, end), ops, strict=True):
            for partition in range(handle.partitions(op)):
                store = handle.store(op, partition, table.store)
                yield from ((store, key) for key, _ in store.items(table.prefix(store)))
        return
    for partition in range(partitions):
        old, new = (h.store(op, partition, table.store) for h, op in zip((begin, end), ops, strict=True))
        folder = end.folder(ops[1], partition, table.store)
        written = None
        if folder == begin.folder(ops[0], partition, table.store):
            written = changed_keys(folder, begin.version, end.version)
        if written is not None:
            yield from ((new, key) for key in written if key.startswith(table.prefix(new)))
            continue
        yield from ((new, key) for key, value in new.items(table.prefix(new)) if old.get(key) != value)
        yield from ((old, key) for key, _ in old.items(table.prefix(old)) if new.get(key) is None)
