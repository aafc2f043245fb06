"""What holds of savepoints: each that is whole has what its checkpoint had, and a restore announces what comes again.

At a restore nothing is in doubt: so the rows that are visible then stay as they are, and what follows them begins
behind the savepoint. Nothing is left out, and what comes once more is of numbers that were announced; none at all where
the person has not agreed to it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.errors import WalCorruptError
from airflow_ft.protocol.from_savepoint import BEGINNING, Later
from airflow_ft.protocol.model import AfterAbort, Checkpoint, RunKey, SparkPosition
from airflow_ft.spark.savepoints.metadata import METADATA, SPARK, Savepoint, read_metadata, verify
from airflow_ft.spark.state.catching_up import FOLDER
from airflow_ft.spark.state.locations import START_FILE
from airflow_ft.store.errors import UnknownPipelineError
from tests.simulation.files import STATE, Files
from tests.simulation.kernel import Violation
from tests.simulation.source import ORDERS, Wal, empties, once_more, plain

if TYPE_CHECKING:
    from tests.simulation.laws import Laws

PIPELINE = "orders"
_ALL = 1000


@dataclass(frozen=True)
class Order:
    """What somebody wants to restore, or to change, and what is to become of later checkpoints.

    `damaged`: when it was begun. `leaves`: state of operators that the job lacks may be left behind.
    """

    uri: str
    later: Later
    damaged: bool
    leaves: bool = False

    @property
    def is_beginning(self) -> bool:
        """Whether everything is to be read anew, and there is no savepoint."""
        return self.uri == BEGINNING


Read = tuple[int, int]
"""What Spark notes of a micro-batch: the offset at which it ends, and its watermark."""


@dataclass(frozen=True)
class LocationStatus:
    """A place in the source: so many items are behind it, the newest computed as `variant`; `end` is Spark's offset.

    `planned`: micro-batches that are computed once more before anything else, for the state alone.
    """

    item: int
    variant: str
    end: int
    planned: tuple[Read, ...] = ()

    @property
    def caught_up(self) -> LocationStatus:
        """Where it stands when they are."""
        item, variant, end = self.item, self.variant, self.end
        for read, watermark in self.planned:
            item, variant = item + (read != end), plain(once_more(variant, end, read, watermark))
            end = read
        return LocationStatus(item, variant, end)

    @property
    def reads(self) -> tuple[Read, ...]:
        """What is planned, without micro-batches that read nothing."""
        ends = [self.end, *(end for end, _ in self.planned)]
        return tuple(read for read, before in zip(self.planned, ends, strict=False) if read[0] != before)


class SavepointLaws:
    """Remembers what each number stood at, and from where the pipeline goes on. `process` names the current one."""

    def __init__(self, laws: Laws, store: Any, wal: Wal, files: Files, process: Callable[[], str]) -> None:
        self._laws, self._store, self._wal, self._files, self._process = laws, store, wal, files, process
        self._version = -1
        self.may_leave: set[SparkPosition] = set()  # restored there, by who has allowed to leave state behind
        self.replaces = False  # whether each sink replaces the rows of the same key
        self._stood: dict[int, set[LocationStatus]] = {}  # by number: where it stands, and has stood before a restore
        self.whole: dict[str, Savepoint] = {}
        self.damaged: set[str] = set()
        self._orders: dict[str, Order] = {}  # by process, the newest
        self._saved: dict[str, LocationStatus | None] = {BEGINNING: LocationStatus(0, "", 0)}
        self._has_begun: dict[str, bool] = {}  # by process: whether there was a base whenever it was looked for
        self._again: dict[str, set[int]] = {}  # by process that has restored: the items that come once more
        self._runs: set[RunKey] = set()  # that have gone on from one
        self._restored: set[str] = set()  # savepoints: one that is claimed may go then
        self._pieces: list[range] = []  # items, as they came before the newest restore
        self.behind = 0  # the item behind which the pipeline began for the last time
        self._before: dict[tuple[str, str], int] = {}  # rows that were there then, by server and sink
        self._next_number = 0

    # --- the decision log -----------------------------------------------------------------------------------------

    def look_at(self, checkpoints: Sequence[Checkpoint], next_number: int) -> None:
        """After a change."""
        if self._store.pipeline(PIPELINE).base is None:
            self._has_begun = dict.fromkeys(self._has_begun, False)
        if next_number < self._next_number:
            raise Violation("I1", f"the next number is {next_number}, it was {self._next_number}")
        self._next_number = next_number
        for row in checkpoints:
            if row.position is not None and row.after_abort is not AfterAbort.REWOUND and self._wal.has(row.position):
                self._stood.setdefault(row.number, set()).add(self._location_status(row.position))

    def _location_status(self, position: SparkPosition) -> LocationStatus:
        batch, uri = self._wal.batch(position), position.location
        if self._wal.is_beginning(position):
            return LocationStatus(0, "", 0)
        end = self._wal.ends.get(uri, {}).get(batch, batch)
        others = {name: data for name, data in self._wal.files.get(uri, {}).items() if name.startswith(f"{FOLDER}/")}
        return LocationStatus(self._wal.item_at(position), plain(self._wal.states[uri][batch]), end, _planned(others))

    def _has_read(self, position: SparkPosition, behind: int) -> tuple[Read, ...]:
        """What the micro-batches up to a position have read, and what is to be computed once more there."""
        status = self._location_status(position)
        ends, metadata = self._wal.ends.get(position.location, {}), self._wal.metadata.get(position.location, {})
        item, found = status.item, list(status.reads)
        for batch in range(position.batch, 0, -1):
            if item <= behind:
                break
            if ends[batch] != ends.get(batch - 1, 0):
                found.insert(0, (ends[batch], _watermark(metadata[batch])))
                item -= 1
        return tuple(found[behind - item :])

    def _has_base(self) -> bool:
        try:
            return self._store.pipeline(PIPELINE).base is not None
        except UnknownPipelineError:
            return False

    def order(self) -> Order | None:
        """What the current process is at."""
        return self._orders.get(self._process())

    def restoring(
        self, order: Order | None, position: SparkPosition | None, run: RunKey | None, restore: Callable[[], Any]
    ) -> Any:
        """The one write of a restore, which was sent for an `order`, by a run or by a person: what it may change."""
        base = self._store.pipeline(PIPELINE).base
        result = restore()
        process = self._process()
        assert order is not None
        if run in self._runs:
            raise Violation("I9", f"{run} has gone on from a savepoint twice")
        self._runs |= {run} if run is not None else set()
        if position is None:
            return result
        before = 0 if base is None else self._location_status(base).caught_up.item
        saved = self._saved[order.uri]
        if not self._wal.has(position) or order.damaged:
            raise Violation("I10", f"{process} has restored {order.uri}, which was not whole")
        now = self._location_status(position)
        if replace(now, planned=()) != (saved and replace(saved, planned=())) and order.uri not in self.damaged:
            raise Violation("I10", f"{order.uri} held {saved}, restored is {now}")
        if saved is not None and base is not None:
            continues = order.later is Later.CONTINUE and not saved.planned
            planned = self._has_read(base, now.item) if continues else saved.reads
            if now.reads != planned:
                raise Violation("I10", f"{process} has restored {order.uri}; planned is {now.reads}, not {planned}")
        now = now.caught_up
        for item in range(1, max(now.item, before) + 1):
            if not self._laws.is_visible(item):
                raise Violation("I10", f"{process} has restored {order.uri}, and item {item} was never delivered")
        again = set(range(now.item + 1, before + 1))
        replaced = order.is_beginning and order.later is Later.REFUSE and self.replaces
        if again and order.later is not Later.WRITE_AGAIN and not replaced:
            raise Violation("I2", f"{process} has restored {order.uri}: {sorted(again)} come again, unasked for")
        self._again[process] = again
        self._restored.add(order.uri)
        if order.leaves:
            self.may_leave.add(position)
        self._pieces.append(range(self.behind + 1, before + 1))
        self.behind = now.item
        self._before = {(name, sink): rows for name, sink, rows in self._laws.rows()}
        self._laws.continues_after(now.item, now.variant)
        if order.is_beginning:
            self._wal.lose_start()
        return result

    # --- the sinks ------------------------------------------------------------------------------------------------

    def since(self, name: str, sink: str, rows: list[Any]) -> list[Any]:
        """What is there since the newest restore."""
        return rows[self._before.get((name, sink), 0) :]

    def all_that_comes(self, items: int) -> list[int]:
        """In order of their numbers: as often as was announced."""
        return sorted(item for piece in [*self._pieces, range(self.behind + 1, items + 1)] for item in piece)

    # --- savepoints -----------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """After a change of files: whatever calls itself a savepoint is one."""
        if self._files.version == self._version:
            return
        self._version = self._files.version
        found = [name.removesuffix(f"/{METADATA}") for name in self._files.saved if name.endswith(f"/{METADATA}")]
        for uri in found:
            if uri not in self.whole:
                self.whole[uri] = read_metadata(uri)
                self._look_at_taken(uri, self.whole[uri])

    def _look_at_taken(self, uri: str, savepoint: Savepoint) -> None:
        try:
            verify(uri, savepoint)
        except Exception as error:
            raise Violation("I10", f"{uri} calls itself a savepoint: {error}") from error
        row = self._store.checkpoint(PIPELINE, savepoint.number)
        if not row.is_confirmed:
            raise Violation("I3", f"{uri} covers {row.number}, which is {row.state}")
        covered = max(
            (number for number in self._stood if number <= row.number and self._is_standing_number(number)), default=0
        )
        saved = self._saved[uri] = self._read(uri, savepoint)
        if saved is None or saved not in self._stood.get(covered, set()):
            if savepoint.taken_by.rpartition(", from ")[2] in self.damaged:  # since all of that one was read
                return
            raise Violation("I10", f"{uri} holds {saved}; checkpoint {covered} stood at {self._stood.get(covered)}")
        folders = self._files.tree(f"{uri}/{SPARK}")
        numbered = [name for name in folders if name.startswith(("offsets", "commits", STATE))]
        late = [
            name
            for name in numbered
            if int(name.rpartition("/")[2].partition(".")[0]) > savepoint.batch + name.startswith("state")
        ]
        if late:
            raise Violation("I1", f"{uri} is of batch {savepoint.batch}, and holds {late}")

    def _is_standing_number(self, number: int) -> bool:
        return self._store.checkpoint(PIPELINE, number).after_abort is not AfterAbort.REWOUND

    def _read(self, uri: str, savepoint: Savepoint) -> LocationStatus | None:
        """What lies in it; None: not even that can be read."""
        batch, spark = savepoint.batch, f"{uri}/{SPARK}"
        files = self._files.saved
        if batch < 0 and START_FILE in self._files.tree(spark):
            return self._without_state(json.loads(self._files.read(f"{spark}/{START_FILE}")))
        try:
            if self._files.by_operator:
                variant = json.loads(files[f"{spark}/commits/{batch}"].splitlines()[1])["variant"]
            else:
                variant = files[f"{spark}/{STATE}/{batch + 1}.delta"].decode()
            [offset] = [each for each in savepoint.location(uri).offsets(batch) if each and ORDERS in each]
        except Exception:
            return None
        others = {name.removeprefix(f"{spark}/"): data for name, data in files.items() if f"{spark}/{FOLDER}/" in name}
        return LocationStatus(batch - empties(variant), plain(variant), offset[ORDERS]["0"], _planned(others))

    def _without_state(self, offsets: list[Any]) -> LocationStatus | None:
        """Return the status at which the state was dropped: everything after these offsets is read again."""
        end = offsets[0][ORDERS]["0"] if offsets else 0
        stood = (status for found in self._stood.values() for status in found)
        return next((s for s in stood if (s.variant, s.end) == ("", end)), None) if end else LocationStatus(0, "", 0)

    # --- what people are told -------------------------------------------------------------------------------------

    def begins(self, order: Order) -> None:
        """The current process begins to restore."""
        self._orders[self._process()] = order
        self._has_begun[self._process()] = self._has_base()
        self._again.pop(self._process(), None)

    def after_restore(self, later: Sequence[int]) -> None:
        """Who is told that it is restored, and of which numbers the rows come once more."""
        process = self._process()
        if process not in self._again:
            raise Violation("I9", f"{process} is told that its savepoint is restored, and it is not")
        order = self._orders[process]
        if order.is_beginning:
            return  # everything comes again
        if len(self._stood.get(self.whole[order.uri].number, ())) > 1:
            return  # its number has stood elsewhere, too, and does not tell what comes behind it
        published = self._laws.published()
        said = {published[number] for number in later if number in published}
        if unsaid := self._again[process] - said:
            raise Violation("I2", f"{process} is told of {list(later)}, and items {sorted(unsaid)} come again, too")

    def after_nothing_read(self, run: RunKey | None) -> None:
        """Who is told that the pipeline begins there anyway; a run has done it then."""
        process = self._process()
        if self._has_begun[process]:
            raise Violation("I9", f"{process} is told that nothing was read, and something was")
        if run is not None:
            self._runs.add(run)

    def after_repeated_restore(self, run: RunKey) -> None:
        """Who is told that its run has gone on from one before."""
        if run not in self._runs:
            raise Violation("I9", f"{self._process()} is told that {run} has gone on from a savepoint, and it has not")

    def after_refusal(self, error: BaseException) -> None:
        """Who is told that it is not finds the pipeline where it stood."""
        process = self._process()
        if process in self._again:
            raise Violation("I9", f"{process} is told {error!r}, and has restored its savepoint")
        uri = self._orders[process].uri
        if uri == BEGINNING:
            return
        if uri not in self._restored and f"{uri}/{METADATA}" not in self._files.saved:
            raise Violation("I10", f"{process} is told {error!r}, and {uri} is deleted, which nobody has restored")
        if isinstance(error, WalCorruptError) and uri not in self.damaged and f"{uri}/{METADATA}" in self._files.saved:
            raise Violation("I9", f"{process} is told {error!r}, and {uri} is whole")

    def after_change(self, order: Order, changed: str) -> None:
        """Who is told that another savepoint was made of one: it stands where that one does.

        Which is not told of one that was damaged before.
        """
        uri = order.uri
        differs = self._saved.get(changed) != self._saved[uri] and uri not in self.damaged
        if changed not in self.whole or order.damaged or differs:
            held = self._saved.get(changed)
            raise Violation("I10", f"{changed} was made of {uri}, which holds {self._saved[uri]}, and holds {held}")

    def after_refused_change(self, uri: str, error: BaseException) -> None:
        """Who is told that nothing was made of a savepoint, because it is damaged."""
        if isinstance(error, WalCorruptError) and uri not in self.damaged and f"{uri}/{METADATA}" in self._files.saved:
            raise Violation("I9", f"{self._process()} is told {error!r}, and {uri} is whole")

    def after_catching_up(self, uri: str, position: SparkPosition) -> None:
        """Who has gone on from a copy under another name, before the first item of its own."""
        saved = self._saved[uri]
        if saved is None or self._location_status(position) != saved.caught_up:
            raise Violation("I10", f"{uri} held {saved}, and its copy goes on from {self._location_status(position)}")

    def after_copy(self, uri: str, position: SparkPosition, base: SparkPosition | None) -> None:
        """Who is told that another pipeline begins there."""
        if base != position or not self._wal.has(position) or self._location_status(position) != self._saved[uri]:
            raise Violation("I10", f"{uri} held {self._saved[uri]}, and its copy begins at {base}")

    def after_savepoint(self, outcome: str) -> None:
        """Who has asked to stop with a savepoint is told where one is that covers all."""
        for words in outcome.split("; "):
            said, _, uri = words.rpartition(": ")
            if not said.startswith("savepoint of checkpoint "):
                continue
            if uri not in self.whole:
                raise Violation("I9", f"{uri} is no savepoint, and somebody is told {outcome!r}")

    def at_the_end(self) -> None:
        """Whatever was whole once, and was not deleted, can be restored still."""
        for uri, savepoint in self.whole.items():
            if uri in self.damaged or f"{uri}/{METADATA}" not in self._files.saved:
                continue
            try:
                verify(uri, read_metadata(uri))
            except WalCorruptError as error:
                raise Violation("I10", f"{uri} is not what it was: {error}") from error
            if read_metadata(uri) != savepoint:
                raise Violation("I10", f"{uri} is not what it was")


def _planned(others: Mapping[str, bytes]) -> tuple[Read, ...]:
    """Of what lies beside a state, by name: the micro-batches that are to be computed once more."""
    found = {int(last): data for name, data in others.items() if (last := name.rpartition("/")[2]).isdigit()}
    lines = [found[batch].decode().splitlines() for batch in sorted(found)]
    return tuple((json.loads(end)["orders"]["0"], _watermark(content)) for _, content, end in lines)


def _watermark(metadata: str) -> int:
    return int(json.loads(metadata)["batchWatermarkMs"])
