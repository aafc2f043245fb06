"""Errors after which the next try continues without a person."""

from __future__ import annotations

from typing import Any

from airflow_ft.protocol.errors.base import TransientError
from airflow_ft.protocol.model import RunKey
from airflow_ft.protocol.reasons import AbortReason


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


class SinkUnavailableError(TransientError):
    """The system cannot be reached, or the outcome could not be read; the checkpoint stays as it is."""

    code = "sink_unavailable"


class StageError(TransientError):
    """The Spark driver was killed, or failed for a reason outside of the user's code (a source, the disk, memory).

    What it had published stays; the rest never existed, and the next attempt computes it again.
    """

    code = "stage_failed"


class SealError(StageError):
    """A checkpoint's rows cannot be sealed or made durable: nothing of it is published.

    In a stream it counts against `CheckpointConfig.tolerable_failures`.
    """

    code = "seal_failed"
    abort_reason = AbortReason.SEAL_FAILED


class CheckpointExpiredError(TransientError):
    """A micro-batch took longer than CheckpointConfig.timeout: it is ABORTED(EXPIRED) and computed again."""

    code = "checkpoint_expired"
    abort_reason = AbortReason.EXPIRED


class StorageUnavailableError(TransientError, OSError):
    """The file system of the log cannot be reached, refuses, or is not the known one: what lies there stays as it is.

    Also an OSError with its number, as a local disk raises it.
    """

    code = "storage_unavailable"

    def __init__(self, what: str, *, number: int = 0, **where: Any) -> None:
        super().__init__(what, **where)
        self.errno = number
