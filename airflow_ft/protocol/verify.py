"""Compare the write-ahead log with the rows in the sinks, and only report differences (`airflow ft verify`).

A sink package provides `verify.verify(delivered, plan, connection, wal)`, which returns a `SinkReport` for
each target. It compares rows as multisets, limited to the delivered columns. It compares everything that went into one
target together, even with different plans; otherwise an equal row of another checkpoint would hide a loss. Other rows
in a table or topic are no difference. Missing rows are one, and so are rows that occur more often than they were
delivered. Rows that a person set aside are not expected. Delivery never depends on this check: others may rightly have
changed or deleted rows since.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from airflow_ft.protocol.decision_log import QueryLog
from airflow_ft.protocol.earlier_proofs import earlier_proofs, proof_of
from airflow_ft.protocol.errors import AirflowFtError, ConfigurationError, WalCorruptError
from airflow_ft.protocol.model import Checkpoint, CheckpointState, ParticipantPlan, Plan
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.overview import Only
from airflow_ft.protocol.participant import Expiring, ParticipantFactory
from airflow_ft.protocol.set_aside import of_proof
from airflow_ft.protocol.transitions import MAY_BE_VISIBLE
from airflow_ft.protocol.votes import Proof

log = logging.getLogger(__name__)

PAGE = 1000
"""Completed checkpoints that are read from the decision log at once."""
_Key = tuple[str, str]  # name and kind of a participant
SAMPLES = 3
"""Most rows of a difference that are shown."""


def sample(row: Iterable[object]) -> str:
    """A row as it is shown in a difference: its values, shortened."""
    text = ", ".join(map(str, row))
    return text if len(text) <= 120 else f"{text[:117]}..."


@dataclass(frozen=True, slots=True)
class Delivered:
    """A planned number and what proves its delivery to one participant (None: not proven).

    `before` is the proof of the participant's predecessor: where its part of a log begins. `earlier` returns the proofs
    of deliveries before that one, newest first, as far as they are looked at. `others`: the participant's
    plans from the first compared number on. They may have changed the same rows since. Consecutive plans with equal
    settings are listed once. `newest`, `newest_other`: the highest number that the participant may have delivered, and
    the highest of those that are not compared; 0: none.
    """

    plan: Plan
    proof: Proof | None
    before: Proof | None
    others: tuple[ParticipantPlan, ...] = ()
    newest: int = 0
    newest_other: int = 0
    earlier: Callable[[], Iterable[Proof]] = field(default=tuple, compare=False)


Sent = tuple[Delivered, str]
"""A delivery to one of a participant's sinks, by its name."""


def by_target(
    delivered: Iterable[Delivered], participant: str, target: Callable[[Mapping[str, Any]], str]
) -> dict[str, list[Sent]]:
    """Return what went into one target, under any names of its sinks; `target` names it by a sink's settings."""
    sent: dict[str, list[Sent]] = {}
    for each in delivered:
        for name, given in each.plan.participant(participant).sinks.items():
            sent.setdefault(target(given), []).append((each, name))
    return sent


def once(sent: Iterable[Sent]) -> list[Delivered]:
    """Return the deliveries, each once."""
    return list({each.plan.number: each for each, _ in sent}.values())


