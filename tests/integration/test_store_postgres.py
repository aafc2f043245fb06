"""The decision log in PostgreSQL: the same behaviour as in SQLite, and what only a server can do to it."""

from __future__ import annotations

import os
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg2
import pytest
from psycopg2 import extensions
from psycopg2.extras import PhysicalReplicationConnection

from airflow_ft.protocol.errors import ConfigurationError, FencedError, StoreUnavailableError
from airflow_ft.protocol.model import RunKey
from airflow_ft.protocol.pipelines import HaltReason
from airflow_ft.store import find_store, open_store
from airflow_ft.store.decision_log import DecisionLog
from airflow_ft.store.doctor import examine_store
from airflow_ft.store.postgres import PostgresDatabase, PostgresStore, translated
from tests.integration.proxy import Proxy
from tests.raising import raises
from tests.store.conftest import move_clock, what_was_read_is_there
from tests.store.flatness import INDEXES, every_operation, recorded
from tests.store.scene import PIPELINE, Scene, a_position, a_segment
from tests.store.test_aborting import TestAborts, TestRewinds, TestRollbacks
from tests.store.test_adoption import TestAdoption
from tests.store.test_barriers import TestInjection, TestWhatANumberCovers
from tests.store.test_concurrency import TestRaces
from tests.store.test_conditions import TestActions, TestExplained, TestFailed, TestNotRunning
from tests.store.test_delivery import TestDecisions, TestPlans, TestProofs, TestVotes
from tests.store.test_epochs import TestEpochs, TestHalts, TestLeases, TestPipelines, TestTurns
from tests.store.test_history import TestHistory
from tests.store.test_lag import TestLags, TestLate
from tests.store.test_quarantine import TestQuarantine
from tests.store.test_reading import TestReading
from tests.store.test_renaming import TestRenames
from tests.store.test_reports import TestProblems, TestWarnings
from tests.store.test_runs import TestRuns
from tests.store.test_staging import TestStaging
from tests.store.test_summary import TestReportedByTheDriver, TestSummary
from tests.store.test_summary_walks import TestLookingMeanwhile, TestWalks
from tests.store.test_upgrade import NEXT, TestUpgrade, newer
from tools.servers import Postgres

pytestmark = pytest.mark.sampled

__all__ = [
    "TestAborts",
    "TestActions",
    "TestAdoption",
    "TestDecisions",
    "TestEpochs",
    "TestExplained",
    "TestFailed",
    "TestHalts",
    "TestHistory",
    "TestInjection",
    "TestLags",
    "TestLate",
    "TestLeases",
    "TestLookingMeanwhile",
    "TestNotRunning",
    "TestPipelines",
    "TestPlans",
    "TestProblems",
    "TestProofs",
    "TestQuarantine",
    "TestRaces",
    "TestReading",
    "TestRenames",
    "TestReportedByTheDriver",
    "TestRewinds",
    "TestRollbacks",
    "TestRuns",
    "TestStaging",
    "TestSummary",
    "TestTurns",
    "TestUpgrade",
    "TestVotes",
    "TestWalks",
    "TestWarnings",
    "TestWhatANumberCovers",
    "move_clock",
    "newer",
    "what_was_read_is_there",
]


def url_of(server: Postgres, schema: str, *, port: int | None = None, user: str = "", password: str = "") -> str:
    who = f"{quote(user or server.user)}:{quote(password or server.password)}"
    return f"postgresql://{who}@{server.host}:{port or server.port}/postgres?schema={schema}&connect_timeout=5"


def dsn_of(server: Postgres, schema: str, **changes: str | int) -> dict[str, str]:
    fields: dict[str, str | int] = {
        "host": server.host,
        "port": server.port,
        "user": server.user,
        "password": server.password,
        "dbname": "postgres",
        "schema": schema,
        **changes,
    }
    return {name: str(value) for name, value in fields.items()}


@pytest.fixture
def schema(postgres: Postgres) -> Iterator[str]:
    name = f"ft_{uuid.uuid4().hex[:12]}"
    yield name
    postgres.sql(f"DROP SCHEMA IF EXISTS {name} CASCADE")


