"""What an error of a database server means for a checkpoint, and what is raised for it.

An error never proves an outcome (I6): this only decides what is raised after the transaction was rolled back. Outcomes
are read from the marker. A system's own part is to sort its errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from airflow_ft.protocol.errors import AirflowFtError, SinkAccessError, SinkUnavailableError, UnfitTargetError


class Unanswered(Exception):
    """COMMIT was not answered as it should be, whatever was said: in doubt until the marker was read."""


class Meaning(Enum):
    """Meaning of an error for the next step."""

    LOST = "the connection is gone"
    BUSY = "a lock was not granted in time"
    ROWS = "these rows are refused"
    ACCESS = "this user or this server setting is refused"
    UNAVAILABLE = "the server could not serve the request now"


_CODES = {
    Meaning.LOST: "server_unreachable",
    Meaning.BUSY: "lock_timeout",
    Meaning.ROWS: "row_refused",
    Meaning.ACCESS: "sink_access",
    Meaning.UNAVAILABLE: "sink_unavailable",
}
_RETRY = "Wait for the retry. If it fails too, look at the log of the server."
_REMEDIES = {
    Meaning.LOST: "Check that the server runs and that host and port of the connection are right.",
    Meaning.ACCESS: "Correct the connection, the user's privileges, or the setting of the server.",
    Meaning.BUSY: "Wait for the retry. If it fails too, end the session that holds the lock.",
    Meaning.ROWS: _RETRY,
    Meaning.UNAVAILABLE: _RETRY,
}


class ServerFault(Enum):
    """Failures of a server, each in words and with the class, code and remedy of its error."""

    LOGIN = "refuses the login", SinkAccessError, "login_refused", "Correct login and password of the connection."
    PRIVILEGE = (
        "refuses a request", SinkAccessError, "privilege_missing", "Grant it; `airflow ft setup --print` shows how.",
    )  # fmt: skip
    SILENT = "does not answer", SinkUnavailableError, _CODES[Meaning.LOST], _REMEDIES[Meaning.LOST]
    FAILED = "failed", SinkUnavailableError, _CODES[Meaning.UNAVAILABLE], _REMEDIES[Meaning.UNAVAILABLE]

    def error(self, who: str, words: str, remedy: str = "", **fields: Any) -> AirflowFtError:
        """Return the error: `who` is the server, `words` are its own, `fields` names and values in both."""
        what, kind, code, usual = self.value
        found: AirflowFtError = kind(f"{who} {what}: {words}.", code=code, remedy=remedy or usual, **fields)
        return found


def unsafe_settings(who: str, settings: Mapping[str, str], remedy: str, **fields: Any) -> UnfitTargetError:
    """Return the error for a server that may forget what it has acknowledged, because of these settings."""
    return UnfitTargetError(
        f"{who} may forget what it has acknowledged: {shown(settings)}.",
        code="server_setting_unsafe",
        remedy=remedy,
        settings=settings,
        **fields,
    )


def shown(settings: Mapping[str, str]) -> str:
    """Return settings with their values, for people."""
    return ", ".join(f"{name} {value}" for name, value in settings.items())


def failure_of(
    error: BaseException, doing: str, found: Meaning, words: str, remedy: str = "", code: str = "", **fields: Any
) -> AirflowFtError:
    """Return the error to raise for a server's error.

    Args:
        error: the server's, or the driver's.
        doing: what failed, such as "committing".
        found: what the error means.
        words: the server's own words, one sentence.
        remedy: a better one than that of `found`.
        code: a more exact one than that of `found`.
        fields: names and values in `words`.
    """
    if isinstance(error, Unanswered):
        return SinkUnavailableError(
            f"{doing} is in doubt, because the server did not confirm COMMIT: {error}",
            code="commit_in_doubt",
            remedy="Wait for the retry: it reads the marker, which says whether the rows are there.",
        )
    kind = SinkAccessError if found is Meaning.ACCESS else SinkUnavailableError
    return kind(f"{doing} failed: {words}", code=code or _CODES[found], remedy=remedy or _REMEDIES[found], **fields)
