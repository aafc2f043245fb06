"""Decide what a user may see of a pipeline, by Airflow's permissions on the DAGs that made its checkpoints."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Literal, Self

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.utils.session import create_session
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from airflow_ft.admin.dag_runs import judged
from airflow_ft.pipeline import settings
from airflow_ft.pipeline.connections import server_connections
from airflow_ft.pipeline.decision_log import store_url
from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.protocol.failure import Failure
from airflow_ft.protocol.model import PLAIN, Checkpoint, RunKey
from airflow_ft.protocol.overview import Overview
from airflow_ft.store import open_store
from airflow_ft.store.url import parse_url

from . import answers
from .refused import RefusedError
from .turns import Turns

if TYPE_CHECKING:
    from airflow_ft.store.decision_log import DecisionLog
    from airflow_ft.store.overviews import OverviewOperations

NEWEST = 15
"""Newest checkpoints that name a pipeline's DAGs, so a deleted or renamed DAG does not hide it for ever."""
FURTHER = 1_000
"""Number of newest checkpoints that name the DAGs, if programs made all of the newest `NEWEST`."""
UNSEEN_RUN = RunKey("another DAG", "a run")
"""Placeholder for a run of a DAG that the user may not see."""
HIDDEN = "Hidden: this belongs to a DAG that you may not see."
AT_ONCE = 8
"""Requests that ask the decision log; more than ever read files in one (`handles`)."""
OPENED_EACH = 60.0
"""Seconds after which the decision log is opened again, beside the one that is open. Meanwhile a newer release may have
upgraded it, or an older one was put there. Opening it reports that, or repairs it."""


@contextmanager
def configured() -> Iterator[None]:
    """Yield what fails here fails by the server's own configuration, or by what it cannot reach: 503."""
    try:
        yield
    except AirflowFtError as error:
        raise RefusedError.of(503, error) from error


class _Opened:
    """The decision log that is configured, which stays open: to open it costs more than most questions."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._store: DecisionLog | None = None
        self._of: tuple[object, ...] = ()
        self._since = 0.0

    def store(self) -> DecisionLog:
        """Return the open store. Opens it again when another one is configured, its password changed, or its file was
        replaced; after `OPENED_EACH` also if another decision log is in the same place.
        """
        url = store_url(connections=server_connections)
        with self._lock:
            kept = self._store if self._of == (url, _file(url)) else None
            if kept is not None and monotonic() - self._since < OPENED_EACH:
                return kept
        found: DecisionLog = open_store(url)  # it may take long, and others need not wait for it
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
    """Return which file it is; None: there is none, or it is no file."""
    path = parse_url(url).path
    with suppress(OSError):
        if path is not None:
            status = path.stat()
            return status.st_dev, status.st_ino
    return None


_opened = _Opened()
_turn = Turns(
    AT_ONCE,
    "wait for the decision log.",
    remedy="Check that its database answers ([airflow_ft] store). The page asks again automatically.",
)


@contextmanager
def decision_log() -> Iterator[DecisionLog]:
    """Yield the configured store; 503 when it cannot be opened, or too many requests wait for it."""
    with _turn():
        with configured():
            store = _opened.store()
        yield store


@contextmanager
def seen(pipeline: str, visible: frozenset[str]) -> Iterator[tuple[DecisionLog, frozenset[str]]]:
    """Yield the decision log and the pipeline's DAGs, for a user who may see all of them: `visible_dags`.

    Other users get 404, in the same words as for a pipeline that does not exist.
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
    """The ids of the DAGs that the user may see. Users who may see all may also see deleted ones (`_WithGone`)."""
    found = frozenset(get_auth_manager().get_authorized_dag_ids(user=user))
    there = existing_dags()
    return found if there is None or not there <= found else _WithGone(found, user)


def existing_dags() -> frozenset[str] | None:
    """The ids of all DAGs in Airflow's database; None: it cannot be asked."""
    try:
        with create_session() as session:
            return frozenset(
                session.scalars(
                    select(DagModel.dag_id).join(DagBundleModel, DagModel.bundle_name == DagBundleModel.name)
                )
            )
    except SQLAlchemyError:
        return None


class _WithGone(frozenset[str]):
    """The DAGs of a user who may see all of them. It also has deleted DAGs, if Airflow would let the user see them.

    Airflow lists no deleted DAG. Without this the pipelines of one would be hidden from all users.
    """

    def __new__(cls, found: Iterable[str], user: BaseUser) -> Self:
        made = super().__new__(cls, found)
        made._user, made._answers = user, {}
        return made

    _user: BaseUser
    _answers: dict[str, bool]

    def __contains__(self, dag_id: object) -> bool:
        if super().__contains__(dag_id):
            return True
        if not isinstance(dag_id, str) or not dag_id:
            return False
        if dag_id not in self._answers:
            self._answers[dag_id] = _may(self._user, "GET", None, dag_id)
        return self._answers[dag_id]

    def issuperset(self, other: Iterable[object]) -> bool:
        return all(each in self for each in other)

    def __ge__(self, other: AbstractSet[object]) -> bool:
        return self.issuperset(other)

    def intersection(self, *others: Iterable[object]) -> frozenset[str]:
        [other] = others
        return frozenset(each for each in other if isinstance(each, str) and each in self)