@dataclass(frozen=True, slots=True)
class Difference:
    """Rows of one file of the log that the sink lacks; `samples` are some of them, shortened."""

    number: int
    file: str
    rows: int
    samples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SinkReport:
    """One sink over all compared numbers.

    `expected` rows are in the log; `missing` of them are not in the sink. `repeated` counts surplus copies of
    delivered rows, `other` rows that equal none (None: not counted). `set_aside` rows of the log were refused, and are
    not expected. `error` says why nothing could be compared; `error_code` is its stable code.
    """

    participant: str
    sink: str
    target: str
    numbers: tuple[int, ...]
    expected: int
    missing: int = 0
    repeated: int = 0
    other: int | None = None
    differences: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()
    error: str = ""
    error_code: str = ""
    set_aside: int = 0

    @classmethod
    def begun(cls, participant: str, sinks: Iterable[str], target: str, delivered: Sequence[Delivered]) -> SinkReport:
        """Return an empty report for these deliveries into a target, before any comparison."""
        names = list(dict.fromkeys(sinks))
        return cls(
            participant,
            ", ".join(names),
            target,
            tuple(each.plan.number for each in delivered),
            sum(expected_rows(delivered, name) for name in names),
            set_aside=sum(set_aside_rows(delivered, name) for name in names),
        )

    @property
    def is_complete(self) -> bool:
        """Everything was compared, and every row is there."""
        return not self.missing and not self.error

    @property
    def is_exact(self) -> bool:
        """And none is there more often than it was delivered."""
        return self.is_complete and not self.repeated

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Target:
    """Deliveries into one target, under any names of a participant's sinks, and the report on them so far."""

    sent: Sequence[Sent]
    report: SinkReport

    @property
    def delivered(self) -> list[Delivered]:
        """Return the deliveries, each once."""
        return once(self.sent)

    @property
    def plan(self) -> ParticipantPlan:
        """Return the newest plan of the participant."""
        return self.sent[-1][0].plan.participant(self.report.participant)

    @property
    def name(self) -> str:
        """Return the sink that delivered last."""
        return self.sent[-1][1]


def targets(
    delivered: Iterable[Delivered], participant: str, target: Callable[[Mapping[str, Any]], str]
) -> Iterator[Target]:
    """Yield each target, with an empty report; `target` names it by a sink's settings."""
    for name, sent in by_target(delivered, participant, target).items():
        yield Target(sent, SinkReport.begun(participant, (sink for _, sink in sent), name, once(sent)))


Verifier = Callable[[Sequence[Delivered], ParticipantPlan], Sequence[SinkReport]]
"""Compares what was delivered to one participant; the plan is that of the newest."""


def verify(
    store: QueryLog,
    pipeline: str,
    verifier: Verifier,
    numbers: Iterable[int] = (),
    place: Callable[[ParticipantPlan, str], str] = lambda plan, sink: "",
) -> list[SinkReport]:
    """Compares these numbers, or all COMPLETED ones whose rows are still in the log, sink by sink.

    `place` names the table, topic or folder of a sink, for a participant that cannot be read. Such a participant is a
    report with its error; the others are compared anyway. Numbers that a run prunes meanwhile are left out.
    ConfigurationError for a number that cannot be compared.
    """
    asked = _asked_for(store, pipeline, sorted(set(numbers)))
    reports: list[SinkReport] = []
    for (name, kind), delivered in _by_participant(store, pipeline, asked or _still_there(store, pipeline)).items():
        try:
            reports += _compared_beside(store, pipeline, verifier, delivered, (name, kind), asked)
        except AirflowFtError as error:
            plans = (each.plan.participant(name) for each in delivered)
            sinks = {sink: place(plan, sink) for plan in plans for sink in plan.sinks}
            numbers, text, code = tuple(each.plan.number for each in delivered), str(error), error.code
            reports += [
                SinkReport(name, sink, target, numbers, expected_rows(delivered, sink), error=text, error_code=code)
                for sink, target in sinks.items()
            ]
    return reports


