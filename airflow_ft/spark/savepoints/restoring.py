"""Restore a pipeline from a savepoint, under continuing numbers (none is used twice).

The savepoint is read as a whole before anything is touched. Then the pipeline's decided numbers are delivered, and
published, undecided ones are aborted. Then a copy of the savepoint becomes its base: one write to the decision log, as
with `airflow_ft.spark.state.reset`. The sinks are not asked.

A pipeline that is renamed is settled under its old name, which is leased until that write covers both: the new one
continues, and the old one is RENAMED. The sinks are asked for their heads, because the new name begins without markers
there.

Checkpoints that were confirmed after the savepoint stay visible, and their rows are after its positions in the
sources. So they would be delivered again: `Later` selects how to handle them (`airflow_ft.spark.state.catching_up`).

What if the process dies ...
- before the one write: the copy belongs to an epoch without a holder, and is swept; the pipeline stays at its newest
  delivered checkpoint.
- after it: the pipeline continues from the savepoint. Repeating the rename restores it under the new name, as long as
  nothing was staged there.
An hour late, beside its successor: the write is refused (I5). Two at once: the second finds the lease of the first, or
a newer epoch.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_ft.protocol.config import check_name
from airflow_ft.protocol.errors import (
    AirflowFtError,
    ConfigurationError,
    FencedError,
    SinkUnavailableError,
    StateConflictError,
    StorageUnavailableError,
    WalCorruptError,
    require_not_renamed,
)
from airflow_ft.protocol.from_savepoint import BEGINNING, ClaimMode, FromSavepoint, Later, claim_mode
from airflow_ft.protocol.from_savepoint import later as later_of
from airflow_ft.protocol.lease import LEASE_SECONDS, Worker
from airflow_ft.protocol.model import CheckpointState, PipelineStatus, RunKey, SparkPosition
from airflow_ft.protocol.participant import ParticipantFactory
from airflow_ft.spark.savepoints.beginning import begin_anew
from airflow_ft.spark.savepoints.metadata import Savepoint, dispose, read_metadata, verify
from airflow_ft.spark.savepoints.settling import require_settleable, settled
from airflow_ft.spark.savepoints.taking import not_written
from airflow_ft.spark.state.beginnings import copy_frozen
from airflow_ft.spark.state.catching_up import has_read_all_of, plan
from airflow_ft.spark.state.draining import drain_of
from airflow_ft.spark.state.evolution import note_restored
from airflow_ft.spark.state.locations import SparkLocation, copy_location, location_of_epoch, location_root
from airflow_ft.store.errors import UnknownPipelineError
from airflow_ft.wal.filesystem import filesystem
from airflow_ft.wal.owners import register
from airflow_ft.wal.roots import require, require_files

if TYPE_CHECKING:
    from airflow_ft.protocol.decision_log import HistoryLog, PipelineLog, QueryLog
    from airflow_ft.store.decision_log import DecisionLog

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Restored:
    """The restored base of the pipeline, and the numbers that were confirmed after the savepoint.

    No savepoint: it continues from the beginning; no position: it had read nothing. `renamed`: it replaces the
    savepoint's pipeline.
    """

    savepoint: Savepoint | None
    position: SparkPosition | None
    later: tuple[int, ...]
    renamed: bool = False


def restore(
    store: DecisionLog,
    uri: str,
    participants: ParticipantFactory,
    worker: Worker,
    why: str,
    *,
    pipeline: str = "",
    wal_root: str = "",
    later: Later = Later.REFUSE,
    claim: ClaimMode = ClaimMode.NO_CLAIM,
    allow_non_restored_state: bool = False,
    allow_changed_state: bool = False,
    rename: bool = False,
    run: RunKey | None = None,
    lease_seconds: float = LEASE_SECONDS,
) -> Restored:
    """Restore `pipeline` (default: the savepoint's) from the savepoint at `uri`, under a new epoch.

    "beginning" in place of a URI: it reads everything again (`airflow_ft.spark.savepoints.beginning`).

    `rename`: `pipeline` replaces the savepoint's pipeline in its sinks, and that one delivers nothing any more. It
    must be at the savepoint.

    `allow_non_restored_state`: drop the state of operators that the next run's job lacks. `allow_changed_state`: that
    job may give the state another meaning. `run`: the DAG run that restores, which the decision log remembers.
    `wal_root` is the log of a pipeline without a checkpoint. Any other stays in its own, also a renamed one.

    These errors change nothing. A later error leaves the pipeline at its newest delivered checkpoint.

    Raises:
        ConfigurationError: `uri` is no savepoint, or not of this pipeline.
        WalCorruptError: the savepoint is damaged.
        PipelineHaltedError: the name was given up.
        StateConflictError: the pipeline is halted, has a quarantined checkpoint, or has delivered more (`later`).
        LeaseHeldError: another process works on it.
    """
    if uri == BEGINNING:
        if not pipeline or rename:
            raise ConfigurationError(
                "a full refresh needs the name of the pipeline, and cannot rename it.",
                code="arguments_conflict" if rename else "argument_missing",
                remedy="Remove --rename." if rename else "Name the pipeline (--pipeline).",
                argument="rename" if rename else "pipeline",
            )
        base = begin_anew(store, pipeline, participants, worker, why, later, run, lease_seconds)
        return Restored(None, base, ())
    savepoint = read_metadata(uri)
    was, name = savepoint.pipeline, pipeline or savepoint.pipeline
    check_name("pipeline", name)
    again = rename and _is_renamed(store, savepoint, name)
    rename = rename and not again
    if rename:
        _examine_former(store, uri, savepoint, name, later)
    _examine(store, uri, savepoint, name, later, rename=rename)
    verify(uri, savepoint)
    with ExitStack() as stack:
        held = 0
        if rename:  # whatever of it is asleep is fenced then, or finds in the sinks what was settled
            held = stack.enter_context(settled(store, was, participants, worker, why, lease_seconds))
            _require_rolled_back(store, was)
            _require_known(store, savepoint, name, participants, held)
            _examine_former(store, uri, savepoint, name, later)
        store.register(name)
        epoch = stack.enter_context(settled(store, name, participants, worker, why, lease_seconds))
        if again and not _is_renamed(store, savepoint, name):
            raise StateConflictError(
                f"{was} has got its old name back since this run renamed it.",
                code="action_refused",
                remedy="If you still want the new name, trigger a new run that renames it.",
                pipeline=name,
                old=was,
            )
        base = store.pipeline(was if rename else name).base
        passed = _examine(store, uri, savepoint, name, later, rename=rename)
        root = location_root(base.location) if base is not None else wal_root
        try:
            register(store, root, name)
            copied = _copied(uri, savepoint, root, name, epoch)
            if passed and later is Later.CONTINUE:
                _plan(store, savepoint, copied, base)
            note_restored(copied, allow_non_restored_state, allow_changed_state=allow_changed_state)
            copied.sync({})
            require_files(copied.uri, [(f"commits/{copied.batch}", None)] if copied.batch >= 0 else [])
            if rename:  # a source of which nothing was published yet begins where it would have under the old name
                copy_frozen(root, was, root, name)
        except StorageUnavailableError:
            raise
        except OSError as error:
            raise not_written(root, error, name) from error
        except WalCorruptError as error:
            if store.pipeline(name).epoch == epoch:
                raise
            raise FencedError(  # it is the copy that lacks something: a newer owner has swept it
                "another process has worked on the pipeline meanwhile. The savepoint is not restored.",
                remedy=f"Look at the pipeline: `airflow ft checkpoints {name}`. Then restore the savepoint again if you"
                " still want it.",
                pipeline=name,
            ) from error
        position = copied.position(savepoint.batch)
        told = f"savepoint {uri} of checkpoint {savepoint.number}: {why}"
        if rename:
            store.rename(was, held, savepoint.number, name, epoch, position, told, run, uri)
        else:
            store.restore(name, epoch, position, told, run, uri, None if was == name else (was, savepoint.number))
    if claim is ClaimMode.CLAIM:
        try:
            dispose(uri)
        except (AirflowFtError, OSError) as error:  # it is restored, whatever else lies there, or was deleted before
            log.warning("%s is restored, but the savepoint was not deleted: %s", name, error)
    return Restored(savepoint, position, passed, rename or again)


def restore_once(
    store: DecisionLog,
    told: FromSavepoint,
    pipeline: str,
    run: RunKey,
    participants: ParticipantFactory,
    worker: Worker,
    *,
    wal_root: str,
    why: str = "",
    lease_seconds: float = LEASE_SECONDS,
) -> Restored | None:
    """Restore from a savepoint for a DAG run (`restore`), unless this run has done so before (None).

    `why` goes into the event log; "": the run.
    """
    try:
        row = store.run(pipeline, run)
    except UnknownPipelineError:
        row = None
    if row is not None and row.restored_from:
        log.info("this run has already restored the savepoint %s, so it does not restore it again", row.restored_from)
        return None
    later = later_of(told.later)
    restored = restore(
        store,
        told.path.strip(),
        participants,
        worker,
        why or f"asked for by run {run}",
        pipeline=pipeline,
        wal_root=wal_root,
        later=later,
        claim=claim_mode(told.claim_mode),
        allow_non_restored_state=told.may_leave_state,
        allow_changed_state=told.may_change_state,
        rename=told.renames,
        run=run,
        lease_seconds=lease_seconds,
    )
    if (savepoint := restored.savepoint) is None:
        log.info("%s: full refresh: it reads its sources again from where they start", pipeline)
    else:
        log.info(
            "%s continues from checkpoint %d of %s, taken %s",
            pipeline,
            savepoint.number,
            savepoint.pipeline,
            savepoint.taken_at,
        )
    if restored.later and later is Later.WRITE_AGAIN:
        log.warning("the rows of checkpoints %d to %d are delivered again", restored.later[0], restored.later[-1])
    return restored


def _is_renamed(store: PipelineLog, savepoint: Savepoint, name: str) -> bool:
    """Return whether an earlier try has renamed it, and nothing was staged since: then only the restore is left."""
    try:
        row, old = store.pipeline(name), store.pipeline(savepoint.pipeline)
    except UnknownPipelineError:
        return False
    former = row.former
    same = former is not None and (former.pipeline, former.number) == (old.name, savepoint.number)
    return same and not row.last_published and old.status is PipelineStatus.RENAMED


def _examine_former(store: HistoryLog, uri: str, savepoint: Savepoint, name: str, later: Later) -> None:
    """Refuse to rename a pipeline that is not at the savepoint."""
    was = savepoint.pipeline
    if was == name or savepoint.installation != store.installation:
        why = (
            f"{was} is already its name"
            if was == name
            else "it belongs to another installation, which could still run it"
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
    require_not_renamed(row.status, row.halt_message, was, remedy)
    _examine(
        store,
        uri,
        savepoint,
        was,
        later,
        instead="Take another savepoint: --rename needs one of the newest checkpoint.",
    )


def _require_rolled_back(store: QueryLog, name: str) -> None:
    """SinkUnavailableError while a sink may hold what was prepared of an aborted number."""
    for checkpoint in store.open_checkpoints(name):
        if checkpoint.rollback_pending:
            raise SinkUnavailableError(
                "the checkpoint is ABORTED, but its sink does not answer and its prepared rows are not rolled back"
                " yet.",
                code="server_unreachable",
                remedy=f"Start the sink's server. Then run `airflow ft recover {name}` and try again.",
                pipeline=name,
                checkpoint=checkpoint.number,
            )


def _require_known(
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
                    f"{planned.name} has checkpoints of a pipeline {name} of installation {new.installation}.",
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


def _examine(
    store: HistoryLog,
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
        return ()
    opened = store.open_checkpoints(name)
    confirmed = store.latest_confirmed(name)
    if row.last_published and not rename:
        require_not_renamed(row.status, row.halt_message, name)
    require_settleable(row, opened)
    has_own = confirmed is not None or row.last_published > 0
    former = None if has_own else row.former
    if not has_own and (former is None or (rename and former.pipeline == savepoint.pipeline)):
        return ()  # it has nothing of its own: a copy, under another name or in another installation
    known = name if former is None else former.pipeline
    if savepoint.pipeline != known or savepoint.installation != store.installation:
        of = f"of pipeline {savepoint.pipeline}" if savepoint.pipeline != known else "of another installation"
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
            remedy=instead or "Restore an older savepoint, or deliver the rows again (`--later write-again`).",
            pipeline=name,
            path=uri,
        )
    if former is not None:
        newest, stands = former.number, row.base
    else:
        newest = 0 if confirmed is None else confirmed.number
        stands = store.position_before(name, newest + 1)
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
    if not passed and later is not Later.WRITE_AGAIN and _is_behind(uri, savepoint, stands):
        raise StateConflictError(
            f"the pipeline has read further than the savepoint, although both are at checkpoint {savepoint.number}:"
            " since then someone restored a later savepoint. Rows would be delivered again.",
            code="rows_would_repeat",
            remedy=instead or "Restore the later savepoint, or deliver the rows again (`--later write-again`).",
            pipeline=name,
            path=uri,
            later=(),
            number=savepoint.number,
        )
    return passed


def _is_behind(uri: str, savepoint: Savepoint, delivered: SparkPosition | None) -> bool:
    """Return whether a savepoint of the newest number lacks delivered input: a restore changes the state at a number.

    Micro-batches are no measure: a rescaling adds one, and one may have to be computed again. They are used only where
    the pipeline's own folder is lost, and savepoints are what is left.
    """
    if delivered is None:
        return False
    if not filesystem(delivered.location).exists(delivered.location):
        require(delivered.location)
        return savepoint.batch < delivered.batch
    location = SparkLocation("", savepoint.pipeline, delivered.location, delivered.batch, "")
    return not has_read_all_of(savepoint.location(uri), location)


def _copied(uri: str, savepoint: Savepoint, root: str, name: str, epoch: int) -> SparkLocation:
    """A copy below the pipeline's root."""
    of = savepoint.location(uri)
    copied = copy_location(of, location_of_epoch(root, name, epoch))
    return SparkLocation(root, name, copied.uri, copied.batch, copied.how)


def _plan(store: QueryLog, savepoint: Savepoint, copied: SparkLocation, base: SparkPosition | None) -> None:
    """Has the pipeline catch up with what was delivered after the savepoint."""
    before = store.position_before(savepoint.pipeline, savepoint.number + 1)
    assert base is not None and before is not None  # something was delivered after it
    count = plan(copied, SparkLocation(copied.root, copied.pipeline, base.location, base.batch, ""), before.batch)
    log.info("the next run computes %d micro-batches again, only to rebuild state", count)
