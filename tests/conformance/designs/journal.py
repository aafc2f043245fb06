"""Append rows to a file, each with a key, again with each try; a reader counts each key once.

`<file>.memory` has heads and markers: a line for each transaction, which counts if it is whole. Its lock makes an order
of all that is written.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import (
    AirflowFtError,
    DeclinedError,
    SinkAccessError,
    SinkUnavailableError,
    UnfitTargetError,
)
from airflow_ft.protocol.model import Fence, ParticipantPlan, Plan
from airflow_ft.protocol.participant import Participant
from airflow_ft.protocol.votes import Outcome, Proof
from airflow_ft.protocol.write_ahead_log import SegmentReader, WalReader
from airflow_ft.sinks.base.memory import Head, Marker, check_owner
from airflow_ft.sinks.base.one_transaction import OneTransactionParticipant
from airflow_ft.sinks.base.settings import refuse_unknown
from airflow_ft.sinks.refused import Refused

_WAIT_SECONDS = 2.0
_TAKEN = {pa.int64(), pa.int32(), pa.string()}


def open_participant(plan: ParticipantPlan, connection: ConnectionInfo, wal: WalReader) -> Participant:
    """See `airflow_ft.protocol.participant.Participant`."""
    for settings in plan.sinks.values():
        refuse_unknown(settings, {"table"})
    tables = {name: settings["table"] for name, settings in plan.sinks.items()}
    return JournalParticipant(plan.name, tables, Path(connection.host), wal)


def read(path: Path, table: str) -> list[dict[str, Any]]:
    """Return the rows of a table, each key once."""
    rows: dict[str, dict[str, Any]] = {}
    for line in whole_lines(path):
        if line["table"] == table:
            rows.setdefault(json.dumps(line["key"]), line["row"])
    return list(rows.values())


def whole_lines(path: Path) -> Iterator[Any]:
    """Yield the lines that a process has written to their end."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            try:
                yield json.loads(line)
            except ValueError:  # its process died
                continue


@dataclass
class Memory:
    """Heads and markers of one pipeline, with the changes of the open transaction."""

    owner: str
    heads: dict[str, Any] = field(default_factory=dict)
    markers: dict[str, dict[int, Any]] = field(default_factory=dict)
    changed: bool = False

    def take(self, line: Mapping[str, Any]) -> None:
        """Read a transaction."""
        self.heads[line["owner"]] = line["head"]
        self.markers[line["owner"]] = {int(number): marker for number, marker in line["markers"].items()}

    def to_json(self) -> dict[str, Any]:
        """Return the line of this transaction."""
        return {"owner": self.owner, "head": self.heads.get(self.owner), "markers": self.markers.get(self.owner, {})}

    # --- airflow_ft.sinks.base.one_transaction.TransactionLedger ---

    def head(self) -> Head | None:
        found = self.heads.get(self.owner)
        return None if found is None else Head(**found)

    def create_head(self, head: Head) -> None:
        if self.head() is None:
            self.write_head(head)

    def write_head(self, head: Head) -> None:
        self.heads[self.owner], self.changed = asdict(head), True

    def raise_head(self, fence: Fence) -> None:
        self._change_head(epoch=fence.epoch, attempt=fence.attempt)

    def deliver_head(self, number: int) -> None:
        self._change_head(last_delivered=number)

    def raise_floor(self, floor: int) -> None:
        head = self.head()
        if head is not None and head.floor < floor:
            self._change_head(floor=floor)

    def marker(self, number: int) -> Marker | None:
        found = self._mine().get(number)
        return None if found is None else Marker.stored(found, "a marker")

    def newest(self) -> int:
        return max(self._mine(), default=0)

    def write_marker(
        self, plan: Plan, fence: Fence, outcome: Outcome, counts: Mapping[str, int], detail: Mapping[str, Any]
    ) -> None:
        data = [fence.installation, outcome.value, *fence.rank, plan.digest, json.dumps(counts), json.dumps(detail)]
        self._keep({**self._mine(), plan.number: data})

    def markers_of_others(self, above: int, installation: str) -> list[tuple[int, str, Marker]]:
        found = [(number, Marker.stored(each, "a marker")) for number, each in sorted(self._mine().items())]
        return [(number, "", each) for number, each in found if number > above and each.installation != installation]

    def drop_markers_of_others(self, above: int, installation: str) -> None:
        dropped = {number for number, _, _ in self.markers_of_others(above, installation)}
        self._keep({number: marker for number, marker in self._mine().items() if number not in dropped})

    def prune(self, floor: int) -> None:
        self._keep({number: marker for number, marker in self._mine().items() if number > floor})

    def _mine(self) -> dict[int, Any]:
        return self.markers.get(self.owner, {})

    def _keep(self, markers: dict[int, Any]) -> None:
        self.markers[self.owner], self.changed = markers, True

    def _change_head(self, **parts: Any) -> None:
        head = self.head()
        if head is not None:
            self.write_head(replace(head, **parts))


