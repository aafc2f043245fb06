"""Refuse to restore or rename a pipeline where that would repeat or lose rows, before anything changes.

Each function reads the decision log, the savepoint or the sinks, and changes none of them.
"""

from __future__ import annotations

from contextlib import closing, suppress
from typing import TYPE_CHECKING

from airflow_ft.protocol.errors import (
    ConfigurationError,
    SinkUnavailableError,
    StateConflictError,
    require_not_renamed,
)
from airflow_ft.protocol.from_savepoint import Later
from airflow_ft.protocol.model import CheckpointState, SparkPosition
from airflow_ft.protocol.participant import ParticipantFactory
from airflow_ft.protocol.pipelines import Pipeline, PipelineStatus
from airflow_ft.protocol.planning import not_rolled_back
from airflow_ft.protocol.settling import way_out_of_rollback
from airflow_ft.spark.savepoints.metadata import Savepoint
from airflow_ft.spark.savepoints.settling import require_settleable
from airflow_ft.spark.state.catching_up import has_read_all_of
from airflow_ft.spark.state.draining import drain_of
from airflow_ft.spark.state.locations import SparkLocation, behind_the_beginning
from airflow_ft.store.errors import UnknownCheckpointError, UnknownPipelineError
from airflow_ft.wal.filesystem import filesystem
from airflow_ft.wal.roots import require

if TYPE_CHECKING:
    from airflow_ft.protocol.decision_log import QueryLog


def is_renamed(store: QueryLog, savepoint: Savepoint, name: str) -> bool:
    """Return whether an earlier try has renamed it, and nothing was staged since: then only the restore is left."""
    try:
        row, old = store.pipeline(name), store.pipeline(savepoint.pipeline)
    except UnknownPipelineError:
        return False
    former = row.former
    same = former is not None and (former.pipeline, former.number) == (old.name, savepoint.number)
    return same and not row.last_published and old.status is PipelineStatus.RENAMED


def examine_former(store: QueryLog, uri: str, savepoint: Savepoint, name: str, later: Later) -> None:
    """Refuse to rename a pipeline that is not at the savepoint."""
    was = savepoint.pipeline
    if was == name or savepoint.installation != store.installation:
        why = (
            f"{was} is already its name"
            if was == name
            else "it belongs to another decision log, which could still run it"
        )
        raise ConfigurationError(
            f"the savepoint {uri} is of pipeline {was}, which cannot be renamed: {why}.",
            code="action_refused",
            remedy="Give the new name (--pipeline), or remove --rename.",
            pipeline=name,
            path=uri,
            old=was,
        )
    if later is not Later.REFUSE:
        raise ConfigurationError(
            f"--later is {later}, but --rename continues at the newest checkpoint: no checkpoint comes after it.",
            code="arguments_conflict",
            remedy="Remove --later or --rename.",
            pipeline=was,
            argument="later",
            value=later.value,
        )
    row = store.pipeline(was)
    remedy = (
        f"Do nothing if you wanted that. Otherwise run `airflow ft resume {was}`, which takes the name back unless a"
        " run has staged under the new one."
    )
    require_not_renamed(row, remedy)
    examine(
        store,
        uri,
        savepoint,
        was,
        later,
        instead="Take another savepoint: --rename needs one of the newest checkpoint.",
    )


def require_rolled_back(store: QueryLog, name: str) -> None:
    """SinkUnavailableError while a sink may hold what was prepared of an aborted number."""
    for checkpoint in store.open_checkpoints(name):
        if checkpoint.rollback_pending:
            sink = not_rolled_back(checkpoint)[0].name
            raise SinkUnavailableError(
                "the checkpoint is ABORTED, but its sink does not answer and its prepared rows are not rolled back"
                " yet.",
                code="server_unreachable",
                remedy=f"Start the sink's server. Then run `airflow ft recover {name}` and try again."
                f" {way_out_of_rollback(name, checkpoint.number, sink)}",
                pipeline=name,
                checkpoint=checkpoint.number,
            )


