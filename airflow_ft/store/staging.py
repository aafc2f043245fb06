"""Staging: numbers are drawn, and what was computed is published into the decision log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from airflow_ft.protocol.config import stream_is_late_after
from airflow_ft.protocol.errors import ConfigurationError, StateConflictError
from airflow_ft.protocol.model import CheckpointState, RunKey, Segment, SparkPosition
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.store.database import Database
from airflow_ft.store.epochs import abort_unpublished
from airflow_ft.store.events import EventKind, run_detail, segment_text
from airflow_ft.store.positions import position_digest
from airflow_ft.store.rows import clean_text, from_time, json_text, key_of, texts_of_spec, to_time
from airflow_ft.store.writing import PipelineWrite, pipeline_write


class StagingOperations:
    """The part of the store that stages."""

    _database: Database

    def begin_stage(
        self, pipeline: str, epoch: int, run: RunKey, task: str = "", spec: Mapping[str, Any] | None = None
    ) -> int:
        """Give the run this epoch with `staged` false, and mark the base unclean. Returns a new attempt number.

        `task` becomes the run's `stage_task`, and the current time its `stage_began`. The stage reads its sources only
        after this call. `spec` (plain JSON, no secret) is the specification of the run and of each number that it
        triggers.
        """
        texts = [] if spec is None else texts_of_spec(spec)
        digest = texts[-1][0] if texts else ""
        with pipeline_write(self._database, pipeline) as write:
            write.require_epoch(epoch)
            write.require_active()
            attempt = write.draw("next_attempt")
            for each in texts:
                write.change(
                    "INSERT INTO spec (digest, text, created_at) VALUES (?, ?, ?) ON CONFLICT (digest) DO NOTHING",
                    *each,
                    write.now,
                )
            write.note_dag(run)
            write.change(
                "INSERT INTO run (pipeline, dag_id, run_id, map_index, epoch, staged, stage_task, stage_began, spec)"
                " VALUES (?, ?, ?, ?, ?, 0, ?, ?, ?)"
                " ON CONFLICT (pipeline, dag_id, run_id, map_index) DO UPDATE SET epoch = excluded.epoch, staged = 0,"
                " stage_task = excluded.stage_task, stage_began = excluded.stage_began, published_through = 0,"
                " complete = 0, spec = excluded.spec",
                pipeline,
                *key_of(run),
                epoch,
                clean_text(task),
                write.now,
                digest,
            )
            streaming = bool((spec or {}).get("streaming"))
            said = (spec or {}).get("late_after")
            late_after = stream_is_late_after(spec or {}) if said is None and streaming else said
            write.set_pipeline(
                base_clean=0,
                needs_stage=0,
                late_after=None if late_after is None else round(1e6 * late_after),
                late_default=int(said is None and streaming),
                streaming=int(streaming),
                retired=0,
            )
            write.event(
                EventKind.STAGE_BEGUN,
                f"run {run} stages in attempt {attempt}, by epoch {epoch}",
                detail={**run_detail(run), "attempt": attempt, "spec": digest},
            )
            return attempt

    def begin_again(self, pipeline: str, epoch: int, run: RunKey) -> int:
        """As `begin_stage`, for a stage that this epoch has begun: a new attempt in the same process.

        What the attempt before it has TRIGGERED becomes ABORTED(ATTEMPT_ENDED), so it can no longer be published.
        StateConflictError when this epoch has not begun the run's stage.
        """
        with pipeline_write(self._database, pipeline) as write:
            write.require_epoch(epoch)
            write.require_active()
            attempt = write.draw("next_attempt")
            begun = write.change(
                "UPDATE run SET stage_began = ?, staged = 0, complete = 0"
                " WHERE pipeline = ? AND dag_id = ? AND run_id = ? AND map_index = ? AND epoch = ?",
                write.now,
                pipeline,
                *key_of(run),
                epoch,
            )
            if begun != 1:
                raise _not_begun(pipeline, epoch, run)
            abort_unpublished(
                write, f"not published before attempt {attempt} began", lambda _: AbortReason.ATTEMPT_ENDED
            )
            write.set_pipeline(base_clean=0, needs_stage=0)
            write.event(
                EventKind.STAGE_BEGUN,
                f"run {run} stages again, in attempt {attempt}, by epoch {epoch}",
                detail={**run_detail(run), "attempt": attempt},
            )
            return attempt

    def give_up(self, pipeline: str, epoch: int, reason: AbortReason, message: str) -> None:
        """Abort TRIGGERED checkpoints with `reason`, because their attempt ended and they can no longer be
        published.
        """
        with pipeline_write(self._database, pipeline) as write:
            write.require_epoch(epoch)
            abort_unpublished(write, message, lambda _: reason)

    def read_all(self, pipeline: str, epoch: int, run: RunKey, as_of: datetime) -> None:
        """Record for a running stream that the published numbers contain everything that the sources held at
        `as_of`.

        No event.
        """
        with pipeline_write(self._database, pipeline) as write:
            write.require_epoch(epoch)
            # Rewound: it is computed again. Or the clock went back since the look.
            if write.row["needs_stage"] or from_time(as_of) > write.now:
                return
            write.change(
                "UPDATE run SET read_as_of = ?, read_through = ?"
                " WHERE pipeline = ? AND dag_id = ? AND run_id = ? AND map_index = ? AND epoch = ?",
                from_time(as_of),
                write.row["published"],
                pipeline,
                *key_of(run),
                epoch,
            )

    def trigger(
        self,
        pipeline: str,
        epoch: int,
        run: RunKey | None,
        application: str = "",
        positions: Mapping[str, Any] | None = None,
    ) -> int:
        """See `DeliveryLog.trigger`."""
        with pipeline_write(self._database, pipeline) as write:
            write.require_epoch(epoch)
            write.require_active()
            of_run = (None, None, -1) if run is None else key_of(run)
            if run is not None:
                write.note_dag(run)
            known = {} if positions is None else dict(positions)
            number = write.draw("next_number")  # only ever grows: a number is never used twice
            triggered = write.change(
                "INSERT INTO checkpoint (pipeline, number, state, epoch, dag_id, run_id, map_index, predecessor,"
                " positions, position_digest, message, finalised, triggered_at, application, spec)"
                " SELECT ?, ?, ?, ?, ?, ?, ?, 0, ?, ?, '', 0, ?, ?, COALESCE((SELECT spec FROM run"
                " WHERE pipeline = ? AND dag_id = ? AND run_id = ? AND map_index = ?), '')"
                " WHERE NOT EXISTS (SELECT 1 FROM run"
                " WHERE pipeline = ? AND dag_id = ? AND run_id = ? AND map_index = ? AND epoch = ? AND staged = 1)",
                pipeline,
                number,
                CheckpointState.TRIGGERED.value,
                epoch,
                *of_run,
                json_text(known),
                position_digest(known),
                write.now,
                clean_text(application),
                pipeline,
                *of_run,
                pipeline,
                *of_run,
                epoch,
            )
            if triggered != 1:
                raise StateConflictError(
                    f"the stage of run {run} has ended, so it cannot trigger a checkpoint.",
                    code="stage_not_active",
                    remedy="Do nothing if the driver has ended. Otherwise begin the stage again.",
                    pipeline=pipeline,
                    run=str(run),
                )
            whose = "outside a run" if run is None else f"in run {run}"
            write.event(EventKind.TRIGGERED, f"{whose}, by epoch {epoch}", number=number)
            return number

    def publish(
        self,
        pipeline: str,
        epoch: int,
        number: int,
        predecessor: int,
        segment: Segment | None,
        position: SparkPosition | None,
        positions: Mapping[str, Any],
        as_of: datetime | Callable[[datetime], datetime] | None = None,
        parts: Mapping[str, float] | None = None,
    ) -> None:
        """See `DeliveryLog.publish`.

        Also StateConflictError for rows or a position that were computed before a rewind and come after it: no
        `begin_stage` in between means that their state contains the rewound rows.
        """
        if segment is not None and segment.number != number:
            raise ConfigurationError(
                f"the segment belongs to checkpoint {segment.number}.",
                code="argument_invalid",
                remedy=f"Publish it as checkpoint {segment.number}.",
                pipeline=pipeline,
                checkpoint=number,
                argument="segment",
                value=segment.number,
            )
        positions_text = json_text(dict(positions))
        rows_text = None if segment is None else json_text(dict(segment.rows))
        with pipeline_write(self._database, pipeline) as write:
            found = as_of(to_time(write.now)) if callable(as_of) else as_of
            time = None if found is None else from_time(found)
            write.require_epoch(epoch)
            write.require_active()
            checkpoint = write.checkpoint(number)
            _require_order(write, number, predecessor)
            if checkpoint.epoch != epoch:
                raise write.conflict(
                    number,
                    f"epoch {checkpoint.epoch} triggered it, not epoch {epoch}.",
                    code="stage_not_active",
                    epoch=epoch,
                    triggered_by=checkpoint.epoch,
                )
            if write.row["needs_stage"] and (segment is not None or position is not None):
                raise StateConflictError(
                    "a rewind dropped these rows after the attempt had computed them.",
                    code="rewound",
                    remedy="End this attempt. The next one begins where the rewind says.",
                    pipeline=pipeline,
                    checkpoint=number,
                )
            write.move(
                checkpoint,
                CheckpointState.STAGED,
                f"{segment_text(segment)}, by epoch {epoch}",
                detail={
                    "predecessor": predecessor,
                    "digest": None if segment is None else segment.digest,
                    "location": None if segment is None else segment.location,
                    **({"parts": dict(parts)} if parts else {}),
                },
                predecessor=predecessor,
                segment_digest=None if segment is None else segment.digest,
                segment_location=None if segment is None else segment.location,
                segment_rows=rows_text,
                segment_bytes=None if segment is None else segment.bytes,
                spark_location=None if position is None else position.location,
                spark_batch=None if position is None else position.batch,
                positions=positions_text,
                position_digest=position_digest(positions),
                # The clock went back since the sources were read: unknown. Given rows may have a position of any time.
                as_of=None if time is not None and position is not None and time > write.now else time,
                staged_at=write.now,
            )
            write.set_pipeline(published=number)
            if position is not None:
                write.set_pipeline(base_location=position.location, base_batch=position.batch, base_clean=0)

    def end_stage(
        self, pipeline: str, epoch: int, run: RunKey, position: SparkPosition | None, *, complete: bool = True
    ) -> None:
        """The run is `staged`; with a position the base becomes that, clean (its process is known to have ended).

        `complete`: it has read everything that was there when it began.

        StateConflictError when this epoch did not begin the run's stage.
        """
        with pipeline_write(self._database, pipeline) as write:
            write.require_epoch(epoch)
            ended = write.change(
                "UPDATE run SET staged = 1, published_through = ?, complete = ?"
                " WHERE pipeline = ? AND dag_id = ? AND run_id = ? AND map_index = ? AND epoch = ?",
                write.row["published"],
                int(complete),
                pipeline,
                *key_of(run),
                epoch,
            )
            if ended != 1 or write.row["needs_stage"]:
                raise _not_begun(pipeline, epoch, run, rewound=bool(write.row["needs_stage"]))
            if position is not None:
                write.set_pipeline(base_location=position.location, base_batch=position.batch, base_clean=1)
            write.event(
                EventKind.STAGE_ENDED,
                f"run {run} is staged, by epoch {epoch}"
                + ("" if complete else "; some of its input is left to the next one")
                + ("" if position is None else f"; the next attempt continues after Spark's batch {position.batch}"),
                detail=run_detail(run),
            )


def _not_begun(pipeline: str, epoch: int, run: RunKey, *, rewound: bool = False) -> StateConflictError:
    return StateConflictError(
        f"epoch {epoch} has not begun the stage of run {run}"
        + (", or the pipeline was rewound since then." if rewound else "."),
        code="rewound" if rewound else "stage_not_active",
        remedy="Begin the stage again.",
        pipeline=pipeline,
        run=str(run),
        epoch=epoch,
    )


def _require_order(write: PipelineWrite, number: int, predecessor: int) -> None:
    """I1, I4: publications form one chain. Nothing published is overlooked, and nothing comes before it any more."""
    published: int = write.row["published"]
    if predecessor != published:
        raise write.conflict(
            number,
            f"its predecessor is checkpoint {predecessor}, but the newest published one is {published}.",
            code="order_conflict",
            predecessor=predecessor,
            published=published,
        )
    if number <= published:
        raise write.conflict(
            number,
            f"the later checkpoint {published} is published already.",
            code="order_conflict",
            published=published,
        )
