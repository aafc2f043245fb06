"""Compare a key-value store with the log: for each key, the last change in the log against what is there.

The last change of each key is kept on disk, in SQLite's own temporary database, so memory is bounded. A key may have
been changed since by a checkpoint that is not compared: a newer one, or one in between. A value says so by its number.
A missing value says nothing. Such keys are not judged, and are no difference.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.verify import SAMPLES, Delivered, Difference, SinkReport, Target, targets
from airflow_ft.protocol.write_ahead_log import SegmentReader, WalReader
from airflow_ft.sinks.base.document import DocumentLedger
from airflow_ft.sinks.multiset import temporary_database
from airflow_ft.sinks.set_aside import DeliveredLog

S = TypeVar("S")
_AT_ONCE = 1000
_BYTES_AT_ONCE = 32_000_000
"""Bytes of the values that a store is asked for at once, by their sizes in the log, unless one value is larger."""
SAME, LACKING, CHANGED, LEFT, UNKNOWN = "same", "lacking", "changed", "left", "unknown"
DIFFERENCES = {
    LACKING: "rows that are not there",
    CHANGED: "rows that are there with other values",
    LEFT: "deleted rows that are there",
}


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a key: the digest of the value that it leaves (None: it deletes), and a text for people.

    size: about how many bytes the value has.
    """

    key: str
    digest: bytes | None
    sample: str
    size: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """A value that is there: its digest, and the number of the checkpoint that wrote it.

    number: 0: one before all that are compared. None: not known.
    """

    digest: bytes
    number: int | None = 0


class LastChanges:
    """The last change of each key; close it to free the space."""

    def __init__(self) -> None:
        self._db = temporary_database()
        self._db.execute(
            "CREATE TABLE last (key TEXT PRIMARY KEY, number INTEGER NOT NULL, digest BLOB, sample TEXT NOT NULL,"
            " size INTEGER NOT NULL) WITHOUT ROWID"
        )
        self.changes = 0

    def add(self, changes: Iterable[tuple[int, Change]]) -> None:
        """Add numbered changes. Of a key, the last change of the highest number counts."""
        self._db.execute("BEGIN")
        self._db.executemany(
            "INSERT INTO last VALUES (?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET number = excluded.number,"
            " digest = excluded.digest, sample = excluded.sample, size = excluded.size"
            " WHERE excluded.number >= last.number",
            self._counted(changes),
        )
        self._db.execute("COMMIT")

    def _counted(self, changes: Iterable[tuple[int, Change]]) -> Iterator[tuple[str, int, bytes | None, str, int]]:
        """Yield changes as rows of the table, one at a time: a checkpoint may have more than memory takes."""
        for number, each in changes:
            self.changes += 1
            yield each.key, number, each.digest, each.sample, each.size

    def digest(self, key: str) -> bytes | None:
        """Return the digest of the value that a key has; None: the key was deleted, or never written."""
        row = self._db.execute("SELECT digest FROM last WHERE key = ?", (key,)).fetchone()
        return row[0] if row is not None else None

    def batches(self) -> Iterator[list[tuple[int, Change]]]:
        """Yield all keys, each with the number of the checkpoint that changed it last, in parts to ask for at once."""
        batch: list[tuple[int, Change]] = []
        size = 0
        for key, number, found, shown, bytes_ in self._db.execute(
            "SELECT key, number, digest, sample, size FROM last ORDER BY key"
        ):
            if batch and (len(batch) == _AT_ONCE or size + bytes_ > _BYTES_AT_ONCE):
                yield batch
                batch, size = [], 0
            batch.append((number, Change(key, found, shown, bytes_)))
            size += bytes_
        if batch:
            yield batch

    def close(self) -> None:
        """Free the space."""
        self._db.close()


def compare_keys(
    report: SinkReport,
    delivered: Sequence[Delivered],
    last_delivered: int | None,
    changes: Iterable[tuple[int, Iterable[Change]]],
    look_up: Callable[[Sequence[str]], Mapping[str, Found]],
) -> SinkReport:
    """Return the report with the counts of keys.

    Args:
        report: as `SinkReport.begun` makes it.
        delivered: the compared deliveries.
        last_delivered: the number in the sink's head; None: it has none.
        changes: of each delivery in order, its number and its changes in the order of the log.
        look_up: returns what is there of some keys; a key that is not there is left out.
    """
    numbers = {each.plan.number for each in delivered}
    blind = blind_through(delivered, last_delivered)
    counts: Counter[tuple[str, int]] = Counter()
    samples: dict[tuple[str, int], list[str]] = {}
    with closing(LastChanges()) as last:
        for number, some in changes:
            last.add((number, change) for change in some)
        for batch in last.batches():
            there = look_up([change.key for _, change in batch])
            for number, change in batch:
                place = (_verdict(change, number, there.get(change.key), numbers, blind), number)
                counts[place] += 1
                if place[0] in DIFFERENCES and len(samples.setdefault(place, [])) < SAMPLES:
                    samples[place].append(change.sample)
    keys, unknown = counts.total(), sum(found for (verdict, _), found in counts.items() if verdict == UNKNOWN)
    differences = tuple(
        Difference(number, DIFFERENCES[verdict], counts[verdict, number], tuple(shown))
        for (verdict, number), shown in sorted(samples.items())
    )
    missing = sum(each.rows for each in differences)
    return replace(
        report, expected=keys, missing=missing, differences=differences, notes=tuple(notes(last.changes, keys, unknown))
    )


