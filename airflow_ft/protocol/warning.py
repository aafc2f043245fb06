"""Warnings about a successful run that left something out, or did it differently than asked.

A warning is stored. The page, `airflow ft pipelines` and doctor show it until a confirmed run no longer reports it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.protocol.failure import with_fix

log = logging.getLogger(__name__)

MOST_WARNINGS = 100
"""Warnings that a pipeline keeps. Further ones are logged only."""
MOST_CHARACTERS = 1000
"""Characters of a stored message, and of a stored remedy."""


@dataclass(frozen=True, slots=True)
class PipelineWarning:
    """A warning. Code and subject identify it: reporting it once more replaces it.

    Args:
        code: a stable name in capitals, such as `SOURCE_FILE_GREW`.
        subject: which file, topic, source or sink; "": the pipeline as a whole.
        message: what happened, in sentences, without secrets.
        remedy: what to do; "": nothing.
        at: when it was last reported (UTC, by the store's clock); None: not stored yet.
    """

    code: str
    subject: str
    message: str
    remedy: str = ""
    at: datetime | None = None

    def __str__(self) -> str:
        subject = f" ({self.subject})" if self.subject else ""
        return with_fix(f"{self.code}{subject}: {self.message}", self.remedy)


class WarningLog(Protocol):
    """The warnings of pipelines."""

    def record_warning(self, pipeline: str, warning: PipelineWarning) -> None:
        """Stores a warning, or renews it. A new one, or one with another message, is also an event.

        A pipeline keeps `MOST_WARNINGS`; further ones are left out. A run that is confirmed deletes those that were
        stored before its stage began (`leave_turn`).
        """


def warn(store: WarningLog, pipeline: str, warning: PipelineWarning) -> None:
    """Log the warning and store it. Raises nothing: a warning must not fail the work that it is about."""
    log.warning("%s", warning)
    try:
        store.record_warning(pipeline, warning)
    except (AirflowFtError, KeyError) as error:
        log.warning("cannot store this warning, so the page does not show it: %s", error)
