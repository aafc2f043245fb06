"""Operators for savepoints, and for the stop of a stream: for DAGs that look after other DAGs' pipelines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import Param

from airflow_ft.operators.acting import ActingOperator, check_number_given, number_of
from airflow_ft.pipeline.runs import first_try, run_of
from airflow_ft.protocol.arguments import PLACES, check_place, check_seconds, check_text, check_type
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.from_savepoint import PARAMS, ClaimMode, FromSavepoint, Later

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ft.pipeline.actions.performing import Asked


A_PLACE = rf"^\s*($|beginning\s*$|{'|'.join(PLACES)})"
"""Values that a form takes for a savepoint or its folder: absolute paths, URIs, or nothing."""


def savepoint_params() -> dict[str, Any]:
    """Return fields of Airflow's trigger form, for a run that starts from a savepoint:
    `DAG(params=savepoint_params())`.

    Give the pipeline `from_savepoint=FromSavepoint.from_params()`. A run without values continues from the pipeline's
    own state.
    """
    path, later_on, claim, allow, rename, changed = PARAMS
    return {
        path: Param(
            "",
            type=["string", "null"],
            pattern=A_PLACE,
            title="Start from a savepoint",
            description="Folder of the savepoint: an absolute path or a URI. Empty: continue at the newest checkpoint.",
        ),
        later_on: Param(
            Later.REFUSE.value,
            enum=[each.value for each in Later],
            title="Rows delivered after the savepoint",
            description="refuse: fail if there are any. continue: keep the delivered rows and only rebuild state."
            " write-again: read and deliver them again.",
        ),
        claim: Param(
            ClaimMode.NO_CLAIM.value,
            enum=[each.value for each in ClaimMode],
            title="Claim mode",
            description="NO_CLAIM keeps the savepoint. CLAIM deletes it after the restore.",
        ),
        allow: flag("Allow non-restored state", "Drop state of the savepoint whose operators the job no longer has."),
        rename: flag("Rename", "Rename the savepoint's pipeline to this one. Runs under its old name then fail."),
        changed: flag(
            "Allow changed state",
            "Accept a job whose keys, functions or settings differ from those that made the state.",
        ),
    }


def flag(title: str, description: str) -> Param:
    """Return a field of the form that is on or off; off by default."""
    return Param(False, type="boolean", title=title, description=description)


class TriggerSavepointOperator(ActingOperator):
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
        check_place("savepoint_dir", savepoint_dir)
        check_number_given(checkpoint)
        self.savepoint_dir = savepoint_dir
        self.checkpoint = checkpoint

    def asked(self, context: Context) -> Asked:
        from airflow_ft.pipeline.actions.performing import Asked

        folder, number = self.savepoint_dir or "", number_of(self.checkpoint)
        return Asked("savepoint", self.pipeline, run_of(context), number=number, folder=folder)


class RestoreSavepointOperator(ActingOperator):
    """Restore a pipeline from a savepoint, for its next run. The run of this DAG restores once, over all tries.

    A task that failed and is cleared does not deliver rows again (`write-again`, "beginning"): trigger a new run.
    In the pipeline's own DAG, use `CheckpointedPipeline(from_savepoint=)` instead.

    Args:
        pipeline: its name; it may be new, and begins with the savepoint then, as a copy or (`FromSavepoint.rename`) in
            place of the one that it was taken of.
        savepoint: its path or URI, or a `FromSavepoint`, which also says what is allowed.
        wal_root: write-ahead log of a pipeline that is new; None: `[airflow_ft] wal_root`.
        store: as in `CheckpointedPipeline`.

    Result: {"checkpoint": number, "later": numbers whose rows come again}.
    """

    template_fields: Sequence[str] = ("pipeline", "savepoint", "wal_root", "store")

    def __init__(self, *, savepoint: FromSavepoint | str, wal_root: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        from_savepoint = FromSavepoint.of(savepoint)
        if from_savepoint is None:
            raise ConfigurationError(
                "savepoint is empty.",
                code="argument_missing",
                remedy="Give the path of a savepoint. `airflow ft savepoint list` shows them.",
                argument="savepoint",
            )
        check_text("wal_root", wal_root, optional=True)
        check_place("wal_root", wal_root)
        self.savepoint: Any = from_savepoint.to_json()
        self.wal_root = wal_root

    def asked(self, context: Context) -> Asked:
        from airflow_ft.pipeline.actions.performing import Asked

        from_savepoint, root = FromSavepoint.of(self.savepoint), self.wal_root or ""
        is_cleared = 1 < first_try(context, self.retries) <= context["ti"].try_number
        by = run_of(context)
        return Asked("restore", self.pipeline, by, savepoint=from_savepoint, wal_root=root, is_cleared=is_cleared)


class DisposeSavepointOperator(ActingOperator):
    """Deletes a savepoint; one that is not there any more is no error.

    Args:
        pipeline: whose it is: a savepoint of another one is left alone.
        path: its folder.
    """

    template_fields: Sequence[str] = ("pipeline", "path", "store")

    def __init__(self, *, path: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_text("path", path)
        if isinstance(path, str) and not path.strip():
            raise ConfigurationError(
                "path is empty.",
                code="argument_missing",
                remedy="Give the folder of a savepoint. `airflow ft savepoint list` shows them.",
                argument="path",
            )
        check_place("path", path)
        self.path = path

    def asked(self, context: Context) -> Asked:
        from airflow_ft.pipeline.actions.performing import Asked

        return Asked("dispose", self.pipeline, run_of(context), savepoint=FromSavepoint(self.path))


class StopStreamOperator(ActingOperator):
    """Stop a stream when its current checkpoint is delivered, and wait for that.

    Args:
        pipeline: its name.
        drain: deliver open windows, joins and timers in one more checkpoint.
        savepoint: take a savepoint of its last checkpoint, in `savepoint_dir`.
        savepoint_dir: None: `[airflow_ft] savepoint_dir`.
        wait: seconds that each try waits. Then it fails, and the request stays: a retry waits for the same answer.
        store: as in `CheckpointedPipeline`.

    A task that is cleared after its end asks again. Result: the answer of the stream. The task fails without a retry
    if the stream stopped without the savepoint or the drain.
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
        check_place("savepoint_dir", savepoint_dir)
        if savepoint_dir and savepoint is False:
            raise ConfigurationError(
                "savepoint_dir has an effect only with savepoint=True.",
                code="argument_missing",
                remedy="Add savepoint=True, or leave out savepoint_dir.",
                argument="savepoint",
            )
        for name, value in (("drain", drain), ("savepoint", savepoint)):
            check_type(name, value, bool, "Give True or False. Jinja is not possible here.")
        check_seconds("wait", wait)
        self.drain, self.savepoint, self.savepoint_dir, self.wait = drain, savepoint, savepoint_dir, wait

    def asked(self, context: Context) -> Asked:
        from airflow_ft.pipeline.actions.performing import Asked

        action = ("drain" if self.drain else "stop") + ("_with_savepoint" if self.savepoint else "")
        folder = (self.savepoint_dir or "") if self.savepoint else ""
        first = first_try(context, self.retries)
        is_retry: bool = context["ti"].try_number > first
        by = run_of(context)
        return Asked(action, self.pipeline, by, folder=folder, wait=self.wait, first_try=first, is_retry=is_retry)
