"""Right sinks of other designs than ours, over SQLite and plain files: the kit has to pass each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from airflow_ft.protocol.model import Promise
from airflow_ft.sinks.registry import Strategy, System


@dataclass(frozen=True, kw_only=True)
class DesignSink:
    """Rows into a table of the file that is the host of the connection."""

    table: str
    conn_id: str = "shop"

    kind: ClassVar[str]
    strategy: ClassVar[str] = "local"
    promise: ClassVar[Promise]

    def at_least_once(self) -> Promise:
        """Return the promise when nothing waits for a decision."""
        return Promise.REDO

    def settings(self) -> Mapping[str, Any]:
        """Return what a plan keeps."""
        return {"table": self.table}


@dataclass(frozen=True, kw_only=True)
class ChunkedSink(DesignSink):
    """Rows file by file, each with a note: readers see a checkpoint grow."""

    kind: ClassVar[str] = "chunked"
    promise: ClassVar[Promise] = Promise.REDO


@dataclass(frozen=True, kw_only=True)
class StagedSink(DesignSink):
    """Rows into tables of their own at the vote, and from there into the target at the commit."""

    kind: ClassVar[str] = "staged"
    promise: ClassVar[Promise] = Promise.TWO_PHASE


@dataclass(frozen=True, kw_only=True)
class JournalSink(DesignSink):
    """Rows at the end of a file, again with each try: each row has a key, and readers count a key once."""

    kind: ClassVar[str] = "journal"
    promise: ClassVar[Promise] = Promise.IDEMPOTENT


@dataclass(frozen=True, kw_only=True)
class KeyedSink(DesignSink):
    """Rows by key in one transaction; a deleted row stays as a tombstone with its number."""

    kind: ClassVar[str] = "keyed"
    promise: ClassVar[Promise] = Promise.ATOMIC


SYSTEMS = {
    sink.kind: System(
        kind=sink.kind,
        title=sink.kind,
        package=f"{__name__}.{sink.kind}",
        strategies={"local": Strategy(sink.promise, "as its module says", "as its module says")},
    )
    for sink in (ChunkedSink, StagedSink, JournalSink, KeyedSink)
}
CHUNKED, STAGED, JOURNAL, KEYED = SYSTEMS.values()
ENTRY_POINTS = "[airflow_ft.sinks]\n" + "".join(f"{kind} = {__name__}:{kind.upper()}\n" for kind in SYSTEMS)
