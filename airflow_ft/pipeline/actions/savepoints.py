"""Acts on savepoints, and the stop of a stream, which may take one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from airflow_ft.pipeline.actions.actor import Actor
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.from_savepoint import Later
from airflow_ft.spark.savepoints.metadata import Savepoint, is_there, owner_of
from airflow_ft.spark.savepoints.metadata import dispose as delete
from airflow_ft.spark.savepoints.restoring import Restored
from airflow_ft.spark.savepoints.stopping import stop as stop_stream
from airflow_ft.store.events import bytes_text

if TYPE_CHECKING:
    from airflow_ft.store.decision_log import DecisionLog


def stop(
    by: Actor,
    store: DecisionLog,
    pipeline: str,
    *,
    at_once: bool = False,
    drain: bool = False,
    savepoint_dir: str = "",
    wait: float = 0.0,
    first_try: int = 0,
    is_retry: bool = False,
) -> str:
    """Stops a stream as `airflow_ft.spark.savepoints.stopping` does, and says what it has answered."""
    outcome = stop_stream(
        store,
        pipeline,
        by.signature,
        at_once=at_once,
        drain=drain,
        savepoint_dir=savepoint_dir,
        wait=wait,
        first_try=first_try,
        is_retry=is_retry,
        is_over=by.is_over,
    )
    by.say(outcome)
    return outcome


def taken_text(uri: str, taken: Savepoint) -> str:
    """A savepoint that was just taken."""
    return f"savepoint of checkpoint {taken.number} of {taken.pipeline}, {bytes_text(taken.bytes)}: {uri}"


def restored_texts(restored: Restored, name: str, later: Later) -> Iterator[str]:
    """Yield what the next run of `name` does."""
    if (found := restored.savepoint) is None:
        yield f"the next run of {name} reads its sources from the beginning"
        return
    yield f"the next run of {name} continues from checkpoint {found.number} of {found.pipeline}"
    if restored.renamed:
        yield f"{found.pipeline} is RENAMED: its runs fail from now on; delivered rows stay in the sinks"
    if restored.later and later is Later.CONTINUE:
        first, last = restored.later[0], restored.later[-1]
        yield f"it continues after checkpoints {first} to {last}, and rebuilds their state first"
    elif restored.later:
        yield f"it delivers the rows of checkpoints {restored.later[0]} to {restored.later[-1]} again"


def dispose(by: Actor, uri: str) -> None:
    """Deletes a savepoint, also one that is unfinished."""
    by.sure(f"Delete the savepoint {uri}? No pipeline can be restored from it then.")
    delete(uri)
    by.say(f"{uri} is deleted")


def dispose_of(by: Actor, uri: str, pipeline: str) -> None:
    """Deletes a savepoint of this pipeline; one that is not there any more is no error, another's is left alone."""
    if not is_there(uri):
        by.say(f"{uri} does not exist: nothing to delete")
        return
    if (owner := owner_of(uri)) != pipeline:
        raise ConfigurationError(
            f"{uri} is a savepoint of pipeline {owner}. Nothing was deleted.",
            code="arguments_conflict",
            remedy=f"Name the pipeline {owner}, or a savepoint of {pipeline}.",
            pipeline=pipeline,
            path=uri,
            other=owner,
        )
    dispose(by, uri)
