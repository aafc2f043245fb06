"""The reading part of the model of the decision log (see `model_store`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from airflow_ft.protocol.confirmed import Confirmed
from airflow_ft.protocol.model import AfterAbort, Checkpoint, CheckpointState, RunKey, SparkPosition
from airflow_ft.protocol.numbers import Numbers
from airflow_ft.protocol.pipelines import Event, Filling, Pipeline, Request
from airflow_ft.protocol.planning import live_plans, quarantined
from airflow_ft.protocol.set_aside import of_checkpoint, together
from airflow_ft.store.errors import UnknownCheckpointError, UnknownPipelineError

S = CheckpointState
TOLD: Mapping[str, Sequence[str]] = {
    "REQUESTED": ("id",),
    "ANSWERED": ("id",),
    "TURN": ("dag_id", "run_id", "has_turn"),
    "STAGED": (),
    "ATTEMPT": ("participant",),
    "VOTED": ("participant",),
    "STATE_RESET": ("state", "open"),
    "RESTORED": (),
    "SAVEPOINT": ("uri", "request"),
}
"""Kinds of events that the product reads, with the details that it uses."""
_UNFINISHED = frozenset({S.TRIGGERED, S.STAGED, S.PREPARED, S.COMMITTING, S.QUARANTINED})


class ModelReading:
    """What `airflow_ft.store.decision_log.DecisionLog` reads of checkpoints."""

    _pipeline: Pipeline | None
    _rows: dict[int, Checkpoint]
    _events: tuple[Event, ...]  # newest first
    _requests: dict[int, Request]
    _pruned: frozenset[int]
    _delivered: dict[str, int]
    _counted: tuple[tuple[int, int, RunKey], ...]
    _origin: SparkPosition | None  # the savepoint with which it began

    def _known(self, pipeline: str) -> Pipeline:
        if self._pipeline is None:
            raise UnknownPipelineError(pipeline)
        return self._pipeline

    def _row(self, number: int) -> Checkpoint:
        row = self._rows.get(number)
        if row is None:
            raise UnknownCheckpointError("orders", number)
        return row

    def checkpoint(self, pipeline: str, number: int) -> Checkpoint:
        self._known(pipeline)
        return self._row(number)

    def checkpoints(self, pipeline: str, limit: int = 100, before: int | None = None) -> Sequence[Checkpoint]:
        self._known(pipeline)
        return [row for row in reversed(self._rows.values()) if before is None or row.number < before][:limit]

    def newest_position(self, pipeline: str) -> Checkpoint | None:
        self._known(pipeline)
        live = (row for row in reversed(self._rows.values()) if row.after_abort is not AfterAbort.REWOUND)
        return next((row for row in live if row.positions and row.segment is not None), None)

    def open_checkpoints(self, pipeline: str, ahead_of: tuple[int, str] | None = None) -> Sequence[Checkpoint]:
        self._known(pipeline)
        if ahead_of is None:
            return [row for row in self._rows.values() if _is_open(row)]
        number, participant = ahead_of
        earlier = [row for row in self._rows.values() if row.number < number and row.plan is not None]
        return [
            row
            for row in sorted([*live_plans(earlier), *quarantined(earlier)], key=lambda row: row.number)
            if row.state is not S.COMMITTING or row.proof_of(participant) is None
        ]

    def unsettled(
        self, pipeline: str, *, run: RunKey | None = None, through: int | None = None, limit: int = 100
    ) -> Sequence[Checkpoint]:
        self._known(pipeline)
        return [
            row
            for row in self._rows.values()
            if not row.is_settled and run in (None, row.run) and (through is None or row.number <= through)
        ][:limit]

    def planned_before(self, pipeline: str, number: int) -> Checkpoint | None:
        self._known(pipeline)
        live = live_plans(row for row in self._rows.values() if row.number < number)
        return live[-1] if live else None

    def first_unproven(self, pipeline: str, number: int, participant: str) -> Checkpoint | None:
        self._known(pipeline)
        opened = [row for row in self._rows.values() if row.number <= number and _is_open(row)]
        asked = [row for row in [*live_plans(opened), *quarantined(opened)] if participant in row.votes]
        unproven = [row for row in asked if row.proof_of(participant) is None]
        return min(unproven, key=lambda row: row.number, default=None)

    def fillings(self, pipeline: str) -> Sequence[Filling]:
        """Pipelines of the model share nothing."""
        self._known(pipeline)
        return []

    def undelivered(self, pipeline: str) -> int:
        self._known(pipeline)
        return sum(row.is_undelivered for row in self._rows.values())

    def run_checkpoints(self, pipeline: str, run: RunKey, newest: int = 1000) -> Sequence[Checkpoint]:
        self._known(pipeline)
        return [row for row in self._rows.values() if row.run == run][-newest:]

    def last_published(self, pipeline: str, run: RunKey) -> int:
        own = self.run_checkpoints(pipeline, run)
        return max((row.number for row in own if row.segment and row.after_abort is not AfterAbort.REWOUND), default=0)

    def confirmed(self, pipeline: str, run: RunKey) -> Confirmed:
        return self._total(run, [row for row in self.run_checkpoints(pipeline, run) if row.is_confirmed])

    def counted(self, pipeline: str, run: RunKey) -> Confirmed:
        self._known(pipeline)
        ranges = [(above, through) for above, through, of in self._counted if of == run]
        found = (
            row
            for number, row in sorted(self._rows.items())
            if row.is_confirmed and any(above < number <= through for above, through in ranges)
        )
        return self._total(run, list(found))

    def _total(self, run: RunKey, own: list[Checkpoint]) -> Confirmed:
        deliveries = sorted({row.delivered_by for row in own if row.delivered_by is not None})
        rows = Counter[str]()
        for row in own:
            rows.update(row.segment.rows if row.segment else {})
        return Confirmed(
            Numbers.of(row.number for row in own),
            dict(rows),
            together(of_checkpoint(self._rows[number]) for number in deliveries),
            Numbers.of(row.number for row in own if row.run != run),
            sum(row.segment.total_rows for row in own if row.run != run and row.segment),
        )

    def proven(self, pipeline: str, run: RunKey, participant: str, newest: int = 1000) -> Sequence[int]:
        own = self.run_checkpoints(pipeline, run, newest)
        return [row.number for row in own if (vote := row.votes.get(participant)) is not None and vote.proof]

    def forget_events(self, pipeline: str, keep: int, limit: int) -> int:
        """The model keeps no words."""
        self._known(pipeline)
        return 0

    def prunable(self, pipeline: str, retain: int, limit: int) -> Sequence[Checkpoint]:
        self._known(pipeline)
        delivered = [row.number for row in self._rows.values() if row.delivered_by is not None]
        if retain > len(delivered):
            return []
        cutoff = delivered[-retain] if retain else 2**62
        return [
            row
            for row in self._rows.values()
            if row.segment is not None and row.finalised and row.number not in self._pruned
            if row.delivered_by is not None and row.delivered_by < cutoff
        ][:limit]

    def position_before(self, pipeline: str, number: int) -> SparkPosition | None:
        self._known(pipeline)
        for row in reversed(self._rows.values()):
            if row.number < number and row.position is not None and row.after_abort is not AfterAbort.REWOUND:
                return row.position
        return self._origin

    def referenced_locations(self, pipeline: str) -> frozenset[str]:
        known = self._known(pipeline)
        found = {known.base.location} if known.base is not None else set()
        for row in self._rows.values():
            if row.number not in self._pruned and row.after_abort is not AfterAbort.REWOUND:
                found |= {row.segment.location} if row.segment is not None else set()
                found |= {row.position.location} if row.position is not None else set()
        delivered = [row for row in self._rows.values() if row.delivered_by is not None and row.position is not None]
        found |= {row.position.location for row in delivered[-1:] if row.position is not None}
        if not delivered and self._origin is not None:
            found.add(self._origin.location)
        return frozenset(found)

    def left_positions(self, pipeline: str) -> None:
        """No schedule has positions of a program."""
        self._known(pipeline)

    def latest_confirmed(self, pipeline: str) -> Checkpoint | None:
        self._known(pipeline)
        return next((row for row in reversed(self._rows.values()) if row.state is S.COMPLETED), None)

    def events(
        self, pipeline: str, number: int | None = None, limit: int = 100, *, kinds: Collection[str] = ()
    ) -> Sequence[Event]:
        """Return events, newest first: those of `TOLD` as the real log has them, others without details."""
        self._known(pipeline)
        found = [event for event in self._events if number in (None, event.number)]
        return [event for event in found if not kinds or event.kind in kinds][:limit]

    def last_delivered(self, pipeline: str, participant: str) -> int:
        self._known(pipeline)
        return self._delivered.get(participant, 0)


def _is_open(row: Checkpoint) -> bool:
    if row.state in _UNFINISHED or row.rollback_pending or row.is_undelivered:
        return True
    return row.state is S.COMPLETED and not row.finalised
