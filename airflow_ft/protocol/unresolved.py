"""Quarantine of checkpoints that cannot be settled: after a while they are QUARANTINED instead of retried without
limit.

Quarantine needs proof, not time alone (I6, I7): every sink that still lacks the number *answers*, and the newest error
noted of one of them is a refusal. While a sink is unavailable no decision is needed. Recovery settles the number when
the sink is back, so a sink that has just come back gets a try first. A killed process notes no error.
"""

from __future__ import annotations

import logging
from datetime import timedelta

from airflow_ft.protocol.delivery_log import DeliveryLog
from airflow_ft.protocol.doubt import Finding, read_evidence
from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.protocol.explaining import is_refused
from airflow_ft.protocol.model import Checkpoint
from airflow_ft.protocol.participant import ParticipantFactory
from airflow_ft.protocol.recovery import in_doubt
from airflow_ft.protocol.transitions import IN_DOUBT

log = logging.getLogger(__name__)


def quarantine_unresolved(
    store: DeliveryLog, pipeline: str, participants: ParticipantFactory, after: timedelta | None
) -> Checkpoint | None:
    """Quarantine the oldest number that has been in doubt for `after` (None: never) while its sinks answer.

    Returns it, or None. Takes no epoch, since the mark delivers nothing. Does nothing while a process holds a lease, or
    if one has begun or joined meanwhile. Logs errors: the next run tries again.
    """
    if after is None:
        return None
    try:
        oldest = next((c for c in in_doubt(store, pipeline, after) if c.state in IN_DOUBT), None)
        if oldest is None:
            return None
        epoch = store.pipeline(pipeline).epoch  # before the leases: a process that begins later has a newer epoch
        if store.leases(pipeline):
            return None
        age = store.now() - oldest.in_doubt_since
        if age < after:  # the log's clock was ahead: its age is not known
            return None
        waiting = _refused_by(oldest, participants)
        if not waiting:
            return None
        since = str(age).split(".")[0]
        message = f"in doubt for {since} (quarantine_after), although its sinks answer: {'; '.join(waiting)}."
        kept = store.quarantine(pipeline, epoch, oldest.number, message, if_idle=True)
    except AirflowFtError as error:
        log.warning("cannot check what is in doubt in %s (the next run tries again): %s", pipeline, error)
        return None
    log.error("checkpoint %d of %s is QUARANTINED: %s", kept.number, pipeline, message)
    return kept


def _refused_by(checkpoint: Checkpoint, participants: ParticipantFactory) -> list[str]:
    """Return what the sinks that lack the number say, if their newest error is a refusal. Empty: one cannot be read."""
    found: list[str] = []
    for participant in checkpoint.participants:
        if checkpoint.proof_of(participant.name) is not None:
            continue
        assert checkpoint.plan is not None
        evidence = read_evidence(checkpoint.plan, participant.name, participants)
        if evidence.finding in (Finding.UNKNOWN, Finding.CONTRADICTION):
            return []  # a contradiction halts the pipeline by itself
        problem = checkpoint.problem_of(participant.name)
        if evidence.finding in (Finding.ABSENT, Finding.WAITING) and problem is not None and is_refused(problem):
            found.append(f"{participant.name}: {evidence.text}")
    return found
