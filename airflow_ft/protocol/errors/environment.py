"""Errors that the administrator corrects: the installation, a system, or stored data."""

from __future__ import annotations

import re
from typing import Any

from airflow_ft.protocol.errors.author import ConfigurationError
from airflow_ft.protocol.errors.base import TerminalError, TransientError
from airflow_ft.protocol.reasons import AbortReason


class NewerReleaseError(ConfigurationError):
    """A newer release has written something that this one does not know. It touches nothing then."""

    code = "newer_release"

    def __init__(self, what: str, **where: Any) -> None:
        remedy = "Install the version of airflow-ft that wrote it, or a newer one. Nothing was changed."
        super().__init__(what, remedy=remedy, **where)


class StoreCorruptError(TerminalError):
    """A row of the decision log is not what was written. Nothing is concluded from it (I8)."""

    code = "store_corrupt"

    def __init__(self, what: str, **where: Any) -> None:
        remedy = "Keep a copy of the decision log, and restore its backup (docs/recovery.md)."
        super().__init__(f"the decision log is damaged: {what}.", remedy=remedy, **where)


class SinkAccessError(TransientError):
    """Reached, but refused: wrong password, missing privilege, missing table or topic, unsafe server setting.

    Correct the environment; the staged rows stay valid.
    """

    code = "sink_access"


PROPOSED = "`airflow ft setup PIPELINE --dag FILE --print --tables` proposes it."
"""The remedy for a missing table; `AirflowFtError.filled` puts the real names in."""
PROPOSES = re.compile(re.escape(PROPOSED).replace("PIPELINE", r"\S+"))
"""The same with the name of any pipeline."""


class UnfitTargetError(SinkAccessError):
    """The table or topic does not fit: a column or key is missing, too small or of another type, or a limit is too low.

    It can be changed so that it takes the rows as they are, so they stay staged. If no change could help, the error is
    a DeclinedError.
    """

    code = "target_unfit"


class FoundProblemsError(TerminalError):
    """A check failed: rows are missing or duplicated, or a system would stop a run."""

    code = "problems_found"


class RestartsExhaustedError(TerminalError):
    """A stream failed with transient errors more often than its restart strategy allows.

    Nothing is lost: a new run continues at the newest checkpoint.
    """

    code = "restarts_exhausted"


class WalCorruptError(TerminalError):
    """A published file or manifest is missing or does not match its checksum."""

    code = "wal_corrupt"
    abort_reason = AbortReason.SEAL_FAILED
