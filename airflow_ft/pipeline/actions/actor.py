"""The requester of an action, and what the action needs from the place where it runs."""

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
        signature: for the event log: the requested action, the person, the reason.
        person: the same without the action, for events that name the action themselves.
        say: prints a line of output.
        sure: asks the question before an action. It returns, or raises an error that ends the action unchanged.
        connections: reads Airflow's connections, as this place may.
        participants: opens participants over them.
        is_over: returns whether a run can no longer continue, according to Airflow.
        worker: this process, for leases.
        lease_seconds: seconds without a renewal after which a lease expires.
        is_stranded: returns whether Airflow will never end an unfinished run, because its DAG is gone. False: no,
            or it is not known.
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
    is_stranded: Callable[[RunKey], bool] = lambda _: False