@pytest.fixture
def store_url(postgres: Postgres, schema: str) -> str:
    return url_of(postgres, schema)


@pytest.fixture
def store(store_url: str) -> Iterator[DecisionLog]:
    store = open_store(store_url)
    yield store
    store.close()


@pytest.fixture
def reopened(store_url: str) -> Callable[[], DecisionLog]:
    return lambda: open_store(store_url)


@pytest.fixture
def scene(store: DecisionLog) -> Scene:
    return Scene(store)


@contextmanager
def url_of_database(server: Postgres, schema: str, options: str) -> Iterator[str]:
    """Create a database for the decision log, and drop it afterwards."""
    name = f"ft_{uuid.uuid4().hex[:12]}"
    server.sql(f"CREATE DATABASE {name} TEMPLATE template0 {options}")
    try:
        yield url_of(server, schema).replace("/postgres?", f"/{name}?")
    finally:
        server.sql(f"DROP DATABASE {name} WITH (FORCE)")


def test_a_database_without_an_encoding_keeps_every_text(postgres: Postgres, schema: str) -> None:
    text = "café 日本"
    with url_of_database(postgres, schema, "ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'") as url:
        with closing(open_store(url)) as store:
            Scene(store).take()
            store.halt(PIPELINE, HaltReason.TOKEN_LOST, text)
        with closing(open_store(url)) as store:
            halt = store.pipeline(PIPELINE).halt
            assert halt is not None and halt.message == text


def test_a_database_that_lacks_characters_is_refused(postgres: Postgres, schema: str) -> None:
    made = url_of_database(postgres, schema, "ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'")
    with made as url, raises(ConfigurationError, "server_setting_unsafe", encoding="LATIN1"):
        open_store(url)


def test_a_log_moves_into_a_unicode_database_as_documented(postgres: Postgres, schema: str, tmp_path: Path) -> None:
    server = {**os.environ, "PGHOST": postgres.host, "PGPORT": str(postgres.port), "PGUSER": postgres.user}
    dump = tmp_path / "store.dump"

    def run(*command: str) -> None:
        subprocess.run(command, env={**server, "PGPASSWORD": postgres.password}, check=True, timeout=60)

    def copy(old: str, new: str) -> None:
        run("pg_dump", f"--schema={schema}", "--format=custom", f"--file={dump}", name_of(old))
        run("pg_restore", "--exit-on-error", f"--dbname={name_of(new)}", str(dump))

    as_documented = "ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'"  # what `createdb` makes
    with (
        url_of_database(postgres, schema, as_documented) as first,
        url_of_database(postgres, schema, "ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'") as old,
        url_of_database(postgres, schema, as_documented) as new,
    ):
        with closing(open_store(first)) as store:
            Scene(store).take()
            store.halt(PIPELINE, HaltReason.TOKEN_LOST, "café")
            installation, halted = store.installation, store.pipeline(PIPELINE)
        copy(first, old)  # as an earlier release has left it
        with raises(ConfigurationError, "server_setting_unsafe", encoding="LATIN1"):
            open_store(old)
        copy(old, new)
        with closing(open_store(new)) as store:
            assert (store.installation, store.pipeline(PIPELINE)) == (installation, halted)


def name_of(url: str) -> str:
    return url.partition("?")[0].rpartition("/")[2]


def test_a_database_with_another_order_of_texts_forgets_no_dag(postgres: Postgres, schema: str) -> None:
    """Most servers have 'a' before 'B', as this database; Python has it behind."""
    made = url_of_database(postgres, schema, "LOCALE_PROVIDER icu ICU_LOCALE 'en-US'")
    with made as url, closing(open_store(url)) as store:
        scene = Scene(store)
        scene.take()
        scene.trigger(RunKey("a", "run-1"))
        scene.trigger(RunKey("B", "run-2"))
        assert set(store.overview(PIPELINE).dags) == {"a", "B"}
        assert [each.name for each in store.overviews("a")] == [PIPELINE]


