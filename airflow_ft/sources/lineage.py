"""Names of sources in lineage, as far as they are known before they are read."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_ft.clients.kafka.connection import topic
from airflow_ft.protocol.connections import ConnectionResolver
from airflow_ft.protocol.datasets import Dataset, folder
from airflow_ft.sources import FileSource, KafkaSource, Source


def places(source: Source) -> Sequence[str]:
    """Return topics, or a folder; nothing for a source that names none: a `pattern`, a socket, a custom class."""
    if isinstance(source, KafkaSource):
        return tuple(source.topics)
    return (source.path,) if isinstance(source, FileSource) else ()


def datasets(source: Source, connections: ConnectionResolver) -> Sequence[Dataset]:
    """The same as they are called outside; raises as `connections` does."""
    if isinstance(source, KafkaSource) and source.topics:
        connection = connections(source.conn_id)
        return [topic(connection, name) for name in source.topics]
    return [folder(place) for place in places(source)]
