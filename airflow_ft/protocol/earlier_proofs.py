"""Proofs of a participant's earlier deliveries, for a sink whose newest proof does not name every place."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_ft.protocol.decision_log import QueryLog
from airflow_ft.protocol.overview import Only
from airflow_ft.protocol.votes import Proof

MOST = 1000
"""Confirmed checkpoints that are looked at."""


def proof_of(store: QueryLog, pipeline: str, number: int, participant: str) -> Proof | None:
    """Return the proof of one delivery; None: there is none, or only another decision log knew the number."""
    try:
        return store.checkpoint(pipeline, number).proof_of(participant) if number else None
    except KeyError:
        return None


def earlier_proofs(store: QueryLog, pipeline: str, number: int, participant: str) -> Iterator[Proof]:
    """Yield the proofs of the participant's deliveries below a number, newest first. Reads when it is first asked."""
    for checkpoint in store.checkpoints(pipeline, MOST, number, Only.COMPLETED):
        if (proof := checkpoint.proof_of(participant)) is not None:
            yield proof