Readers = Sequence[tuple[int, str, SegmentReader]]
"""Number, sink and segment of deliveries."""


class Keys(Protocol):
    """The rows of one target by their keys, as a system reads them."""

    @property
    def error(self) -> str:
        """Return why they cannot be compared; "": they can."""

    def ledger(self) -> DocumentLedger:
        """Return what the sink remembers of the pipeline."""

    def changes(self, number: int, name: str, reader: SegmentReader) -> Iterator[Change]:
        """Yield the changes of a sink in a segment, in the order of the log."""

    def look_up(self, keys: Sequence[str]) -> Mapping[str, Found]:
        """Return what is there of some keys."""


def compare_targets(
    delivered: Sequence[Delivered],
    plan: ParticipantPlan,
    wal: WalReader,
    target: Callable[[Mapping[str, Any]], str],
    keys_of: Callable[[Target, Readers], Keys],
) -> list[SinkReport]:
    """Return one report for each target, over all sinks into it. Other keys are not counted.

    SinkUnavailableError, SinkAccessError, WalCorruptError: nothing could be compared.
    """
    log, reports = DeliveredLog.of(wal, delivered), []
    for each in targets(delivered, plan.name, target):
        readers = [found for found in log.readers(each.sent) if found[2].schema(found[1]).names]
        keys = keys_of(each, readers)
        if keys.error:
            reports.append(replace(each.report, error=keys.error))
            continue
        head = keys.ledger().head()
        changes = [(number, keys.changes(number, name, reader)) for number, name, reader in readers]
        last = head.last_delivered if head is not None else None
        reports.append(compare_keys(each.report, each.delivered, last, changes, keys.look_up))
    return reports


def sinks_of(target: Target, all_of: Callable[[ParticipantPlan], Mapping[str, S]]) -> dict[tuple[int, str], S]:
    """Return the sink of each delivery by number and name, from its own plan: settings may have changed since.

    `all_of` reads the sinks of a plan. ConfigurationError: it cannot.
    """
    participant = target.report.participant
    return {(each.plan.number, name): all_of(each.plan.participant(participant))[name] for each, name in target.sent}


def common(names: Sequence[Iterable[str]]) -> list[str]:
    """Return the names that are in each of these sequences, in the order of the last one."""
    return [name for name in names[-1] if all(name in each for each in names)] if names else []


def digest(values: object) -> bytes:
    """Return a digest of values, by their texts in Python."""
    return hashlib.blake2b(repr(values).encode(), digest_size=20).digest()


def _verdict(change: Change, number: int, found: Found | None, compared: Set[int], blind: int) -> str:
    if found is None:
        if change.digest is None:
            return SAME
        return UNKNOWN if number <= blind else LACKING
    may_be_newer = found.number is None or (found.number > number and found.number not in compared)
    if may_be_newer and number <= blind and found.digest != change.digest:
        return UNKNOWN
    if change.digest is None:
        return LEFT
    return SAME if found.digest == change.digest else CHANGED


def notes(changes: int, keys: int, unknown: int) -> Iterator[str]:
    """Yield the notes of a report on `keys`, of which `unknown` cannot be judged."""
    yield f"compared {count_text(keys, 'key')}, each with the newest of its changes ({changes:,} in the log)"
    if unknown:
        yield (
            f"{count_text(unknown, 'key')} not judged: checkpoints that were not compared (no longer in the log, or not"
            " asked for) may have changed or deleted them"
        )


def blind_through(delivered: Sequence[Delivered], last_delivered: int | None) -> int:
    """Return the highest compared number that a delivery follows which is not compared; 0: there is none.

    `last_delivered` is the head's; None: there is no head.
    """
    numbers = [each.plan.number for each in delivered]
    known = max(*numbers, *(each.newest for each in delivered))
    if last_delivered is not None and last_delivered > known:  # delivered since the decision log was read
        return max(numbers)
    other = max(each.newest_other for each in delivered)
    return max((number for number in numbers if number < other), default=0)


def may_delete(
    delivered: Sequence[Delivered], participant: str, target: Callable[[Mapping[str, Any]], str], name: str
) -> bool:
    """Return whether these deliveries, or ones that are not compared, may delete rows of a target (`change_column`).

    `name` is that target. `target` returns the target's name from a sink's settings.
    """
    plans = [each.plan.participant(participant) for each in delivered]
    plans += [plan for each in delivered for plan in each.others]
    settings = [given for plan in plans for given in plan.sinks.values()]
    return any(given.get("change_column") and target(given) == name for given in settings)
