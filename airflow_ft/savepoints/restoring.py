"""Restoring: a pipeline goes on from a savepoint, under numbers that go on (none is used twice).

The savepoint is read as a whole before anything is touched. What the pipeline has decided is delivered first, and what
it has published and not decided is given up. Then a copy of the savepoint becomes its base: one write to the decision
log, as with `airflow_ft.spark.state_reset`. Nothing is asked of the sinks.

Checkpoints that were confirmed after the savepoint stay visible, and their rows lie behind its positions in the
sources. So they would come again: `Later` says what is to become of them.

What if the process dies ...
- before the one write: the copy belongs to an epoch that nobody holds any more, and is swept; the pipeline stands where
  it stood, at its newest delivered checkpoint.
- after it: the pipeline goes on from the savepoint.
An hour late, beside its successor: the write is refused (I5). Two at once: the second finds the lease of the first, or
the epoch moved.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import StrEnum

from airflow_ft.core.coordinator import Coordinator, coordinating
from airflow_ft.core.errors import ConfigurationError, StateConflictError
from airflow_ft.core.lease import LEASE_SECONDS, Worker
from airflow_ft.core.model import CheckpointState, Pipeline, PipelineStatus, SparkPosition
from airflow_ft.core.planning import quarantined
from airflow_ft.core.ports import ParticipantFactory, Store
from airflow_ft.core.recovery import give_up_undecided
from airflow_ft.savepoints.metadata import Savepoint, dispose, read_metadata, verify
from airflow_ft.savepoints.taking import not_written
from airflow_ft.spark.locations import SparkLocation, copy_location, location_root, new_location
from airflow_ft.store.errors import UnknownPipelineError

log = logging.getLogger(__name__)


class Later(StrEnum):
    """What becomes of checkpoints that were confirmed after the savepoint, whose rows are in the sinks."""

    REFUSE = "refuse"
    """Nothing is restored while there are such."""
    WRITE_AGAIN = "write-again"
    """Their input is read once more, and what the job makes of it is delivered beside what is there."""


class ClaimMode(StrEnum):
    """Whose the savepoint is afterwards (Flink's `RestoreMode`)."""

    NO_CLAIM = "NO_CLAIM"
    """It stays as it is; the pipeline works in a copy."""
    CLAIM = "CLAIM"
    """The pipeline's: it is deleted once the pipeline has its copy."""


@dataclass(frozen=True, slots=True)
class Restored:
    """The base from which the pipeline goes on, and the numbers that were confirmed after the savepoint."""

    savepoint: Savepoint
    position: SparkPosition
    later: tuple[int, ...]


def claim_mode(name: str) -> ClaimMode:
    """By Flink's name; ConfigurationError, with advice for LEGACY."""
    if name.upper() == "LEGACY":
        raise ConfigurationError(
            "claim mode LEGACY leaves open who deletes the savepoint.",
            remedy="NO_CLAIM leaves it alone, CLAIM deletes it once it is restored.",
        )
    try:
        return ClaimMode(name.upper())
    except ValueError:
        raise ConfigurationError(
            f"there is no claim mode {name!r}.", remedy=f"give one of {', '.join(ClaimMode)}."
        ) from None


def restore(
    store: Store,
    uri: str,
    participants: ParticipantFactory,
    worker: Worker,
    why: str,
    *,
    pipeline: str = "",
    wal_root: str = "",
    later: Later = Later.REFUSE,
    claim: ClaimMode = ClaimMode.NO_CLAIM,
    lease_seconds: float = LEASE_SECONDS,
) -> Restored:
    """Has `pipeline` (default: the savepoint's) go on from the savepoint at `uri`, under a new epoch.

    `wal_root` is where a pipeline works that has no checkpoint yet; any other stays in its own.

    ConfigurationError for what is no savepoint, or not of this pipeline; WalCorruptError for a damaged one;
    StateConflictError while the pipeline is halted, has something in quarantine, or has delivered more (`later`);
    LeaseHeldError while it is at work. Then nothing is changed. What is raised later leaves the pipeline at its newest
    delivered checkpoint.
    """
    savepoint = read_metadata(uri)
    name = pipeline or savepoint.pipeline
    _examine(store, uri, savepoint, name, later)
    verify(uri, savepoint)
    store.register(name)
    with coordinating(store, name, participants, worker, why, lease_seconds) as (coordinator, keeper):
        _settle(store, name, coordinator, why)
        keeper.check()
        row = store.pipeline(name)
        passed = _examine(store, uri, savepoint, name, later)
        root = location_root(row.base.location) if row.base is not None else wal_root
        try:
            copied = _copied(uri, savepoint, root, name, coordinator.epoch)
        except OSError as error:
            raise not_written(root, error, name) from error
        position = copied.position(savepoint.batch)
        store.restore(name, coordinator.epoch, position, f"savepoint {uri} of checkpoint {savepoint.number}: {why}")
    if claim is ClaimMode.CLAIM:
        dispose(uri)
    return Restored(savepoint, position, passed)


def _examine(store: Store, uri: str, savepoint: Savepoint, name: str, later: Later) -> tuple[int, ...]:
    """Refuses what must not be restored; the numbers that were confirmed since the savepoint, of this pipeline."""
    try:
        row = store.pipeline(name)
    except UnknownPipelineError:
        return ()
    opened = store.open_checkpoints(name)
    confirmed = store.latest_confirmed(name)
    _require_settleable(row, opened_in_quarantine=[c.number for c in quarantined(opened)])
    if confirmed is None and not row.last_published:
        return ()  # it has nothing of its own: a copy, under another name or in another installation
    if savepoint.pipeline != name or savepoint.installation != store.installation:
        of = f"of pipeline {savepoint.pipeline}" if savepoint.pipeline != name else "of another installation"
        raise ConfigurationError(
            f"the savepoint {uri} is {of}, and {name} has checkpoints of its own: their numbers cannot be compared.",
            remedy="restore it under a name that is new here (--pipeline).",
            pipeline=name,
        )
    if savepoint.drained and later is Later.REFUSE:
        raise StateConflictError(
            "it was drained before the savepoint was taken: what was open in its windows is delivered, and would be"
            " delivered once more when it closes.",
            remedy="restore an older savepoint, or have it come again (`--later write-again`).",
            pipeline=name,
        )
    newest = 0 if confirmed is None else confirmed.number
    decided = [c.number for c in opened if c.state is CheckpointState.COMMITTING]
    passed = tuple(range(savepoint.number + 1, max([newest, *decided]) + 1))
    if passed and later is Later.REFUSE:
        raise StateConflictError(
            f"checkpoints {passed[0]} to {passed[-1]} were delivered after the savepoint (it covers {savepoint.number}"
            " and before): what is read from there comes again.",
            remedy="take a newer savepoint; or have it come again (`--later write-again`): harmless for sinks that"
            " replace rows by their key (upsert), and twice in all others.",
            pipeline=name,
        )
    return passed


def _require_settleable(row: Pipeline, opened_in_quarantine: list[int]) -> None:
    if row.status is PipelineStatus.HALTED:
        raise StateConflictError(
            f"it is HALTED ({row.halt_reason}): {row.halt_message}",
            remedy=f"mend that first, and `airflow ft resume {row.name}`.",
            pipeline=row.name,
        )
    if opened_in_quarantine:
        raise StateConflictError(
            "it is QUARANTINED: a person has to say what becomes of it.",
            remedy=f"`airflow ft in-doubt --pipeline {row.name}`.",
            pipeline=row.name,
            checkpoint=opened_in_quarantine[0],
        )


def _settle(store: Store, name: str, coordinator: Coordinator, why: str) -> None:
    """What is decided is delivered, what is not is given up."""
    for checkpoint in store.open_checkpoints(name):
        if checkpoint.state is CheckpointState.COMMITTING or checkpoint.rollback_pending:
            coordinator.deliver(checkpoint.number)
    give_up_undecided(store, name, coordinator, why)


def _copied(uri: str, savepoint: Savepoint, root: str, name: str, epoch: int) -> SparkLocation:
    """A copy below the pipeline's root, durable."""
    of = savepoint.location(uri)
    # No attempt has the number 0, so the folder is this epoch's own.
    copied = copy_location(of, new_location(root, name, epoch, 0))
    here = SparkLocation(root, name, copied.uri, copied.batch, copied.how)
    here.sync({})
    return here
