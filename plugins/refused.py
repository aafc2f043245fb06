"""Answers of the API that are errors: a status, a text with its fix, and the stable code (`docs/errors.md`)."""

from __future__ import annotations

from typing import Self

from fastapi import HTTPException

from airflow_ft.protocol.errors import AirflowFtError


class RefusedError(HTTPException):
    """An error as the client gets it: {"detail": text, "code": code}.

    Args:
        status: the HTTP status.
        what: what happened, in one or two sentences without secrets.
        code: the stable name of this kind of error.
        remedy: what to do; it has its own line in the text.
    """

    def __init__(self, status: int, what: str, *, code: str, remedy: str = "") -> None:
        self.code = code
        super().__init__(status, str(AirflowFtError(what, code=code, remedy=remedy)))

    @classmethod
    def of(cls, status: int, error: AirflowFtError) -> Self:
        """Return an error of ours as an answer."""
        return cls(status, error.headline, code=error.code, remedy=error.remedy)
