"""Who may see what of a pipeline, by Airflow's permissions on the DAGs that have made its checkpoints."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Literal

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.models.dag import DagModel
from fastapi import HTTPException

from airflow_ft.core.errors import AirflowFtError
from airflow_ft.core.model import PLAIN, RunKey
from airflow_ft.core.overview import Overview
from airflow_ft.core.ports import Store
from airflow_ft.dag_runs import ended
from airflow_ft.hooks.connections import server_connections
from airflow_ft.hooks.store import store_url
from airflow_ft.store import open_store
from airflow_ft.store.url import parse_url

from . import answers
from .turns import Turns

NEWEST = 15
"""So many checkpoints say whose a pipeline is: a DAG that is deleted or renamed does not hide it for ever."""
AT_ONCE = 8
"""Requests that ask the decision log; more than ever read files in one (`handles`)."""
OPENED_EACH = 60.0
"""Seconds, after which the decision log is opened once more beside the one that is open: a newer release may have
brought it up to date meanwhile, or somebody has put an older one there, and whoever opens it says so, or mends it."""


@contextmanager
def configured() -> Iterator[None]:
    """What fails here fails by the server's own configuration, or by what it cannot reach: 503."""
    try:
        yield
    except AirflowFtError as error:
        raise HTTPException(503, str(error)) from error


class _Opened:
    """The decision log that is configured, which stays open: to open it costs more than most questions."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._store: Store | None = None
        self._of: tuple[object, ...] = ()
        self._since = 0.0

    def store(self) -> Store:
        """Opened anew when another one is configured, a connection has another password, or another file lies there;
        when another installation lies in the same place, after `OPENED_EACH`.
        """
        url = store_url(connections=server_connections)
        with self._lock:
            kept = self._store if self._of == (url, _file(url)) else None
            if kept is not None and monotonic() - self._since < OPENED_EACH:
                return kept
        found: Store = open_store(url)  # it may take long, and others need not wait for it
        with self._lock:
            kept = self._store if self._of == (url, _file(url)) else None
            if kept is not None and kept.installation == found.installation:
                found, old = kept, found
            else:
                self._store, old = found, self._store
                self._of = url, _file(url)
            self._since = monotonic()
        if old is not None:
            old.close()
        return found


def _file(url: str) -> tuple[int, int] | None:
    """Which file it is; None: there is none, or it is no file."""
    path = parse_url(url).path
    with suppress(OSError):
        if path is not None:
            status = path.stat()
            return status.st_dev, status.st_ino
    return None


_opened = _Opened()
_turn = Turns(
    AT_ONCE,
    "wait for the decision log. Remedy: see whether its database answers ([airflow_ft] store); the page asks again by"
    " itself.",
)


@contextmanager
def decision_log() -> Iterator[Store]:
    """The configured one; 503 when it cannot be opened, or does not answer so many others."""
    with _turn():
        with configured():
            store = _opened.store()
        yield store


@contextmanager
def seen(pipeline: str, visible: frozenset[str]) -> Iterator[tuple[Store, frozenset[str]]]:
    """The decision log and the pipeline's DAGs, for a user who may see all of them: `visible_dags`.

    404 for others, in the same words as for a pipeline that there is not.
    """
    with decision_log() as store:
        with configured():
            try:
                dags = dags_of(store, pipeline)
            except KeyError:  # an error of ours, too
                raise unseen(pipeline) from None
        if not dags <= visible:
            raise unseen(pipeline)
        yield store, dags


def visible_dags(user: BaseUser) -> frozenset[str]:
    """The ids of the DAGs that the user may see."""
    return frozenset(get_auth_manager().get_authorized_dag_ids(user=user))


def dags_of(store: Store, pipeline: str) -> frozenset[str]:
    """The DAGs that have made its newest checkpoints; before there are any, those of the pipeline that was renamed to
    it. KeyError: there is no such pipeline.
    """
    origins = store.origins(pipeline, NEWEST)
    return of_dags([each.dag_id for each in origins] or store.standing(pipeline).dags)


def of_dags(made_by: Iterable[str]) -> frozenset[str]:
    """Without what programs have made (`airflow_ft.run`): of these there is no DAG, and so no permission."""
    return frozenset(each for each in made_by if each and not each.startswith(PLAIN))


def shown(run: RunKey | None, visible: frozenset[str]) -> RunKey | None:
    """None: of a DAG that the user may not see, which was the pipeline's long ago, say."""
    return run if run is not None and (run.is_plain or run.dag_id in visible) else None


def without_ended_runs(found: Sequence[Overview]) -> list[Overview]:
    """Without the turns of runs of DAGs that failed, succeeded or were deleted before they gave them back.

    The next run takes such a turn, whenever it comes; until then nobody is at work.
    """
    over = ended({each.turn for each in found if each.turn is not None})
    return [each._replace(turn=None) if each.turn in over else each for each in found]


def at_work(turn: RunKey | None, doing: Sequence[str], visible: frozenset[str]) -> answers.AtWork:
    """Whose turn it is, and how far a long delivery has come (`Store.doing`)."""
    run = shown(turn, visible)
    return {"at_work": str(run) if run else "", "doing": doing if turn else []}


def unseen(pipeline: str) -> HTTPException:
    """What whoever may not see a pipeline is answered."""
    return HTTPException(404, f"there is no pipeline {pipeline!r} that you may see")


def may_read_values(user: BaseUser, dags: Collection[str]) -> bool:
    """Whether the user may see what the pipeline's operators know: whoever may read the XComs of all its DAGs.

    State is made of the rows that a job reads, and kept for its next run. What Airflow has of that kind are XComs: whom
    an administrator keeps from them, he keeps from data, and not from runs and logs.
    """
    return all(_may(user, "GET", DagAccessEntity.XCOM, dag_id) for dag_id in sorted(dags) or [""])


def may_trigger(user: BaseUser, dag_id: str) -> bool:
    """Whether Airflow lets the user start a run of the DAG."""
    return _may(user, "POST", DagAccessEntity.RUN, dag_id)


def _may(user: BaseUser, method: Literal["GET", "POST"], entity: DagAccessEntity, dag_id: str) -> bool:
    """Of one DAG; of all of them where there is no id."""
    return get_auth_manager().is_authorized_dag(
        method=method,
        access_entity=entity,
        details=DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id)) if dag_id else None,
        user=user,
    )
