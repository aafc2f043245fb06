"""The invariants I1 to I10, judged from outside: only what the servers, the log and the decision log hold is looked at.

`watch` runs after every call; it looks when something has changed since.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from airflow_ft.protocol.errors import (
    AirflowFtError,
    DeclinedError,
    HaltError,
    NotDeliveredError,
    PipelineHaltedError,
    QuarantinedError,
    TransientError,
    WalCorruptError,
)
from airflow_ft.protocol.model import (
    AfterAbort,
    Checkpoint,
    CheckpointingMode,
    CheckpointState,
    Plan,
    Promise,
    RunKey,
    Segment,
)
from airflow_ft.protocol.pipelines import HaltReason, PipelineStatus
from airflow_ft.protocol.set_aside import read_detail
from airflow_ft.protocol.steps import Confirmation
from airflow_ft.protocol.transitions import is_allowed
from airflow_ft.sinks.kafka.token import parse
from airflow_ft.store.errors import UnknownPipelineError
from tests.simulation.branch_laws import BranchLaws
from tests.simulation.folders import Folded
from tests.simulation.kafka_broker import Appended, EndedTransaction
from tests.simulation.kernel import Death, Violation
from tests.simulation.mysql_server import MySqlServer
from tests.simulation.mysql_state import Commit
from tests.simulation.operators import has_no_operator
from tests.simulation.prepared_server import PreparedServer
from tests.simulation.savepoint_laws import SavepointLaws
from tests.simulation.source import Item, Wal
from tests.simulation.state_laws import StateLaws
from tests.simulation.stream_laws import StreamLaws
from tests.simulation.two_phase import TwoPhaseCommit, TwoPhaseServer

PIPELINE = "orders"
S = CheckpointState
MAY_HAVE_BEEN_SENT = {S.COMMITTING, S.COMPLETED, S.QUARANTINED}
_EXPECTED = (TransientError, DeclinedError, NotDeliveredError, WalCorruptError)

Branched = MySqlServer | PreparedServer  # whose rows become visible branch by branch


class Laws:
    """Remembers what was seen, so that nothing can be taken back unnoticed."""

    def __init__(
        self,
        store: Any,
        servers: Mapping[str, Any],
        wal: Wal,
        rows: Mapping[str, int],
        sinks: Mapping[str, Iterable[str]],
        *,
        may_halt: bool,
        repeats: Iterable[str] = (),
        modes: Iterable[CheckpointingMode] = (),
        process: Callable[[], str] = lambda: "",
    ) -> None:
        """`repeats`: servers that may show rows twice. `modes`: of the runs; with AT_MOST_ONCE items may be lost.

        `process` names the one at work. Those in `may_set_aside` are people who have said so.
        """
        self.may_set_aside: set[str] = set()
        self._process = process
        self._aside: dict[tuple[str, str], set[Item]] = {}  # by server and sink: what markers say was set aside
        self._loses = CheckpointingMode.AT_MOST_ONCE in set(modes)
        self._is_lost_for_ever = set(modes) == {CheckpointingMode.AT_MOST_ONCE}
        self._lost: set[int] = set()  # items without which a gate has opened
        self._repeats = frozenset(repeats)
        self._sinks = sinks  # by server
        self._rows = rows  # of an item, by sink
        self._branches = BranchLaws()
        self._store = store
        self._servers = servers
        self._wal = wal
        self._may_halt = may_halt
        self._version = -1
        self._states: dict[int, S] = {}
        self.segments: dict[int, Segment] = {}
        self._plans: dict[int, Plan] = {}
        self._epoch = 0
        self._shown: dict[int, str] = {}  # item -> the variant that some sink shows
        self._delivered: dict[int, set[str]] = {}  # number -> the servers that show it
        self._was_by_hand = False
        self._quarantined = False  # some number was, once
        self.restored = False
        self.halted = False
        self.halted_by_hand = False  # until somebody settles it
        self.streams: StreamLaws | None = None
        self.states: StateLaws | None = None
        self.savepoints: SavepointLaws | None = None
        self.sources: Any = None  # `sources.Sources`, where they change

    # --- after every call -----------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Raises a Violation when a law does not hold."""
        if self._store.version != self._version:
            self._version = self._store.version
            self._look_at_the_store()
        if self.savepoints is not None:
            self.savepoints.watch()
        for name, server in self._servers.items():
            if server.commits:
                for commit in server.commits:
                    self._look_at(name, commit)
                server.commits.clear()

    @contextmanager
    def fenced(self, name: str, epoch: int) -> Iterator[None]:
        """I5: a write under an epoch that is over changes nothing."""
        version, current = self._store.version, self._current_epoch()
        yield
        if epoch < current and self._store.version != version:
            raise Violation("I5", f"{name} of epoch {epoch} changed the decision log, whose epoch is {current}")

    def decided(self, checkpoint: Checkpoint, counted: Mapping[str, int]) -> None:
        """R7: what a decision counted is what the decision log holds."""
        if checkpoint.state is S.COMMITTING and self._states.get(checkpoint.number) is S.PREPARED:
            stored = {name: vote.prepared for name, vote in checkpoint.votes.items()}
            if stored != dict(counted):
                raise Violation("I3", f"the decision on {checkpoint.number} counted {dict(counted)}, there is {stored}")

    def _current_epoch(self) -> int:
        try:
            return int(self._store.pipeline(PIPELINE).epoch)
        except UnknownPipelineError:
            return 0

    # --- the decision log -----------------------------------------------------------------------------------------

    def _look_at_the_store(self) -> None:
        try:
            pipeline = self._store.pipeline(PIPELINE)
        except UnknownPipelineError:
            return
        is_halted = pipeline.status is PipelineStatus.HALTED
        self.halted_by_hand = is_halted and pipeline.halt_reason is HaltReason.HEURISTIC_COMMIT and self._is_by_hand()
        if is_halted and not self.halted and not self.halted_by_hand:
            self.halted = True
            if not self._may_halt:
                raise Violation("I7", f"the pipeline was halted without cause: {pipeline.halt}")
        checkpoints = self._store.checkpoints(PIPELINE, 1000)
        for checkpoint in checkpoints:
            self._look_at_checkpoint(checkpoint)
        if self.savepoints is not None:
            self.savepoints.look_at(checkpoints, pipeline.next_number)
        if self.sources is not None:
            self.sources.look_at(checkpoints)
        base = pipeline.base if not self.restored else None
        if base is not None and not self._wal.has(base):
            raise Violation("I10", f"the state of the base {base} is gone")
        if self.states is not None:
            self.states.look_at(base)
        if self.streams is not None and not self.restored:
            self.streams.watch()

    def _look_at_checkpoint(self, checkpoint: Checkpoint) -> None:
        number, state = checkpoint.number, checkpoint.state
        before = self._states.get(number)
        if before is not state:
            if before is not None and not is_allowed(before, state):
                raise Violation("I3", f"checkpoint {number} went from {before} to {state}")
            self._states[number] = state
            if state is S.ABORTED and self._delivered.get(number) and not self.restored:
                raise Violation("I3", f"checkpoint {number} is ABORTED, and {self._delivered[number]} shows its rows")
            self._quarantined = self._quarantined or state is S.QUARANTINED
            if state is S.COMMITTING:
                self._look_at_decided(checkpoint)
            if state is S.COMPLETED:
                self._look_at_completed(checkpoint)
        if self.streams is not None:
            self.streams.expired(number, checkpoint.reason, self._delivered.get(number, set()))
        if checkpoint.segment is not None and self.segments.setdefault(number, checkpoint.segment) != (
            checkpoint.segment
        ):
            raise Violation("I1", f"the segment of checkpoint {number} was replaced")
        if checkpoint.plan is not None:
            self._plans[number] = checkpoint.plan
        # A restored log may name what was delivered and deleted since: the sinks know better, and halt it.
        segment = checkpoint.segment if checkpoint.is_undelivered and not self.restored else None
        if segment is not None and segment.location not in self._wal.segments:
            raise Violation("I10", f"the undelivered segment of checkpoint {number} was deleted")

    def _look_at_decided(self, checkpoint: Checkpoint) -> None:
        """R7: a decision counts branches that are there."""
        assert checkpoint.plan is not None
        for participant in checkpoint.plan.participants:
            server = self._servers[participant.name]
            if participant.promise is not Promise.TWO_PHASE or self.restored:
                continue
            if isinstance(server, Branched):
                self._branches.look_at_decided(participant.name, server, checkpoint)
            if not isinstance(server, TwoPhaseServer) or server.has_lost_branches:
                continue
            xid = checkpoint.votes[participant.name].notes.get("xid")
            if xid not in server.branches and checkpoint.number not in server.markers:
                raise Violation("I3", f"checkpoint {checkpoint.number} is decided, and branch {xid} is gone")

    def _look_at_completed(self, checkpoint: Checkpoint) -> None:
        assert checkpoint.plan is not None
        for participant in checkpoint.plan.participants:
            for sink in participant.sinks:
                visible = self._servers[participant.name].visible.get(sink, [])
                proof = checkpoint.votes[participant.name].proof
                aside = self._named(checkpoint.plan, participant.name, proof.detail if proof is not None else {})
                for item in self._items(checkpoint.plan, [sink]):
                    if (item[1] in visible) is (item in aside):
                        how = "has, and has set aside," if item in aside else "lacks"
                        what = f"checkpoint {checkpoint.number} is COMPLETED, and {participant.name} {how} {item[1]}"
                        raise Violation("I2", what)

    def _named(self, plan: Plan, server: str, detail: Mapping[str, Any]) -> list[tuple[str, Item]]:
        """The rows that a marker, or a proof, says were set aside; each was refused, and is in a file that it names."""
        found = []
        for sink, aside in read_detail(detail).items():
            segments = {segment.number: segment for segment in plan.segments}
            named = [
                row
                for number, _, start, stop in aside.places
                for row in self._wal.item(segments[number].digest).rows(segments[number].rows[sink])[start:stop]
            ]
            written = [row for uri in aside.files for row in self._wal.dead_letter_tables.get(uri, ())]
            if sorted(map(str, named)) != sorted(map(str, written)) or len(named) != aside.rows:
                raise Violation(
                    "I2", f"{server} has set aside {_rows_text(named)}, in its dead letters is {_rows_text(written)}"
                )
            if fit := [row for row in named if row.number not in self._servers[server].forbade or row.part < 2]:
                raise Violation("I2", f"{server} has set aside {_rows_text(fit)}, which nothing has refused")
            found += [(sink, row) for row in named]
        return found

    def _set_aside(self, plan: Plan, server: str, marker: Mapping[str, Any]) -> list[tuple[str, Item]]:
        """What a new marker says, which has to be a person's word unless branches have said so before."""
        found = self._named(plan, server, json.loads(marker.get("detail") or "{}"))
        for sink, row in found:
            known = self._aside.setdefault((server, sink), set())
            if row not in known and self._process().partition("~")[0] not in self.may_set_aside:
                raise Violation("I2", f"{self._process()} has set aside {row}, and no person has said so")
            known.add(row)
        return found

    def aside(self, server: str, sink: str, item: int) -> int:
        """How many rows of an item were set aside."""
        return sum(row.number == item for row in self._aside.get((server, sink), ()))

    def _items(self, plan: Plan, sinks: Iterable[str]) -> list[tuple[str, Item]]:
        return [
            (sink, row)
            for segment in plan.segments
            for sink in sinks
            for row in self._wal.item(segment.digest).rows(segment.rows.get(sink, 0))
        ]

    # --- the sinks ------------------------------------------------------------------------------------------------

    def _look_at(self, name: str, commit: Commit | EndedTransaction | Appended | TwoPhaseCommit | Folded) -> None:
        match commit:
            case Commit() if commit.taken_back:
                self._branches.taken_back(name, commit)
            case Commit():
                self._look_at_mysql(name, commit)
            case EndedTransaction():
                self._look_at_kafka(name, commit)
            case Appended():
                self._look_at_appended(name, commit)
            case TwoPhaseCommit():
                self._look_at_delivery(name, commit.number, commit.rows)
            case Folded() if commit.is_whole:
                self._look_at_delivery(name, commit.number, commit.rows)
            case Folded():
                self._look_at_some(name, commit)
        self._look_at_rows(name)

    def _look_at_mysql(self, name: str, commit: Commit) -> None:
        before, head = commit.head_before, commit.head
        if head is not None and before is not None and not self.restored and _rank(head) < _rank(before):
            raise Violation("I5", f"the head of {name} went back from {_rank(before)} to {_rank(head)}")
        delivered = [marker for marker in commit.markers if marker["kind"] == "committed"]
        for marker in commit.markers:
            if commit.branch is None and head is not None and _rank(marker) < _rank(head):
                raise Violation("I5", f"{name} took a marker of {_rank(marker)}, its head is at {_rank(head)}")
            if marker["kind"] == "aborted" and self._states.get(marker["number"]) in (S.COMMITTING, S.COMPLETED):
                raise Violation("I3", f"{name} got a tombstone of {marker['number']}, which is decided")
        if commit.pruned and head is not None and max(commit.pruned) > head["floor"]:
            raise Violation("I6", f"{name} has pruned the markers {commit.pruned}, its floor is {head['floor']}")
        if commit.rows and len(delivered) != 1:
            raise Violation("I6", f"{name} shows {_rows_text(commit.rows)} without a marker in the same transaction")
        for marker in delivered:
            number = marker["number"]
            plan = self._plans.get(number)
            if plan is None or plan.participant(name).strategy not in ("xa", "prepared"):
                aside = self._set_aside(plan, name, marker) if plan is not None else []
                self._look_at_delivery(name, number, (*commit.rows, *aside))
                continue
            by_hand = (number, marker["branch"]) in self._servers[name].branches.by_hand
            if not by_hand:
                self._require_decided(name, plan)
            if commit.branch is not None and not self.restored and not by_hand:
                self._branches.look_at_prepared(name, commit.branch, self._store.checkpoint(PIPELINE, number))
            planned = self._items(plan, plan.participant(name).sinks)
            aside = self._set_aside(plan, name, marker)
            self._branches.look_at(name, plan, planned, marker, commit, aside, by_hand=by_hand)

    def _look_at_kafka(self, name: str, commit: EndedTransaction) -> None:
        if commit.token is None:
            raise Violation("I6", f"{name} shows {_rows_text(commit.records)} without a token")
        token = parse(*commit.token)
        before = parse(*commit.before) if commit.before is not None else None
        if before is not None and not self.restored and token.rank < before.rank:
            raise Violation("I5", f"the token of {name} went back from {before.rank} to {token.rank}")
        if before is not None and not self.restored and token.number < before.number:
            raise Violation("I6", f"the token of {name} went back from {before.number} to {token.number}")
        if commit.records or (before is not None and token.number > before.number and token.history):
            slot, slots = int(commit.name.rpartition(".")[2]), token.slots
            self._look_at_delivery(name, token.number, commit.records, slot, slots)

    def _look_at_appended(self, name: str, commit: Appended) -> None:
        """I3: also what may come twice is decided before."""
        decided = [plan for number, plan in self._plans.items() if self._states[number] in MAY_HAVE_BEEN_SENT]
        planned = {row for plan in decided for row in self._items(plan, plan.participant(name).sinks)}
        if self.restored:
            return
        if name not in self._repeats or not set(commit.records) <= planned:
            raise Violation("I3", f"{name} shows {_rows_text(commit.records)}, which is not all decided")

    def _look_at_delivery(
        self, name: str, number: int, rows: tuple[tuple[str, Item], ...], slot: int = 0, slots: int = 1
    ) -> None:
        plan = self._plans.get(number)
        if plan is None:
            raise Violation("I6", f"{name} delivered {number}, which has no plan")
        expected = self._items(plan, plan.participant(name).sinks)[slot::slots]
        if sorted(map(str, expected)) != sorted(map(str, rows)):
            raise Violation(
                "I2", f"{name} delivered {_rows_text(rows)} under number {number}; planned is {_rows_text(expected)}"
            )
        self._require_decided(name, plan)

    def _look_at_some(self, name: str, commit: Folded) -> None:
        plan = self._plans.get(commit.number)
        planned = self._items(plan, plan.participant(name).sinks) if plan is not None else []
        if plan is None or not set(commit.rows) <= set(planned):
            raise Violation(
                "I2", f"{name} shows {_rows_text(commit.rows)} under number {commit.number}; planned is {planned}"
            )
        self._require_decided(name, plan)

    def _require_decided(self, name: str, plan: Plan) -> None:
        """I3: nothing is visible before the decision, or the sink's own transaction is the decision."""
        number = plan.number
        state = self._states.get(number)
        wanted = S.PREPARED if plan.commit_point == name else S.COMMITTING
        server = self._servers[name]
        came_back = state is S.COMPLETED and isinstance(server, Branched) and server.branches.came_back
        if state is S.QUARANTINED:  # a process that was at it may come late
            decided = self._store.checkpoint(PIPELINE, number).decided_at is not None
            state = S.COMMITTING if decided else S.PREPARED
        if state is not wanted and not came_back and not self.restored:
            raise Violation("I3", f"{name} shows checkpoint {number} while it is {state}")
        self._delivered.setdefault(number, set()).add(name)

    def _look_at_rows(self, name: str) -> None:
        for sink, visible in self._visible(name):
            behind = 0
            if self.savepoints is not None:
                visible, behind = self.savepoints.since(name, sink, visible), self.savepoints.behind
            if self._rows[sink] > 1:
                self._look_at_parts(name, sink, visible)
                continue
            if self._loses:
                self._look_at_gaps(name, sink, visible)
                continue
            if self.states is not None:
                self.states.look_at_rows(visible, self._shown, f"{name} has {_rows_text(visible)} in {sink}, and")
                continue
            for place, item in enumerate(visible, behind + 1):
                if item.number < place:
                    raise Violation("I2", f"{name} shows item {item.number} twice in {sink}: {_rows_text(visible)}")
                if item.number > place:
                    raise Violation("I4", f"{name} shows {item} without what comes before it: {_rows_text(visible)}")
                if item.parent != self._shown.get(place - 1, ""):
                    raise Violation("I1", f"{name} shows {item}, computed on {item.parent}: {_rows_text(visible)}")
                if self._shown.setdefault(item.number, item.variant) != item.variant:
                    raise Violation("I3", f"{name} shows {item}, another sink {self._shown[item.number]}")

    def _is_by_hand(self) -> bool:
        """Whether somebody has committed branches by hand, at any time."""
        found = any(isinstance(each, Branched) and each.branches.by_hand for each in self._servers.values())
        self._was_by_hand = self._was_by_hand or found
        return self._was_by_hand

    def taken_out(self, name: str, plan: Plan) -> None:
        """Somebody has deleted what was committed by hand of an ABORTED number, whose rows come anew."""
        visible = self._servers[name].visible
        for sink, row in self._items(plan, plan.participant(name).sinks):
            if row in visible.get(sink, []):
                visible[sink].remove(row)
            self._shown.pop(row.number, None)
        self._branches.taken_out(name, plan.number)

    def _visible(self, name: str) -> list[tuple[str, list[Item]]]:
        """What a server shows, by sink; once each, where it may show it twice."""
        shown = self._servers[name].visible
        return [(sink, list(dict.fromkeys(rows)) if name in self._repeats else rows) for sink, rows in shown.items()]

    def rows(self) -> Iterator[tuple[str, str, int]]:
        """How many are visible, by server and sink."""
        for name in self._servers:
            for sink, visible in self._visible(name):
                yield name, sink, len(visible)

    def continues_after(self, item: int, variant: str) -> None:
        """A savepoint was restored: what comes from here on is computed on that one."""
        self._shown = {item: variant}

    def _look_at_gaps(self, name: str, sink: str, visible: list[Item]) -> None:
        """Items may lack; what is there is computed on what an attempt had before it, or on nothing."""
        for place, item in enumerate(visible):
            before = visible[place - 1] if place else None
            if before is not None and item.number <= before.number:
                raise Violation(
                    "I2", f"{name} shows item {item.number} twice, or late, in {sink}: {_rows_text(visible)}"
                )
            if item.parent and (before is None or (before.number, before.variant) != (item.number - 1, item.parent)):
                raise Violation("I1", f"{name} shows {item}, computed on {item.parent}: {_rows_text(visible)}")
            if self._shown.setdefault(item.number, item.variant) != item.variant:
                raise Violation("I3", f"{name} shows {item}, another sink {self._shown[item.number]}")
            if item.number in self._lost:
                raise Violation("I9", f"{name} shows {item}, for which a gate has not waited")

    def _kept(self) -> set[int]:
        """Items that were published, and not given up since."""
        return {
            item
            for number, item in self.published().items()
            if self._store.checkpoint(PIPELINE, number).after_abort is not AfterAbort.REWOUND
        }

    def _look_at_parts(self, name: str, sink: str, visible: list[Item]) -> None:
        """Rows of a number may come in any order; `BranchLaws` sees to the order of numbers."""
        if len({(item.number, item.part) for item in visible}) < len(visible):
            raise Violation("I2", f"{name} shows a row twice in {sink}: {_rows_text(visible)}")
        aside = {(item.number, item.part) for item in self._aside.get((name, sink), ())}
        if both := [item for item in visible if (item.number, item.part) in aside]:
            raise Violation("I2", f"{name} shows {_rows_text(both)} in {sink}, which it has set aside")
        for item in visible:
            if self._shown.setdefault(item.number, item.variant) != item.variant:
                raise Violation(
                    "I3", f"{name} shows {item}, there is {self._shown[item.number]}: {_rows_text(visible)}"
                )
            parent = self._shown.get(item.number - 1, item.parent)
            if item.parent != (self.states.parent_of(item, parent) if self.states is not None else parent):
                raise Violation("I1", f"{name} shows {item}, computed on {item.parent}: {_rows_text(visible)}")

    # --- what processes report ------------------------------------------------------------------------------------

    def check_error(self, process: str, error: BaseException | None) -> None:
        """A process may end by its death, by an error that a retry can mend, or by one that the scenario allows."""
        if error is None or isinstance(error, (Death, *_EXPECTED)):
            return
        if isinstance(error, UnknownPipelineError) and not self._states:
            return  # nobody got as far as to register it
        if isinstance(error, (HaltError, PipelineHaltedError)) and (self._may_halt or self._is_by_hand()):
            return
        if isinstance(error, QuarantinedError) and self._quarantined:
            return
        if self.states is not None and self.states.is_refusal(error):
            return
        if self.savepoints is not None and has_no_operator(error):
            return
        law = "I7" if isinstance(error, AirflowFtError) else "-"
        raise Violation(law, f"{process} ended with {type(error).__name__}: {error}") from error

    def gate_opened(self, run: RunKey, items: int, confirmation: Confirmation) -> None:
        """I9: what stands behind the group starts now, so everything of the run is visible in every sink."""
        for checkpoint in self._store.run_checkpoints(PIPELINE, run):
            item = self._wal.item(checkpoint.segment.digest) if checkpoint.segment is not None else None
            if item is not None and item.number and checkpoint.number in confirmation.confirmed.numbers.newest:
                self.require_visible(item.number, f"the gate of {run} opened")
        for number in range(1, items + 1):
            self.require_visible(number, f"the gate of {run} opened")
        for checkpoint in self._store.run_checkpoints(PIPELINE, run):
            if checkpoint.state is S.QUARANTINED:
                raise Violation("I9", f"the gate of {run} opened, and {checkpoint.number} is QUARANTINED")

    def published(self) -> Mapping[int, int]:
        """The item of each number that was ever published."""
        found = {number: self._wal.item(segment.digest).number for number, segment in self.segments.items()}
        return {number: item for number, item in found.items() if item}

    def is_visible(self, item: int) -> bool:
        """In every sink."""
        return all(
            any(row.number == item for row in self._servers[name].visible.get(sink, [])) or self.aside(name, sink, item)
            for name, sinks in self._sinks.items()
            for sink in sinks
        )

    def require_visible(self, item: int, when: str) -> None:
        if self.states is not None and item in self.states.dropped:
            return
        if self._loses and item not in self._kept():
            if self._is_lost_for_ever:
                self._lost.add(item)
            return
        for name, sinks in self._sinks.items():
            for sink in sinks:
                visible = [shown for shown in self._servers[name].visible.get(sink, []) if shown.number == item]
                if len(visible) + self.aside(name, sink, item) < self._rows[sink]:
                    raise Violation("I9", f"{when}, and {name} lacks item {item}")

    def store_restored(self) -> None:
        """Somebody has put an older backup of the decision log in place."""
        self.restored = True
        self._version = -1
        self._states.clear()
        self.segments.clear()

    def at_the_end(self, items: int, confirmed: bool) -> None:
        """I7 and I10: everything could be reached again, so every item is in every sink, and nothing is in doubt."""
        if self.halted or (self.restored and not confirmed):
            return  # a person has to act, and knows
        if not confirmed:
            raise Violation("I7", "the last run, which met no fault, was not confirmed")
        for name, server in self._servers.items():
            for sink, visible in server.visible.items():
                found = sorted(item.number for item in (set(visible) if name in self._repeats else visible))
                all_of_them = sorted(self._kept()) if self._loses else list(range(1, items + 1))
                if self.states is not None and not self._loses:
                    all_of_them = sorted(self.states.all_that_comes(items))
                    found = sorted(found if self._rows[sink] > 1 else set(found))  # twice, where it may be
                if self.savepoints is not None and self.states is None:
                    all_of_them = self.savepoints.all_that_comes(items)
                found = sorted(found + [item.number for item in self._aside.get((name, sink), ())])
                if found != [item for item in all_of_them for _ in range(self._rows[sink])]:
                    raise Violation("I10", f"{name} shows {_rows_text(visible)} in {sink}; there are {items} items")
            if isinstance(server, TwoPhaseServer) and server.branches:
                raise Violation("I7", f"{name} still holds the prepared branches {sorted(server.branches)}")
            if isinstance(server, Branched) and any(branch.number for branch in server.branches.names()):
                raise Violation("I7", f"{name} still holds {', '.join(map(str, server.branches.names()))}")
        for checkpoint in self._store.checkpoints(PIPELINE, 1000):
            if not checkpoint.is_settled or checkpoint.rollback_pending:
                raise Violation("I7", f"checkpoint {checkpoint.number} is left {checkpoint.state}")
            by_hand = (each.branches.by_hand for each in self._servers.values() if isinstance(each, Branched))
            if checkpoint.state is S.ABORTED and any(checkpoint.number in dict(branches) for branches in by_hand):
                raise Violation("I3", f"checkpoint {checkpoint.number} is ABORTED, and was committed by hand")
        if self.streams is not None:
            self.streams.at_the_end()
        if self.states is not None:
            self.states.at_the_end()
        if self.savepoints is not None:
            self.savepoints.at_the_end()


def _rank(row: Mapping[str, Any]) -> tuple[int, int]:
    return (row["epoch"], row["attempt"])


def _rows_text(rows: Iterable[Any]) -> str:
    return "[" + ", ".join(str(row[1] if isinstance(row, tuple) else row) for row in rows) + "]"
