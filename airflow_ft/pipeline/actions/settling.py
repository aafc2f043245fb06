"""Acts on one unresolved checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_ft.pipeline.actions.actor import Actor
from airflow_ft.pipeline.actions.names import SETTLING
from airflow_ft.pipeline.actions.words import fate_text, rows_text, state_text
from airflow_ft.protocol.doubt import doubts
from airflow_ft.protocol.lookup import checkpoint_of
from airflow_ft.protocol.model import AfterAbort
from airflow_ft.protocol.resolution import Resolver
from airflow_ft.protocol.set_aside import of_checkpoint

if TYPE_CHECKING:
    from airflow_ft.protocol.decision_log import QueryLog
    from airflow_ft.store.decision_log import DecisionLog


def look(by: Actor, store: QueryLog, pipeline: str, number: int) -> None:
    """Says what each sink holds of a checkpoint. ConfigurationError when there is no such checkpoint."""
    checkpoint_of(store, pipeline, number)
    for doubt in doubts(store, [pipeline], by.participants):
        if doubt.number in (number, 0):
            by.say(f"{doubt.participant or doubt.pipeline}: {doubt.evidence.text}")


def settle(
    by: Actor,
    store: DecisionLog,
    pipeline: str,
    action: str,
    number: int,
    after: AfterAbort = AfterAbort.CARRIED,
    sink: str = "",
) -> None:
    """Does one of `SETTLING` to a checkpoint, in a fresh epoch; may be repeated.

    `after` says what becomes of the rows of one that is given up. `sink`: the participant to give up.
    StateConflictError says why it is refused.
    """
    found = checkpoint_of(store, pipeline, number)
    question = SETTLING[action]
    if action == "abort":
        question += f" (its rows: {fate_text(store, pipeline, after)})"
    if sink:
        question += f" {sink} (if it returns, its prepared rows keep their locks until you end them there)"
    by.sure(f"Checkpoint {number} ({state_text(found)}, {rows_text(found)}): {question}?")
    resolver = Resolver(store, pipeline, by.participants, by.signature, by.worker, by.lease_seconds)
    match action:
        case "commit":
            found = resolver.commit(number)
        case "abort":
            found = resolver.abort(number, after)
        case "quarantine":
            found = resolver.quarantine(number)
        case "dead_letter":
            found = resolver.dead_letter(number)
        case "give_up":
            found = resolver.give_up(number, sink)
        case _:
            found = resolver.redeliver(number)
    by.say(f"checkpoint {number} is {state_text(found)}")
    for sink, aside in of_checkpoint(found).items():
        by.say(aside.text(sink))
