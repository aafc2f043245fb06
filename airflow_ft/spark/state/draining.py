"""Drain: the last checkpoint of a pipeline emits open windows, joins and event-time timers.

Spark emits a window when the watermark has passed its end, and a micro-batch's watermark is in its line of `offsets`.
So a copy of Spark's location gets one more micro-batch, begun but not committed, with the positions of the last one
and a watermark at the end of time. A query that starts there computes it, as after a crash. It reads nothing, and
emits everything that waits for the watermark. The copy ends there: any later row would be too late. The location
itself is not changed, and stays the pipeline's base.

What if the process dies ...
- before the drain is published: the copy is waste, the next try drains again.
- after it: the decision log says which state was drained (`Checkpoint.drained`), and it is not drained again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.model import DRAINED, AfterAbort, Checkpoint, SparkPosition
from airflow_ft.spark.state.locations import SparkLocation, copy_location
from airflow_ft.spark.state.timers import begin_batch
from airflow_ft.wal.filesystem import filesystem

if TYPE_CHECKING:
    from airflow_ft.protocol.decision_log import QueryLog
    from airflow_ft.spark.request import StageRequest

END_OF_TIME = 253_402_300_799_000
"""The last second of the year 9999 in milliseconds: Spark counts in microseconds, and cannot count much further."""
_NEWEST, _LOOKED_AT = 5, 1000  # behind a drain are but numbers that carry the rows of others, or failed


def drain_of(store: QueryLog, pipeline: str, at: tuple[int, SparkPosition] | None = None) -> Checkpoint | None:
    """Return the checkpoint that drained the pipeline's current state; None: it was not drained.

    It is the newest one with rows of its own, and none from before the state was dropped (`reset_state`). `at`: a
    number and the position after it, of an earlier state. The position counts as given, even if it was moved since.
    """
    for limit in (_NEWEST, _LOOKED_AT):
        for checkpoint in store.checkpoints(pipeline, limit):
            if at is not None and checkpoint.number > at[0]:
                continue
            if checkpoint.segment is not None and checkpoint.after_abort is not AfterAbort.REWOUND:
                drained = checkpoint.drained
                if drained is None:
                    return None
                now = store.position_before(pipeline, checkpoint.number) if at is None else at[1]
                return checkpoint if now == drained else None
    return None


def refuse(drain: Checkpoint) -> ConfigurationError:
    """Return the error for a run after a drain that makes no choice how to continue."""
    name = drain.pipeline
    return ConfigurationError(
        f"checkpoint {drain.number} drained the pipeline. It would deliver the rows of its open windows again when they"
        " close.",
        code="pipeline_drained",
        remedy=f"To continue with empty state, run `airflow ft reset-state {name}`. To continue with the state before"
        " the drain and deliver such rows again, set CheckpointConfig(resume_drained=True).",
        pipeline=name,
        checkpoint=drain.number,
    )


def undrainable(output_mode: str, *, has_state: bool, one_query: bool) -> str:
    """Return why no drain of a job delivers anything; "": one may."""
    if not has_state:
        return "the job has no state"
    if output_mode == "complete":
        return "each checkpoint already has all of the state (output mode complete)"
    return "AT_MOST_ONCE cannot read its sources in a second query" if one_query else ""


def terminal_copy(location: SparkLocation, request: StageRequest) -> SparkLocation:
    """A copy of a location in which the batch after the last one waits to be computed, at the end of time."""
    files = filesystem(location.root)
    folder = f"{request.epoch}-{request.attempt}-drain"
    copy = copy_location(location, files.uri(location.root, location.pipeline, "spark", folder))
    begin_batch(copy, copy.batch, END_OF_TIME)
    return copy


def marked(positions: Mapping[str, Any], drained: SparkPosition) -> dict[str, Any]:
    """The positions of a checkpoint that drains a state."""
    return {**positions, DRAINED: asdict(drained)}
