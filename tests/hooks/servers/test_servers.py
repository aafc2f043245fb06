"""The connection types of this package: registered, tested by Airflow's own Test, out of the way of other providers."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import certifi
import pytest

from airflow_ft.provider_info import get_provider_info
from tools.servers import Database, HBase, Redis

pytestmark = pytest.mark.airflow

TYPES = {"iceberg", "hive_metastore", "hbase", "cassandra", "mysql", "postgres", "redis", "spark", "sqlite"}
ONE_AFTER_THE_OTHER = """
import json, os, sys, tempfile
from airflow.__main__ import main
from airflow.cli.commands import connection_command, db_command  # once, and not in each process

told = []
for arguments in json.loads(sys.argv[1]):
    with tempfile.TemporaryFile("w+") as output:
        if not (child := os.fork()):
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            sys.argv = ["airflow", *arguments]
            sys.exit(main())
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        told.append([code, output.read()])
print(json.dumps(told))
"""
"""`airflow ...` for each list of arguments, in a process of its own: exit codes and what was printed."""


@pytest.fixture
def tested(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What Airflow's Test button gets for these fields; it hands them over by the environment, as here."""
    from airflow.models.connection import Connection

    def test(**fields: Any) -> tuple[bool, str]:
        connection = Connection(conn_id="tried", **fields)
        monkeypatch.setenv("AIRFLOW_CONN_TRIED", connection.as_json())
        return connection.test_connection()

    return test


def fields(database: Database, **more: Any) -> dict[str, Any]:
    server: Any = database.server
    login = {"login": server.user, "password": server.password, "schema": database.name}
    return {"host": server.host, "port": server.port, **login, **more}


@pytest.mark.server
def test_mysql_is_tested_with_the_settings_that_a_sink_uses(any_mysql_database: Database, tested: Any) -> None:
    found, text = tested(conn_type="mysql", **fields(any_mysql_database))
    assert found and ("MariaDB" in text or "MySQL" in text) and f"as {any_mysql_database.server.user}@" in text
    found, text = tested(conn_type="mysql", **fields(any_mysql_database, password="planted-Secret-4"))
    assert not found and "Access denied" in text and "Correct login, password" in text and "planted" not in text
    found, text = tested(conn_type="mysql", **fields(any_mysql_database, schema="no_such_schema"))
    assert not found and "no_such_schema" in text
    found, text = tested(conn_type="mysql", **fields(any_mysql_database, extra='{"ssl_ca": "/no/such/file"}'))
    assert not found and "/no/such/file" in text and "TLS settings" in text
    found, text = tested(conn_type="mysql", **fields(any_mysql_database, port=1))
    assert not found and "refused" in text


@pytest.mark.server
def test_an_authority_that_is_named_is_the_one_that_counts(mysql_database: Database, tested: Any) -> None:
    own = mysql_database.server.folder / "data" / "ca.pem"
    for authority, expected in ((own, True), (certifi.where(), False)):
        extra = json.dumps({"ssl_ca": str(authority)})
        found, text = tested(conn_type="mysql", **fields(mysql_database, extra=extra))
        assert found is expected and ("certificate" in text.lower()) is not expected, text


@pytest.mark.server
def test_postgres_is_tested_as_the_decision_log_opens_it(postgres_database: Database, tested: Any) -> None:
    found, text = tested(conn_type="postgres", **fields(postgres_database))
    assert found and text.startswith("PostgreSQL 1"), text
    found, text = tested(conn_type="postgres", **fields(postgres_database, password="planted-Secret-4"))
    assert not found and "password authentication failed" in text and "planted" not in text
    found, text = tested(conn_type="postgres", **fields(postgres_database, schema="no_such_database"))
    assert not found and "no_such_database" in text
    tables = "SELECT count(*) FROM information_schema.schemata WHERE schema_name = 'airflow_ft'"
    assert postgres_database.sql(tables) == [(0,)], "a test creates nothing"


@pytest.mark.server
def test_redis_is_tested_as_a_sink_opens_it(redis_server: Redis, tested: Any) -> None:
    given = {"conn_type": "redis", "host": redis_server.host, "port": redis_server.port}
    found, text = tested(**given, password=redis_server.password)
    assert found and text.startswith("Redis ") and text.endswith("as default"), text
    found, text = tested(**given, password="planted-Secret-4")
    assert not found and "refuses the login" in text and "planted" not in text


