"""Statements for tables that would take a job's columns, of any sinks. No server is asked."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from airflow_ft.protocol.errors import PROPOSES
from airflow_ft.sinks.registry import system

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_ft.protocol.connections import ConnectionResolver
    from airflow_ft.protocol.doctor import Check
    from airflow_ft.protocol.model import ParticipantPlan


def shown_below(text: str) -> str:
    """Return a message that has the statements after it, without the command that prints them."""
    return PROPOSES.sub("A statement for these rows is below.", text)


def proposed(
    plan: ParticipantPlan,
    connections: ConnectionResolver,
    columns: Mapping[str, pa.Schema],
    lacking: Collection[str] = ("",),
) -> list[str]:
    """Return statements for the tables of a participant's sinks whose columns are known.

    `lacking` names the sinks, or "" for all of them. Systems without a part `proposal` have none.
    """
    of_kind = system(plan.kind)
    known = {name: columns[name] for name in plan.sinks if name in columns and not {"", name}.isdisjoint(lacking)}
    known = {name: schema for name, schema in known.items() if schema.names}
    module = of_kind.part("proposal") if known else None
    return [] if module is None else list(module.propose(plan, of_kind.connection(plan, connections), known))


def of_missing(
    checks: Iterable[Check],
    participants: Iterable[ParticipantPlan],
    connections: ConnectionResolver,
    columns: Mapping[str, pa.Schema],
) -> list[str]:
    """Return statements for the sinks of which a check has found that the table is missing."""
    missing = [(check.subject, check.sink) for check in checks if check.code == "table_missing"]
    statements: list[str] = []
    for plan in participants:
        lacking = [sink for subject, sink in missing if subject == system(plan.kind).called(plan)]
        statements += proposed(plan, connections, columns, lacking)
    return statements
