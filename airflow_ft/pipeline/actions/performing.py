"""Run an action by its name, as a DAG run requests it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_ft.pipeline import settings
from airflow_ft.pipeline.actions import examining, pipelines, savepoints, settling, verifying
from airflow_ft.pipeline.actions.actor import Actor
from airflow_ft.pipeline.actions.names import SETTLING, check_action, check_arguments, check_number
from airflow_ft.protocol.arguments import shown, wrong
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.from_savepoint import FromSavepoint, Later
from airflow_ft.protocol.lookup import require_known
from airflow_ft.protocol.model import AfterAbort, RunKey
from airflow_ft.protocol.pipelines import HaltReason
from airflow_ft.spark.savepoints.restoring import restore_once
from airflow_ft.spark.savepoints.taking import take

if TYPE_CHECKING:
    from airflow_ft.protocol.decision_log import QueryLog
    from airflow_ft.store.decision_log import DecisionLog

_STOPS: dict[str, dict[str, bool]] = {
    "stop": {},
    "stop_now": {"at_once": True},
    "stop_with_savepoint": {},
    "drain": {"drain": True},
    "drain_with_savepoint": {"drain": True},
}


@dataclass(frozen=True, slots=True)
class Asked:
    """One action on one pipeline, with its arguments.

    Attributes:
        action: its name (`ACTIONS`).
        pipeline: the pipeline's name.
        run: the DAG run that asks. It restores a savepoint once.
        number: the checkpoint, for actions on one checkpoint.
        rewind: of abort: compute the rows again; otherwise the next checkpoint delivers them.
        folder: for the savepoint that is taken; "": `[airflow_ft] savepoint_dir`.
        savepoint: what is restored or deleted.
        allow_repeated: of verify: rows that are there more often are no problem.
        halt_reason: of resume: refuse it if the pipeline is not halted for this `HaltReason`; "": for any.
        forget_sources: of reset_state: sources that the job no longer reads, whose positions are dropped, too.
        wait: seconds that a stream may take to stop.
        first_try: of a stop: the task's first try since its run began or it was cleared; 0: each try asks.
        is_retry: of a stop: this try comes after `first_try`, and shares its request.
        wal_root: write-ahead log of a pipeline that is restored under a new name; "": `[airflow_ft] wal_root`.
        is_cleared: of restore: the task was cleared, so no rows are delivered again.
        reason: why, for the event log.

    Raises ConfigurationError for arguments that the action lacks, and for those that it would ignore.
    """

    action: str
    pipeline: str
    run: RunKey
    number: int | None = None
    rewind: bool = False
    folder: str = ""
    savepoint: FromSavepoint | None = None
    allow_repeated: bool = False
    halt_reason: str = ""
    forget_sources: tuple[str, ...] = ()
    wait: float = 600.0
    first_try: int = 0
    is_retry: bool = False
    wal_root: str = ""
    is_cleared: bool = False
    reason: str = ""

    def __post_init__(self) -> None:
        check_action(self.action)
        check_number(self.action, self.number)
        has_savepoint = self.savepoint is not None and self.savepoint.is_given
        check_arguments(
            self.action,
            {
                "rewind": self.rewind,
                "folder (savepoint_dir)": bool(self.folder),
                "savepoint": has_savepoint,
                "allow_repeated": self.allow_repeated,
                "halt_reason": bool(self.halt_reason),
                "forget_sources": bool(self.forget_sources),
            },
        )
        if self.halt_reason and self.halt_reason not in set(HaltReason):
            raise wrong("halt_reason", shown(self.halt_reason), f"Give one of {', '.join(HaltReason)}.")
        if self.action in ("restore", "dispose") and not has_savepoint:
            raise ConfigurationError(
                f"{self.action} needs the path of a savepoint.",
                code="argument_missing",
                remedy="Give it in `savepoint`: `airflow ft savepoint list` shows all.",
                argument="savepoint",
                action=self.action,
            )


def perform(by: Actor, asked: Asked, open_log: Callable[[], DecisionLog]) -> Any:
    """Do the action, and return what it made or found as plain data. Raises its errors, and FoundProblemsError."""
    if asked.action == "doctor":
        checks = examining.doctor(by, examining.configured(asked.pipeline), open_log)
        for line in examining.lines(checks):
            by.say(line)
        examining.require(checks, asked.pipeline)
        return None
    with closing(open_log()) as store:
        if asked.action == "dispose":  # the open log knows the disks: an unmounted one is not an empty folder
            assert asked.savepoint is not None
            return savepoints.dispose_of(by, asked.savepoint.path.strip(), asked.pipeline)
        if asked.action == "restore":  # the pipeline may be a new one
            return _restore(by, store, asked)
        require_known(store, asked.pipeline)
        return _perform(by, store, asked)


def _perform(by: Actor, store: DecisionLog, asked: Asked) -> Any:
    name, number = asked.pipeline, asked.number
    if asked.action in SETTLING:
        assert number is not None
        settling.look(by, store, name, number)
        after = AfterAbort.REWOUND if asked.rewind else AfterAbort.CARRIED
        return settling.settle(by, store, name, asked.action, number, after)
    if asked.action in _STOPS:
        folder = _folder(asked) if asked.action.endswith("with_savepoint") else ""
        return savepoints.stop(
            by,
            store,
            name,
            **_STOPS[asked.action],
            savepoint_dir=folder,
            wait=asked.wait,
            first_try=asked.first_try,
            is_retry=asked.is_retry,
        )
    match asked.action:
        case "recover":
            return pipelines.recover(by, store, name)
        case "rewind":
            return pipelines.rewind(by, store, name)
        case "reset_state":
            return pipelines.reset_state(by, store, name, asked.forget_sources)
        case "resume":
            return pipelines.resume(by, store, name, HaltReason(asked.halt_reason) if asked.halt_reason else None)
        case "retire":
            return pipelines.retire(by, store, name)
        case "savepoint":
            uri, taken = take(store, name, _folder(asked), by.signature, number)
            by.say(savepoints.taken_text(uri, taken))
            return uri
        case _:
            return _verify(by, store, asked)


def _verify(by: Actor, store: QueryLog, asked: Asked) -> None:
    numbers = [] if asked.number is None else [asked.number]
    reports = verifying.verify(by, store, asked.pipeline, numbers)
    for line in verifying.lines(reports, samples=False):  # more people may read a log than the tables
        by.say(line)
    verifying.require(reports, asked.pipeline, allow_repeated=asked.allow_repeated)


def _restore(by: Actor, store: DecisionLog, asked: Asked) -> dict[str, Any]:
    from_savepoint = asked.savepoint
    assert from_savepoint is not None
    restored = restore_once(
        store,
        from_savepoint,
        asked.pipeline,
        asked.run,
        by.participants,
        by.worker,
        why=by.signature,
        wal_root=asked.wal_root or settings.wal_root(),
        lease_seconds=by.lease_seconds,
        is_cleared=asked.is_cleared,
    )
    if restored is None:
        return {}
    for line in savepoints.restored_texts(restored, asked.pipeline, Later(from_savepoint.later)):
        by.say(line)
    number = 0 if restored.savepoint is None else restored.savepoint.number
    return {"checkpoint": number, "later": list(restored.later)}


def _folder(asked: Asked) -> str:
    return asked.folder or settings.savepoint_dir()