@pytest.mark.sampled(among="HBase")
def test_hbase_is_tested_as_a_sink_opens_it(hbase: HBase, tested: Any) -> None:
    found, text = tested(conn_type="hbase", host=hbase.host, port=hbase.port)
    assert found and "airflow_ft exists" in text, text
    found, text = tested(conn_type="hbase", host=hbase.host, port=1)
    assert not found and "does not answer" in text


def test_spark_is_tested_where_something_can_be_reached(tested: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as master:
        port = master.getsockname()[1]
        assert tested(conn_type="spark", host="spark://127.0.0.1", port=port) == (
            True,
            f"spark://127.0.0.1:{port}: 127.0.0.1:{port} accepts connections",
        )
    found, text = tested(conn_type="spark", host="127.0.0.1", port=port)
    assert not found and f"127.0.0.1:{port}" in text and "Fix: " in text
    for host in ("yarn", "local[4]", "k8s://https://cluster"):
        found, text = tested(conn_type="spark", host=host)
        assert found and text.startswith(host)
    for values, expected in (({}, "no host"), ({"host": "yarn", "extra": '{"deploy-mode": "cluster"}'}, "deploy mode")):
        found, text = tested(conn_type="spark", **values)
        assert not found and expected in text


def test_iceberg_is_tested_as_a_sink_opens_it(tested: Any, tmp_path: Path) -> None:
    extra = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}"}
    assert tested(conn_type="iceberg", extra=json.dumps(extra)) == (True, "an Iceberg catalog with 0 namespaces")
    found, text = tested(conn_type="iceberg", host="http://127.0.0.1", port=1, password="planted-Secret-4", login="a")
    assert not found and "does not answer" in text and "planted" not in text
    found, text = tested(conn_type="iceberg")
    assert not found and "names no catalog" in text


def test_sqlite_is_tested_as_a_sink_opens_it(tested: Any, tmp_path: Path) -> None:
    file = tmp_path / "shop.db"
    found, text = tested(conn_type="sqlite", host=str(file))
    assert found and text.endswith(f"{file} will be created") and not file.exists()
    found, text = tested(conn_type="sqlite", host="shop.db")
    assert not found and "absolute path" in text
    file.write_text("no database " * 100)
    found, text = tested(conn_type="sqlite", host=str(file))
    assert not found and str(file) in text and "damaged" in text


def test_airflows_own_providers_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def registered() -> set[str]:
        return {each["connection-type"] for each in get_provider_info()["connection-types"]}

    assert registered() == TYPES
    real = metadata.distribution

    def with_mysql(name: str) -> Any:
        return real("airflow-ft") if name == "apache-airflow-providers-mysql" else real(name)

    monkeypatch.setattr(metadata, "distribution", with_mysql)
    assert registered() == TYPES - {"mysql"}


def test_every_type_has_a_form_and_a_hook_that_fits_it() -> None:
    from airflow.providers_manager import ProvidersManager

    manager = ProvidersManager()
    for name in TYPES:
        hook = manager.hooks[name]
        assert hook is not None and hook.package_name == "airflow-ft", name
        assert manager.field_behaviours[name]["placeholders"]


@pytest.mark.sampled(among="slow checks")
@pytest.mark.server
@pytest.mark.slow
def test_the_command_keeps_the_type_and_tests_what_it_has_stored(mariadb_database: Database, tmp_path: Path) -> None:
    settings = {
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
        "AIRFLOW__CORE__FERNET_KEY": "",
    }

    given = fields(mariadb_database)
    commands = [["db", "migrate"]]
    for conn_id, password in (("right", given["password"]), ("wrong", "planted-Secret-4")):
        options = [f"--conn-{name}={value}" for name, value in {**given, "password": password}.items()]
        commands.append(["connections", "add", conn_id, "--conn-type=mysql", *options])
    commands += [
        ["connections", "get", "right", "-o", "json"],
        ["connections", "test", "right"],
        ["connections", "test", "wrong"],
    ]
    done = subprocess.run(
        [sys.executable, "-c", ONE_AFTER_THE_OTHER, json.dumps(commands)],
        env={**os.environ, **settings}, capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    migrated, *added, got, right, wrong = [tuple(each) for each in json.loads(done.stdout)]
    assert migrated[0] == 0, migrated[1]
    for code, text in added:
        assert code == 0 and "generic" not in text and "invalid" not in text, text
    stored = json.loads(got[1].splitlines()[-1])
    assert stored[0]["conn_type"] == "mysql"
    assert right[0] == 0 and "Connection success" in right[1], right[1]
    assert "Access denied" in wrong[1] and "planted" not in wrong[1], wrong[1]
