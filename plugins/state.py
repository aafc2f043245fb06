"""The page's API on operator state: what there is, and what the operators know of one key."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import Body, Response

from airflow_ft.protocol.errors import ConfigurationError, TransientError, WalCorruptError
from airflow_ft.protocol.lookup import retained
from airflow_ft.spark.state.locations import location_root
from airflow_ft.wal.filesystem import filesystem

from . import state_answers
from .access import may_read_values, seen, visible_dags
from .handles import ENTRIES, Handles, turn
from .refused import RefusedError
from .routes import Number
from .routes import router as conditional

if TYPE_CHECKING:
    from airflow_ft.spark.state.operators import Operator
    from airflow_ft.state.handle import State
    from airflow_ft.state.layout import Entry, Table
    from airflow_ft.state.positions import Position
    from airflow_ft.store.decision_log import DecisionLog

MOST_BYTES = 1 << 20
"""Largest answer, in bytes."""
_CHECKPOINTS = 100
_EXACT = 1 << 53  # JavaScript's numbers

T = TypeVar("T")
router = conditional()
handles = Handles()


@router.get("/pipelines/{name}/state")
def operators(name: str, user: GetUserDep, at: Number | None = None) -> state_answers.Operators:
    """The operators that have state, with the columns of its keys and values; as of which checkpoint."""
    with seen(name, visible_dags(user)) as (store, dags), turn():
        number, found = _ask(store, name, at, lambda handle: [_operator(handle, each) for each in handle.operators()])
        return {
            "checkpoint": number,
            "checkpoints": [each.number for each in retained(store, name, _CHECKPOINTS)],
            "operators": found,
            "may_look_up": may_read_values(user, dags),
        }


# The key goes in the body: a URL is written into the logs of servers on the way.
@router.post("/pipelines/{name}/state", responses={200: {"model": state_answers.LookedUp}})
def look_up(
    name: str,
    user: GetUserDep,
    operator: Annotated[str, Body()],
    key: Annotated[list[str], Body()],
    state: Annotated[str | None, Body()] = None,
    at: Annotated[Number | None, Body()] = None,
) -> Response:
    """Return what an operator (by its number or uid) knows of a key; no states: nothing.

    key: a text for each column, as `airflow ft state get` takes them.
    state: one of several; None: all that have something for the key.
    at: a retained checkpoint; None: the newest one that is confirmed.
    """

    def ask(handle: State) -> Mapping[str, Any]:
        from airflow_ft.state.texts import key_of

        tables = {each.name: each for each in handle.states(operator)}
        first = next(iter(tables.values()), None) if state is None else handle.one(operator, state)
        if first is None:
            raise ConfigurationError(
                f"operator {operator} has no state that the page can look up.",
                code="state_unreadable",
                remedy="Read it with Spark: `airflow_ft.state.open(...).dataframe(spark, operator)`.",
                pipeline=name,
                operator=operator,
            )
        found = handle.entries(operator, key_of(first.key, key), state)
        return {"states": [_state(tables[each], entries) for each, entries in found.items()]}

    with seen(name, visible_dags(user)) as (store, dags), turn():
        if not may_read_values(user, dags):
            raise RefusedError(
                403,
                f"you may not see values of state without the permission to read XComs of {', '.join(sorted(dags))}.",
                code="permission_missing",
                remedy="Ask your Airflow administrator for this permission.",
            )
        number, found = _ask(store, name, at, ask)
    text = json.dumps({"checkpoint": number, **found}, ensure_ascii=False, allow_nan=False)
    if len(text) > MOST_BYTES:
        raise RefusedError(
            413,
            f"the state of this key has {len(text):,} characters. The page shows at most {MOST_BYTES:,}.",
            code="state_too_large",
            remedy=f"Run `airflow ft state get {name} ...`.",
        )
    return Response(text, media_type="application/json")


def _ask(store: DecisionLog, name: str, at: int | None, ask: Callable[[State], T]) -> tuple[int, T]:
    """Return the answer of a handle, and its checkpoint; tries again if the pipeline removed the files meanwhile."""
    position = _position(store, name, at)
    try:
        with handles.lent(name, position) as handle:
            return position.number, ask(handle)
    except (TransientError, WalCorruptError):
        newer = _position(store, name, at)
        if newer == position:
            raise
    with handles.lent(name, newer) as handle:
        return newer.number, ask(handle)


def _position(store: DecisionLog, name: str, at: int | None) -> Position:
    from airflow_ft.state import positions

    confirmed = store.latest_confirmed(name)
    base = store.position_before(name, confirmed.number + 1) if confirmed else None
    if base is not None:
        root = location_root(base.location)
        if not filesystem(root).exists(root):
            raise RefusedError(
                503,
                f"the API server does not find {root}, the folder with the state of {name}.",
                code="storage_unavailable",
                remedy="Mount the folder there under the same path. Or run `airflow ft state` where tasks run.",
            )
    found = positions.confirmed(store, name, at)
    if found.restored:
        raise ConfigurationError(
            f"the state was restored or reset after checkpoint {found.number}, and no newer checkpoint has it yet.",
            code="state_replaced",
            remedy=f"Wait for the next checkpoint. Or run `airflow ft state show {name}`.",
            pipeline=name,
        )
    return found


def _operator(handle: State, operator: Operator) -> state_answers.StatefulOperator:
    row: state_answers.StatefulOperator = {
        "id": operator.id,
        "name": operator.name,
        "uid": operator.uid,
        "partitions": operator.partitions,
        "bytes": operator.bytes,
        "problem": "",
        "states": [],
    }
    try:
        row["states"] = [_table(each) for each in handle.states(operator.id)]
    except ConfigurationError as error:  # an encoding that Spark alone reads
        row["problem"] = str(error)
    return row


def _table(table: Table) -> state_answers.State:
    from airflow_ft.state.rows import kind_text
    from airflow_ft.state.texts import example

    return {
        "name": table.name,
        "kind": table.shape.value,
        "key": [{"name": each.name, "type": kind_text(each.kind), "example": example(each.kind)} for each in table.key],
        "value": [{"name": each.name, "type": kind_text(each.kind)} for each in table.value_columns],
        "ttl": table.ttl,
    }


def _state(table: Table, entries: tuple[Entry, ...]) -> state_answers.Found:
    return {
        "name": table.name,
        "kind": table.shape.value,
        "entries": [
            {
                "at": _json(each.at),
                "value": _json(each.value),
                "expires": datetime.fromtimestamp(each.expires / 1000, UTC).isoformat() if each.expires else None,
            }
            for each in entries[:ENTRIES]
        ],
        "cut": len(entries) > ENTRIES,
    }


def _json(value: Any) -> Any:
    """As `airflow ft state get` prints it; numbers that a browser would change are texts."""
    from airflow_ft.state.export import plain

    return _exact(plain(value))


def _exact(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _exact(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_exact(each) for each in value]
    if isinstance(value, int) and abs(value) > _EXACT:
        return str(value)
    return value
