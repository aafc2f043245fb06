"""The test servers themselves: what other tests rely on when they kill one."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pymysql
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tools.servers import Database, Kafka, MariaDb, MySql, Postgres, Server, ServerError, processes

pytestmark = pytest.mark.sampled

SQL_SERVERS = [MariaDb, MySql, Postgres]
OwnServer = Callable[..., Any]


def listens(server: Server) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((server.host, server.port)) == 0


@pytest.mark.parametrize("kind", SQL_SERVERS)
def test_committed_rows_survive_a_kill_and_a_restart(kind: type[Any], own_server: OwnServer) -> None:
    server = own_server(kind)
    server.sql("CREATE TABLE t (id INT PRIMARY KEY)" if kind is Postgres else "CREATE DATABASE d")
    if kind is Postgres:
        server.sql("INSERT INTO t VALUES (1), (2)")
    else:
        server.sql("CREATE TABLE d.t (id INT PRIMARY KEY)")
        server.sql("INSERT INTO d.t VALUES (1), (2)")
    table = "t" if kind is Postgres else "d.t"
    family, port = processes.tree(server.pid), server.port

    server.kill()
    assert not server.running
    assert processes.await_end(family, 0), "kill returns when the processes are gone"
    server.restart()

    assert server.port == port
    assert server.sql(f"SELECT id FROM {table} ORDER BY id") == [(1,), (2,)]
    family = processes.tree(server.pid)
    server.stop()
    assert processes.await_end(family, 0)
    assert not listens(server)


def test_committed_records_survive_a_kill_and_a_restart(own_server: OwnServer) -> None:
    server: Kafka = own_server(Kafka)
    server.create_topic("t", 1)
    producer = Producer({"bootstrap.servers": server.bootstrap, "transactional.id": "x", "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("t", b"row", partition=0)
    producer.commit_transaction(30)
    process = server.pid
    settings = {"bootstrap.servers": server.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    before = Consumer(settings)
    before.assign([TopicPartition("t", 0, 0)])
    # The commit is acknowledged before its markers are written; a broker that was killed in between was seen to hold
    # them back for more than a minute.
    assert (seen := before.poll(30)) is not None and seen.value() == b"row"
    before.close()

    server.kill()
    assert processes.await_end([process], 0)
    server.restart()

    consumer = Consumer(settings)
    consumer.assign([TopicPartition("t", 0, 0)])
    deadline, errors = time.monotonic() + 60, []
    # A poll ends with an error, too: of a broker that the client has not found again yet.
    while (message := consumer.poll(1)) is None or message.error():
        errors += [str(message.error())] if message else []
        assert time.monotonic() < deadline, f"{errors}: {server.log.read_text()[-5000:]}"
    offsets = consumer.get_watermark_offsets(TopicPartition("t", 0), timeout=10)
    consumer.close()
    assert offsets == (0, 2), f"not the record and its commit marker: {errors}, {server.log.read_text()[-5000:]}"
    assert message.value() == b"row"
    server.stop()
    assert not listens(server)


@pytest.mark.parametrize("kind", [*SQL_SERVERS, Kafka])
def test_a_server_is_unprivileged_and_inherits_no_stream(kind: type[Server], own_server: OwnServer) -> None:
    server = own_server(kind)
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{server.pid}/status").read_text().splitlines())
    expected = processes.unprivileged_ids() or (os.getuid(), os.getgid())
    assert status["Uid"].split() == [str(expected[0])] * 4
    assert status["Gid"].split() == [str(expected[1])] * 4
    assert os.getpgid(server.pid) == server.pid != os.getpgrp()
    streams = [Path(f"/proc/{server.pid}/fd/{number}").readlink() for number in range(3)]
    assert streams[0] == Path("/dev/null")
    assert set(streams[1:]) <= {server.log, Path("/dev/null")}
    addresses = [line.split()[1] for line in listening(server)]
    assert any(address.endswith(f":{server.port:04X}") for address in addresses)
    assert all(address.startswith("0100007F:") for address in addresses), addresses


def listening(server: Server) -> list[str]:
    """The lines of /proc/net/tcp* that are sockets on which a process of the server listens."""
    inodes = set()
    for pid in processes.tree(server.pid):
        with suppress(FileNotFoundError, ProcessLookupError):  # a backend of PostgreSQL that has just ended
            for descriptor in list(Path(f"/proc/{pid}/fd").iterdir()):
                with suppress(FileNotFoundError):  # closed meanwhile
                    inodes.add(str(descriptor.readlink()).removeprefix("socket:[").removesuffix("]"))
    lines = [line for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return [line for line in lines if line.split()[3] == "0A" and line.split()[9] in inodes]


def test_a_paused_server_answers_again_after_resume(own_server: OwnServer) -> None:
    server: MariaDb = own_server(MariaDb)
    with server.connect() as connection, connection.cursor() as cursor:
        server.pause()
        connection._read_timeout = 1  # not before: a busy server may take its time to let a client in
        with pytest.raises(pymysql.err.OperationalError):
            cursor.execute("SELECT 1")
        server.resume()
    assert server.sql("SELECT 2") == [(2,)]
    server.pause()
    server.stop()  # also a paused one stops cleanly
    assert "Shutdown complete" in server.log.read_text()


def test_a_server_outlives_the_thread_that_started_it(own_server: OwnServer) -> None:
    started: list[Postgres] = []
    thread = threading.Thread(target=lambda: started.append(own_server(Postgres)))
    thread.start()
    thread.join()
    assert started[0].sql("SELECT 1") == [(1,)]
    assert started[0].running


def test_servers_die_with_the_process_that_started_them(servers_folder: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from tools.servers import MariaDb, Postgres\n"
        "servers = [kind(Path(sys.argv[1]) / f'orphan-{kind.name}').start() for kind in (MariaDb, Postgres)]\n"
        "print(*(server.pid for server in servers), flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", program, str(servers_folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as parent:
        assert parent.stdout is not None
        family = [pid for word in parent.stdout.readline().split() for pid in processes.tree(int(word))]
        parent.send_signal(signal.SIGKILL)
    assert len(family) > 2
    assert processes.await_end(family, 60)


def test_a_server_that_cannot_start_says_why(servers_folder: Path) -> None:
    server = MariaDb(servers_folder / "broken", options={"no-such-option": 1})
    began = time.monotonic()
    with pytest.raises(ServerError) as refused:
        server.start()
    assert "no-such-option" in f"{refused.value}"
    assert time.monotonic() - began < MariaDb.start_seconds, "it is not waited for"
    assert not server.running


def test_a_server_reaches_files_below_a_private_folder(servers_folder: Path) -> None:
    private = servers_folder / "private"
    private.mkdir(mode=0o700)
    with Kafka(private / "kafka") as broker:
        broker.create_topic("t")
    with Postgres(private / "postgres") as server:
        assert server.sql("SELECT 1") == [(1,)]


def test_a_port_that_was_given_out_is_given_to_no_other_process() -> None:
    """Its server may be down for a moment; nothing else may listen there when it comes back."""
    program = (
        "from tools.servers import processes\n"
        f"processes._PORTS = [{processes.free_port()}] * 200\n"
        "print(processes.free_port())"
    )
    other = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[2], capture_output=True, text=True
    )
    assert "no free port" in other.stderr, other.stdout


def test_mysql_is_mysql_and_durable(any_mysql_database: Database) -> None:
    any_mysql_database.sql("CREATE TABLE t (id INT)")
    assert any_mysql_database.sql("SELECT * FROM t") == []
    version, *durable = any_mysql_database.sql(
        "SELECT version(), @@innodb_flush_log_at_trx_commit, @@sync_binlog, @@local_infile"
    )[0]
    assert ("MariaDB" in version) == isinstance(any_mysql_database.server, MariaDb)
    assert durable == [1, 1, 1]


def test_a_server_keeps_its_temporary_files_from_other_servers(any_mysql_database: Database) -> None:
    """At its start a server deletes all '#sql*' in that folder, and a running MariaDB crashes when its own are gone."""
    folder = any_mysql_database.server.folder / "tmp"
    assert any_mysql_database.sql("SELECT @@tmpdir") == [(str(folder),)] and folder.is_dir()


def test_a_database_with_unfinished_transactions_is_dropped(postgres: Postgres, mariadb: MariaDb, mysql: MySql) -> None:
    with Database.fresh(postgres) as database:
        database.sql("CREATE TABLE t (id INT)")
        connection = database.connect()
        connection.cursor().execute("BEGIN; INSERT INTO t VALUES (1); PREPARE TRANSACTION 'x'")
    assert postgres.sql("SELECT * FROM pg_prepared_xacts") == []
    for server in (mariadb, mysql):
        with Database.fresh(server) as database:
            database.sql("CREATE TABLE t (id INT)")
            connection = database.connect(autocommit=False)
            connection.cursor().execute("INSERT INTO t VALUES (1)")
        assert (database.name,) not in server.sql("SHOW DATABASES")


def test_a_cluster_id_may_begin_with_a_dash(own_server: OwnServer, monkeypatch: pytest.MonkeyPatch) -> None:
    # One random id in 64 does, and was taken for an option.
    monkeypatch.setattr("tools.servers.kafka.uuid.uuid4", lambda: uuid.UUID(bytes=b"\xf8" + bytes(range(15))))
    assert own_server(Kafka).running


def test_topics_exist_only_when_created(kafka: Kafka, topic: str, topic_factory: Callable[..., str]) -> None:
    wide = topic_factory(partitions=3, config={"cleanup.policy": "compact"})
    topics = kafka.admin().list_topics(timeout=30).topics
    assert len(topics[topic].partitions) == 4
    assert len(topics[wide].partitions) == 3
    assert "never-created" not in topics