def dags_of(store: OverviewOperations, pipeline: str) -> frozenset[str]:
    """Return the DAGs that made the newest checkpoints. If programs made all of these, look at `FURTHER` checkpoints.

    If no DAG made any, return the pipeline's known DAGs, or those of the pipeline that was renamed to it.

    Raises:
        KeyError: there is no such pipeline.
    """
    for newest in (NEWEST, FURTHER):
        if found := of_dags(each.dag_id for each in store.origins(pipeline, newest)):
            return found
    return of_dags(store.overview(pipeline).dags)


def of_dags(made_by: Iterable[str]) -> frozenset[str]:
    """Without what programs have made (`airflow_ft.run`): of these there is no DAG, and so no permission."""
    return frozenset(each for each in made_by if each and not each.startswith(PLAIN))


def shown(run: RunKey | None, visible: frozenset[str]) -> RunKey | None:
    """None: of a DAG that the user may not see, which was the pipeline's long ago, say."""
    return run if run is not None and (run.is_plain or run.dag_id in visible) else None


def visible_part(checkpoint: Checkpoint, visible: frozenset[str]) -> Checkpoint:
    """Return it without its run and what may quote rows or name places, if the user may not see its DAG."""
    if shown(checkpoint.run, visible) == checkpoint.run:
        return checkpoint
    votes = {
        name: replace(vote, notes={}, problem=None, proof=vote.proof and replace(vote.proof, detail={}))
        for name, vote in checkpoint.votes.items()
    }
    segment = checkpoint.segment and replace(checkpoint.segment, location="")
    message = checkpoint.message and HIDDEN
    return replace(checkpoint, run=None, message=message, votes=votes, segment=segment, position=None, positions={})


def judged_now(found: Sequence[Overview], visible: frozenset[str]) -> list[Overview]:
    """With what Airflow knows of their runs (`dag_runs.judged`), without errors of DAGs that the user may not see."""
    return [_without_secret_runs(each, visible) for each in judged(found, settings.lease_seconds())]


def _without_secret_runs(overview: Overview, visible: frozenset[str]) -> Overview:
    failure, ended_run, turn = overview.failure, overview.ended, overview.turn
    if failure is not None and not _is_shown(failure.dag_id, visible):
        overview = overview._replace(failure=Failure(failure.kind, failure.code, "it is an error of another DAG."))
    if ended_run is not None and not _is_shown(ended_run.dag_id, visible):
        overview = overview._replace(ended=UNSEEN_RUN)
    if turn is not None and overview.is_silent and not _is_shown(turn.dag_id, visible):
        overview = overview._replace(turn=UNSEEN_RUN)
    return overview


def _is_shown(dag_id: str, visible: frozenset[str]) -> bool:
    return dag_id.startswith(PLAIN) or dag_id in visible


def at_work(overview: Overview, doing: Sequence[str], visible: frozenset[str]) -> answers.AtWork:
    """Return which run works, how far a long delivery has come (`doing`), or since when the run is silent."""
    run = shown(overview.turn, visible) if overview.is_at_work else None
    return {
        "at_work": str(run) if run else "",
        "doing": doing if overview.is_at_work else [],
        "alive_at": overview.alive_at.isoformat() if overview.alive_at else "",
    }


def unseen(pipeline: str) -> RefusedError:
    """Return the answer to a user who may not see a pipeline."""
    return RefusedError(
        404,
        f"there is no pipeline {pipeline!r} that you may see.",
        code="pipeline_unknown",
        remedy="Correct the name, or ask your Airflow administrator for access to its DAGs.",
    )


def may_read_values(user: BaseUser, dags: Collection[str]) -> bool:
    """Return whether the user may see the pipeline's state: a user who may read the XComs of all its DAGs.

    State is made of the rows that a job reads, and kept for its next run. What Airflow has of that kind are XComs: whom
    an administrator keeps from them, he keeps from data, and not from runs and logs.
    """
    return _may_read(user, DagAccessEntity.XCOM, dags)


def may_read_code(user: BaseUser, dags: Collection[str]) -> bool:
    """Return whether the user may see the source of the pipeline's job: a user who may read the code of all its DAGs.

    A job below `@job` lies in the file of its DAG.
    """
    return _may_read(user, DagAccessEntity.CODE, dags)


def _may_read(user: BaseUser, entity: DagAccessEntity, dags: Collection[str]) -> bool:
    return all(_may(user, "GET", entity, dag_id) for dag_id in sorted(dags) or [""])


def may_trigger(user: BaseUser, dag_id: str) -> bool:
    """Return whether Airflow lets the user start a run of the DAG."""
    return _may(user, "POST", DagAccessEntity.RUN, dag_id)


def _may(user: BaseUser, method: Literal["GET", "POST"], entity: DagAccessEntity | None, dag_id: str) -> bool:
    """Return whether the user may access one DAG; without an id all of them."""
    return get_auth_manager().is_authorized_dag(
        method=method,
        access_entity=entity,
        details=DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id)) if dag_id else None,
        user=user,
    )
