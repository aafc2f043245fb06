"""Open the participants of plans, and find where their sinks lead, so that pipelines can be compared."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_ft.sinks.registry import system

if TYPE_CHECKING:
    from airflow_ft.protocol.connections import ConnectionResolver
    from airflow_ft.protocol.model import ParticipantPlan
    from airflow_ft.protocol.participant import Participant

_HERE = ("://127.0.0.1:", "://[::1]:")


@dataclass(frozen=True, slots=True)
class Opener:
    """A `ParticipantFactory` over the write-ahead log that is `airflow_ft.protocol.sharing.Locating`, too."""

    connections: ConnectionResolver

    def __call__(self, plan: ParticipantPlan) -> Participant:
        from airflow_ft.sinks import open_participant
        from airflow_ft.sinks.delivery_progress import ReportingWal
        from airflow_ft.wal import open_wal

        return open_participant(plan, self.connections, ReportingWal(open_wal(), plan.name))

    def written(self, plan: ParticipantPlan) -> Mapping[str, str]:
        """See `Locating`: the setting that the system calls its place."""
        of = system(plan.kind)
        return {sink: str(given[of.place]) for sink, given in plan.sinks.items() if of.shares and of.place in given}

    def places(self, plan: ParticipantPlan) -> Mapping[str, Collection[str]]:
        """See `Locating`: a system's `lineage.places` or `lineage.place`, or else the URI of its dataset."""
        of = system(plan.kind)
        lineage = of.part("lineage") if of.shares else None
        if lineage is None:
            return {}
        connection = of.connection(plan, self.connections)

        def find(given: Mapping[str, Any]) -> Collection[str]:
            if hasattr(lineage, "places"):
                return {_one_address(place) for place in lineage.places(given, connection)}
            one = lineage.place if hasattr(lineage, "place") else lambda given, by: lineage.dataset(given, by).uri
            return {_one_address(one(given, connection))}

        return {sink: find(given) for sink, given in plan.sinks.items()}


def _one_address(uri: str) -> str:
    """Names of hosts are the same in any case. This machine has several addresses."""
    scheme, mark, rest = uri.partition("://")
    if mark:
        host, slash, path = rest.partition("/")
        uri = f"{scheme}://{host.lower()}{slash}{path}"
    for address in _HERE:
        uri = uri.replace(address, "://localhost:", 1)
    return uri
