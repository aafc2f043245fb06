"""What is to be done about errors of the server, by SQLSTATE."""

from __future__ import annotations

import psycopg2
import pytest

from airflow_ft.protocol.errors import SinkUnavailableError
from airflow_ft.sinks.postgres.failures import failure


class Answered(psycopg2.DatabaseError):
    """An error as psycopg2 makes it of a server's answer."""

    def __init__(self, state: str) -> None:
        super().__init__("broken")
        self._state = state

    @property
    def pgcode(self) -> str:  # type: ignore[override]
        return self._state


@pytest.mark.parametrize(
    ("state", "words"), [("XX001", "REINDEX"), ("XX002", "REINDEX"), ("58P01", "restore"), ("57P04", "database")]
)
def test_what_no_retry_mends_says_what_a_person_does(state: str, words: str) -> None:
    found = failure(Answered(state), "committing")
    assert isinstance(found, SinkUnavailableError) and found.fields["sqlstate"] == state
    assert words.lower() in found.remedy.lower() and found.remedy != failure(Answered("57000"), "committing").remedy
