"""Recovery of all pipelines, and their health: the work, metrics and alerts of a periodic task."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta

from airflow_ft.protocol.decision_log import QueryLog
from airflow_ft.protocol.delivery_log import DeliveryLog
from airflow_ft.protocol.errors import AirflowFtError, LeaseHeldError, StoreUnavailableError
from airflow_ft.protocol.failure import with_fix
from airflow_ft.protocol.lease import LEASE_SECONDS, Worker
from airflow_ft.protocol.model import CheckpointState
from airflow_ft.protocol.overview import Condition, Overview
from airflow_ft.protocol.participant import ParticipantFactory
from airflow_ft.protocol.planning import quarantined
from airflow_ft.protocol.recovery import Recovery, in_doubt, recover
from airflow_ft.protocol.transitions import IN_DOUBT

log = logging.getLogger(__name__)

S = CheckpointState
ORPHAN_AGE = timedelta(minutes=10)
"""A healthy run is between two of its tasks for less than this."""
THREADS = 8


@dataclass(frozen=True, slots=True)
class Health:
    """Health of a pipeline, by the store's clock.

    `undecided` and `undelivered` are the ages of the oldest published checkpoint that is not decided, or not delivered
    (zero: none). Positions that a rewind has left are undelivered, too (`LeftPositions`). `since_confirmed` is the time
    since the last confirmation (None: never). `in_doubt` counts PREPARED, COMMITTING and QUARANTINED ones. `needs` says
    why a person has to act ("": no action needed). `waiting` counts published checkpoints and left positions that are
    not in every sink. `waiting_bytes` is the size of these checkpoints in the log. `late`: as in
    `Overview`. `failed`: the last run failed. `not_running`: a stream does not run, and was not stopped on purpose.
    `retired`: as in `Overview`; then no undelivered checkpoint needs a person.
    """

    pipeline: str
    undecided: timedelta
    undelivered: timedelta
    since_confirmed: timedelta | None
    in_doubt: int
    needs: str
    halted: bool = False
    quarantined: int = 0
    waiting: int = 0
    waiting_bytes: int = 0
    late: timedelta | None = None
    failed: bool = False
    not_running: bool = False
    retired: bool = False


@dataclass(frozen=True, slots=True)
class Swept:
    """Result of recovery for one pipeline: settled numbers, why it was skipped ("": it was not), and the error
    (None).
    """

    pipeline: str
    recovery: Recovery = field(default_factory=Recovery)
    left_alone: str = ""
    error: AirflowFtError | None = None


def recover_all(
    store: DeliveryLog,
    participants: ParticipantFactory,
    worker: Worker,
    *,
    pipelines: Sequence[str] | None = None,
    orphan_age: timedelta = ORPHAN_AGE,
    lease_seconds: float = LEASE_SECONDS,
    threads: int = THREADS,
    look: Callable[[str], None] = lambda _: None,
) -> list[Swept]:
    """Settle numbers that have been in doubt for `orphan_age` in every pipeline of this log (I8), in parallel.

    Skips pipelines that are HALTED, or whose lease another process holds. An error in one pipeline does not stop the
    others; one of another package becomes an AirflowFtError. `look` may refuse a pipeline in which something is in
    doubt.

    Raises:
        StoreUnavailableError: without the decision log nothing is done, and nothing rolled back.
    """
    rows = [row for row in store.pipelines() if pipelines is None or row.name in pipelines]

    def sweep(name: str) -> Swept:
        try:
            if in_doubt(store, name, orphan_age):
                look(name)
            recovery = recover(store, name, participants, worker, min_age=orphan_age, lease_seconds=lease_seconds)
        except LeaseHeldError as error:
            return Swept(name, left_alone=error.what)
        except StoreUnavailableError:
            raise
        except AirflowFtError as error:
            log.warning("cannot settle pipeline %s: %s", name, error)
            return Swept(name, error=error)
        except Exception as error:  # of another package. Its message may hold a secret, so only the log has it
            log.warning("cannot settle pipeline %s:", name, exc_info=error)
            what = f"its recovery ended with a {type(error).__name__}."
            remedy = "Read the log of the task that recovers all pipelines: it has the traceback."
            return Swept(name, error=AirflowFtError(what, pipeline=name, remedy=remedy))
        return Swept(name, recovery)

    halted = {row.name: f"it is HALTED ({row.halt.reason})" for row in rows if row.halt is not None}
    with ThreadPoolExecutor(threads, thread_name_prefix="airflow-ft-recover") as pool:
        found = pool.map(sweep, [row.name for row in rows if row.name not in halted])
        swept = {each.pipeline: each for each in found}
    return [swept.get(row.name) or Swept(row.name, left_alone=halted[row.name]) for row in rows]


def health(
    store: QueryLog,
    pipeline: str,
    patience: timedelta | None = None,
    judged: Callable[[Sequence[Overview]], Sequence[Overview]] = list,
) -> Health:
    """Return the health of the pipeline. With `patience` an older undelivered checkpoint needs a person too.

    `judged`: as of `problems`. A failed run needs no person here: Airflow shows it, and the next run may succeed.
    """
    row = store.pipeline(pipeline)
    opened = store.open_checkpoints(pipeline)
    latest = store.latest_confirmed(pipeline)
    now = store.now()
    none = timedelta(0)
    staged = [c for c in opened if c.staged_at is not None and (c.is_undelivered or c.state in IN_DOUBT)]
    undecided = [c for c in staged if c.decided_at is None and c.state in (S.STAGED, S.PREPARED, S.QUARANTINED)]
    # Never below zero: the log's clock may have been ahead.
    ages = {c.number: max(none, now - c.staged_at) for c in staged if c.staged_at is not None}
    left = store.left_positions(pipeline)
    left_for = max(none, now - left.first.staged_at) if left is not None and left.first.staged_at else none
    undelivered = max(ages.values(), default=none)
    [overview] = judged([store.overview(pipeline)])
    late, trouble = overview.late, overview.trouble
    not_running = trouble is Condition.NOT_RUNNING and not overview.is_stopped
    needs = ""
    if row.halt is not None:
        needs = with_fix(f"it is {row.halt.headline}", row.halt.remedy)
    elif kept := quarantined(opened):
        needs = f"checkpoint {kept[0].number} is QUARANTINED: {kept[0].message}"
    elif patience is not None and undelivered > patience and not overview.retired:
        oldest = max(ages, key=lambda number: ages[number])
        age = timedelta(seconds=round(undelivered.total_seconds()))
        needs = f"checkpoint {oldest} was published {age} ago and is not delivered"
    elif patience is not None and left is not None and left_for > patience and not overview.retired:
        needs = with_fix(left.what, left.remedy)
    elif not_running:
        needs = overview.text_of(Condition.NOT_RUNNING)
    elif late is not None:
        age = timedelta(seconds=round(late.total_seconds()))
        needs = f"nothing was confirmed for {age}, which is longer than its late_after"
    return Health(
        pipeline=pipeline,
        undecided=max((ages[c.number] for c in undecided), default=none),
        undelivered=max(undelivered, left_for),
        since_confirmed=max(none, now - latest.completed_at) if latest and latest.completed_at else None,
        in_doubt=sum(c.state in IN_DOUBT or c.state is S.QUARANTINED for c in opened),
        needs=needs,
        halted=row.halt is not None,
        quarantined=len(quarantined(opened)),
        waiting=len(ages) + (left.count if left is not None else 0),
        waiting_bytes=sum(c.segment.bytes for c in staged if c.segment is not None),
        late=late,
        failed=trouble is Condition.FAILED,
        not_running=not_running,
        retired=overview.retired,
    )
