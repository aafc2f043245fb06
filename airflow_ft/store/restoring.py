"""Changes of the base by a person: restored savepoints, dropped state, new names of pipelines."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

from airflow_ft.protocol.errors import StateConflictError
from airflow_ft.protocol.model import CheckpointState, Former, RunKey, SparkPosition
from airflow_ft.protocol.pipelines import PipelineStatus
from airflow_ft.store.aborting import unresolved
from airflow_ft.store.database import Database
from airflow_ft.store.events import HAS_TURN, LAST_TURN, EventKind, run_detail, run_in
from airflow_ft.store.reading import OF_RUN, nothing
from airflow_ft.store.rows import json_text, key_of
from airflow_ft.store.writing import NO_TURN, PipelineWrite, lock_pipeline, pipeline_write

S = CheckpointState
_MENTIONS = (
    "SELECT id, message, detail FROM event WHERE pipeline = ? AND number = ? AND kind IN ('TURN', 'FAILED')"
    " AND detail LIKE ?"
)
_IS_RUN = f"SELECT 1 AS one FROM run WHERE {OF_RUN}"
_NEWEST = "SELECT completed_at FROM checkpoint WHERE pipeline = ? AND state = 'COMPLETED' ORDER BY number DESC LIMIT 1"
_CLOSE_GATES = (
    "UPDATE run SET complete = 0 WHERE pipeline = ? AND complete = 1 AND published_through >= ?",
    "UPDATE run SET read_as_of = NULL WHERE pipeline = ? AND read_as_of IS NOT NULL AND read_through >= ?",
    "UPDATE checkpoint SET as_of = NULL WHERE pipeline = ? AND as_of IS NOT NULL AND number >= ?",
)


class RestoringOperations:
    """The part of the store that moves the base of a pipeline without numbers to deliver."""

    _database: Database

    def reset_state(
        self,
        pipeline: str,
        epoch: int,
        position: SparkPosition,
        message: str,
        *,
        had_state: bool = False,
        is_open: bool = False,
        seen_requests: Collection[int] | None = None,
    ) -> None:
        """Set the base, and Spark's position of the newest published number, to `position`, clean.

        Condition: nothing is TRIGGERED, and nothing published is undelivered (StateConflictError), since a rewind to
        an earlier position would bring the state back. With `seen_requests` (ids of open requests that the caller has
        read): StateConflictError if there are others, since they may need the state. `had_state` and `is_open` are for
        the event: there was state, and a drain would have delivered more rows.
        """
        with pipeline_write(self._database, pipeline) as write:
            if seen_requests is not None:
                _require_seen(write, seen_requests)
            number = _move_base(write, epoch, position)
            write.event(
                EventKind.STATE_RESET,
                f"the state after checkpoint {number} is dropped, its positions are kept in {position.location}, by"
                f" epoch {epoch}: {message}",
                detail={"number": number, "location": position.location, "state": had_state, "open": is_open},
            )

    def restore(
        self,
        pipeline: str,
        epoch: int,
        position: SparkPosition | None,
        message: str,
        run: RunKey | None = None,
        savepoint: str = "",
        of: tuple[str, int] | None = None,
        again_from: int | None = None,
        life: str = "",
    ) -> None:
        """As `reset_state`, to the copy of a savepoint; for a pipeline without numbers it is where they begin. None
        keeps a pipeline without a base as it is (StateConflictError for any other).

        `run`: the DAG run that asks for it, which may do so once (StateConflictError); `Run.restored_from` is its
        savepoint. `of`: the savepoint's pipeline if it is another one, and the checkpoint that it covers. Numbers
        continue above it, so rows that sinks hold by key have lower numbers. `again_from`: the rows of this number and
        of later ones are delivered again, so gates of times that need them close until then (I9). `life`: the life of
        the pipeline that continues there (`spark.state.locations.incarnation_of`), which the event keeps.
        """
        with pipeline_write(self._database, pipeline) as write:
            number = _move_base(write, epoch, position)
            if of is not None:
                write.set_pipeline(next_number=max(write.row["next_number"], of[1] + 1))
            if again_from is not None:
                confirmed = write.rows(_NEWEST, write.name)
                if confirmed and confirmed[0]["completed_at"] >= write.row["created_at"]:  # else it moved before
                    write.set_pipeline(created_at=write.now)  # lateness counts from here: closed times no longer do
                for closing in _CLOSE_GATES:
                    write.change(closing, write.name, again_from)
            if run is not None:
                _remember_restored(write, run, savepoint)
            _restored(write, number, position, message, of, life)

    def rename(
        self,
        former: str,
        held: int,
        delivered: int,
        pipeline: str,
        epoch: int,
        position: SparkPosition,
        message: str,
        run: RunKey | None = None,
        savepoint: str = "",
        life: str = "",
    ) -> None:
        """As `restore`, of a pipeline without published numbers that continues `former` after its number `delivered`.

        The same write makes `former`, whose epoch is `held`, RENAMED, silences its late alert and takes its turn. Its
        numbers continue in `pipeline`, which records it as `former`. Until `pipeline` has checkpoints, the DAGs of
        `former` are its own.

        Condition: nothing of `former` is unsettled (StateConflictError).
        """
        with self._database.write() as tx:
            rows = {name: lock_pipeline(tx, name) for name in sorted((former, pipeline))}
            old, new = rows[former], rows[pipeline]
            old.require_epoch(held)
            old.require_active()
            for checkpoint in old.open_checkpoints():
                if not checkpoint.is_settled or checkpoint.rollback_pending:
                    raise unresolved(
                        old,
                        checkpoint,
                        "the pipeline can be renamed only when every checkpoint is confirmed or aborted",
                    )
            number = _move_base(new, epoch, position)
            if new.row["published"]:
                raise new.conflict(
                    number,
                    "the pipeline has checkpoints of its own, so no other pipeline can get its name.",
                    code="pipeline_not_new",
                    remedy="Choose a name that no pipeline has: `airflow ft pipelines` lists all.",
                )
            below = max(old.row["next_number"], new.row["next_number"])
            new.set_pipeline(next_number=below, former=json_text(asdict(Former(former, delivered, below))))
            dags = [each.row[name] for each in rows.values() for name in ("first_dag", "last_dag") if each.row[name]]
            if dags:  # who may see the one may see the other
                new.set_pipeline(first_dag=min(dags), last_dag=max(dags))
            if run is not None:
                _remember_restored(new, run, savepoint)
            _restored(new, number, position, message, life=life)
            says = f"it continues as {pipeline}, after checkpoint {delivered}."
            old.set_pipeline(status=PipelineStatus.RENAMED.value, renamed_to=pipeline, late_after=None, **NO_TURN)
            old.event(EventKind.RENAMED, f"{says} {message}", detail={"as": pipeline})
            for write in rows.values():
                write.flush()

    def overtaken_by(self, pipeline: str, run: RunKey) -> RunKey | None:
        """Return the last other run that has got the turn, if `run` had registered or failed before; None: none has."""
        its_turn = json_text({**run_detail(run), "has_turn": True})
        found = self._database.read(LAST_TURN, pipeline, HAS_TURN, its_turn)
        if not found:
            nothing(self._database, pipeline)
            return None
        named = f'%"run_id":{json_text(run.run_id)}%'  # its wildcards match more than this run
        mentions = self._database.read(_MENTIONS, pipeline, 0, named)
        own = [each for each in mentions if run_in(json.loads(each["detail"])) == run]
        knew = any(each["id"] < found[0]["id"] for each in own)
        if not knew and not any(" registered" in each["message"] for each in own):
            # `forget_events` keeps that turn. A registration that is gone is so old that it counts as before it.
            knew = bool(self._database.read(_IS_RUN, pipeline, *key_of(run)))
        return run_in(json.loads(found[0]["detail"])) if knew else None

    def note_savepoint(self, pipeline: str, number: int, message: str, detail: Mapping[str, Any]) -> None:
        """Writes into the event log that a savepoint was taken of this number. It depends on nothing here."""
        with pipeline_write(self._database, pipeline) as write:
            write.event(EventKind.SAVEPOINT, message, number=number, detail=dict(detail))


def _require_seen(write: PipelineWrite, seen_requests: Collection[int]) -> None:
    found = write.rows("SELECT id FROM request WHERE pipeline = ? AND outcome IS NULL ORDER BY id", write.name)
    if since := [row["id"] for row in found if row["id"] not in seen_requests]:
        raise StateConflictError(
            f"request {since[0]} arrived in the meantime and may need the state, so the state stays.",
            code="request_pending",
            remedy="Do nothing: the stream deletes the state when it ends the next time.",
            pipeline=write.name,
            request=since[0],
        )


def _restored(
    write: PipelineWrite,
    number: int,
    position: SparkPosition | None,
    message: str,
    of: tuple[str, int] | None = None,
    life: str = "",
) -> None:
    epoch, start = write.row["epoch"], "where its sources begin" if position is None else position.location
    if write.row["status"] == PipelineStatus.RENAMED.value:  # another one had gone on as this one, and was taken back
        write.set_pipeline(status=PipelineStatus.ACTIVE.value, renamed_to=None)
    write.event(
        EventKind.RESTORED,
        f"what follows checkpoint {number} is computed from {start}, by epoch {epoch}: {message}",
        detail={
            "number": number,
            "location": "" if position is None else position.location,
            **({"of": {"pipeline": of[0], "number": of[1]}} if of is not None else {}),
            **({"life": life} if life else {}),
        },
    )


def _remember_restored(write: PipelineWrite, run: RunKey, savepoint: str) -> None:
    if not write.row["first_dag"]:  # until it has DAGs of its own, this one says who may see it
        write.note_dag(run)
    noted = write.change(
        "INSERT INTO run (pipeline, dag_id, run_id, map_index, epoch, staged, restored_from)"
        " VALUES (?, ?, ?, ?, 0, 0, ?)"
        " ON CONFLICT (pipeline, dag_id, run_id, map_index) DO UPDATE SET restored_from = excluded.restored_from"
        " WHERE run.restored_from = ''",
        write.name,
        *key_of(run),
        savepoint,
    )
    if noted != 1:
        raise write.conflict(
            0,
            f"run {run} has restored a savepoint before.",
            code="already_restored",
            remedy="Trigger a new DAG run to restore another savepoint.",
            run=str(run),
        )


def _move_base(write: PipelineWrite, epoch: int, position: SparkPosition | None) -> int:
    """The base, and where a rewind of the next number goes to; returns the newest number with a position (0: none).

    None: it has no base, and gets none.
    """
    write.require_epoch(epoch)
    for checkpoint in write.open_checkpoints():
        if checkpoint.is_undelivered or checkpoint.state is S.TRIGGERED:
            raise unresolved(write, checkpoint, "its rows are not delivered yet")
    if position is None:
        if write.row["base_location"] is not None:
            raise write.conflict(
                0,
                "the pipeline has read rows, so it cannot begin without a position.",
                code="pipeline_not_new",
                remedy="Restore a savepoint, or use a new pipeline.",
            )
        return 0
    newest = write.rows(
        "SELECT number FROM checkpoint WHERE pipeline = ? AND is_base = 1 ORDER BY number DESC LIMIT 1", write.name
    )
    number: int = newest[0]["number"] if newest else 0
    write.change(
        "UPDATE checkpoint SET spark_location = ?, spark_batch = ? WHERE pipeline = ? AND number = ?",
        position.location,
        position.batch,
        write.name,
        number,
    )
    if not number:  # also where it began with a savepoint, whose state is dropped now
        write.set_pipeline(origin_location=position.location, origin_batch=position.batch)
    write.set_pipeline(base_location=position.location, base_batch=position.batch, base_clean=1)
    return number
