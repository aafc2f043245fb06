"""Every action on a pipeline as a task, and the DAG that runs the action of its trigger form or of the page."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, Param
from airflow.sdk.definitions.param import ParamsDict

from airflow_ft.operators.acting import ActingOperator, check_number_given, number_of
from airflow_ft.operators.savepoint import A_PLACE, flag, savepoint_params
from airflow_ft.pipeline import settings
from airflow_ft.pipeline.actions.names import ACTIONS, READING, check_action, check_actions
from airflow_ft.pipeline.runs import run_of
from airflow_ft.protocol.arguments import (
    check_place,
    check_seconds,
    check_text,
    check_texts,
    is_template,
    shown,
    truth,
    wrong,
)
from airflow_ft.protocol.errors import ConfigurationError, StateConflictError
from airflow_ft.protocol.from_savepoint import ClaimMode, FromSavepoint, claim_mode

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ft.pipeline.actions.performing import Asked

DAG_ID = "airflow_ft_maintenance"

_MAY_BE_REPEATED = READING | {"recover"}
"""Safe in any try, for any user: these only read, or do what the next run would do."""


class MaintenanceOperator(ActingOperator):
    """Do one action on a pipeline, as `airflow ft` does, with the same lines in the task's log.

    It is not retried (`retries=0`), and a later try of a cleared task does nothing. A person requested the action
    once, for the pipeline's state at that time, and the event log names that person. A new run is a new request. Only
    recover, verify and doctor may be repeated.

    Args:
        action: one of `airflow_ft.pipeline.actions.names.ACTIONS`.
        actions: those that this task may do; None: all.
        checkpoint: its number, for actions on one checkpoint. Savepoint and verify do not require it.
        rewind: for abort: its rows are computed again; otherwise the next checkpoint delivers them.
        reason: why, for the event log.
        savepoint_dir: for actions that take a savepoint; None: `[airflow_ft] savepoint_dir`.
        savepoint: for restore and dispose: its path or URI, or a `FromSavepoint`.
        allow_repeated: for verify: rows that equal delivered ones may be there more often.
        halt_reason: for resume: the `HaltReason` that you saw. A pipeline that is halted for another one stays halted.
            Empty: any.
        forget_sources: for reset_state: names of sources that the job no longer reads, one a line, or a list. Their
            positions are dropped, too.
        wait: seconds that a stream may take to stop; then the task fails, and the request stays.

    The other arguments are those of `TriggerSavepointOperator`. Each may be Jinja, but for `actions` and `wait`.
    Result: of savepoint its URI, of restore {"checkpoint": number, "later": numbers}, of a stop the stream's answer.
    """

    template_fields: Sequence[str] = (
        "pipeline",
        "action",
        "checkpoint",
        "rewind",
        "reason",
        "savepoint_dir",
        "savepoint",
        "allow_repeated",
        "halt_reason",
        "forget_sources",
        "store",
    )
    template_fields_renderers = {"savepoint": "json"}  # noqa: RUF012 - as Airflow declares it

    def __init__(
        self,
        *,
        action: str,
        actions: Sequence[str] | None = None,
        checkpoint: int | str | None = None,
        rewind: bool | str = False,
        reason: str = "",
        savepoint_dir: str | None = None,
        savepoint: FromSavepoint | str | None = None,
        allow_repeated: bool | str = False,
        halt_reason: str = "",
        forget_sources: Sequence[str] = "",
        wait: float = 600.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**{"retries": 0, **kwargs})
        check_text("reason", reason)
        check_text("halt_reason", halt_reason)
        check_text("savepoint_dir", savepoint_dir, optional=True)
        check_place("savepoint_dir", savepoint_dir)
        if not isinstance(forget_sources, str):
            check_texts("forget_sources", forget_sources)
        self.actions = check_actions(actions)
        self.action = action
        if not is_template(action):
            self._allowed()
        check_number_given(checkpoint)
        check_seconds("wait", wait)
        for name, value in (("rewind", rewind), ("allow_repeated", allow_repeated)):
            if not is_template(value):
                truth(name, value)
        from_savepoint = FromSavepoint.of(savepoint)
        self.savepoint: Any = None if from_savepoint is None else from_savepoint.to_json()
        self.checkpoint, self.rewind, self.reason = checkpoint, rewind, reason
        self.savepoint_dir, self.allow_repeated, self.wait = savepoint_dir, allow_repeated, wait
        self.halt_reason, self.forget_sources = halt_reason, forget_sources
        self.form: tuple[str, ...] = ()
        """Parameters of the trigger form, if the task takes all of its input from there."""
        self.folders: tuple[str, ...] = ()
        """Folders, besides `[airflow_ft] savepoint_dir`, below which a form may name savepoints."""

    def asked(self, context: Context) -> Asked:
        """Return the requested action; StateConflictError in a later try of one that must not be repeated."""
        from airflow_ft.pipeline.actions.performing import Asked

        self._refuse_unknown(context)
        action, tries = self._allowed(), context["ti"].try_number
        if tries > 1 and action not in _MAY_BE_REPEATED:
            raise StateConflictError(
                f"this is try {tries} of the task, and {action} is done once per run. Nothing was changed.",
                code="action_refused",
                remedy=f"Look at the result of the first try: `airflow ft events {self.pipeline}`. If you still want"
                f" {action}, trigger a new run.",
                pipeline=self.pipeline,
                action=action,
                try_number=tries,
            )
        check_text("halt_reason", self.halt_reason)  # None would mean any
        asked = Asked(
            action,
            self.pipeline,
            run_of(context),
            number=number_of(self.checkpoint),
            rewind=truth("rewind", self.rewind),
            folder=self.savepoint_dir or "",
            savepoint=FromSavepoint.of(self.savepoint),
            allow_repeated=truth("allow_repeated", self.allow_repeated),
            halt_reason=self.halt_reason.strip(),
            forget_sources=_lines(self.forget_sources),
            wait=self.wait,
            reason=str(self.reason or "").strip(),
        )
        self._refuse_places()
        self._refuse_claim(asked)
        return asked

    def _refuse_unknown(self, context: Context) -> None:
        """Raise ConfigurationError for a parameter that the form lacks: Airflow ignores undeclared ones."""
        given = {*(context.get("params") or {}), *(getattr(context["dag_run"], "conf", None) or {})}
        if not self.form or not (unknown := sorted(given - set(self.form))):
            return
        close = get_close_matches(unknown[0], self.form, 1)
        raise ConfigurationError(
            f"the run has {', '.join(unknown)}, which is not a parameter of this DAG. Nothing was changed.",
            code="argument_unknown",
            remedy=(f"Write {close[0]!r} instead. " if close else "")
            + f"The parameters are {', '.join(sorted(self.form))}.",
            pipeline=self.pipeline,
            argument=unknown[0],
            close=close[0] if close else "",
        )

    def _refuse_places(self) -> None:
        """Raise ConfigurationError for a place outside the allowed folders: form users could copy state to it."""
        if not self.form:
            return
        savepoint = FromSavepoint.of(self.savepoint)
        places = [self.savepoint_dir, savepoint.path if savepoint and not savepoint.is_beginning else ""]
        allowed = [settings.savepoint_dir(), *self.folders]
        for place in filter(None, map(str.strip, filter(None, places))):
            if not any(_is_below(place, each) for each in allowed):
                raise ConfigurationError(
                    f"this DAG may not use {place}, only places below {' or '.join(allowed)}. Nothing was changed.",
                    code="action_refused",
                    remedy=f"Give a folder below {allowed[0]}, let the author of the DAG add yours to"
                    " `maintenance_dag(folders=[...])`, or use the command line.",
                    pipeline=self.pipeline,
                    place=place,
                )

    def _refuse_claim(self, asked: Asked) -> None:
        """Raise ConfigurationError for a restore that deletes its savepoint, in a task that may not delete any."""
        if asked.action != "restore" or "dispose" in self.actions:
            return
        if asked.savepoint and claim_mode(asked.savepoint.claim_mode) is ClaimMode.CLAIM:
            raise ConfigurationError(
                "this task may not do dispose, so it cannot claim a savepoint: CLAIM deletes it. Nothing was changed.",
                code="action_refused",
                remedy="Restore it with NO_CLAIM, or trigger a DAG whose `actions` include 'dispose'.",
                pipeline=self.pipeline,
                action="dispose",
                actions=list(self.actions),
            )

    def _allowed(self) -> str:
        action = check_action(self.action)
        if action not in self.actions:
            raise ConfigurationError(
                f"this task may not do {action}. Its actions are {', '.join(self.actions)}.",
                code="action_refused",
                remedy=f"Trigger a DAG whose `actions` include {action!r}.",
                action=action,
                actions=list(self.actions),
            )
        return action


def _lines(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names in a list, or in the lines of a text."""
    each = names.splitlines() if isinstance(names, str) else names
    return tuple(name.strip() for name in each if name.strip())


