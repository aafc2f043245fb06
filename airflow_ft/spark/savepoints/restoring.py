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
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airflow_ft.protocol.config import check_name
from airflow_ft.protocol.errors import (
    AirflowFtError,
    ConfigurationError,
    FencedError,
    StateConflictError,
    WalCorruptError,
)
from airflow_ft.protocol.from_savepoint import BEGINNING, ClaimMode, FromSavepoint, Later, claim_mode
from airflow_ft.protocol.from_savepoint import later as later_of
from airflow_ft.protocol.lease import LEASE_SECONDS, Worker
from airflow_ft.protocol.model import RunKey, SparkPosition
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.participant import ParticipantFactory
from airflow_ft.spark.savepoints.beginning import start_from_scratch
from airflow_ft.spark.savepoints.metadata import Savepoint, dispose, read_metadata, verify
from airflow_ft.spark.savepoints.restorable import (
    examine,
    examine_former,
    is_renamed,
    require_known,
    require_rolled_back,
)
from airflow_ft.spark.savepoints.settling import settled
from airflow_ft.spark.savepoints.taking import writing
from airflow_ft.spark.session.connector import installed_version
from airflow_ft.spark.state.beginnings import copy_frozen
from airflow_ft.spark.state.catching_up import note_written_again, plan, require_all_read
from airflow_ft.spark.state.evolution import note_restored
from airflow_ft.spark.state.location_files import newest_batch, renew_query_id
from airflow_ft.spark.state.locations import (
    SparkLocation,
    copy_location,
    incarnation_in,
    location_of_epoch,
    location_root,
)
from airflow_ft.spark.state.meaning import warn_of_later_spark
from airflow_ft.store.errors import UnknownPipelineError
from airflow_ft.wal.owners import register
from airflow_ft.wal.roots import require_files

if TYPE_CHECKING:
    from airflow_ft.protocol.decision_log import QueryLog
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
        ConfigurationError: `uri` is no savepoint, or not of this pipeline. A copy cannot claim it either.
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
        base = start_from_scratch(store, pipeline, participants, worker, why, later, run, lease_seconds)
        return Restored(None, base, ())
    savepoint = read_metadata(uri)
    was, name = savepoint.pipeline, pipeline or savepoint.pipeline
    check_name("pipeline", name)
    is_foreign = savepoint.installation != store.installation  # of another decision log, where it may be needed
    if claim is ClaimMode.CLAIM and (is_foreign or (name != was and not rename)):
        owner = f"pipeline {was}" + (" of another decision log" if is_foreign else "")
        raise ConfigurationError(
            f"the savepoint {uri} is of {owner}, so {name} cannot claim it. Nothing was restored.",
            code="arguments_conflict",
            remedy=f"Restore it with NO_CLAIM. If {owner} does not need it, delete it afterwards:"
            f" `airflow ft savepoint dispose {uri}`.",
            pipeline=name,
            path=uri,
            other=was,
        )
    again = rename and is_renamed(store, savepoint, name)
    rename = rename and not again
    if rename:
        examine_former(store, uri, savepoint, name, later)
    examine(store, uri, savepoint, name, later, rename=rename)
    verify(uri, savepoint)
    warn_of_later_spark(savepoint.location(uri), installed_version())
    with ExitStack() as stack:
        held = 0
        if rename:  # whatever of it is asleep is fenced then, or finds in the sinks what was settled
            held = stack.enter_context(settled(store, was, participants, worker, why, lease_seconds))
            require_rolled_back(store, was)
            require_known(store, savepoint, name, participants, held)
            examine_former(store, uri, savepoint, name, later)
        store.register(name)
        epoch = stack.enter_context(settled(store, name, participants, worker, why, lease_seconds))
        if again and not is_renamed(store, savepoint, name):
            raise StateConflictError(
                f"{was} has got its old name back since this run renamed it.",
                code="action_refused",
                remedy="If you still want the new name, trigger a new run that renames it.",
                pipeline=name,
                old=was,
            )
        base = store.pipeline(was if rename else name).base
        passed = examine(store, uri, savepoint, name, later, rename=rename)
        root = location_root(base.location) if base is not None else wal_root
        try:
            with writing(root, name):
                register(store, root, name)
                copied = _copied(uri, savepoint, root, name, epoch)
                if is_foreign:  # its number is one of that decision log
                    note_written_again(copied, None)
                if passed and later is Later.CONTINUE:
                    _plan(store, savepoint, copied, base, passed[-1])
                elif passed:
                    note_written_again(copied, passed[-1])
                note_restored(copied, allow_non_restored_state, allow_changed_state=allow_changed_state)
                copied.sync({})
                require_files(copied.uri, [(f"commits/{copied.batch}", None)] if copied.batch >= 0 else [])
                if rename:  # a source of which nothing was published yet begins where it would have under the old name
                    copy_frozen(root, was, root, name)
        except WalCorruptError as error:
            if store.pipeline(name).epoch == epoch:
                raise
            raise FencedError(  # it is the copy that lacks something: a newer owner has swept it
                "another process has worked on the pipeline meanwhile. The savepoint is not restored.",
                remedy=f"Look at the pipeline: `airflow ft checkpoints {name}`. Then restore the savepoint again if you"
                " still want it.",
                pipeline=name,
            ) from error
        position, life = copied.position(savepoint.batch), incarnation_in(copied.uri)
        reason = f"savepoint {uri} of checkpoint {savepoint.number}: {why}"
        if rename:
            store.rename(was, held, savepoint.number, name, epoch, position, reason, run, uri, life)
        else:
            of = None if was == name else (was, savepoint.number)
            again_from = None
            if later is Later.WRITE_AGAIN:  # under another name it has published nothing
                again_from = savepoint.number + 1 if of is None else 0
            store.restore(name, epoch, position, reason, run, uri, of, again_from, life)
    if claim is ClaimMode.CLAIM:
        try:
            dispose(uri)
        except (AirflowFtError, OSError) as error:  # it is restored, whatever else lies there, or was deleted before
            log.warning("%s is restored, but the savepoint was not deleted: %s", name, error)
    return Restored(savepoint, position, passed, rename or again)


