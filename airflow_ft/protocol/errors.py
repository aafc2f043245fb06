"""All errors of the package. Each has a class, a stable code, fields, a message and a remedy.

Airflow retries a `TransientError`. It does not retry a `TerminalError`: a person or the next run must act first.
Codes are listed in `docs/errors.md`. Messages never contain secrets: they name connections by their id.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from shlex import quote
from typing import Any, ClassVar, Self

from airflow_ft.protocol.failure import listed, with_fix
from airflow_ft.protocol.model import RunKey
from airflow_ft.protocol.pipelines import HaltReason, Pipeline, PipelineStatus
from airflow_ft.protocol.reasons import AbortReason


class AirflowFtError(Exception):
    """Base of all errors of this package.

    Args:
        what: what happened, in one or two sentences without secrets.
        code: the stable name of this kind of error, such as `column_missing`; by default that of the class.
        remedy: what to do, with the real names in it.
        pipeline, checkpoint, participant, sink, column, row: where; they precede `what` in the message.
        fields: other names and values that the message contains, for programs and tests. No secrets.
    """

    code: str = "unexpected"
    """The stable name of this kind of error. Programs compare this, and never the message."""
    abort_reason: ClassVar[AbortReason] = AbortReason.STAGE_FAILED
    """The reason of a checkpoint that this error ends before it is published."""
    unconnected: int = False
    """Whether the participant is called by another name than that of an Airflow connection (`located`)."""

    def __init__(
        self,
        what: str,
        *,
        code: str = "",
        remedy: str = "",
        pipeline: str = "",
        checkpoint: int = 0,
        participant: str = "",
        sink: str = "",
        column: str = "",
        row: str = "",
        **fields: Any,
    ) -> None:
        self.what = what
        self.code = code or type(self).code
        self.fields = fields
        self.remedy = remedy
        self.pipeline = pipeline
        self.checkpoint = checkpoint
        self.participant = participant
        self.sink = sink
        self.column = column
        self.row = row
        super().__init__(self._text())

    @property
    def headline(self) -> str:
        """Return where, and what happened: the message without code and remedy."""
        where = ", ".join(
            f"{label} {value!r}" if isinstance(value, str) else f"{label} {value}"
            for label, value in (
                ("pipeline", self.pipeline),
                ("checkpoint", self.checkpoint),
                ("participant" if self.unconnected else "connection", self.participant),
                ("sink", self.sink),
                ("column", self.column),
                ("row", self.row),
            )
            if value
        )
        return f"{where}: {self.what}" if where else self.what

    @property
    def log_lines(self) -> list[str]:
        """Return what a log shows: class, code and headline; then the remedy, if there is one."""
        first = f"{type(self).__name__} [{self.code}]: {self.headline}"
        return [first, f"Fix: {self.remedy}"] if self.remedy else [first]

    def _text(self) -> str:
        return with_fix(f"{self.headline} [{self.code}]", self.remedy)

    def located(self, **where: str | int) -> AirflowFtError:
        """Fills in what was not known where the error was raised (pipeline=, checkpoint=, ...); returns itself."""
        for name, value in where.items():
            if not getattr(self, name):
                setattr(self, name, value)
        return self.filled(self.pipeline)

    def filled(self, pipeline: str, dag_file: str = "") -> Self:
        """Puts the pipeline and its DAG file into the commands that the remedy shows; returns itself."""
        self.what = filled(self.what, pipeline, dag_file, self.checkpoint)
        self.remedy = filled(self.remedy, pipeline, dag_file, self.checkpoint)
        self.args = (self._text(),)
        return self


_COMMANDS = (
    r"adopt|checkpoints|doctor|recover|reset-state|resume|retire|rewind|savepoint trigger|setup|state show|stop|verify"
)
_UNNAMED = re.compile(rf"(airflow ft (?:{_COMMANDS}))(?: PIPELINE)?(?=`| --)")
_UNNAMED_DRY_RUN = re.compile(r"airflow ft dry-run(?=`)")
_UNNAMED_DOUBT = re.compile(r"airflow ft in-doubt(?=`| --(?!pipeline))")
_UNNUMBERED = re.compile(r"airflow ft in-doubt [^`]*--(?:abort|commit|dead-letter|quarantine|redeliver)(?=`)")


def filled(text: str, pipeline: str, dag_file: str = "", checkpoint: int = 0) -> str:
    """The text with the pipeline, checkpoint and DAG file in the commands that it shows, as far as they are known."""
    if pipeline:
        text = _UNNAMED.sub(lambda found: f"{found[1]} {pipeline}", text)
        text = _UNNAMED_DRY_RUN.sub(lambda found: f"{found[0]} {pipeline} --dag FILE", text)
        text = _UNNAMED_DOUBT.sub(lambda found: f"{found[0]} --pipeline {pipeline}", text)
    if checkpoint:
        text = _UNNUMBERED.sub(lambda found: f"{found[0]} {checkpoint}", text)
    return text.replace("--dag FILE", f"--dag {quote(dag_file)}") if dag_file else text


class TransientError(AirflowFtError):
    """Trying again may help; nothing was lost and nothing is half visible without a proof of it."""


class TerminalError(AirflowFtError):
    """Trying the same again will not help."""


# --- what a user wrote -------------------------------------------------------------------------------------------


class ConfigurationError(TerminalError, ValueError):
    """A name, setting or combination that cannot work; raised when the DAG is parsed wherever possible."""

    code = "invalid_configuration"


class StateMeaningError(ConfigurationError):
    """The keys, functions or settings of the job differ from those that made its state."""

    code = "state_meaning_changed"


class NewerReleaseError(ConfigurationError):
    """A newer release has written something that this one does not know. It touches nothing then."""

    code = "newer_release"

    def __init__(self, what: str, **where: Any) -> None:
        remedy = "Install the version of airflow-ft that wrote it, or a newer one. Nothing was changed."
        super().__init__(what, remedy=remedy, **where)


class JobError(TerminalError):
    """The user's PySpark code raised, or returned what was not asked for."""

    code = "job_failed"
    abort_reason = AbortReason.JOB_FAILED


