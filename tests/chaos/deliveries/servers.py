"""The servers of the deliveries: MariaDB, MySQL, PostgreSQL and Kafka, each behind a proxy, and two small disks."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pymysql

from airflow_ft.testing.relay import Fate, Proxy
from tests.chaos.deliveries.systems import OfCassandra, OfHBase, OfHive, OfPaimon, OfRedis, System, of_file, of_rest
from tests.chaos.deliveries.targets import MYSQL_FAMILY, NEWEST, Target
from tests.disks import Disk
from tests.integration.kafka_proxy import API_NAMES, KafkaProxy
from tools.servers import Cassandra, HBase, Hive, IcebergRest, Kafka, MariaDb, MySql, Postgres, Redis, Server
from tools.servers.mysql_family import MySqlFamily
from tools.servers.processes import free_port

OLDER = (*MYSQL_FAMILY, "kafka")
DATABASE = "deliveries"
USER = "pipelines"  # a user with what docs/mysql.md asks for and no more: read_only holds for it
SILENCE = 20  # seconds for which a broker may be silent
DISK = "48m"
_COLUMNS = "pipeline VARCHAR(63), id BIGINT, draw BIGINT"
_TABLES = [f"CREATE TABLE rows_{how} ({_COLUMNS}, KEY (pipeline)) ENGINE=InnoDB" for how in ("local", "xa")]
_BY_KEY = f"({_COLUMNS}, version BIGINT, PRIMARY KEY (pipeline, id)) ENGINE=InnoDB"


class Servers:
    """All servers of a chaos run, started side by side; `close` (or leaving the `with`) ends them.

    `of`: those that rows go into; PostgreSQL is there for the decision log.
    """

    def __init__(self, folder: Path, of: Iterable[str] = OLDER, *, mount: bool = True) -> None:
        self.folder = folder
        self._of = {*of, "postgres"}
        self._mount = mount
        self._password = secrets.token_hex(12)
        self._made: set[str] = set()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._begin(stack)
            self._open = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def _begin(self, stack: ExitStack) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log_disk, self.store_disk = (
            Disk(self.folder / name, DISK, mount=self._mount) for name in ("log", "store")
        )
        stack.callback(self.log_disk.close)
        stack.callback(self.store_disk.close)
        ports = {name: free_port() for name in (*OLDER, "postgres", *NEWEST)}
        small = {"innodb-buffer-pool-size": "48M"}
        self.mariadb = MariaDb(self.folder / "mariadb", options={**small, "innodb-log-file-size": "16M"})
        self.mysql = MySql(self.folder / "mysql", options=small)
        self.postgres = Postgres(self.folder / "postgres", options={"shared_buffers": "16MB"})
        self.kafka = Kafka(
            self.folder / "kafka", options={"advertised.listeners": f"PLAINTEXT://127.0.0.1:{ports['kafka']}"}
        )
        self._newest: Mapping[str, Server] = {
            "redis": Redis(self.folder / "redis", options={"appendfsync": "always"}),
            "hbase": HBase(self.folder / "hbase"),
            "cassandra": Cassandra(self.folder / "cassandra"),
            "iceberg": IcebergRest(self.folder / "iceberg"),
            "hive": Hive(self.folder / "hive"),
        }
        self.proxies: dict[str, Proxy | KafkaProxy] = {}
        for name, server in self.all.items():
            target = (ports[name], server.port)
            if name == "kafka":
                self.proxies[name] = stack.enter_context(KafkaProxy(*target))
            else:
                self.proxies[name] = stack.enter_context(Proxy(*target))
            stack.callback(server.kill)
        self.ports = ports
        with ThreadPoolExecutor(len(self.all)) as pool:
            list(pool.map(lambda server: server.start(), self.all.values()))
        self._set_up()
        for system in self.systems.values():
            stack.callback(system.close)

    @property
    def all(self) -> Mapping[str, Server]:
        """By the names that targets use."""
        known = {"mariadb": self.mariadb, "mysql": self.mysql, "postgres": self.postgres, "kafka": self.kafka}
        return {name: server for name, server in {**known, **self._newest}.items() if name in self._of}

    @property
    def databases(self) -> Mapping[str, MySqlFamily]:
        """Those of MySQL's family."""
        known: Mapping[str, MySqlFamily] = {"mariadb": self.mariadb, "mysql": self.mysql}
        return {name: server for name, server in known.items() if name in self._of}

    def _set_up(self) -> None:
        for server in self.databases.values():
            server.sql(f"CREATE DATABASE {DATABASE}")
            for statement in _TABLES:
                server.sql(statement, DATABASE)
            server.sql(f"CREATE USER '{USER}'@'%' IDENTIFIED BY '{self._password}'")
            server.sql(f"GRANT SELECT, INSERT, UPDATE, DELETE, CREATE ON {DATABASE}.* TO '{USER}'@'%'")
        if "mysql" in self._of:
            self.mysql.sql(f"GRANT XA_RECOVER_ADMIN ON *.* TO '{USER}'@'%'")
        self.postgres.sql(f"CREATE DATABASE {DATABASE}")
        newest: Mapping[str, Any] = self._newest
        make: Mapping[str, Callable[[], System]] = {
            "redis": lambda: OfRedis(newest["redis"]),
            "hbase": lambda: OfHBase(newest["hbase"]),
            "cassandra": lambda: OfCassandra(newest["cassandra"]),
            "iceberg": lambda: of_rest(newest["iceberg"]),
            "sqlcatalog": lambda: of_file(self.folder / "sqlcatalog"),
            "paimon": lambda: OfPaimon(self.folder / "paimon"),
            "hive": lambda: OfHive(newest["hive"]),
        }
        self.systems: dict[str, System] = {name: made() for name, made in make.items() if name in self._of}
        for system in self.systems.values():
            system.set_up()

    # --- for the processes ---

    def store_url(self, store: str) -> str:
        """The decision log of all pipelines that use this kind of store."""
        if store == "sqlite":
            return f"sqlite:///{self.store_disk.folder}/ft.db"
        place = f"127.0.0.1:{self.ports['postgres']}/{DATABASE}?sslmode=disable&connect_timeout=5"
        return f"postgresql://{self.postgres.user}:{self.postgres.password}@{place}"

    def connections(self) -> Mapping[str, Mapping[str, Any]]:
        """How the processes reach each server: through its proxy."""
        found: dict[str, Mapping[str, Any]] = {
            name: {
                "host": "127.0.0.1",
                "port": self.ports[name],
                "login": USER,
                "password": self._password,
                "schema": DATABASE,
            }
            for name in MYSQL_FAMILY
        }
        found["kafka"] = {"bootstrap.servers": f"127.0.0.1:{self.ports['kafka']}", "airflow_ft_timeout": SILENCE}
        for name, system in self.systems.items():
            place = {"host": "127.0.0.1", "port": self.ports[name]} if name in self.all else {}
            found[name] = {**system.connection, **place}
        return found

    def places(self, target: Target, pipeline: str) -> Mapping[str, str]:
        """Table or topic of each sink; those of one target or pipeline are created when they are needed first."""
        found = {}
        for sink, (server, strategy) in target.sinks.items():
            if server in NEWEST:
                found[sink] = self.systems[server].place
                continue
            found[sink] = target.table(sink, pipeline) if server in MYSQL_FAMILY else target.topic(sink)
            if found[sink] in self._made:
                continue
            if server == "kafka":
                self.kafka.create_topic(found[sink], partitions=2)
            elif strategy == "upsert":
                self.databases[server].sql(f"CREATE TABLE {found[sink]} {_BY_KEY}", DATABASE)
            self._made.add(found[sink])
        return found

    # --- mischief ---

    def restart(self, name: str) -> None:
        """Starts a server that was killed, and waits until it answers."""
        self.all[name].start()

    def empty_journal(self) -> None:
        """Gives SQLite's journal back to the disk: killed processes leave it, and there is room in it."""
        with suppress(sqlite3.OperationalError), closing(sqlite3.connect(self.store_disk.folder / "ft.db")) as log:
            log.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def read_only(self, name: str, on: bool) -> bool:
        """Lets nobody but administrators write there. False: the server did not come to it in time."""
        setting = "super_read_only" if name == "mysql" else "read_only"
        switched = [setting] if on or name != "mysql" else [setting, "read_only"]  # MySQL's implies the other one
        try:
            with self._administrator(name) as connection, connection.cursor() as cursor:
                cursor.execute("SET SESSION lock_wait_timeout = 3")
                for each in switched:
                    cursor.execute(f"SET GLOBAL {each} = {int(on)}")
        except pymysql.err.MySQLError:
            if not on:
                raise
            return False
        return True

    def _administrator(self, name: str) -> Any:
        server = self.mysql if name == "mysql" else self.mariadb
        return server.connect(read_timeout=10)

    def lose(self, name: str, fate: Fate, skip: int, pattern: bytes) -> None:
        """The request that comes after `skip` others is lost, or its reply.

        To databases only requests with `pattern` count, to Kafka only those that write.
        """
        proxy = self.proxies[name]
        if isinstance(proxy, Proxy):
            proxy.arm(fate, skip, pattern)
            return
        proxy.lost.clear()
        left = [skip]

        def decide(api: int) -> Fate:
            if api not in API_NAMES or proxy.lost:
                return Fate.DELIVER
            left[0] -= 1
            return fate if left[0] < 0 else Fate.DELIVER

        proxy.fate = decide

    def lose_nothing(self, name: str) -> bool:
        """Ends that; returns whether something was lost."""
        proxy = self.proxies[name]
        if isinstance(proxy, Proxy):
            proxy.disarm()
            return proxy.struck
        proxy.fate = lambda api: Fate.DELIVER
        return bool(proxy.lost)

    # --- for the judge ---

    def mysql_of(self, name: str) -> Mapping[str, Any]:
        """Arguments of pymysql.connect, past the proxy, as administrator."""
        server = self.mysql if name == "mysql" else self.mariadb
        login = {"user": server.user, "password": server.password, "database": DATABASE}
        return {"host": server.host, "port": server.port, "autocommit": True, **login}


def missing(servers: Servers) -> Sequence[str]:
    """The servers that do not run: one that died by itself is nobody's fault but its own."""
    return [name for name, server in servers.all.items() if not server.running]