def lost_and_pruned(store: QueryLog, pipeline: str, participants: ParticipantFactory) -> list[SinkReport]:
    """Return a report for each sink that has lost checkpoints whose rows are pruned, so that no comparison finds them.

    The sink's last number is behind the newest delivered one: it was restored from a backup, or failed over.
    """
    newest = next(iter(store.checkpoints(pipeline, 1, None, Only.COMPLETED)), None)
    if newest is None or newest.plan is None:
        return []
    there = [plan for each in _still_there(store, pipeline) if each.plan for plan in each.plan.participants]
    reports = []
    for plan in newest.plan.participants:
        with suppress(AirflowFtError), closing(participants(plan)) as sink:  # `verify` reports unreachable sinks
            if not plan.keeps_markers or isinstance(sink, Expiring):
                continue
            # The number before its first compared one: it may have joined late, or been left out for a time.
            before = (each.predecessor for each in there if (each.name, each.kind) == (plan.name, plan.kind))
            last, head = next(before, newest.number), sink.head(pipeline)
            reached = 0 if head is None else head.number
            if reached < last and (head is None or head.installation == store.installation):
                numbers = (last,) if head is None else (reached + 1, last)
                after = "" if head is None else f"after {reached}, "
                what = (
                    f"the sink has lost checkpoints {after}up to {last}, which were delivered. The write-ahead log no"
                    " longer has their rows (num_retained)."
                )
                error = _refusal(pipeline, numbers[0], "rows_pruned", what)
                error.remedy = "See 'A sink or the log comes from a backup' in docs/recovery.md."
                sinks = ", ".join(plan.sinks)
                reports.append(SinkReport(plan.name, sinks, "", numbers, 0, error=str(error), error_code=error.code))
    return reports


def _compared_beside(
    store: QueryLog,
    pipeline: str,
    verifier: Verifier,
    delivered: Sequence[Delivered],
    key: _Key,
    asked: Sequence[Checkpoint],
) -> Sequence[SinkReport]:
    """Compare, and once more if a sink differs and a newer checkpoint was delivered meanwhile.

    That checkpoint may have changed keys of the sink. `asked`: the checkpoints that a person names, if any.
    """
    for is_first in (True, False):
        found = _compared(store, pipeline, verifier, delivered, key[0])
        if all(report.is_complete for report in found):
            break
        before = delivered[-1].newest
        delivered = _by_participant(store, pipeline, asked or _still_there(store, pipeline)).get(key, delivered)
        if (newest := delivered[-1].newest) == before:
            break
        if not is_first:
            note = (
                f"checkpoint {newest} was delivered during the comparison. If the sink writes by key, rows that this"
                " checkpoint changed count as missing. Stop the pipeline, then run this command again"
            )
            return [each if each.is_complete else replace(each, notes=(*each.notes, note)) for each in found]
    return found


def _compared(
    store: QueryLog, pipeline: str, verifier: Verifier, delivered: Sequence[Delivered], participant: str
) -> Sequence[SinkReport]:
    try:
        return verifier(delivered, delivered[-1].plan.participant(participant))
    except WalCorruptError:
        there = store.referenced_locations(pipeline)
        left = [each for each in delivered if _has_rows(each.plan, there)]
        if len(left) == len(delivered):
            raise
        if not left:
            what = "its rows were pruned while they were compared (num_retained)."
            raise _refusal(pipeline, delivered[-1].plan.number, "checkpoint_pruned", what) from None
        log.info("pruned meanwhile: %d of %s", len(delivered) - len(left), count_text(len(delivered), "checkpoint"))
    return _compared(store, pipeline, verifier, left, participant)


def expected_rows(delivered: Iterable[Delivered], sink: str) -> int:
    """Rows of one sink in these plans, without those that were set aside."""
    delivered = list(delivered)
    rows = sum(segment.rows.get(sink, 0) for each in delivered for segment in each.plan.segments)
    return rows - set_aside_rows(delivered, sink)


def set_aside_rows(delivered: Iterable[Delivered], sink: str) -> int:
    """Rows of one sink that were set aside, as the proofs say."""
    return sum(aside.rows for each in delivered for name, aside in of_proof(each.proof).items() if name == sink)


