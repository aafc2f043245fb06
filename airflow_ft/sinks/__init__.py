"""The sinks: one package a system, with `spec` (what a DAG author writes; light) and `participant` (does the work).

Adding a system is adding such a package, here or in a distribution of its own, and naming it in the entry points
(`airflow_ft.sinks.registry`); nothing else names it but the plan's `kind`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from airflow_ft.sinks.registry import system

if TYPE_CHECKING:
    from airflow_ft.protocol.model import ParticipantPlan
    from airflow_ft.protocol.ports import ConnectionResolver, Participant, WalReader


def open_participant(plan: ParticipantPlan, connections: ConnectionResolver, wal: WalReader) -> Participant:
    """Opens the participant that a plan names; connects lazily, at the first call that needs the server."""
    of_kind = system(plan.kind)
    module = of_kind.part("participant")
    return cast("Participant", module.open_participant(plan, of_kind.connection(plan, connections), wal))
