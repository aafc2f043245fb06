"""A SQL catalog in PostgreSQL: beside a process that is frozen within a commit, and with a wrong connection."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import URL

from airflow_ft.protocol.errors import SinkAccessError, SinkUnavailableError
from airflow_ft.sinks.iceberg.sql_catalog import bounded
from airflow_ft.testing.world import World
from tests.raising import raises
from tests.sinks.iceberg.world import Table, in_file
from tools.servers.database import Database


def url_of(database: Database) -> URL:
    there = database.airflow_connection()
    return URL.create(
        "postgresql+psycopg2", there["login"], there["password"], there["host"], there["port"], there["schema"]
    )


@pytest.mark.parametrize(
    ("change", "code"), [({"password": "planted-Secret-4"}, "login_refused"), ({"database": "no"}, "database_missing")]
)
def test_a_wrong_connection_is_told_and_shows_no_secret(
    postgres_database: Database, tmp_path: Path, change: dict[str, str], code: str
) -> None:
    given = in_file(tmp_path)
    uri = url_of(postgres_database).set(**change).render_as_string(hide_password=False)  # type: ignore[arg-type]
    wrong = replace(given, extra={**given.extra, "uri": uri})
    with closing(World(Table(wrong), tmp_path)) as world, raises(SinkAccessError, code) as caught:
        world.prepare(world.plan())
    assert "planted" not in f"{caught.error} {vars(caught.error)}"


def test_nobody_waits_forever_for_a_frozen_process(postgres_database: Database, tmp_path: Path) -> None:
    url, given = url_of(postgres_database), in_file(tmp_path)
    ours = bounded(url.render_as_string(hide_password=False)).replace("60s", "1s")
    with closing(World(Table(replace(given, extra={**given.extra, "uri": ours})), tmp_path)) as world:
        world.deliver(world.plan())
        with closing(create_engine(url).connect()) as frozen:
            frozen.execute(text("UPDATE iceberg_tables SET metadata_location = metadata_location"))
            with raises(SinkUnavailableError, "server_unreachable"):
                world.prepare(world.plan())
        world.deliver(world.plan())
        world.shows(world.ids_of(1, 3))


def test_limits_are_those_of_the_uri_if_it_has_them() -> None:
    assert "lock_timeout" in bounded("postgresql://a:b%2Fc@h/d") and "b%2Fc@h" in bounded("postgresql://a:b%2Fc@h/d")
    own = "postgresql+psycopg2://h/d?connect_timeout=9&options=-c+lock_timeout%3D7s"
    assert bounded(own) == own
    assert bounded("sqlite:////data/catalog.db?timeout=60") == "sqlite:////data/catalog.db?timeout=60"
