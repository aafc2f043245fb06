"""All errors of the package. Each has a class, a stable code, fields, a message and a remedy.

Airflow retries a `TransientError`. It does not retry a `TerminalError`: a person or the next run must act first.
Codes are listed in `docs/errors.md`. Messages never contain secrets: they name connections by their id.

Import them from here. The modules say who acts: `author` (of the DAG), `environment` (the administrator), `waiting`
(a person who decides), `retried` (the next try).
"""

from __future__ import annotations

from airflow_ft.protocol.errors.author import (
    ConfigurationError,
    DeadLettersError,
    DeclinedError,
    ExternalRowsError,
    JobError,
    StateMeaningError,
)
from airflow_ft.protocol.errors.base import AirflowFtError, TerminalError, TransientError, filled, together
from airflow_ft.protocol.errors.environment import (
    PROPOSED,
    PROPOSES,
    FoundProblemsError,
    NewerReleaseError,
    RestartsExhaustedError,
    SinkAccessError,
    StoreCorruptError,
    UnfitTargetError,
    WalCorruptError,
)
from airflow_ft.protocol.errors.retried import (
    CheckpointExpiredError,
    FencedError,
    LeaseHeldError,
    SealError,
    SinkUnavailableError,
    StageError,
    StateConflictError,
    StorageUnavailableError,
    StoreUnavailableError,
    TurnHeldError,
)
from airflow_ft.protocol.errors.waiting import (
    AbortedHeuristicCommitError,
    DataLossError,
    ForeignOwnerError,
    HaltError,
    HeuristicCommitError,
    NotDeliveredError,
    PipelineHaltedError,
    QuarantinedError,
    StoreBehindSinkError,
    TokenLostError,
    require_not_renamed,
    require_runnable,
    require_understood,
)

__all__ = [
    "PROPOSED", "PROPOSES",
    "AbortedHeuristicCommitError", "AirflowFtError", "CheckpointExpiredError", "ConfigurationError",
    "DataLossError", "DeadLettersError", "DeclinedError", "ExternalRowsError", "FencedError", "ForeignOwnerError",
    "FoundProblemsError", "HaltError", "HeuristicCommitError", "JobError", "LeaseHeldError", "NewerReleaseError",
    "NotDeliveredError", "PipelineHaltedError", "QuarantinedError", "RestartsExhaustedError", "SealError",
    "SinkAccessError", "SinkUnavailableError", "StageError", "StateConflictError", "StateMeaningError",
    "StorageUnavailableError", "StoreBehindSinkError", "StoreCorruptError", "StoreUnavailableError",
    "TerminalError", "TokenLostError", "TransientError", "TurnHeldError", "UnfitTargetError", "WalCorruptError",
    "filled", "require_not_renamed", "require_runnable", "require_understood", "together",
]  # fmt: skip
