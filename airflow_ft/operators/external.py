"""The stage of rows that another task computes: a folder for that task, and the checkpoint of what it has written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowSkipException

from airflow_ft.operators.base import CheckpointOperator
from airflow_ft.operators.place import tasks_beside
from airflow_ft.pipeline.connections import task_connections
from airflow_ft.pipeline.resolved import resolve
from airflow_ft.pipeline.templates import require_value
from airflow_ft.protocol.arguments import check_place, check_text, is_template, late_text, shown, wrong
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.numbers import Numbers
from airflow_ft.protocol.position import Position

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg

    from airflow_ft.pipeline.spec import PipelineSpec
    from airflow_ft.protocol import steps
    from airflow_ft.store.decision_log import DecisionLog

_OF_A_STAGE = ("sinks", "checkpointing", "wal_root", "commit_point")


class _ExternalOperator(CheckpointOperator):
    """An operator of a pipeline with a position."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not self.spec.is_external:
            raise ConfigurationError(
                "the pipeline has no position. A position identifies rows of other tasks, to deliver them once.",
                code="argument_missing",
                remedy='Give position=..., such as position="{{ ds }}", instead of job and sources.',
                pipeline=self.spec.pipeline,
                argument="position",
            )


class ExternalFolderOperator(_ExternalOperator):
    """Hand out an empty folder, into which another task writes rows as Parquet. `ExternalStageOperator` reads it.

    Looks at the sinks first, so that nothing is computed for a table that is missing. Each execution hands out another
    folder and removes the earlier one. Skips itself, and the tasks behind it, if the run has delivered its rows.

    The arguments are those of `CheckpointOperator`. Result: the folder: a path, or a URI of HDFS or of a bucket.
    """

    role = "folder"
    template_fields: Sequence[str] = (*CheckpointOperator.template_fields, *_OF_A_STAGE)

    def step(self, spec: PipelineSpec, run: steps.Context[DecisionLog], context: Context) -> Any:
        """Return the folder; see `airflow_ft.pipeline.inbox`."""
        from airflow_ft.pipeline.inbox import hand_out

        folder = hand_out(resolve(spec, self.spec), run, task_connections)
        if folder is None:
            raise AirflowSkipException("this run has delivered its rows: nothing is computed again")
        self.log.info("tasks after this one write Parquet files into %s", folder)
        return folder


class ExternalStageOperator(_ExternalOperator):
    """Seal the Parquet files of a folder, and publish them as a checkpoint, which other tasks deliver.

    Files and columns are checked before anything is published. If the position is published, nothing is read.

    Args:
        folder: the output of `ExternalFolderOperator`, or a folder of your own: a path, hdfs://NAMENODE:PORT/PATH
            or s3://CONNECTION@BUCKET/FOLDER.

    The other arguments are those of `CheckpointOperator`. Result: {"numbers": published, "count", "first", "last",
    "checkpoint": of the position, "position", "repeated": an earlier run has published it}.
    """

    position: Any

    role = "stage"
    template_fields: Sequence[str] = (*CheckpointOperator.template_fields, *_OF_A_STAGE, "position", "folder")

    def __init__(self, *, folder: str | XComArg, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_text("folder", folder)
        if not is_template(folder):
            _check_folder(folder)
        self.folder = self._written = folder

    def rendered(self) -> PipelineSpec:
        """Return the specification with its rendered fields; see `CheckpointOperator.rendered`."""
        remedy = "Correct the param, variable or output that position names."
        if self.position is None:
            raise wrong(
                "position", "None", remedy, code="template_without_value", what="position has no value in this run."
            )
        if left := late_text(self.position):
            raise wrong(
                "position", left, remedy, code="template_not_rendered", what=f"position contains Jinja ({left})."
            )
        return super().rendered()

    def step(self, spec: PipelineSpec, run: steps.Context[DecisionLog], context: Context) -> Any:
        """Publish the rows; see `airflow_ft.pipeline.external`."""
        from airflow_ft.pipeline import external
        from airflow_ft.pipeline.inbox import HandedOut

        require_value("folder", self._written, self.folder)
        _check_folder(self.folder)
        pipeline, position = resolve(spec, self.spec), Position.of(spec.position)
        rows = HandedOut(pipeline, str(self.folder), run.store.installation)
        if rows.is_own:
            self.require_writer()
        found = external.stage(pipeline, run, task_connections, position, rows.open, rows.columns)
        rows.remove()
        new = Numbers.of([] if found.is_repeated else [found.number])
        return {
            **new.to_json(),
            "checkpoint": found.number,
            "position": position.value,
            "repeated": found.is_repeated,
        }

    @property
    def reads_handed_out(self) -> bool:
        """Return whether its folder is the output of `ExternalFolderOperator`."""
        return getattr(getattr(self.folder, "operator", None), "role", "") == "folder"

    def require_writer(self) -> None:
        """Raise ConfigurationError if no task writes between the folder and this one, which would find it empty."""
        folders = {task.task_id for task in tasks_beside(self) if getattr(task, "role", "") == "folder"}
        if not set(self.upstream_task_ids) - folders:
            raise ConfigurationError(
                "no task writes into the folder before this one reads it.",
                code="writer_missing",
                remedy=f"Put the task that writes between them: compute({self.task_id.replace('.stage', '')}.folder) >>"
                f" {self.task_id}.",
                pipeline=self.spec.pipeline,
            )


def _check_folder(folder: object) -> None:
    """Raise ConfigurationError for no place, or for one below the directory in which the worker happens to run."""
    if not str(folder).strip():
        raise wrong("folder", shown(folder), "Name the folder with the Parquet files, or correct the param or output.")
    check_place("folder", str(folder))