class TestConnections:
    def test_the_url_for_people_has_no_password(self, postgres: Postgres, store: DecisionLog, schema: str) -> None:
        assert store.url == f"postgresql://admin@127.0.0.1:{postgres.port}/postgres?schema={schema}"

    def test_a_wrong_password_is_said_without_quoting_it(self, postgres: Postgres, schema: str) -> None:
        with raises(StoreUnavailableError, "login_refused") as refused:
            open_store(url_of(postgres, schema, password="open sesame"))
        assert "admin" in refused.error.headline
        assert "sesame" not in f"{refused.error} {refused.error.fields}"

    def test_a_password_in_a_message_of_the_driver_is_masked(self, postgres: Postgres, schema: str) -> None:
        with raises(StoreUnavailableError, "login_refused") as refused:
            open_store(url_of(postgres, schema, user="sesame", password="sesame"))
        assert 'for user "***"' in refused.error.headline
        assert refused.value.__cause__ is None

    def test_a_server_that_is_not_there_is_said_in_time(self, schema: str) -> None:
        from tools.servers.processes import free_port

        with raises(StoreUnavailableError, "server_unreachable", unanswered=False) as refused:
            open_store(f"postgresql://ada:sesame@127.0.0.1:{free_port()}/db?connect_timeout=2")
        assert "sesame" not in f"{refused.error} {refused.error.fields}"

    def test_the_second_host_is_taken_if_the_first_one_is_dead(self, postgres: Postgres, schema: str) -> None:
        from tools.servers.processes import free_port

        one = f"{postgres.host}:{postgres.port}"
        url = (
            url_of(postgres, schema).replace(one, f"127.0.0.1:{free_port()},{one}") + "&target_session_attrs=read-write"
        )
        with closing(open_store(url)) as store:
            assert Scene(store).take() == 1

    def test_a_log_whose_host_dies_moves_to_the_next_one(self, postgres: Postgres, schema: str) -> None:
        one = f"{postgres.host}:{postgres.port}"
        with ExitStack() as stack:
            with Proxy(postgres.port) as proxy:
                url = url_of(postgres, schema).replace(one, f"127.0.0.1:{proxy.port},{one}")
                store = stack.enter_context(closing(open_store(url)))
                assert Scene(store).take() == 1
            assert Scene(store).take() == 2

    def test_several_hosts_that_are_dead_show_no_password(self, schema: str) -> None:
        from tools.servers.processes import free_port

        hosts = f"127.0.0.1:{free_port()},127.0.0.1:{free_port()}"
        with raises(StoreUnavailableError, "server_unreachable") as refused:
            open_store(f"postgresql://ada:open%20sesame@{hosts}/db?connect_timeout=2&target_session_attrs=read-write")
        assert "sesame" not in f"{refused.error} {refused.error.fields}"

    def test_a_server_that_does_not_answer_is_said_in_time(self, postgres: Postgres, schema: str) -> None:
        with Proxy(postgres.port) as proxy:
            proxy.swallow_answers(after=b"")
            with raises(StoreUnavailableError, "server_unreachable"):
                PostgresStore(dsn_of(postgres, schema, port=proxy.port, connect_timeout=1))

    @pytest.mark.parametrize(
        "changes", [{"schema": "a b"}, {"schema": 'x"'}, {"connect_timeout": "soon"}, {"no_such_option": "1"}]
    )
    def test_parameters_that_cannot_work_are_refused(self, postgres: Postgres, changes: dict[str, str]) -> None:
        with pytest.raises(ConfigurationError) as caught:
            PostgresStore({**dsn_of(postgres, "ft"), **changes})
        assert caught.value.code == "store_url_invalid"
        assert postgres.password not in f"{caught.value} {caught.value.fields}"

    def test_commits_are_durable_whatever_the_server_says(self, postgres: Postgres, schema: str) -> None:
        options = "-c synchronous_commit=off"
        with PostgresStore(dsn_of(postgres, schema, options=options)) as store:
            settings = {
                "synchronous_commit": "on",
                "lock_timeout": "27s",
                "statement_timeout": "30s",
                "idle_in_transaction_session_timeout": "10s",
            }
            for setting, value in settings.items():
                assert store._database.read(f"SHOW {setting}")[0][setting] == value

    def test_what_others_set_in_a_pooled_backend_changes_nothing(
        self, postgres: Postgres, schema: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A pooler of transactions hands each of them to any backend, in which others may have set anything."""
        hostile = (
            "SET search_path = pg_catalog; SET synchronous_commit = off; SET standard_conforming_strings = off;"
            " SET default_transaction_isolation = 'serializable'; SET lock_timeout = 1; SET statement_timeout = 0;"
            " SET default_transaction_read_only = on"
        )
        execute = PostgresDatabase.execute

        def pooled(database: PostgresDatabase, connection: Any, sql: str, values: tuple[object, ...] = ()) -> Any:
            if connection.info.transaction_status == extensions.TRANSACTION_STATUS_IDLE:
                execute(database, connection, hostile)
            return execute(database, connection, sql, values)

        monkeypatch.setattr(PostgresDatabase, "execute", pooled)
        shown = "SELECT current_setting('synchronous_commit') AS s, current_setting('transaction_isolation') AS i"
        with closing(PostgresStore(dsn_of(postgres, schema))) as store:
            scene = Scene(store)
            scene.take()
            assert scene.trigger(RunKey("dag", "run-1")) == 1
            assert [each.number for each in store.open_checkpoints(PIPELINE)] == [1]
        with closing(PostgresDatabase(dsn_of(postgres, schema))) as database:
            assert database.read(shown) == [{"s": "on", "i": "read committed"}]
            with database.write() as tx:
                assert tx.rows(shown) == [{"s": "on", "i": "read committed"}]

    def test_a_user_with_read_only_default_transactions_can_write(self, postgres: Postgres, schema: str) -> None:
        with PostgresStore(dsn_of(postgres, schema, options="-c default_transaction_read_only=on")) as store:
            assert Scene(store).stage(1)
            assert store.pipeline(PIPELINE).last_published == 1

    def test_a_standby_is_refused(self, tmp_path: Path) -> None:
        """It may lag: a plan would name the wrong predecessor."""
        server = Postgres(tmp_path / "postgres")
        with server, closing(PostgresStore(dsn_of(server, "log"))) as store:
            store.register(PIPELINE)
        (server.folder / "data" / "standby.signal").touch()
        with server, raises(StoreUnavailableError, "store_read_only"):
            PostgresStore(dsn_of(server, "log"))

    def test_the_doctor_warns_of_asynchronous_standbys(self, postgres: Postgres, schema: str) -> None:
        with closing(PostgresStore(dsn_of(postgres, schema))) as store:
            assert "standbys" not in [check.name for check in examine_store(store)]
            dsn = {name: value for name, value in dsn_of(postgres, schema).items() if name != "schema"}
            with closing(psycopg2.connect(**dsn, connection_factory=PhysicalReplicationConnection)):
                assert [c.verdict for c in examine_store(store) if c.name == "standbys"] == ["warning"]

    def test_tables_of_another_program_are_left_alone(self, postgres: Postgres, schema: str) -> None:
        postgres.sql(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.pipeline (id int)")
        with raises(ConfigurationError, "schema_unusable") as caught:
            PostgresStore(dsn_of(postgres, schema))
        assert "?schema=" in caught.error.remedy

    def test_a_user_for_whom_triggers_are_passed_over_is_refused(self, postgres: Postgres, schema: str) -> None:
        user = f"u_{uuid.uuid4().hex[:8]}"
        postgres.sql(f"CREATE ROLE {user} LOGIN PASSWORD 'p'; ALTER ROLE {user} SET session_replication_role = replica")
        try:
            with raises(ConfigurationError, "server_setting_unsafe") as refused:
                PostgresStore(dsn_of(postgres, schema, user=user, password="p"))
            assert "session_replication_role" in refused.error.fields["refused"]
        finally:
            postgres.sql(f"DROP ROLE {user}")

    def test_a_user_who_cannot_create_the_schema_gets_the_statement(self, postgres: Postgres, schema: str) -> None:
        postgres.sql(f"CREATE ROLE {schema} LOGIN PASSWORD 'sesame'")
        postgres.sql("REVOKE CREATE ON DATABASE postgres FROM PUBLIC")
        try:
            url = url_of(postgres, schema, user=schema, password="sesame")
            with raises(ConfigurationError, "privilege_missing", schema=schema) as refused:
                open_store(url)
            assert f"`CREATE SCHEMA {schema} AUTHORIZATION {schema}`" in refused.error.remedy
            postgres.sql(f"CREATE SCHEMA {schema} AUTHORIZATION {schema}")
            with open_store(url) as store:  # type: ignore[attr-defined]
                assert Scene(store).stage(1) == [1]
            postgres.sql(f"REVOKE ALL ON {schema}.checkpoint FROM {schema}")
            with open_store(url) as store, raises(ConfigurationError, "privilege_missing", schema=schema):  # type: ignore[attr-defined]
                store.checkpoints(PIPELINE)
        finally:
            postgres.sql(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
            postgres.sql(f"DROP ROLE {schema}")

    def test_a_reader_neither_makes_nor_upgrades_a_schema(
        self, postgres: Postgres, schema: str, newer: Callable[[], None]
    ) -> None:
        url = url_of(postgres, schema)
        assert find_store(url) is None
        assert not postgres.sql(f"SELECT 1 FROM pg_namespace WHERE nspname = '{schema}'")
        with closing(open_store(url)) as store:
            store.register(PIPELINE)
        newer()
        with raises(ConfigurationError, "schema_outdated", found=NEXT.version - 1):
            find_store(url)
        open_store(url).close()
        store = find_store(url)
        assert store is not None and store.pipeline(PIPELINE).name == PIPELINE
        store.close()

    def test_processes_that_open_a_new_store_at_once_agree(self, store_url: str) -> None:
        answers: list[str] = []

        def work() -> None:
            store = open_store(store_url)
            answers.append(store.installation)
            store.close()

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(answers) == 8
        assert len(set(answers)) == 1

    def test_a_forked_child_uses_connections_of_its_own(self, scene: Scene) -> None:
        scene.take()
        child = os.fork()
        if child == 0:
            try:
                os._exit(0 if scene.trigger() == 1 else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert scene.trigger() == 2


class TestFaults:
    def test_a_write_to_a_locked_pipeline_times_out_without_effect(self, postgres: Postgres, schema: str) -> None:
        with PostgresStore(dsn_of(postgres, schema), statement_timeout=4) as store:
            scene = Scene(store)
            scene.take()
            other = postgres.connect()
            other.autocommit = False
            with other.cursor() as cursor:
                cursor.execute(f"SELECT 1 FROM {schema}.pipeline FOR UPDATE")
            with raises(StoreUnavailableError, "lock_timeout", unanswered=False) as caught:
                scene.trigger()
            assert "pg_stat_activity" in caught.error.remedy
            assert scene.open_numbers() == []  # reads go on
            other.close()
            assert scene.trigger() == 1

    def test_a_stopped_writer_does_not_hold_the_pipeline_for_ever(self, postgres: Postgres, schema: str) -> None:
        with (
            PostgresStore(dsn_of(postgres, schema), statement_timeout=12) as stopped,  # idle for a third of it: ended
            PostgresStore(dsn_of(postgres, schema), statement_timeout=60) as store,
        ):
            scene = Scene(store)
            scene.take()
            database = stopped._database
            with pytest.raises(StoreUnavailableError) as caught, database.write() as tx:
                tx.locked("SELECT * FROM pipeline WHERE name = ?", PIPELINE)
                tx.change("UPDATE pipeline SET next_number = 77 WHERE name = ?", PIPELINE)
                assert scene.trigger() == 1  # waits until the server has ended the session of the stopped one
            assert caught.value.unanswered  # it sent COMMIT, and cannot know
            assert scene.trigger() == 2

    def test_the_clock_is_read_after_the_lock_was_had(self, postgres: Postgres, schema: str) -> None:
        with PostgresStore(dsn_of(postgres, schema)) as store:
            Scene(store).take()
            database, read = store._database, []

            def second() -> None:
                with database.write() as tx:
                    rows, now = tx.locked("SELECT * FROM pipeline WHERE name = ?", PIPELINE)
                    assert [row["name"] for row in rows] == [PIPELINE] and "now" not in rows[0]
                    read.append(now)

            with database.write() as tx:
                tx.locked("SELECT * FROM pipeline WHERE name = ?", PIPELINE)
                waits = threading.Thread(target=second)
                waits.start()
                waits.join(0.3)
                assert waits.is_alive()
                held_until = database.now()
            waits.join()
            assert read and read[0] >= held_until

    def test_a_schema_that_was_dropped_or_is_an_older_one_is_told(
        self, postgres: Postgres, schema: str, scene: Scene, store_url: str
    ) -> None:
        drops = {
            f"ALTER TABLE {schema}.pipeline DROP COLUMN changed_at": "changed_at",
            f"DROP SCHEMA {schema} CASCADE": "pipeline",
        }
        for drop, what in drops.items():
            postgres.sql(drop)
            with raises(StoreUnavailableError, "store_replaced") as replaced:
                scene.store.mark()
            assert what in replaced.error.headline
        open_store(store_url).close()  # as whoever starts again
        assert scene.store.mark() == ""

    def test_a_session_that_was_ended_while_idle_is_replaced(self, postgres: Postgres, scene: Scene) -> None:
        scene.take()
        for write in (True, False):
            _end_sessions(postgres)
            if write:
                assert scene.trigger() == 1
            else:
                assert scene.open_numbers() == [1]

    def test_of_idle_sessions_one_that_hears_nothing_costs_one_wait(self, postgres: Postgres, schema: str) -> None:
        with Proxy(postgres.port) as proxy, PostgresStore(dsn_of(postgres, schema, port=proxy.port)) as store:
            database: Any = store._database
            with database.write(), database.write():  # two sessions at once, both idle afterwards
                pass
            assert len(database._pool._idle) == 2
            database._answer_margin = -28.0
            proxy.swallow_answers(after=b"AS lost")
            with raises(StoreUnavailableError, "server_unreachable"):
                database.read("SELECT 1 AS lost")
            assert not database._pool._idle
            proxy.pass_on()
            assert database.read("SELECT 1 AS lost") == [{"lost": 1}]

    def test_a_connection_lost_before_commit_leaves_nothing(self, postgres: Postgres, schema: str) -> None:
        with PostgresStore(dsn_of(postgres, schema)) as store:
            scene = Scene(store)
            scene.take()
            database = store._database
            with pytest.raises(StoreUnavailableError) as caught, database.write() as tx:
                tx.change("UPDATE pipeline SET next_number = 77 WHERE name = ?", PIPELINE)
                _end_sessions(postgres)
                tx.rows("SELECT 1 AS one")
            assert not caught.value.unanswered
            assert scene.trigger() == 1

    @pytest.mark.parametrize("how", ["silence", "cut"])
    @pytest.mark.parametrize("arrives", [True, False])
    def test_a_new_epoch_settles_a_commit_whose_answer_was_lost(
        self, postgres: Postgres, schema: str, how: str, arrives: bool
    ) -> None:
        """A write without an answer may still arrive; only a later write ends the doubt."""
        direct = PostgresStore(dsn_of(postgres, schema))
        with Proxy(postgres.port) as proxy, direct:
            dsn = dsn_of(postgres, schema, port=proxy.port)
            # The server waits for 20 s for the rest of a transaction, and the client for 4 s for the answer.
            with PostgresStore(dsn, statement_timeout=60) as store:
                scene = Scene(store)
                scene.take()
                number = scene.trigger()
                store._database._answer_margin = -56.0  # type: ignore[attr-defined]
                if arrives:
                    proxy.swallow_answers(after=b"COMMIT\0", cut=how == "cut")
                else:
                    proxy.swallow_requests(after=b"COMMIT\0", cut=how == "cut")
                with raises(StoreUnavailableError, "commit_unanswered", unanswered=True):
                    scene.publish(number)
                proxy.pass_on()
                successor = Scene(direct, epoch=1)
                late = proxy.release if not arrives and how == "silence" else None
                if late is None:
                    _wait_for_no_open_transaction(postgres, schema)
                    assert successor.take("other") == 2
                else:
                    # The request is still on its way and holds the row; it lands before the epoch, or never.
                    taking = threading.Thread(target=successor.take, args=("other",))
                    taking.start()
                    late()
                    taking.join()
                state = successor.checkpoint(number).state.value
                assert state == ("STAGED" if arrives or late else "ABORTED")
                assert successor.kinds(number) == ["TRIGGERED", state]
                with raises(FencedError, "fenced", epoch=1):
                    store.publish(PIPELINE, 1, number, 0, a_segment(number), a_position(1), {})

    def test_what_was_acknowledged_outlives_a_killed_server(self, own_server: Callable[..., Any]) -> None:
        server: Postgres = own_server(Postgres)
        store = open_store(url_of(server, "airflow_ft"))
        scene = Scene(store)
        scene.take()
        acknowledged: list[int] = []
        failures: list[StoreUnavailableError] = []
        enough = threading.Event()

        def write() -> None:
            try:
                while True:
                    number = scene.trigger()
                    acknowledged.append(number)
                    if len(acknowledged) >= 20:
                        enough.set()
            except StoreUnavailableError as error:
                failures.append(error)

        for _ in range(2):
            enough.clear()
            known = len(acknowledged)
            writer = threading.Thread(target=write)
            writer.start()
            assert enough.wait(120)
            server.kill()
            writer.join(120)
            assert not writer.is_alive()
            with pytest.raises(StoreUnavailableError):
                scene.open_numbers()
            server.start()
            present = {c.number for c in store.checkpoints(PIPELINE, limit=100_000)}
            assert set(acknowledged) <= present
            assert len(acknowledged) > known
            # At most the one write without an answer is there beyond what was acknowledged.
            assert len(present - set(acknowledged)) <= len(failures)
            acknowledged = sorted(present)
            assert scene.kinds().count("TRIGGERED") == len(present)
        store.close()


class TestFlatness:
    def test_every_statement_is_a_look_up_in_the_right_index(
        self, postgres: Postgres, store: DecisionLog, schema: str
    ) -> None:
        statements = recorded(store, every_operation)
        # A long history of the same pipeline: 20,000 numbers that are COMPLETED, finalised and pruned like number 1.
        _multiply(postgres, schema, "checkpoint", {"number": "g", "state": "'COMPLETED'", "run_id": "'old-' || g"})
        _multiply(postgres, schema, "event", {"id": "g", "number": "g"})
        postgres.sql(
            f"INSERT INTO {schema}.pipeline (name, epoch, next_number, next_attempt, next_event, published, status,"
            " halt_message, base_clean, needs_stage, created_at, changed_at)"
            " SELECT 'many-' || g, 0, 1, 1, 1, 0, 'ACTIVE', '', 0, 0, g, g FROM generate_series(1, 5000) g"
        )
        connection = postgres.connect()
        found = set()
        with connection.cursor() as cursor:
            cursor.execute(f"SET search_path TO {schema}; ANALYZE pipeline, checkpoint, event")
            for sql, arguments in statements:
                cursor.execute(f"EXPLAIN {translated(sql)}", arguments)
                plan = "\n".join(row[0] for row in cursor.fetchall())
                for table in ("checkpoint", "event"):
                    assert f"Seq Scan on {table}" not in plan, f"{sql}\n{plan}"
                for part, index in INDEXES.items():
                    if part in sql and sql.startswith("SELECT"):
                        found.add(part)
                        assert index in plan, f"{sql}\n{plan}"
        connection.close()
        assert found == set(INDEXES)


def _multiply(server: Postgres, schema: str, table: str, values: dict[str, str]) -> None:
    """Copies the first row of a table many times, with other `values` (SQL over `g`)."""
    names = [
        name
        for (name,) in server.sql(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s"
            " AND is_generated = 'NEVER'",
            args=[schema, table],
        )
    ]
    key = next(iter(values))
    server.sql(
        f"INSERT INTO {schema}.{table} ({', '.join(names)})"
        f" SELECT {', '.join(values.get(name, f't.{name}') for name in names)}"
        f" FROM {schema}.{table} t, generate_series(1001, 21000) g WHERE t.{key} = 1"
    )


def _end_sessions(server: Postgres) -> None:
    server.sql("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'airflow_ft'")


def _wait_for_no_open_transaction(server: Postgres, schema: str) -> None:
    connection = server.connect()
    with connection.cursor() as cursor:
        cursor.execute(f"SET lock_timeout = '20s'; SELECT 1 FROM {schema}.pipeline FOR UPDATE")
    connection.close()