def _asked_for(store: QueryLog, pipeline: str, numbers: Sequence[int]) -> list[Checkpoint]:
    found = []
    there = store.referenced_locations(pipeline) if numbers else frozenset()
    for number in numbers:
        try:
            checkpoint = store.checkpoint(pipeline, number)
        except KeyError:
            what = "the pipeline has no checkpoint of this number."
            raise _refusal(pipeline, number, "checkpoint_unknown", what) from None
        if checkpoint.delivered_by not in (None, number):
            what = f"checkpoint {checkpoint.delivered_by} delivered its rows. Compare that one."
            raise _refusal(pipeline, number, "action_refused", what, delivered_by=checkpoint.delivered_by)
        if checkpoint.state is not CheckpointState.COMPLETED and checkpoint.state not in MAY_BE_VISIBLE:
            what = f"it is {checkpoint.state}. No sink has received its rows under this number."
            raise _refusal(pipeline, number, "action_refused", what, state=checkpoint.state.value)
        if not _is_there(checkpoint, there):
            what = "its rows were pruned (num_retained), so there is nothing to compare."
            raise _refusal(pipeline, number, "checkpoint_pruned", what)
        found.append(checkpoint)
    return found


def _still_there(store: QueryLog, pipeline: str) -> list[Checkpoint]:
    there = store.referenced_locations(pipeline)
    found: list[Checkpoint] = []
    before = None
    while page := store.checkpoints(pipeline, PAGE, before, Only.COMPLETED):
        kept = [each for each in page if _is_there(each, there)]
        if not kept:  # the oldest are pruned first
            break
        found += kept
        before = page[-1].number
    return found[::-1]


def _is_there(checkpoint: Checkpoint, there: frozenset[str]) -> bool:
    return checkpoint.plan is not None and _has_rows(checkpoint.plan, there)


def _has_rows(plan: Plan, there: frozenset[str]) -> bool:
    return all(segment.location in there for segment in plan.segments)


def _by_participant(store: QueryLog, pipeline: str, checkpoints: Sequence[Checkpoint]) -> dict[_Key, list[Delivered]]:
    """Group by participant: all rows of one target are compared together, also those of different plans."""
    groups: dict[_Key, list[Delivered]] = {}
    others = _others(store, pipeline, [each.number for each in checkpoints])
    for checkpoint in checkpoints:
        assert checkpoint.plan is not None  # `_is_there`
        for plan in checkpoint.plan.participants:
            key = (plan.name, plan.kind)
            before = proof_of(store, pipeline, plan.predecessor, plan.name)
            earlier = partial(earlier_proofs, store, pipeline, plan.predecessor, plan.name)
            more = others.get(key, _Others())
            proof, plans = checkpoint.proof_of(plan.name), tuple(more.plans)
            found = Delivered(checkpoint.plan, proof, before, plans, more.newest, more.newest_other, earlier)
            groups.setdefault(key, []).append(found)
    return groups


@dataclass
class _Others:
    """Deliveries of a participant: see `Delivered`."""

    plans: list[ParticipantPlan] = field(default_factory=list)
    newest: int = 0
    newest_other: int = 0


def _others(store: QueryLog, pipeline: str, compared: Sequence[int]) -> dict[_Key, _Others]:
    """Return what each participant may have delivered from the first compared number on."""
    found: dict[_Key, _Others] = {}
    first, those = min(compared, default=0), frozenset(compared)
    before, limit = None, min(PAGE, store.pipeline(pipeline).next_number - first)
    while page := store.checkpoints(pipeline, limit, before):
        for each in page:
            is_visible = each.state is CheckpointState.COMPLETED or each.state in MAY_BE_VISIBLE
            if each.plan is None or not is_visible or each.number < first:
                continue
            for plan in each.plan.participants:
                known = found.setdefault((plan.name, plan.kind), _Others())
                known.newest = max(known.newest, each.number)
                if each.number not in those:
                    known.newest_other = max(known.newest_other, each.number)
                if plan.predecessor not in those:  # also one that only a newer decision log knew
                    known.newest_other = max(known.newest_other, plan.predecessor)
                if not known.plans or known.plans[-1].sinks != plan.sinks:
                    known.plans.append(plan)
        before = page[-1].number
        if before <= first:
            break
    return found


def _refusal(pipeline: str, number: int, code: str, what: str, **fields: Any) -> ConfigurationError:
    remedy = f"Choose another checkpoint: `airflow ft checkpoints {pipeline}` lists them."
    return ConfigurationError(what, code=code, remedy=remedy, pipeline=pipeline, checkpoint=number, **fields)