def require_known(
    store: QueryLog, savepoint: Savepoint, name: str, participants: ParticipantFactory, epoch: int
) -> None:
    """Raise StateConflictError if the savepoint, or a sink, is newer than the decision log (R11). The new name begins
    without markers in the sinks, so a later run could not detect what the log has forgotten.
    """
    was = savepoint.pipeline
    newest = store.latest_confirmed(was)
    found = f"the savepoint covers checkpoint {savepoint.number}"
    if newest is not None and newest.plan is not None and newest.number >= savepoint.number:
        for planned in newest.plan.participants:
            with closing(participants(planned)) as sink:
                head, new = sink.head(was), sink.head(name)
            if new is not None and new.installation != store.installation:
                raise StateConflictError(
                    f"{planned.name} has checkpoints of a pipeline {name} of the decision log {new.installation}.",
                    code="foreign_owner",
                    remedy="Give another name (--pipeline).",
                    pipeline=was,
                    participant=planned.name,
                    name=name,
                    installation=new.installation,
                )
            if head is not None and (head.epoch > epoch or head.number > store.last_delivered(was, planned.name)):
                found = f"{planned.name} is at checkpoint {head.number}, epoch {head.epoch}"
                break
        else:
            return
    raise StateConflictError(
        f"{found}, which the decision log does not know. Someone restored the log from a backup.",
        code="store_behind_sink",
        remedy=f"Bring the newer log back. Or trigger a run of {was} first: it halts, and its message says what to do.",
        pipeline=was,
    )


def examine(
    store: QueryLog,
    uri: str,
    savepoint: Savepoint,
    name: str,
    later: Later,
    *,
    rename: bool = False,
    instead: str = "",
) -> tuple[int, ...]:
    """Refuse a restore that is not allowed. Returns the numbers that were confirmed since the savepoint, of this
    pipeline or of the one that replaces it. `rename`: that one has moved on since, and gets this name again.
    `instead`: the remedy if the pipeline is not at the savepoint.
    """
    try:
        row = store.pipeline(name)
    except UnknownPipelineError:
        _require_in_log(store, uri, savepoint, name)
        return ()
    opened = store.open_checkpoints(name)
    confirmed = store.latest_confirmed(name)
    if row.last_published and not rename:
        require_not_renamed(row)
    require_settleable(row, opened)
    _require_in_log(store, uri, savepoint, name, row, renames=bool(instead))
    has_own = confirmed is not None or row.last_published > 0
    former = None if has_own else row.former
    if not has_own and (former is None or (rename and former.pipeline == savepoint.pipeline)):
        return ()  # it has nothing of its own: a copy, under another name or in another decision log
    known = name if former is None else former.pipeline
    if savepoint.pipeline != known or savepoint.installation != store.installation:
        of = f"of pipeline {savepoint.pipeline}" if savepoint.pipeline != known else "of another decision log"
        has = (
            "has checkpoints of its own" if former is None else f"continues after checkpoint {former.number} of {known}"
        )
        raise ConfigurationError(
            f"the savepoint {uri} is {of}, but {name} {has}. Their checkpoint numbers cannot be compared.",
            code="savepoint_foreign",
            remedy="Restore it under a new pipeline name (--pipeline).",
            pipeline=name,
            path=uri,
            of=savepoint.pipeline,
            former="" if former is None else former.pipeline,
        )
    if later is Later.CONTINUE and drain_of(store, known) is not None:
        raise StateConflictError(
            "the pipeline was drained. It would deliver the rows of its open windows again when they close.",
            code="pipeline_drained",
            remedy="Deliver all rows again (`--later write-again`), or restore under another name (--pipeline).",
            pipeline=name,
        )
    if savepoint.drained and later is not Later.WRITE_AGAIN:
        raise StateConflictError(
            "the savepoint was taken after a drain. The pipeline would deliver the rows of its open windows again when"
            " they close.",
            code="pipeline_drained",
            remedy=f"Drop the state: `airflow ft reset-state {name}`. Then take another savepoint."
            if instead and drain_of(store, name) is not None
            else instead or "Restore an older savepoint, or deliver the rows again (`--later write-again`).",
            pipeline=name,
            path=uri,
        )
    if former is not None:
        newest, base = former.number, row.base
    else:
        newest = 0 if confirmed is None else confirmed.number
        base = store.position_before(name, newest + 1)
    decided = [c.number for c in opened if c.state is CheckpointState.COMMITTING]
    passed = tuple(range(savepoint.number + 1, max([newest, *decided]) + 1))
    if passed and later is Later.REFUSE:
        raise StateConflictError(
            f"checkpoints {passed[0]} to {passed[-1]} were delivered after the savepoint, which covers checkpoints up"
            f" to {savepoint.number}. Their rows would be delivered again.",
            code="rows_would_repeat",
            remedy=instead
            or "Take a newer savepoint. Or keep the delivered rows and only rebuild state (`--later continue`). Or"
            " deliver them again (`--later write-again`): sinks that replace rows by key (upsert) then have them once,"
            " all others twice.",
            pipeline=name,
            path=uri,
            later=passed,
            number=savepoint.number,
        )
    if not passed and later is not Later.WRITE_AGAIN and _is_behind(uri, savepoint, base):
        reads = "has read further than the savepoint", "someone restored a later savepoint. Rows would"
        if behind_the_beginning(base) is None:
            reads = "may have read further than the savepoint", "a full refresh has dropped its positions. Rows could"
            instead = instead and "Let a run deliver a checkpoint first. Then take another savepoint."
        raise StateConflictError(
            f"the pipeline {reads[0]}, although both are at checkpoint {savepoint.number}: since then {reads[1]} be"
            " delivered again.",
            code="rows_would_repeat",
            remedy=instead or "Restore a later savepoint, or deliver the rows again (`--later write-again`).",
            pipeline=name,
            path=uri,
            later=(),
            number=savepoint.number,
        )
    return passed


