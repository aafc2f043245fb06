"""A socket as a source: lines that a server sends, once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_ft.protocol.argument_names import by_name
from airflow_ft.protocol.arguments import check_text, check_type
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.sources.plain import PlainSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_ft.protocol.connections import ConnectionInfo


@by_name
@dataclass(frozen=True, kw_only=True)
class SocketSource(PlainSource):
    """Lines of UTF-8 that a server sends; rows have the column `value`.

    The driver connects, and nothing that was sent can be asked for again. So a pipeline that reads a socket is a stream
    with `CheckpointingMode.AT_MOST_ONCE`. What the driver has received and not yet read lies in its memory, without a
    bound.

    Args:
        host: of the server.
        port: of the server.
        include_timestamp: rows have the column `timestamp`, too: when the driver has received the line.

    Raises:
        ConfigurationError: for what cannot work.
    """

    kind = "socket"

    host: str
    port: int
    include_timestamp: bool = False

    def __post_init__(self) -> None:
        of = "SocketSource"
        check_text("host", self.host, of=of)
        check_type("port", self.port, int, "Give a number from 1 to 65535.", of=of)
        check_type("include_timestamp", self.include_timestamp, bool, "Give True or False.", of=of)
        if not self.host:
            raise ConfigurationError(
                "SocketSource needs the name or address of a host.",
                code="argument_missing",
                remedy='Give host="localhost", for example.',
                argument="host",
            )
        if not 0 < self.port < 65536:
            raise ConfigurationError(
                f"SocketSource: port is {self.port}.",
                code="argument_invalid",
                remedy="Give a number from 1 to 65535.",
                argument="port",
                value=self.port,
            )

    def read(
        self,
        spark: SparkSession,
        connection: ConnectionInfo | None = None,
        *,
        streaming: bool = True,
        tags: Mapping[str, str] | None = None,
    ) -> DataFrame:
        """A streaming DataFrame of the lines; there is no static one."""
        if not streaming:
            raise ConfigurationError(
                "a socket has no end, so a static read of it makes no sense.",
                code="static_read_refused",
                remedy="Read it as a stream, by sources[...].",
            )
        options = {"host": self.host, "port": str(self.port), "includeTimestamp": str(self.include_timestamp).lower()}
        return spark.readStream.format("socket").options(**options, **(tags or {})).load()
