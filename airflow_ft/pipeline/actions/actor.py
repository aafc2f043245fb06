"""Who asks for an act, and what the act needs of the place where it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from airflow_ft.protocol.connections import ConnectionResolver
from airflow_ft.protocol.lease import Worker
from airflow_ft.protocol.model import RunKey
from airflow_ft.protocol.participant import ParticipantFactory


@dataclass(frozen=True, slots=True)
class Actor:
    """A person at the command line, or behind the run of a DAG.

    Attributes:
        signature: for the event log: the requested act, the person, the reason.
        person: the same without the act, where the event log names that itself.
        say: prints a line of output.
        sure: takes the question before an act; returns, or raises what ends the act with nothing changed.
        connections: reads Airflow's connections, as this place may.
        participants: opens participants over them.
        is_over: returns whether a run can no longer continue, according to Airflow.
        worker: this process, for leases.
        lease_seconds: seconds without a renewal after which a lease expires.
    """

    signature: str
    person: str
    say: Callable[[str], None]
    sure: Callable[[str], None]
    connections: ConnectionResolver
    participants: ParticipantFactory
    is_over: Callable[[RunKey], bool]
    worker: Worker
    lease_seconds: float
