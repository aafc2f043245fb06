"""Errors that stay until a person decides: halted pipelines, quarantined checkpoints, lost records."""

from __future__ import annotations

from airflow_ft.protocol.errors.base import TerminalError
from airflow_ft.protocol.errors.environment import NewerReleaseError
from airflow_ft.protocol.pipelines import HaltReason, Pipeline, PipelineStatus
from airflow_ft.protocol.reasons import AbortReason


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
            f"a newer airflow-ft holds the pipeline for {row.newer}{says}, which this version does not know.",
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


class NotDeliveredError(TerminalError):
    """A checkpoint of this run is not confirmed."""

    code = "not_delivered"


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
    """The sink's head belongs to another decision log (a deleted or second store)."""

    code = "foreign_owner"
    reason = HaltReason.FOREIGN_OWNER


class HeuristicCommitError(HaltError):
    """Prepared rows were committed by hand before the decision, and can no longer be rolled back.

    The X/Open XA specification calls it a heuristic outcome: XA_HEURCOM, or XA_HEURMIX when it is a part.
    """

    code = "heuristic_commit"
    reason = HaltReason.HEURISTIC_COMMIT


class AbortedHeuristicCommitError(HeuristicCommitError):
    """The same, but the checkpoint is aborted: delivering the rest is no way out, only deleting what is visible."""

    code = "heuristic_commit_aborted"


class DataLossError(TerminalError):
    """Unread records of a source are gone because a topic was deleted or recreated under its name. Or a full refresh
    would skip records, because it starts after the source's last position.

    Nothing was published. A person decides whether to continue without those records.
    """

    code = "data_loss"
    abort_reason = AbortReason.DATA_LOSS