@dataclass
class JournalParticipant(OneTransactionParticipant[None]):
    """See the module."""

    name: str
    tables: dict[str, str]
    path: Path
    wal: WalReader

    def _preflight(self) -> dict[str, Any]:
        return {}

    @property
    def _memory(self) -> Path:
        return self.path.with_name(f"{self.path.name}.memory")

    def _read(self, pipeline: str) -> Memory:
        memory = Memory(json.dumps([pipeline, self.name]))
        for line in whole_lines(self._memory):
            memory.take(line)
        return memory

    @contextmanager
    def _writing(
        self, fence: Fence, plan: Plan | None = None, *, create: bool = False, keep: bool = True
    ) -> Iterator[tuple[None, Memory]]:
        if not create and not self._memory.exists():
            check_owner(None, fence)
        try:
            file = self._memory.open("ab")
        except OSError as error:
            raise SinkAccessError(f"{self._memory}: {error.strerror}", remedy="make its folder.") from error
        with file:
            self._lock(file.fileno())
            memory = self._read(fence.pipeline)
            yield None, memory
            if keep and memory.changed:
                _append(file.fileno(), [memory.to_json()])

    def _append(self, lines: Sequence[Any]) -> None:
        try:
            with self.path.open("ab") as journal:
                _append(journal.fileno(), lines)
        except OSError as error:
            raise SinkUnavailableError(f"{self.path}: {error.strerror}", remedy="it is tried again.") from error

    def _lock(self, file: int) -> None:
        deadline = time.monotonic() + _WAIT_SECONDS
        while True:
            try:
                return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise SinkUnavailableError(f"{self._memory} is locked.", remedy="it is tried again.") from None
                time.sleep(0.01)

    @contextmanager
    def _reading(self, pipeline: str, plan: Plan | None = None) -> Iterator[Memory | None]:
        yield self._read(pipeline) if self._memory.exists() else None

    def _schema_problems(self, db: None, readers: Sequence[SegmentReader], make: bool) -> Iterator[AirflowFtError]:
        for name in self.tables:
            for reader in (each for each in readers if name in each.sinks()):
                for column in reader.schema(name):
                    if column.type not in _TAKEN:
                        what = f"{column.type} has no form in this journal."
                        yield UnfitTargetError(what, remedy="cast it.", sink=name, column=column.name)

    def _insert(
        self, db: None, plan: Plan, readers: Sequence[SegmentReader], dead_letters: Refused | None
    ) -> dict[str, int]:
        """Nothing is tried: a row of these types is never refused."""
        return {}

    def _deliver(self, plan: Plan, fence: Fence, set_aside: bool, more: Mapping[str, Any]) -> Proof:
        if set_aside:
            raise DeclinedError("a journal sets nothing aside.", remedy="mend the job.")
        readers = [self.wal.open(segment) for segment in plan.segments]
        counts = dict.fromkeys(self.tables, 0)
        for name, table in self.tables.items():
            for reader in (each for each in readers if name in each.sinks()):
                for file in reader.files(name):
                    first = 0
                    for batch in reader.batches(name, file):
                        key = [plan.pipeline, self.name, plan.number, name, reader.segment.number, file.path]
                        lines = [
                            {"table": table, "key": [*key, first + n], "row": row}
                            for n, row in enumerate(batch.to_pylist())
                        ]
                        with self._writing(fence, plan) as (_, memory):
                            if self._is_settled(memory, self._raised(memory, fence), plan, fence, exactly=True):
                                return self._current_proof(memory, plan)
                            self._append(lines)
                        first += batch.num_rows
                        counts[name] += batch.num_rows
        with self._writing(fence, plan) as (_, memory):
            if self._is_settled(memory, self._raised(memory, fence), plan, fence, exactly=True):
                return self._current_proof(memory, plan)
            detail = self._detail(plan, fence)
            memory.write_marker(plan, fence, Outcome.COMMITTED, counts, detail)
            memory.deliver_head(plan.number)
        return Proof(self.name, plan.number, Outcome.COMMITTED, plan.digest, fence.epoch, counts, detail)


def _append(file: int, lines: Sequence[Any]) -> None:
    """Begin with a new line: a process may have died in the middle of one."""
    data = b"\n" + b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    while data:
        data = data[os.write(file, data) :]
    os.fsync(file)