class ExternalRowsError(TerminalError):
    """Rows that a program of the author has written cannot be staged: nothing of them is published."""

    code = "external_rows"
    abort_reason = AbortReason.JOB_FAILED


class DeadLettersError(TerminalError):
    """A checkpoint has more dead letters than its pipeline allows: nothing of it is published."""

    code = "too_many_dead_letters"
    abort_reason = AbortReason.TOO_MANY_DEAD_LETTERS


# --- fencing and state -------------------------------------------------------------------------------------------


class FencedError(TransientError):
    """A newer owner has taken over (I5). Ends the process: it reads the state once more and never takes an epoch.

    `head_epoch` and `head_attempt` are what was found in a sink's head or token, when a sink refused (0: the store
    did). The coordinator compares them with the store's: a sink that knows what the store has not given out yet means
    STORE_BEHIND_SINK.
    """

    code = "fenced"
    abort_reason = AbortReason.FENCED

    def __init__(self, what: str, *, head_epoch: int = 0, head_attempt: int = 0, **where: Any) -> None:
        self.head_epoch = head_epoch
        self.head_attempt = head_attempt
        super().__init__(what, **where)


class LeaseHeldError(TransientError):
    """Another process holds a lease on the pipeline."""

    code = "lease_held"


class TurnHeldError(TransientError):
    """Another run of the DAG is between its `recover` and its `confirmed`; `holder` names it."""

    code = "turn_held"

    def __init__(self, what: str, *, holder: RunKey, **where: Any) -> None:
        self.holder = holder
        super().__init__(what, **where)


class StateConflictError(TransientError):
    """A conditional write did not apply because another process changed the checkpoint. Read the state again."""

    code = "state_conflict"
    abort_reason = AbortReason.PUBLISH_FAILED


