"""Tables, topics and folders that a run has written, with row counts: the input of assets and OpenLineage."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.confirmed import Confirmed
from airflow_ft.protocol.connections import ConnectionResolver
from airflow_ft.protocol.datasets import Dataset
from airflow_ft.protocol.model import Plan
from airflow_ft.sinks.registry import system
from airflow_ft.wal.manifest import decode_schema

if TYPE_CHECKING:
    from airflow_ft.protocol.decision_log import QueryLog
    from airflow_ft.wal.manifest import SinkContent

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Delivered:
    """Rows that a sink received, and its name in lineage. `kind` and `settings` are those of its plan."""

    sink: str
    dataset: Dataset
    rows: int
    kind: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


def delivered(
    store: QueryLog, pipeline: str, confirmed: Confirmed, connections: ConnectionResolver
) -> Sequence[Delivered]:
    """Return what each sink has got, by the plan of the newest delivery; without rows that were set aside.

    A sink whose name cannot be found is left out, with a warning: its rows are delivered anyway.
    """
    plan = _newest_plan(store, pipeline, confirmed)
    if plan is None:
        return ()
    return [
        replace(each, rows=confirmed.by_sink.get(each.sink, 0) - _set_aside(each.sink, confirmed))
        for each in destinations(plan, connections)
    ]


def columns(of: Delivered, content: SinkContent) -> Sequence[tuple[str, str]]:
    """Names and types (Arrow's) of what a sink was given, by the names that it has there."""
    return _named(of, [(each.name, str(each.type)) for each in decode_schema(content.schema)] if content.schema else [])


def column_name(of: Delivered, column: str) -> str | None:
    """Return what a column of the rows is called in a sink; None: it has none of it."""
    return next((name for name, _ in _named(of, [(column, "")])), None)


def _named(of: Delivered, given: Sequence[tuple[str, str]]) -> Sequence[tuple[str, str]]:
    lineage = system(of.kind).part("lineage")
    named: Sequence[tuple[str, str]] = lineage.columns(of.settings, given) if hasattr(lineage, "columns") else given
    return named


def _set_aside(sink: str, confirmed: Confirmed) -> int:
    """Rows of these numbers; what was delivered together with them may be of another run."""
    found = confirmed.set_aside.get(sink)
    return sum(stop - start for number, _, start, stop in found.places if number in confirmed.numbers) if found else 0


def _newest_plan(store: QueryLog, pipeline: str, confirmed: Confirmed) -> Plan | None:
    if not confirmed.numbers.count:
        return None
    found = store.checkpoint(pipeline, confirmed.numbers.last)
    if found.delivered_by not in (None, found.number):
        found = store.checkpoint(pipeline, found.delivered_by)
    return found.plan


def destinations(plan: Plan, connections: ConnectionResolver) -> Iterator[Delivered]:
    """Yield what each sink of a plan is called; its rows are left open."""
    for participant in plan.participants:
        try:
            of = system(participant.kind)
            if (lineage := of.part("lineage")) is not None:
                connection = of.connection(participant, connections)
                for sink, settings in participant.sinks.items():
                    yield Delivered(sink, lineage.dataset(settings, connection), 0, participant.kind, settings)
        except Exception as error:  # a part of another distribution, too: these rows are confirmed all the same
            log.warning("lineage omits %s: %s", participant.name, error)
