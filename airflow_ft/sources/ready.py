"""Check that the brokers of sources can be reached, before Spark starts: its client would ask for a minute."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from airflow_ft.clients.reaching import refusal
from airflow_ft.protocol.connections import ConnectionResolver
from airflow_ft.protocol.errors import StageError
from airflow_ft.sources import Source
from airflow_ft.sources.kafka import KafkaSource

_SECONDS = 5.0
"""That a broker has to accept a connection. What it says then is for Spark, in the connection's own settings."""
_ADDRESS = re.compile(r"\s*(?:\w+://)?\[?([\w.:%-]+?)\]?:(\d+)\s*")


def unreachable(sources: Mapping[str, Source], connections: ConnectionResolver) -> Iterator[StageError]:
    """One for each list of servers none of which accepts a connection. An address that is none of TCP's is let pass.

    Raises what `KafkaSource.reader_options` does.
    """
    asked: dict[tuple[str, str], list[str]] = {}
    for name, source in sources.items():
        if isinstance(source, KafkaSource):
            servers = source.reader_options(source.connection(connections))["kafka.bootstrap.servers"]
            asked.setdefault((source.conn_id, servers), []).append(name)
    for (conn_id, servers), names in asked.items():
        if refusals := _refusals(servers.split(",")):
            which = f"source{'' if len(names) == 1 else 's'} {', '.join(map(repr, names))}"
            yield StageError(
                f"no broker of {which} can be reached: {'; '.join(refusals)}.",
                code="server_unreachable",
                participant=conn_id,
                remedy=f"Start the brokers. Or correct the host and port of connection {conn_id!r}, or its"
                " bootstrap.servers.",
                sources=names,
                servers=servers,
            )


def _refusals(servers: Sequence[str]) -> list[str]:
    """Why each of them cannot be reached; empty when one can, or may be."""
    refusals = []
    for server in servers:
        address = _ADDRESS.fullmatch(server)
        if address is None:
            return []
        refused = refusal(address[1], int(address[2]), _SECONDS)
        if refused is None:
            return []
        refusals.append(refused)
    return refusals
