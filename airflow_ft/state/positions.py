"""Which of a pipeline's checkpoints is looked at, and where its state lies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_ft.protocol.errors import ConfigurationError, WalCorruptError
from airflow_ft.protocol.lookup import confirmed_position, is_replaced, require_known, require_moved
from airflow_ft.protocol.model import SparkPosition
from airflow_ft.spark.savepoints.metadata import read_metadata, verify
from airflow_ft.spark.state.locations import SparkLocation, location_root, require_batch
from airflow_ft.wal.roots import recall

if TYPE_CHECKING:
    from airflow_ft.store.decision_log import DecisionLog


@dataclass(frozen=True, slots=True)
class Position:
    """A checkpoint, and Spark's location as of its batch.

    restored: the state was restored, or reset, after the checkpoint: it is not what that has left.
    """

    number: int
    spark: SparkLocation
    restored: bool = False

    @property
    def version(self) -> int:
        """Return the version of the state stores: a micro-batch writes the version after its own number."""
        return self.spark.batch + 1


def confirmed(store: DecisionLog, pipeline: str, number: int | None = None) -> Position:
    """Return the position of the newest confirmed checkpoint, or of a retained one.

    Raises:
        ConfigurationError: any other checkpoint.
    """
    require_known(store, pipeline)
    found, base = confirmed_position(store, pipeline, number)
    try:
        return _existing(store, pipeline, found, base)
    except WalCorruptError as error:
        require_moved(store, pipeline, number, (found, base), error)
        return _existing(store, pipeline, *confirmed_position(store, pipeline, number))  # swept between the two looks


def of_savepoint(uri: str) -> Position:
    """Return the position of a savepoint's folder, after reading all files.

    Raises:
        WalCorruptError: a file is damaged.
    """
    found = read_metadata(uri)
    verify(uri, found)
    return Position(found.number, found.location(uri), restored=found.restored)


def only(position: Position, number: int | None) -> Position:
    """Return the position of a savepoint.

    Raises:
        ConfigurationError: `number` is another checkpoint than its own.
    """
    if number not in (None, position.number):
        raise ConfigurationError(
            f"the savepoint has only checkpoint {position.number}.",
            code="checkpoint_unknown",
            remedy="Look at the pipeline itself, or at another savepoint.",
            pipeline=position.spark.pipeline,
            checkpoint=number or 0,
            only=position.number,
        )
    if number is not None and position.restored:
        raise ConfigurationError(
            "the state in the savepoint was restored or reset after that checkpoint.",
            code="state_replaced",
            remedy="Leave out the number. The state is then marked as restored.",
            pipeline=position.spark.pipeline,
            checkpoint=number,
        )
    return position


def _existing(store: DecisionLog, pipeline: str, number: int, base: SparkPosition) -> Position:
    recall(store, location_root(base.location))
    location = SparkLocation.of(base, pipeline)
    require_batch(location)
    return Position(number, location, restored=is_replaced(store, pipeline, number, base))
