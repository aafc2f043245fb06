"""What is to be done about errors of the server, by SQLSTATE."""

from __future__ import annotations

import psycopg2
import pytest

from airflow_ft.protocol.errors import SinkAccessError, SinkUnavailableError
from airflow_ft.sinks.postgres.failures import Meaning, failure, meaning


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


@pytest.mark.parametrize(
    "error", [Answered("3D000"), psycopg2.OperationalError('FATAL:  database "shopp" does not exist\n')]
)
def test_a_missing_database_is_not_a_refused_login(error: psycopg2.Error) -> None:
    found = failure(error, "connecting")
    assert isinstance(found, SinkAccessError) and found.code == "database_missing"


@pytest.mark.parametrize(
    "given",
    [
        {"require_auth": "bogus"},
        {"ssl_min_protocol_version": "1.2"},
        {"ssl_min_protocol_version": "TLSv1.3", "ssl_max_protocol_version": "TLSv1.2"},
        {"sslcertmode": "x"},
        {"sslrootcert": "system", "sslmode": "require"},
    ],
)
def test_wrong_parameters_of_a_client_are_no_outage(given: dict[str, str]) -> None:
    with pytest.raises(psycopg2.OperationalError) as refused:
        psycopg2.connect(host="127.0.0.1", port=1, **given)  # type: ignore[call-overload]
    assert meaning(refused.value) is Meaning.ACCESS


def test_a_server_that_asks_for_a_weaker_login_is_no_outage() -> None:
    words = 'authentication method requirement "scram-sha-256" failed: server requested a cleartext password'
    assert meaning(psycopg2.OperationalError(words)) is Meaning.ACCESS
