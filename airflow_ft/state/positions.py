"""Which of a pipeline's checkpoints is looked at, and where its state lies."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_ft.core.errors import ConfigurationError, WalCorruptError
from airflow_ft.core.ports import Store
from airflow_ft.savepoints.metadata import read_metadata
from airflow_ft.spark.locations import SparkLocation, require_batch

_MANY = 100_000


@dataclass(frozen=True, slots=True)
class Position:
    """A checkpoint, and Spark's location as of its batch."""

    number: int
    spark: SparkLocation

    @property
    def version(self) -> int:
        """Of the state stores: a micro-batch writes the version behind its own number."""
        return self.spark.batch + 1


def newest(store: Store, pipeline: str) -> Position:
    """The newest confirmed checkpoint; ConfigurationError when there is none."""
    try:
        store.pipeline(pipeline)
    except KeyError:
        raise ConfigurationError(
            f"the decision log {store.url} knows no pipeline {pipeline!r}.",
            remedy=f"known are: {', '.join(row.name for row in store.pipelines()) or 'none'}.",
        ) from None
    confirmed = store.latest_confirmed(pipeline)
    if confirmed is None:
        raise ConfigurationError(
            "it has no confirmed checkpoint yet, so there is no state to look at.",
            remedy="let it deliver something first: `airflow ft checkpoints` shows how far it is.",
            pipeline=pipeline,
        )
    try:
        return _position(store, pipeline, confirmed.number)
    except WalCorruptError:  # swept between the two looks, if it is not the newest any more
        latest = store.latest_confirmed(pipeline)
        if latest is None or latest.number == confirmed.number:
            raise
        return _position(store, pipeline, latest.number)


def retained(store: Store, pipeline: str, number: int) -> Position:
    """A checkpoint that somebody names; ConfigurationError when it is not confirmed, or pruned."""
    try:
        checkpoint = store.checkpoint(pipeline, number)
    except KeyError:
        raise ConfigurationError(
            "there is no such checkpoint.",
            remedy=f"`airflow ft checkpoints {pipeline}` lists them.",
            pipeline=pipeline,
            checkpoint=number,
        ) from None
    if not checkpoint.is_confirmed:
        raise ConfigurationError(
            f"it is {checkpoint.state}: state is shown of confirmed checkpoints alone.",
            remedy="leave the number out, for the newest that is confirmed.",
            pipeline=pipeline,
            checkpoint=number,
        )
    latest = store.latest_confirmed(pipeline)
    is_latest = latest is not None and latest.number == number
    if not is_latest and checkpoint.finalised and number not in {c.number for c in store.prunable(pipeline, 0, _MANY)}:
        raise pruned(pipeline, number)
    try:
        return _position(store, pipeline, number)
    except WalCorruptError as error:
        raise error if is_latest else pruned(pipeline, number) from error


def of_savepoint(uri: str) -> Position:
    """That of a savepoint's folder."""
    found = read_metadata(uri)
    return Position(found.number, found.location(uri))


def only(position: Position, number: int | None) -> Position:
    """Of a savepoint; ConfigurationError for another checkpoint than its own."""
    if number not in (None, position.number):
        raise ConfigurationError(
            f"the savepoint holds checkpoint {position.number} alone.",
            remedy="look at the pipeline itself, or at another savepoint.",
            pipeline=position.spark.pipeline,
            checkpoint=number or 0,
        )
    return position


def pruned(pipeline: str, number: int) -> ConfigurationError:
    """What to tell of a checkpoint whose state is gone."""
    return ConfigurationError(
        "it is pruned: Spark's state of that moment is gone.",
        remedy=f"`airflow ft checkpoints {pipeline}` lists younger ones; CheckpointConfig(num_retained=) keeps more.",
        pipeline=pipeline,
        checkpoint=number,
    )


def _position(store: Store, pipeline: str, number: int) -> Position:
    base = store.position_before(pipeline, number + 1)
    if base is None:
        raise ConfigurationError(
            "its checkpoints have no state: its job reads no source as a stream.",
            remedy="there is nothing to look at.",
            pipeline=pipeline,
        )
    location = SparkLocation("", pipeline, base.location, base.batch, "looked at")
    require_batch(location)
    return Position(number, location)
