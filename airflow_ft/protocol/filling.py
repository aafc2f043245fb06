"""Tables and topics that another pipeline fills, from the decision log (`airflow_ft.protocol.sharing`)."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_ft.protocol.model import ParticipantPlan


@dataclass(frozen=True, slots=True)
class Filling:
    """A plan of another pipeline: it has delivered into these participants, or is about to (`number` 0)."""

    pipeline: str
    status: str
    number: int
    participants: tuple[ParticipantPlan, ...]
    dags: frozenset[str] = frozenset()
    """The first and the last one, by name, of the DAGs that have made its checkpoints."""