def _is_below(place: str, folder: str) -> bool:
    from airflow_ft.wal.filesystem import filesystem

    of, root = (filesystem(each).uri(each).rstrip("/") + "/" for each in (place, folder))
    return of.startswith(root) and ".." not in of.split("/")


def maintenance_dag(
    dag_id: str = DAG_ID, actions: Sequence[str] | None = None, *, folders: Sequence[str] = (), **dag_arguments: Any
) -> DAG:
    """Return a DAG whose runs do one action each, chosen in its trigger form, or on the page (`[airflow_ft]
    maintenance_dags`).

    Users who may trigger it may do its actions on every pipeline of the decision log. Give each group of people its
    own DAG (docs/ui.md).

    Args:
        dag_id: its id.
        actions: names of its actions, from `airflow_ft.pipeline.actions.names.ACTIONS`; None: all. ConfigurationError
            for an unknown one.
        folders: paths or URIs below which its runs may also write, read and delete savepoints. Below `[airflow_ft]
            savepoint_dir` they always may.
        dag_arguments: further arguments of Airflow's `DAG`, such as `access_control`. `params` are added to its own, or
            are the defaults of those.
    """
    chosen = check_actions(actions)
    check_texts("folders", folders)
    for each in folders:
        if is_template(each) or not each.strip():
            raise wrong("folders", shown(each), "Give the folder itself: Airflow renders no Jinja there.")
        check_place("folders", each)
    arguments: dict[str, Any] = {"schedule": None, "catchup": False, "tags": ["airflow-ft"], **dag_arguments}
    params = ParamsDict(_params(chosen))
    params.update(arguments.get("params") or {})
    arguments["params"] = params
    with DAG(dag_id, **arguments) as dag:
        action = MaintenanceOperator(
            task_id="action",
            pipeline="{{ params.pipeline }}",
            action="{{ params.action }}",
            actions=chosen,
            checkpoint="{{ params.checkpoint }}",
            rewind="{{ params.rewind }}",
            reason="{{ params.reason or '' }}",
            savepoint_dir="{{ params.folder or '' }}",
            savepoint=FromSavepoint.from_params(),
            allow_repeated="{{ params.allow_repeated }}",
            halt_reason="{{ params.halt_reason or '' }}",
            forget_sources="{{ params.forget_sources or '' }}",
        )
        action.form, action.folders = tuple(params), tuple(folders)
    return dag