def restore_once(
    store: DecisionLog,
    from_savepoint: FromSavepoint,
    pipeline: str,
    run: RunKey,
    participants: ParticipantFactory,
    worker: Worker,
    *,
    wal_root: str,
    why: str = "",
    lease_seconds: float = LEASE_SECONDS,
    is_cleared: bool = False,
) -> Restored | None:
    """Restore from a savepoint for a DAG run (`restore`), unless this run has done so before (None).

    `why` goes into the event log; "": the run. `is_cleared`: the task was cleared. The event log does not record its
    earlier tries, so `write-again` and `beginning` are refused.

    Raises:
        StateConflictError: this run has restored another savepoint, or would deliver rows again that other runs have
            delivered. Also what `restore` raises.
    """
    try:
        row = store.run(pipeline, run)
    except UnknownPipelineError:
        row = None
    path = from_savepoint.path.strip()
    if row is not None and row.restored_from:
        if row.restored_from != path:
            raise StateConflictError(
                f"this run has restored {row.restored_from}, so it does not restore {path}.",
                code="already_restored",
                remedy="Trigger a new DAG run to restore another savepoint.",
                pipeline=pipeline,
                run=str(run),
            )
        log.info("this run has already restored the savepoint %s, so it does not restore it again", row.restored_from)
        return None
    later = later_of(from_savepoint.later)
    repeats = later is Later.WRITE_AGAIN or path == BEGINNING
    if is_cleared and repeats:
        raise StateConflictError(
            "this task was cleared. Rows that others may have delivered since its first try would come twice.",
            code="action_refused",
            remedy="If you still want the restore, trigger a new DAG run.",
            pipeline=pipeline,
            run=str(run),
        )
    # Try 1 of a task has not failed: others had the turn while it waited. A program always begins with try 1.
    is_again = row is not None and (run.is_plain or worker.try_number > 1)
    if is_again and repeats:
        _require_not_overtaken(store, pipeline, run)
    restored = restore(
        store,
        path,
        participants,
        worker,
        why or f"asked for by run {run}",
        pipeline=pipeline,
        wal_root=wal_root,
        later=later,
        claim=claim_mode(from_savepoint.claim_mode),
        allow_non_restored_state=from_savepoint.may_leave_state,
        allow_changed_state=from_savepoint.may_change_state,
        rename=from_savepoint.renames,
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


def _require_not_overtaken(store: DecisionLog, pipeline: str, run: RunKey) -> None:
    """Refuse a restore that would deliver again what other runs have delivered since this run registered or failed."""
    if (other := store.overtaken_by(pipeline, run)) is not None:
        raise StateConflictError(
            f"run {other} has worked on the pipeline since this run first started. Rows delivered since then would be"
            " delivered again.",
            code="action_refused",
            remedy="If you still want the restore, trigger a new DAG run.",
            pipeline=pipeline,
            run=str(run),
            other=str(other),
        )


def _copied(uri: str, savepoint: Savepoint, root: str, name: str, epoch: int) -> SparkLocation:
    """A copy below the pipeline's root."""
    of = savepoint.location(uri)
    copied = copy_location(of, location_of_epoch(root, name, epoch))
    if savepoint.pipeline != name and newest_batch(copied.uri) >= 0:
        renew_query_id(copied.uri)
    return replace(copied, root=root, pipeline=name)


def _plan(
    store: QueryLog, savepoint: Savepoint, copied: SparkLocation, base: SparkPosition | None, newest: int
) -> None:
    """Has the pipeline catch up with what was delivered after the savepoint."""
    before = store.position_before(savepoint.pipeline, savepoint.number + 1)
    assert base is not None and before is not None  # something was delivered after it
    require_all_read(copied, base, newest)
    count = plan(copied, SparkLocation.of(base, copied.pipeline, copied.root), before.batch)
    log.info("the next run computes %s again, only to rebuild state", count_text(count, "micro-batch", "micro-batches"))
