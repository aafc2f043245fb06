"""Who reads a log in a bucket asks Airflow for its connection, by the way that this process has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_ft import FileSource
from airflow_ft.clients import buckets
from airflow_ft.pipeline.decision_log import open_configured_store
from airflow_ft.pipeline.dry_run import columns_of, rehearse
from airflow_ft.pipeline.resolved import resolve
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import SinkAccessError, StorageUnavailableError
from airflow_ft.wal.filesystem import filesystem
from tests.operators.declared import spec
from tests.raising import raises

ROOT = "s3://lake@wal/log"


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    buckets.forget()
    yield
    buckets.forget()


def missing(conn_id: str) -> ConnectionInfo:
    raise SinkAccessError("there is none.", code="connection_missing", remedy="Create it.", participant=conn_id)


def test_a_dry_run_asks_before_it_opens_a_decision_log(tmp_path: Path) -> None:
    sources = {"files": FileSource(path=str(tmp_path), schema="id bigint")}
    resolved = resolve(spec(wal_root=ROOT, store=f"sqlite:///{tmp_path}/ft.db", sources=sources))
    for look in (rehearse, columns_of):
        buckets.forget()
        with raises(StorageUnavailableError, "connection_missing", conn_id="lake"):
            look(resolved, missing)


def test_opening_the_decision_log_says_how_connections_are_found(tmp_path: Path) -> None:
    open_configured_store(f"sqlite:///{tmp_path}/ft.db", missing).close()
    with raises(StorageUnavailableError, "connection_missing", conn_id="lake"):
        filesystem(ROOT).read(f"{ROOT}/x")


class Connections:
    """A connection whose key changes with each look, and that cannot be read for a while."""

    def __init__(self) -> None:
        self.looks, self.away = 0, False

    def __call__(self, conn_id: str) -> ConnectionInfo:
        if self.away:
            return missing(conn_id)
        self.looks += 1
        return ConnectionInfo(conn_id, "aws", login="id", password=f"secret-{self.looks}")

    def secret(self) -> str:
        return buckets.settings_of(PLACE).secret_access_key


PLACE = buckets.BucketPlace.of(ROOT)


def test_a_connection_is_read_again_periodically_and_per_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    connections = Connections()
    buckets.resolve_with(connections)
    assert [connections.secret() for _ in range(3)] == ["secret-1"] * 3
    assert buckets.renew(PLACE).secret_access_key == connections.secret() == "secret-2"
    monkeypatch.setattr(buckets, "RENEWED_EACH", -1.0)
    assert connections.secret() == "secret-3"
    connections.away = True
    assert connections.secret() == "secret-3"
    with raises(StorageUnavailableError, "connection_missing", conn_id="lake"):
        buckets.renew(PLACE)
    connections.away = False
    assert connections.secret() == "secret-4"


def test_what_a_driver_has_learned_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "RENEWED_EACH", -1.0)
    learned = buckets.BucketSettings("lake", "us-east-1", "http://127.0.0.1:9", "id", "learned")
    buckets.learn(learned)
    assert buckets.settings_of(PLACE) == learned
