"""Find pipelines and checkpoints by name, and what a misspelled name means. A ConfigurationError lists what exists."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from airflow_ft.protocol.decision_log import QueryLog
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.model import Checkpoint, SparkPosition

_MANY = 100_000
_CLOSE, _SIMILAR = 3, 0.5
"""The most names that an error suggests for an unknown one, and their similarity (`difflib.get_close_matches`)."""
_FOLDER = re.compile(r"/(\d+)-0/?$")
"""A location that an epoch has made for itself: no attempt has the number 0."""


def require_known(store: QueryLog, pipeline: str, hint: str = "") -> None:
    """Refuses a pipeline that is not in the decision log; `hint` ends the remedy."""
    try:
        store.pipeline(pipeline)
    except KeyError:
        raise ConfigurationError(
            f"the decision log {store.url} has no pipeline {pipeline!r}.",
            code="pipeline_unknown",
            remedy=f"{known_text([row.name for row in store.pipelines()], pipeline)}{hint}",
            name=pipeline,
            store=store.url,
        ) from None


def known_text(names: Sequence[str], wanted: str) -> str:
    """Return the names if they are few, otherwise the three closest."""
    if len(names) <= _CLOSE:
        return (
            f"Give one of: {', '.join(names)}." if names else "Run a DAG first: the decision log has no pipeline yet."
        )
    lists = f"`airflow ft pipelines` lists all {len(names):,}."
    close = get_close_matches(wanted, names, _CLOSE, _SIMILAR)
    return f"Did you mean {' or '.join(close)}? {lists}" if close else lists


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """Return a question with the closest known name and a space after it; "": none is close. Ignores case."""
    close = closest(name, known)
    return f"Did you mean {close!r}? " if close else ""


def closest(name: str, known: Iterable[str], similar: float = 0.7) -> str:
    """Return the known name that is most similar to `name`, ignoring case; "": none is as `similar` (`difflib`)."""
    folded = {each.lower(): each for each in known}
    close = get_close_matches(name.lower(), folded, 1, similar)
    return folded[close[0]] if close else ""


def checkpoint_of(store: QueryLog, pipeline: str, number: int) -> Checkpoint:
    """The one of that number."""
    try:
        return store.checkpoint(pipeline, number)
    except KeyError:
        raise ConfigurationError(
            "the pipeline has no checkpoint of this number.",
            code="checkpoint_unknown",
            remedy=f"Run `airflow ft checkpoints {pipeline}` to list its checkpoints.",
            pipeline=pipeline,
            checkpoint=number,
        ) from None


def confirmed_position(store: QueryLog, pipeline: str, number: int | None = None) -> tuple[int, SparkPosition]:
    """Return the newest confirmed checkpoint, or the retained one of that number, and Spark's position after it.

    Unless it is the newest, another process may sweep it at any time: see `require_moved`.

    Raises:
        ConfigurationError: it does not exist, or its state was replaced since (`is_replaced`).
    """
    asked = number
    newest = store.latest_confirmed(pipeline)
    if number is None and newest is None:
        raise ConfigurationError(
            "it has no confirmed checkpoint yet, so it has no state to save or show.",
            code="nothing_confirmed",
            remedy=f"Wait until the pipeline has delivered. `airflow ft checkpoints {pipeline}` shows its progress.",
            pipeline=pipeline,
        )
    if number is None:
        assert newest is not None
        number = newest.number
    elif newest is None or newest.number != number:
        _require_retained(store, pipeline, number)
    base = store.position_before(pipeline, number + 1)
    if base is None:
        raise ConfigurationError(
            "its checkpoints have neither positions nor state, because its job reads no source as a stream.",
            code="positions_missing",
            remedy="Do nothing: a new pipeline starts from the same place.",
            pipeline=pipeline,
        )
    if asked is not None and is_replaced(store, pipeline, number, base):
        raise ConfigurationError(
            "its own state is gone. A savepoint was restored after it, or the state was reset.",
            code="state_replaced",
            remedy="Leave the number out to get the newest state, which is the restored one. Or use a savepoint of this"
            " checkpoint, or a later checkpoint.",
            pipeline=pipeline,
            checkpoint=number,
        )
    return number, base


def is_replaced(store: QueryLog, pipeline: str, number: int, position: SparkPosition) -> bool:
    """Return whether a restore or reset put the pipeline at this position after it had published the number.

    `airflow ft savepoint restore`, a full refresh and `airflow ft reset-state` make a folder under an epoch of their
    own. That epoch may have delivered earlier numbers, but it publishes none.
    """
    return _moved_in(position) > 0 and _moved_in(position) >= store.checkpoint(pipeline, number).epoch


def _moved_in(position: SparkPosition) -> int:
    """The epoch that made a position for itself; 0: an attempt has reached it."""
    folder = _FOLDER.search(position.location)
    return int(folder[1]) if folder else 0


def retained(store: QueryLog, pipeline: str, most: int) -> list[Checkpoint]:
    """Return the checkpoints that `confirmed_position` takes, newest first, of the newest `most` checkpoints."""
    newest = store.latest_confirmed(pipeline)
    unpruned = {each.number for each in store.prunable(pipeline, 0, _MANY)} | {newest.number if newest else 0}
    return [
        each
        for each in store.checkpoints(pipeline, most)
        if each.is_confirmed
        and (not each.finalised or each.number in unpruned)
        and not (each.position and _moved_in(each.position) >= each.epoch)
    ]


def require_moved(
    store: QueryLog, pipeline: str, number: int | None, found: tuple[int, SparkPosition], error: Exception
) -> None:
    """Return if another look finds a different position after files of `confirmed_position(number)` were missing.

    Then a later checkpoint was confirmed meanwhile, or another position was restored. Otherwise raises: that the
    checkpoint was pruned, or for the newest one, which no sweep touches, `error` itself.
    """
    if confirmed_position(store, pipeline, number) != found:
        return
    newest = store.latest_confirmed(pipeline)
    if newest is not None and newest.number == found[0]:
        raise error
    raise _pruned(pipeline, found[0]) from error


def _require_retained(store: QueryLog, pipeline: str, number: int) -> None:
    checkpoint = checkpoint_of(store, pipeline, number)
    if not checkpoint.is_confirmed:
        raise ConfigurationError(
            f"it is {checkpoint.state}. Only confirmed checkpoints have state that can be saved or shown.",
            code="checkpoint_unconfirmed",
            remedy="Leave the number out to get the newest confirmed checkpoint.",
            state=checkpoint.state.value,
            pipeline=pipeline,
            checkpoint=number,
        )
    if checkpoint.finalised and all(each.number != number for each in store.prunable(pipeline, 0, _MANY)):
        raise _pruned(pipeline, number)


def _pruned(pipeline: str, number: int) -> ConfigurationError:
    return ConfigurationError(
        "it was pruned, so Spark's state of that checkpoint is gone.",
        code="checkpoint_pruned",
        remedy=f"Choose a newer one: `airflow ft checkpoints {pipeline}` lists them. CheckpointConfig(num_retained=...)"
        " keeps more.",
        pipeline=pipeline,
        checkpoint=number,
    )
