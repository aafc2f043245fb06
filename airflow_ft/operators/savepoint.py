"""Operators for savepoints, and for the stop of a stream: for DAGs that look after other DAGs' pipelines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, Param

from airflow_ft import settings
from airflow_ft.core.arguments import check_text
from airflow_ft.core.config import check_name
from airflow_ft.core.errors import AirflowFtError, ConfigurationError
from airflow_ft.core.from_savepoint import PARAMS, ClaimMode, FromSavepoint, Later
from airflow_ft.core.lease import Worker
from airflow_ft.core.lookup import require_known
from airflow_ft.hooks.store import check_store, open_configured_store, participant_factory
from airflow_ft.links import PipelineLink
from airflow_ft.operators.failing import fail
from airflow_ft.runs import refuse_test_run, run_of, task_of
from airflow_ft.templates import is_late

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ft.core.ports import Store


def savepoint_params() -> dict[str, Any]:
    """Fields of Airflow's trigger form, for a run that goes on from a savepoint: `DAG(params=savepoint_params())`.

    Give the pipeline `from_savepoint=FromSavepoint.from_params()`. A run that says nothing goes on where it stands.
    """
    path, later_on, claim, allow = PARAMS
    return {
        path: Param(
            "",
            type=["string", "null"],
            title="Go on from a savepoint",
            description="Its folder. Empty: go on where the pipeline stands.",
        ),
        later_on: Param(
            Later.REFUSE.value,
            enum=[each.value for each in Later],
            title="What was delivered after the savepoint",
            description="refuse: do nothing while there is such; continue: it stays, and is computed once more for the"
            " state alone; write-again: it is read and delivered once more.",
        ),
        claim: Param(
            ClaimMode.NO_CLAIM.value,
            enum=[each.value for each in ClaimMode],
            title="Claim mode",
            description="NO_CLAIM leaves the savepoint as it is, CLAIM deletes it once it is restored.",
        ),
        allow: Param(
            False,
            type="boolean",
            title="Allow non-restored state",
            description="The job may lack operators whose state is in the savepoint: that is left behind.",
        ),
    }


class _SavepointOperator(BaseOperator):
    """What they share: a pipeline by its name in a decision log, and who acts."""

    template_fields: Sequence[str] = ("pipeline", "store")
    operator_extra_links = (PipelineLink(),)
    ui_color = "#e8f4ea"

    def __init__(self, *, pipeline: str, store: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pipeline = pipeline
        self.store = check_store(store)
        if not is_late(pipeline):
            check_name("pipeline", pipeline)

    def execute(self, context: Context) -> Any:
        """Does it; the result goes to XCom."""
        try:
            refuse_test_run(context)
            check_name("pipeline", self.pipeline)
            return self._act(context)
        except AirflowFtError as error:
            fail(self.log, error)

    def _act(self, context: Context) -> Any:
        raise NotImplementedError

    @contextmanager
    def _opened(self) -> Iterator[Store]:
        with closing(open_configured_store(check_store(self.store))) as store:
            yield store


class TriggerSavepointOperator(_SavepointOperator):
    """Takes a savepoint of a pipeline's newest confirmed checkpoint, whether the pipeline runs or not.

    Args:
        pipeline: its name.
        savepoint_dir: the folder that gets it; None: `[airflow_ft] savepoint_dir`.
        checkpoint: of this retained checkpoint instead.
        store: as in `CheckpointedPipeline`.

    Result: the savepoint's URI. A try after one that died takes another savepoint; the first one is listed, too.
    """

    template_fields: Sequence[str] = ("pipeline", "savepoint_dir", "checkpoint", "store")

    def __init__(self, *, savepoint_dir: str | None = None, checkpoint: int | str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_text("savepoint_dir", savepoint_dir, optional=True)
        self.savepoint_dir = savepoint_dir
        self.checkpoint = checkpoint

    def _act(self, context: Context) -> str:
        from airflow_ft.savepoints.taking import take

        number = None if self.checkpoint in (None, "", "None") else _number(self.checkpoint)
        with self._opened() as store:
            require_known(store, self.pipeline)
            uri, taken = take(
                store, self.pipeline, self.savepoint_dir or settings.savepoint_dir(), task_of(context), number
            )
        self.log.info("savepoint of checkpoint %d of %s: %s", taken.number, taken.pipeline, uri)
        return uri


class RestoreSavepointOperator(_SavepointOperator):
    """Has a pipeline go on from a savepoint; its next run does. The run of this DAG does it once, however often tried.

    A pipeline whose own DAG is to say so takes `CheckpointedPipeline(from_savepoint=)` instead.

    Args:
        pipeline: its name; it may be new, and begins with the savepoint then.
        savepoint: its path or URI, or a `FromSavepoint`, which also says what is allowed.
        wal_root: write-ahead log of a pipeline that is new; None: `[airflow_ft] wal_root`.
        store: as in `CheckpointedPipeline`.

    Result: {"checkpoint": number, "later": numbers whose rows come again}.
    """

    template_fields: Sequence[str] = ("pipeline", "savepoint", "wal_root", "store")

    def __init__(self, *, savepoint: FromSavepoint | str, wal_root: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        told = FromSavepoint.of(savepoint)
        if told is None:
            raise ConfigurationError("savepoint is empty.", remedy="give its path: `airflow ft savepoint list`.")
        check_text("wal_root", wal_root, optional=True)
        self.savepoint: Any = told.to_json()
        self.wal_root = wal_root

    def _act(self, context: Context) -> dict[str, Any]:
        from airflow_ft.savepoints.restoring import restore_once

        told = FromSavepoint.of(self.savepoint)
        if told is None or not told.is_given:
            raise ConfigurationError("savepoint is empty.", remedy="give its path: `airflow ft savepoint list`.")
        with self._opened() as store:
            restored = restore_once(
                store,
                told,
                self.pipeline,
                run_of(context),
                participant_factory(),
                Worker(task=task_of(context), try_number=context["ti"].try_number),
                wal_root=self.wal_root or settings.wal_root(),
                lease_seconds=settings.lease_seconds(),
            )
        if restored is None:
            return {}
        return {"checkpoint": restored.savepoint.number, "later": list(restored.later)}


class DisposeSavepointOperator(_SavepointOperator):
    """Deletes a savepoint; one that is not there any more is no error.

    Args:
        pipeline: whose it is: a savepoint of another one is left alone.
        path: its folder.
    """

    template_fields: Sequence[str] = ("pipeline", "path", "store")

    def __init__(self, *, path: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_text("path", path)
        self.path = path

    def _act(self, context: Context) -> None:
        from airflow_ft.savepoints.metadata import dispose, read_metadata
        from airflow_ft.wal.filesystem import filesystem

        if not filesystem(self.path).exists(self.path):
            self.log.info("%s is not there any more", self.path)
            return
        found = read_metadata(self.path)
        if found.pipeline != self.pipeline:
            raise ConfigurationError(
                f"the savepoint {self.path} is of pipeline {found.pipeline}; nothing was deleted.",
                remedy="name that pipeline, or another savepoint.",
                pipeline=self.pipeline,
            )
        dispose(self.path)
        self.log.info("%s is deleted", self.path)


class StopStreamOperator(_SavepointOperator):
    """Stops a stream, and waits until it has: after the checkpoint under way, all of it delivered.

    Args:
        pipeline: its name.
        drain: with one more checkpoint, of what is still open in windows.
        savepoint: keep where it has stopped as a savepoint, in `savepoint_dir`.
        savepoint_dir: None: `[airflow_ft] savepoint_dir`.
        wait: seconds that it may take; then the task fails, and the request stays.
        store: as in `CheckpointedPipeline`.

    Result: what the stream has answered.
    """

    template_fields: Sequence[str] = ("pipeline", "savepoint_dir", "store")

    def __init__(
        self,
        *,
        drain: bool = False,
        savepoint: bool = False,
        savepoint_dir: str | None = None,
        wait: float = 600.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_text("savepoint_dir", savepoint_dir, optional=True)
        self.drain, self.savepoint, self.savepoint_dir, self.wait = drain, savepoint, savepoint_dir, wait

    def _act(self, context: Context) -> str:
        from airflow_ft.savepoints.stopping import stop

        folder = (self.savepoint_dir or settings.savepoint_dir()) if self.savepoint else ""
        with self._opened() as store:
            require_known(store, self.pipeline)
            outcome = stop(
                store, self.pipeline, task_of(context), drain=self.drain, savepoint_dir=folder, wait=self.wait
            )
        self.log.info("%s: %s", self.pipeline, outcome)
        return outcome


def _number(value: Any) -> int:
    try:
        return int(value)
    except ValueError:
        raise ConfigurationError(f"checkpoint is {value!r}.", remedy="give its number.") from None
