"""Warnings about a successful run that left something out, or did it differently than asked.

A warning is stored. The page, `airflow ft pipelines` and doctor show it until a confirmed run no longer reports it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from airflow_ft.protocol.failure import with_fix

MOST_WARNINGS = 100
"""Warnings that a pipeline keeps. Further ones are logged only."""
MOST_CHARACTERS = 1000
"""Characters of a stored message, and of a stored remedy."""


@dataclass(frozen=True, slots=True)
class PipelineWarning:
    """A warning. Code and subject identify it: reporting it again replaces it.

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
