"""The sinks: one package per system, with `spec` (the light declaration in a DAG) and `participant` (delivery).

To add a system, add such a package here or in another distribution, and name it in the entry points
(`airflow_ft.sinks.registry`). Nothing else names it but the plan's `kind`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from airflow_ft.sinks.registry import system

if TYPE_CHECKING:
    from airflow_ft.protocol.connections import ConnectionResolver
    from airflow_ft.protocol.model import ParticipantPlan
    from airflow_ft.protocol.participant import Participant
    from airflow_ft.protocol.write_ahead_log import WalReader


def open_participant(plan: ParticipantPlan, connections: ConnectionResolver, wal: WalReader) -> Participant:
    """Opens the participant that a plan names; connects lazily, at the first call that needs the server.

    Raises ConfigurationError for a client that is missing here: a plan may come from a machine that has it.
    """
    of_kind = system(plan.kind)
    of_kind.require_clients()
    module = of_kind.part("participant")
    return cast("Participant", module.open_participant(plan, of_kind.connection(plan, connections), wal))
