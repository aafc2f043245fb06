"""The page's API while the decision log is away or silent: it says so, keeps Airflow's threads free, and recovers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from airflow_ft.store import open_store
from tests.integration.test_store_postgres import schema, store_url
from tests.plugins.conftest import Asking, app, ask
from tests.store.scene import PIPELINE, Scene
from tests.waiting import wait_for
from tools.servers import Postgres

__all__ = ["app", "ask", "schema", "store_url"]
pytestmark = [pytest.mark.airflow, pytest.mark.timeout(300)]
PATHS = ("", f"{PIPELINE}", f"{PIPELINE}/checkpoints", f"{PIPELINE}/checkpoints/1", f"{PIPELINE}/timings")


@pytest.fixture
def scene(store_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    from airflow_ft.plugins import access

    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__STORE", store_url)
    monkeypatch.setattr(access, "_opened", access._Opened())
    with closing(open_store(store_url)) as store:
        scene = Scene(store)
        scene.stage(1)
        scene.complete(1)
        yield scene


@pytest.mark.parametrize("opened", [True, False], ids=["opened before", "never opened"])
def test_a_log_that_is_away_is_told_and_asked_again(
    scene: Scene, ask: Asking, postgres: Postgres, opened: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Never 304, which would say that what the page has still holds; and nothing that looks like a mistake of ours."""
    tags = {path: ask(path).headers["ETag"] for path in PATHS} if opened else dict.fromkeys(PATHS, "")
    postgres.kill()
    try:
        for _ in range(2):
            for path, tag in tags.items():
                answer = ask(path, known=tag)
                assert answer.status_code == 503 and "ETag" not in answer.headers
                body = answer.json()["detail"]
                assert "the decision log postgresql://" in body and "cannot be reached" in body
                assert "Fix: Check that the server runs" in body and postgres.password not in body
    finally:
        postgres.start()
    for path, tag in tags.items():
        assert ask(path, known=tag).status_code == (304 if tag else 200)
    scene.complete(scene.stage(1)[0])
    assert ask("").json()["pipelines"][0]["confirmed"] == 2
    assert not [each for each in caplog.records if each.exc_info and each.levelno > logging.DEBUG]


def test_a_log_that_is_silent_holds_no_more_of_airflows_threads(
    scene: Scene, ask: Asking, postgres: Postgres, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks ask the same server whether they may go on."""
    from airflow_ft.plugins import access, turns

    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__STORE", store_url.replace("connect_timeout=5", "connect_timeout=200"))
    monkeypatch.setattr(turns, "WAIT_SECONDS", 0.0)
    assert ask("").status_code == 200
    free: Any = access._turn._free
    with ThreadPoolExecutor(access.AT_ONCE) as pool:
        postgres.pause()
        try:
            waiting = [pool.submit(ask, "") for _ in range(access.AT_ONCE)]
            wait_for(lambda: free._value == 0, 60, "all of them wait")
            for path in PATHS:
                answer = ask(path)
                assert answer.status_code == 503
                assert f"{access.AT_ONCE} other requests wait for the decision log. [server_busy]" in answer.text
        finally:
            postgres.resume()
        assert [each.result(120).status_code for each in waiting] == [200] * access.AT_ONCE
    assert ask("").status_code == 200


def test_a_log_whose_rights_were_taken_is_no_mistake_of_who_asks(
    scene: Scene, ask: Asking, postgres: Postgres, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """503 of each path: 400 would say that the question was wrong."""
    from airflow_ft.plugins import access

    user = f"{schema}_reader"
    postgres.sql(f"CREATE ROLE {user} LOGIN PASSWORD 'secret-7'")
    postgres.sql(f"GRANT USAGE ON SCHEMA {schema} TO {user}")
    postgres.sql(f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {user}")
    try:
        url = f"postgresql://{user}:secret-7@{postgres.host}:{postgres.port}/postgres?schema={schema}"
        monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__STORE", url)
        assert {ask(path).status_code for path in PATHS} == {200}
        postgres.sql(f"REVOKE ALL ON ALL TABLES IN SCHEMA {schema} FROM {user}")
        for path in PATHS:
            answer = ask(path)
            assert answer.status_code == 503, path
            assert "lacks a privilege" in answer.text and "privilege_missing" in answer.text
        postgres.sql(f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {user}")
        assert {ask(path).status_code for path in PATHS} == {200}
    finally:
        access._opened._store.close()  # type: ignore[union-attr]
        postgres.sql(f"DROP OWNED BY {user}")
        postgres.sql(f"DROP ROLE {user}")
