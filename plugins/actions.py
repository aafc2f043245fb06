"""Find the actions on pipelines that a user may do: those of the `maintenance_dags` that the user may trigger."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.models.dag import DagModel
from airflow.models.serialized_dag import SerializedDagModel

from airflow_ft.pipeline import settings
from airflow_ft.pipeline.actions.names import ACTIONS

from . import answers
from .access import may_trigger
from .answers import Hindrance

_MOST_KNOWN = 100
_KNOWN: dict[tuple[str, str], tuple[str, ...]] = {}

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Declared:
    """A DAG as it is in Airflow's database.

    Args:
        actions: the known actions that it does; none: it is another kind of DAG.
        paused: its runs do not start until it is unpaused.
    """

    actions: tuple[str, ...]
    paused: bool


def offered(user: BaseUser, visible: frozenset[str]) -> answers.Offered:
    """Return in `actions` each action that the user may do, with the first DAG that does it.

    `hindered` lists the DAGs that the user cannot use, and why. `visible`: the ids of the DAGs that the user may see.
    """
    actions: dict[str, str] = {}
    hindered: list[answers.Hindered] = []
    wanted = settings.maintenance_dags()
    found = declared([each for each in wanted if each in visible])
    for dag_id in wanted:
        why = _hindrance(user, dag_id, found.get(dag_id))
        if why is not None:
            hindered.append({"dag": dag_id, "why": why})
            continue
        for action in found[dag_id].actions:
            actions.setdefault(action, dag_id)
    return {"actions": actions, "hindered": hindered}


def declared(dag_ids: Sequence[str]) -> dict[str, Declared]:
    """Return those of the DAGs that exist. Airflow's database also keeps DAGs whose file was removed."""
    models = {dag_id: DagModel.get_current(dag_id) for dag_id in dag_ids}
    there = {dag_id: model for dag_id, model in models.items() if model is not None and not model.is_stale}
    found = SerializedDagModel.get_latest_serialized_dags(dag_ids=list(there))
    return {each.dag_id: Declared(_known(each), there[each.dag_id].is_paused) for each in found}


def _known(dag: SerializedDagModel) -> tuple[str, ...]:
    """Return the DAG's actions; cached until the DAG changes, since the page asks every few seconds."""
    key = (dag.dag_id, dag.dag_hash)
    if key not in _KNOWN:
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        try:
            _KNOWN[key] = _actions(dag.dag.params)
        except Exception as error:  # of another version of Airflow, for example: the page shows everything else
            log.warning("cannot read the DAG %s, so the page does not offer its actions: %s", dag.dag_id, error)
            _KNOWN[key] = ()
    return _KNOWN[key]


def _actions(params: Any) -> tuple[str, ...]:
    if "pipeline" not in params or "action" not in params:
        return ()
    return tuple(each for each in params.get_param("action").schema.get("enum") or () if each in ACTIONS)


def _hindrance(user: BaseUser, dag_id: str, dag: Declared | None) -> Hindrance | None:
    if dag is None:
        return Hindrance.MISSING
    if not may_trigger(user, dag_id):
        return Hindrance.FORBIDDEN
    if not dag.actions:
        return Hindrance.UNSUITABLE
    return Hindrance.PAUSED if dag.paused else None