class StoreUnavailableError(TransientError):
    """The decision log cannot be reached, or did not answer. Never a reason to roll anything back (I8).

    `unanswered` is true when a write was sent and its answer lost: it may still arrive.
    """

    code = "store_unavailable"
    abort_reason = AbortReason.PUBLISH_FAILED

    def __init__(self, what: str, *, unanswered: bool = False, **where: Any) -> None:
        self.unanswered = unanswered
        super().__init__(what, **where)


class StoreCorruptError(TerminalError):
    """A row of the decision log is not what was written. Nothing is concluded from it (I8)."""

    code = "store_corrupt"

    def __init__(self, what: str, **where: Any) -> None:
        remedy = "Keep a copy of the decision log, and restore its backup (docs/recovery.md)."
        super().__init__(f"the decision log is damaged: {what}.", remedy=remedy, **where)


class PipelineHaltedError(TerminalError):
    """The pipeline does nothing until a person acts (`airflow ft resume`)."""

    code = "pipeline_halted"
    abort_reason = AbortReason.HALTED


def require_not_renamed(row: Pipeline, remedy: str = "Give the DAG the new name, or pause it.") -> None:
    """Raise PipelineHaltedError for the old name of a renamed pipeline."""
    if row.status is PipelineStatus.RENAMED:
        raise PipelineHaltedError(
            f"the pipeline was renamed: it continues as {row.renamed_to}.",
            code="pipeline_renamed",
            remedy=remedy,
            pipeline=row.name,
            new=row.renamed_to,
        )


def require_understood(row: Pipeline) -> None:
    """Raise NewerReleaseError for a pipeline that a newer release holds for a reason unknown to this one."""
    if row.newer:
        says = f" ({row.halt.message})" if row.halt is not None else ""
        raise NewerReleaseError(
            f"it is held for {row.newer}{says}, which a newer airflow-ft has written and this one does not know.",
            pipeline=row.name,
        )


def require_runnable(row: Pipeline) -> None:
    """Raise PipelineHaltedError unless the pipeline is ACTIVE; NewerReleaseError if only a newer release knows why."""
    require_understood(row)
    require_not_renamed(row)
    if (halt := row.halt) is not None:
        raise PipelineHaltedError(
            f"it is {halt.headline}",
            remedy=halt.remedy,
            pipeline=row.name,
            reason=halt.reason,
            halt_code=halt.code,
        )


class QuarantinedError(TerminalError):
    """A checkpoint is QUARANTINED: nothing later is delivered until a person has settled it (`airflow ft in-doubt`)."""

    code = "checkpoint_quarantined"


# --- sinks -------------------------------------------------------------------------------------------------------


class SinkUnavailableError(TransientError):
    """The system cannot be reached, or the outcome could not be read; the checkpoint stays as it is."""

    code = "sink_unavailable"


class SinkAccessError(TransientError):
    """Reached, but refused: wrong password, missing privilege, missing table or topic, unsafe server setting.

    Correct the environment; the staged rows stay valid.
    """

    code = "sink_access"


PROPOSED = "`airflow ft setup PIPELINE --dag FILE --print --tables` proposes it."
"""The remedy for a missing table or topic; `AirflowFtError.filled` puts the real names in."""


class UnfitTargetError(SinkAccessError):
    """The table or topic does not fit: a column or key is lacking, too small or of another type, a limit too low.

    It can be changed so that it takes the rows as they are, so they stay staged. What nothing could be changed for
    is a DeclinedError.
    """

    code = "target_unfit"


class DeclinedError(TerminalError):
    """The sink refuses these rows or their schema: the checkpoint is aborted and the pipeline rewound.

    Raised only when nothing of the checkpoint is visible in that sink.
    """

    code = "declined"
    abort_reason = AbortReason.DECLINED


