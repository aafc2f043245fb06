"""Sources of a pipeline: those that can be replayed from recorded positions, and those that cannot, such as a socket.

`KafkaSource`, `FileSource`, `SocketSource` and `CustomSource` are what a DAG author writes; they import nothing heavy.
Reading happens in the Spark driver (`airflow_ft.spark.driver.inputs`), from the plain data of `to_json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.sources.custom import CustomSource
from airflow_ft.sources.files import FileSource
from airflow_ft.sources.kafka import KafkaSource
from airflow_ft.sources.socket import SocketSource

__all__ = ["CustomSource", "FileSource", "KafkaSource", "SocketSource", "Source", "source_from_json"]

Source = KafkaSource | FileSource | SocketSource | CustomSource

_KINDS: dict[str, type[KafkaSource] | type[FileSource] | type[SocketSource] | type[CustomSource]] = {
    "kafka": KafkaSource,
    "files": FileSource,
    "socket": SocketSource,
    "custom": CustomSource,
}


def source_from_json(data: Mapping[str, Any]) -> Source:
    """The source that `to_json` described; ConfigurationError for an unknown kind."""
    kind = data.get("kind", "")
    if kind not in _KINDS:
        raise ConfigurationError(
            f"this version knows no source of kind {kind!r}, only {', '.join(sorted(_KINDS))}.",
            code="newer_release",
            remedy="Install the version of airflow-ft that wrote it, or a newer one.",
            kind=kind,
        )
    return _KINDS[kind].from_json(data)
