"""Which sources a checkpointing mode can be kept with: a source is read again after a failure, or it must not be."""

from __future__ import annotations

from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.model import CheckpointingMode
from airflow_ft.sources import CustomSource, KafkaSource, SocketSource, Source

_EXACTLY = "Use mode=CheckpointingMode.EXACTLY_ONCE. It continues where the last attempt ended, and loses no row."


def check_mode(name: str, source: Source, mode: CheckpointingMode) -> None:
    """ConfigurationError when the mode cannot be kept with this source, as it is declared."""
    if mode is not CheckpointingMode.AT_MOST_ONCE:
        if isinstance(source, SocketSource):
            raise not_replayable(name, mode)
        if isinstance(source, CustomSource) and not source.replayable:
            raise not_replayable(name, mode, "says replayable=False")
    elif isinstance(source, KafkaSource):
        if source.starting_offsets != "latest":
            raise read_again(name, "its starting_offsets", f'Set starting_offsets="latest". Or: {_EXACTLY}')
    elif isinstance(source, CustomSource):
        if source.replayable:
            raise read_again(name, "its initialOffset")
    elif not isinstance(source, SocketSource):
        raise read_again(name, "all files", _EXACTLY)


def not_replayable(
    name: str, mode: CheckpointingMode, what: str = "is a socket, which cannot be replayed"
) -> ConfigurationError:
    """Return what to raise for a source such as a socket that is read in a mode which promises that no row is lost."""
    return ConfigurationError(
        f"source {name!r} {what}: rows that were read but not published before a crash cannot be read again. So mode"
        f" {mode} cannot be kept.",
        code="source_not_replayable",
        remedy="Accept that rows can be lost, with mode=CheckpointingMode.AT_MOST_ONCE in a stream. Or read a source"
        " that can be replayed, such as Kafka.",
        source=name,
        mode=str(mode),
    )


def read_again(name: str, begin: str, remedy: str = _EXACTLY) -> ConfigurationError:
    """Return what to raise for a source that each attempt would read again, from `begin` on, in AT_MOST_ONCE."""
    return ConfigurationError(
        f"mode {CheckpointingMode.AT_MOST_ONCE} remembers nothing from one attempt to the next. So"
        f" source {name!r} would be read from {begin} by each attempt, and its rows would come twice.",
        code="source_read_again",
        remedy=remedy,
        source=name,
        mode=str(CheckpointingMode.AT_MOST_ONCE),
    )