def _require_in_log(
    store: QueryLog, uri: str, savepoint: Savepoint, name: str, row: Pipeline | None = None, *, renames: bool = False
) -> None:
    """Raise StateConflictError for a savepoint of a pipeline's own history that the decision log has lost (R11).

    The sinks may have lost its rows, too, and the pipeline would never read them again.
    """
    of, number, former = savepoint.pipeline, savepoint.number, row.former if row is not None else None
    if savepoint.installation != store.installation or (of != name and (former is None or of != former.pipeline)):
        return
    found = None
    with suppress(UnknownPipelineError, UnknownCheckpointError):
        found = store.checkpoint(of, number)
    if found is None or not (found.is_confirmed or found.state is CheckpointState.COMMITTING):
        why = "has not decided"
    elif savepoint.segment and found.segment and found.segment.digest != savepoint.segment:
        why = "has with other rows"
    else:
        return
    leave_out = ", without --rename" if renames else ""
    retire = f"run `airflow ft retire {name}`. Then " if row is not None else ""
    raise StateConflictError(
        f"the savepoint {uri} covers checkpoint {number}, which the decision log {why}. Someone restored the log from a"
        " backup.",
        code="store_behind_sink",
        remedy="Bring the newer log back, or restore another savepoint. If all sinks have the rows up to checkpoint"
        f" {number}, {retire}restore this one under another name (--pipeline{leave_out}) with `shared=True` on its"
        " sinks.",
        pipeline=name,
        path=uri,
        number=number,
    )


def _is_behind(uri: str, savepoint: Savepoint, delivered: SparkPosition | None) -> bool:
    """Return whether a savepoint of the newest number lacks delivered input: a restore changes the state at a number.

    One taken before a full refresh lacks nothing, unless an earlier restore had moved the state at its number back.
    Micro-batches are no measure: a rescaling adds one, and one may have to be computed again. They are used only where
    the pipeline's own folder is lost, and savepoints are what is left.
    """
    if delivered is None:
        return False
    if not filesystem(delivered.location).exists(delivered.location):
        require(delivered.location)
        return savepoint.batch < delivered.batch
    if behind_the_beginning(delivered) is None:
        return savepoint.restored
    location = SparkLocation.of(delivered, savepoint.pipeline)
    return not has_read_all_of(savepoint.location(uri), location)
