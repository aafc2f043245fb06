"""A full refresh: a pipeline reads its sources from the beginning, and its checkpoint numbers continue.

It works like a savepoint of before the first row (`airflow_ft.spark.savepoints.restoring`). Decided checkpoints are
delivered, undecided ones are aborted. Then one write to the decision log makes a new, empty location the base. The next
attempt begins there, where the sources say, without state and with any settings, but not behind records that no run has
read (`airflow_ft.spark.driver.durable`). Sinks are neither asked nor cleared. Sinks that replace rows by key can take
the rows again. Every other sink would hold them twice, so a person has to ask for it.

What if the process dies ...
- before the one write: the pipeline keeps its position. The empty location is swept.
- after it: the pipeline begins again. Repeated, it does so once more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ft.protocol.errors import ConfigurationError, StateConflictError
from airflow_ft.protocol.from_savepoint import BEGINNING, Later
from airflow_ft.protocol.lease import Worker
from airflow_ft.protocol.model import Promise, RunKey, SparkPosition
from airflow_ft.protocol.participant import ParticipantFactory
from airflow_ft.protocol.position import Position
from airflow_ft.spark.savepoints.settling import require_settleable, settled
from airflow_ft.spark.savepoints.taking import writing
from airflow_ft.spark.state.locations import incarnation_of, location_root, new_beginning

if TYPE_CHECKING:
    from airflow_ft.protocol.decision_log import QueryLog
    from airflow_ft.store.decision_log import DecisionLog


def start_from_scratch(
    store: DecisionLog,
    pipeline: str,
    participants: ParticipantFactory,
    worker: Worker,
    why: str,
    later: Later,
    run: RunKey | None,
    lease_seconds: float,
) -> SparkPosition | None:
    """The new base; None: it has none, and begins so anyway, where an attempt has frozen that or the sources say.

    What was frozen stays then: nothing of it is delivered, so it is owed (I10). The run has done it all the same.

    Raises as `restore` does. ConfigurationError with CONTINUE, StateConflictError with REFUSE where a sink of the
    newest delivered checkpoint does not replace rows by their key.
    """
    if later is Later.CONTINUE:
        raise ConfigurationError(
            "later='continue' only rebuilds state, and a full refresh starts without state.",
            code="arguments_conflict",
            remedy="Leave out `later` if all sinks replace rows by key (upsert). Otherwise give later='write-again' to"
            " deliver all rows again.",
            pipeline=pipeline,
            argument="later",
            value=later.value,
        )
    if Position.stored(store.newest_position(pipeline)) is not None:
        raise ConfigurationError(
            "the pipeline has no sources: another program gives its rows, each position once.",
            code="full_refresh_impossible",
            remedy="Give the pipeline a new name, and its rows from the first position on.",
            pipeline=pipeline,
        )
    _examine(store, pipeline, later)
    with settled(store, pipeline, participants, worker, why, lease_seconds) as epoch:
        _examine(store, pipeline, later)
        base = store.pipeline(pipeline).base
        position = None
        if base is not None:
            root = location_root(base.location)
            with writing(root, pipeline):
                position = new_beginning(root, pipeline, epoch)
        life = incarnation_of(position)
        store.restore(pipeline, epoch, position, f"from the beginning: {why}", run, BEGINNING, again_from=0, life=life)
    return position


def _examine(store: QueryLog, pipeline: str, later: Later) -> None:
    """Refuse a full refresh that is not allowed."""
    row = store.pipeline(pipeline)
    require_settleable(row, store.open_checkpoints(pipeline))
    newest = store.latest_confirmed(pipeline)
    if newest is None and row.former is not None:
        newest = store.latest_confirmed(row.former.pipeline)
    planned = newest.participants if newest is not None else ()
    doubled = sorted(name for each in planned if each.promise is not Promise.IDEMPOTENT for name in each.sinks)
    if doubled and later is not Later.WRITE_AGAIN:
        raise StateConflictError(
            f"a full refresh would deliver the rows in {', '.join(doubled)} a second time.",
            code="rows_would_repeat",
            remedy=f"Empty {', '.join(doubled)} and give later='write-again'. Or deliver by key (strategy `upsert`), so"
            " that rows replace the old ones. Or give the pipeline a new name.",
            pipeline=pipeline,
            sinks=doubled,
        )