def _params(actions: Sequence[str]) -> dict[str, Any]:
    """Return the trigger form. Neither pipeline nor action has a default, so nothing happens without a choice."""
    return {
        "pipeline": Param("", type="string", minLength=1, title="Pipeline"),
        "action": Param(
            actions[0] if len(actions) == 1 else None,
            type="string",
            enum=list(actions),
            values_display={name: f"{name}: {ACTIONS[name]}" for name in actions},
            title="Action",
        ),
        "reason": Param(
            "", type=["string", "null"], title="Reason", description="Why you do this. The event log keeps it."
        ),
        "checkpoint": Param(
            None,
            type=["integer", "null"],
            minimum=1,
            title="Checkpoint",
            description="Checkpoint number. Required for commit, abort, quarantine, redeliver and dead_letter. Optional"
            " for savepoint (empty: the newest confirmed checkpoint) and verify (empty: all checkpoints in the log).",
        ),
        "rewind": flag(
            "Rewind", "For abort: compute its rows again. If off, the next checkpoint delivers the same rows."
        ),
        "allow_repeated": flag(
            "Allow repeated rows",
            "For verify: accept more copies of a delivered row, because other programs write equal rows.",
        ),
        "halt_reason": Param(
            "",
            type=["string", "null"],
            title="Halt reason",
            description="For resume: the reason that you saw, such as TOKEN_LOST. A pipeline that is halted for another"
            " reason stays halted. Empty: any reason.",
        ),
        "forget_sources": Param(
            "",
            type=["string", "null"],
            format="multiline",
            title="Sources to forget",
            description="For reset_state: sources that the job no longer reads, one name a line. Their positions"
            " are dropped, too. If the job reads one again, it begins at its start.",
        ),
        "folder": Param(
            "",
            type=["string", "null"],
            pattern=A_PLACE,
            title="Folder for the savepoint",
            description="For savepoint, and for a stop or drain with a savepoint. Empty: [airflow_ft] savepoint_dir."
            " Else a folder below it, or below one that the author of the DAG allows.",
        ),
        **savepoint_params(),
    }