def together(problems: Sequence[AirflowFtError], what: str = "problems") -> AirflowFtError:
    """Return one error for all of `problems`: a single one itself, otherwise a list of the type of the first terminal.

    `what` names in the plural what there are several of. `fields["codes"]` has the codes of all.
    """
    first = next((problem for problem in problems if isinstance(problem, TerminalError)), problems[0])
    if len(problems) == 1:
        return first
    codes = [problem.code for problem in problems]
    error: AirflowFtError = type(first).__new__(type(first))
    AirflowFtError.__init__(
        error,
        f"{len(problems)} {what}:{listed(f'{number}. {problem}' for number, problem in enumerate(problems, 1))}",
        code=codes[0] if len(set(codes)) == 1 else "several_problems",
        remedy="Correct all of them.",
        codes=codes,
    )
    sinks = {problem.sink for problem in problems}
    return error.located(sink=sinks.pop()) if len(sinks) == 1 else error


class NotDeliveredError(TerminalError):
    """A checkpoint of this run is not confirmed."""

    code = "not_delivered"


class FoundProblemsError(TerminalError):
    """A check failed: rows are missing or duplicated, or a system would stop a run."""

    code = "problems_found"


class HaltError(TerminalError):
    """The sink and the store contradict each other: the pipeline is HALTED with `reason`."""

    code = "halted"
    abort_reason = AbortReason.HALTED

    reason: HaltReason


class StoreBehindSinkError(HaltError):
    """The sink is newer than the store: the store was restored from a backup, or is another one."""

    code = "store_behind_sink"
    reason = HaltReason.STORE_BEHIND_SINK


class TokenLostError(HaltError):
    """A token is gone or lower than the plan's predecessor, or what it proves is gone with its target."""

    code = "token_lost"
    reason = HaltReason.TOKEN_LOST


class ForeignOwnerError(HaltError):
    """The sink's head belongs to another installation (a deleted or second store)."""

    code = "foreign_owner"
    reason = HaltReason.FOREIGN_OWNER


class HeuristicCommitError(HaltError):
    """Prepared rows were committed by hand before the decision, and can no longer be rolled back.

    The X/Open XA specification calls it a heuristic outcome: XA_HEURCOM, or XA_HEURMIX when it is a part.
    """

    code = "heuristic_commit"
    reason = HaltReason.HEURISTIC_COMMIT


# --- staging -----------------------------------------------------------------------------------------------------


class StageError(TransientError):
    """The Spark driver was killed, or failed for a reason outside of the user's code (a source, the disk, memory).

    What it had published stays; the rest never existed, and the next attempt computes it again.
    """

    code = "stage_failed"


class RestartsExhaustedError(TerminalError):
    """A stream failed with transient errors more often than its restart strategy allows.

    Nothing is lost: a new run continues at the newest checkpoint.
    """

    code = "restarts_exhausted"


class SealError(StageError):
    """A checkpoint's rows cannot be sealed or made durable: nothing of it is published.

    In a stream it counts for `CheckpointConfig.tolerable_failures`.
    """

    code = "seal_failed"
    abort_reason = AbortReason.SEAL_FAILED


class DataLossError(TerminalError):
    """Unread records of a source are gone because a topic was deleted or recreated under its name. Or a full refresh
    would skip records, because it starts after the source's last position.

    Nothing was published. A person decides whether to continue without those records.
    """

    code = "data_loss"
    abort_reason = AbortReason.DATA_LOSS


class CheckpointExpiredError(TransientError):
    """A micro-batch took longer than CheckpointConfig.timeout: it is ABORTED(EXPIRED) and computed again."""

    code = "checkpoint_expired"
    abort_reason = AbortReason.EXPIRED


# --- the write-ahead log -----------------------------------------------------------------------------------------


class StorageUnavailableError(TransientError, OSError):
    """The file system of the log cannot be reached, refuses, or is not the known one: what lies there stays as it is.

    Also an OSError with its number, as a local disk raises it.
    """

    code = "storage_unavailable"

    def __init__(self, what: str, *, number: int = 0, **where: Any) -> None:
        super().__init__(what, **where)
        self.errno = number


class WalCorruptError(TerminalError):
    """A published file or manifest is missing or does not match its checksum."""

    code = "wal_corrupt"
    abort_reason = AbortReason.SEAL_FAILED
