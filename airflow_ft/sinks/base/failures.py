"""What an error of a database server means for a checkpoint, and what is raised for it.

An error never proves an outcome (I6): this only decides what is raised after the transaction was rolled back. Outcomes
are read from the marker. A system's own part is to sort its errors.
"""

from __future__ import annotations

from enum import Enum

from airflow_ft.core.errors import AirflowFtError, SinkAccessError, SinkUnavailableError


class Unanswered(Exception):
    """COMMIT was not answered as it should be, whatever was said: in doubt until the marker was read."""


class Meaning(Enum):
    """What can be done about an error."""

    LOST = "the connection is gone"
    BUSY = "a lock was not had in time"
    ROWS = "these rows are refused"
    ACCESS = "this user or this server setting is refused"
    UNAVAILABLE = "the server could not do it now"


_REMEDIES = {
    Meaning.ACCESS: "mend the connection, the privileges or the server's setting.",
    Meaning.BUSY: "another transaction holds a lock it needs; it is tried again.",
}


def failure_of(error: BaseException, doing: str, found: Meaning, words: str, remedy: str = "") -> AirflowFtError:
    """The error to raise for one met while `doing`, told in `words`; `remedy`: a better one than that of its kind."""
    if isinstance(error, Unanswered):
        return SinkUnavailableError(
            f"{doing}: COMMIT was not answered, so it is in doubt: {error}", remedy="the next try reads the marker."
        )
    kind = SinkAccessError if found is Meaning.ACCESS else SinkUnavailableError
    remedy = remedy or _REMEDIES.get(found, "it is tried again; look at the server if it stays so.")
    return kind(f"{doing}: {words}", remedy=remedy)
