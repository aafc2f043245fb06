"""Drain: the last checkpoint of a pipeline holds what is still open in windows, joins and event-time timers.

Spark emits a window when the watermark has passed its end, and the watermark of a micro-batch stands in its line of
`offsets`. So a copy of Spark's location is given one more micro-batch, begun but not committed, with the positions of
the last one and a watermark at the end of time. A query that starts there computes it, as it would after a crash: it
reads nothing, and all that waits for the watermark is emitted. The copy ends with that: whatever came later would be
too late. The location itself is left as it is, and stays the pipeline's base.

What if the process dies ...
- before the drain is published: the copy is waste, the next try drains again.
- after it: the decision log says which state was drained (`Checkpoint.drained`), and nobody drains that a second time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.model import DRAINED, AfterAbort, Checkpoint, SparkPosition
from airflow_ft.protocol.ports import Store
from airflow_ft.spark.state.locations import SparkLocation, copy_location
from airflow_ft.spark.state.timers import begin_batch
from airflow_ft.wal.filesystem import filesystem

if TYPE_CHECKING:
    from airflow_ft.spark.request import StageRequest

END_OF_TIME = 253_402_300_799_000
"""The last second of the year 9999 in milliseconds: Spark counts in microseconds, and cannot count much further."""
_NEWEST, _LOOKED_AT = 5, 1000  # behind a drain are but numbers that carry the rows of others, or failed


def drain_of(store: Store, pipeline: str, through: int | None = None) -> Checkpoint | None:
    """The checkpoint that has drained the state at which the pipeline stands; None: nothing was drained there.

    It is the newest one that has rows of its own, and none of before the state was dropped (`Store.reset_state`). With
    `through` the same of where that number stands.
    """
    for limit in (_NEWEST, _LOOKED_AT):
        for checkpoint in store.checkpoints(pipeline, limit):
            if through is not None and checkpoint.number > through:
                continue
            if checkpoint.segment is not None and checkpoint.after_abort is not AfterAbort.REWOUND:
                drained = checkpoint.drained
                stands = drained is not None and store.position_before(pipeline, checkpoint.number) == drained
                return checkpoint if stands else None
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
