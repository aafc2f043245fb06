"""WAL -> MySQL: the strategies against Spark's JDBC writer with each driver, and against plain LOAD DATA."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.bench import DATABASE, Bench
from benchmarks.data import segment
from benchmarks.measuring import Claim, Comparison, Contender, timed

INSTALLATION = "0" * 36
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "local": {},
    "xa": {"branches": 2},
    "upsert": {"key_columns": ("id",), "version_column": "version"},
}
WANTED: Mapping[str, Mapping[str, float | None]] = {  # against Spark's JDBC writer
    "local": {"mariadb": 1.2, "mysql": 1.6},
    "local_infile off": {"mysql": 1.0},  # MariaDB gets INSERT anyway
    "xa": {"mariadb": 1.7, "mysql": 2.2},
    "upsert": {"mariadb": None, "mysql": None},
}
# Class, settings and Spark's batchsize: with 10,000 rows in a batch Connector/J takes twice the CPU time of a row.
# MariaDB greets as version 5.5.5, and Connector/J then leaves out fractions of seconds: its rows are not exact there,
# so that it has no figure (MariaDB's own driver is the faster one on MariaDB anyway).
DRIVERS = {
    "Connector/J": ("com.mysql.cj.jdbc.Driver", "sslMode=DISABLED&allowPublicKeyRetrieval=true", 1_000),
    "MariaDB's driver": ("org.mariadb.jdbc.Driver", "permitMysqlScheme&allowPublicKeyRetrieval=true", 10_000),
}
FASTER = "MariaDB's driver"
"""The one that takes less CPU time on both servers: for what is measured with one driver only."""


def mysql(bench: Bench) -> list[Comparison]:
    """One comparison a server."""
    return [IntoMySql(bench, server).comparison() for server in (bench.servers.mariadb, bench.servers.mysql)]


def branches(bench: Bench) -> list[Comparison]:
    """What a second branch brings: one branch against two."""
    found = []
    for server in (bench.servers.mariadb, bench.servers.mysql):
        into = IntoMySql(bench, server)
        contenders = [into.ours(f"xa {n}", "xa", branches=n) for n in (1, 2)]
        claims = [Claim(f"two branches of xa against one, {server.name}", "xa 2", ("xa 1",), 1.7)]
        title = f"Branches, {server.name}"
        found.append(Comparison(f"branches/{server.name}", title, contenders, claims, rows=bench.rows))
    return found


class IntoMySql:
    """One server and its contenders. Each run fills an empty table with a primary key."""

    def __init__(self, bench: Bench, server: Any, tree: Path | None = None) -> None:
        self.bench, self.server = bench, server
        self._segment = segment(
            bench.folder / "wal", f"{server.name}-{next(bench.servers.numbers)}", {"orders": bench.table}
        )
        self.worker = bench.servers.worker("benchmarks.delivering", tree)
        self.watching: Callable[[], AbstractContextManager[None]] = nullcontext  # around the work itself

    def comparison(self) -> Comparison:
        """All contenders of this server."""
        name, of = self.server.name, self.bench.of
        spark = [self.spark(driver) for driver in DRIVERS if (name, driver) != ("mariadb", "Connector/J")]
        ours = [
            self.ours("local", "local"),
            self.ours("xa", "xa"),
            self.ours("upsert", "upsert", more=", version BIGINT NOT NULL DEFAULT 0"),
        ]
        wanted = {what: ratios[name] for what, ratios in WANTED.items() if name in ratios}
        if "local_infile off" in wanted:
            ours.append(self.ours("local_infile off", "local", local_infile=False))
        writers = tuple(contender.name for contender in spark)
        claims = [
            Claim(f"WAL -> {name}, `{what}` against Spark JDBC{of}", what, writers, ratio)
            for what, ratio in wanted.items()
        ]
        one, two = "1 x LOAD DATA", "2 x LOAD DATA"
        claims += [
            Claim(f"WAL -> {name}, `xa` against two plain LOAD DATA{of}", "xa", (two,), 0.85),
            Claim(f"WAL -> {name}, `local` against one plain LOAD DATA{of}", "local", (one,), None),
            # What the server itself can take: as far as one connection, and two, can get.
            Claim(f"{name}: one plain LOAD DATA against Spark JDBC{of}", one, writers, None),
            Claim(f"{name}: two plain LOAD DATA against Spark JDBC{of}", two, writers, None),
            Claim(f"{name}: two plain LOAD DATA against one{of}", two, (one,), None),
        ]
        return Comparison(
            f"mysql/{name}{of}",
            f"WAL -> {name}, committed (prepare and commit), against writers from Parquet{of}",
            [*ours, *spark, self.plain_load(1), self.plain_load(2)],
            claims,
            rows=self.bench.rows,
        )

    def ours(self, name: str, strategy: str, *, local_infile: bool = True, more: str = "", **given: Any) -> Contender:
        """Prepare and commit of a checkpoint of a new pipeline, in a process that stays warm.

        `local_infile` says how rows may go.
        """
        settings = {**SETTINGS[strategy], **given}

        def run() -> float:
            self.bench.empty_table(self.server, more=more)
            job = mysql_job(self.bench, self.server, self._segment, strategy, settings, local_infile=local_infile)
            with self.watching():
                answer = self.worker.ask("deliver", **job)
            self.bench.check_table(self.server, name)
            seconds: float = answer["seconds"]
            return seconds

        return Contender(name, run)

    def spark(self, driver: str) -> Contender:
        """Spark's JDBC writer in a session that stays warm."""
        options = jdbc_options(self.server, driver)

        def run() -> float:
            self.bench.empty_table(self.server)
            spark, source = self.bench.servers.spark, str(self.bench.source)
            with self.watching():
                answer = spark.ask("jdbc", source=source, **options)
            self.bench.check_table(self.server, driver)
            seconds: float = answer["seconds"]
            return seconds

        return Contender(f"Spark, {driver}", run)

    def plain_load(self, connections: int) -> Contender:
        """LOAD DATA LOCAL of text that was made before, one transaction a connection: what the server can take."""
        files = load_files(self.bench, connections)
        columns = ", ".join(self.bench.table.column_names)
        name = f"{connections} x LOAD DATA"

        def load(path: Path) -> None:
            with self.server.connect(DATABASE, local_infile=True, autocommit=False, ssl_disabled=True) as connection:
                with connection.cursor() as cursor:
                    cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
                    cursor.execute(
                        f"LOAD DATA LOCAL INFILE '{path}' INTO TABLE orders CHARACTER SET utf8mb4 ({columns})"
                    )
                connection.commit()

        def both() -> None:
            with ThreadPoolExecutor(connections) as pool:
                list(pool.map(load, files))

        def run() -> float:
            self.bench.empty_table(self.server)
            with self.watching():
                seconds = timed(both)
            self.bench.check_table(self.server, name)
            return seconds

        return Contender(name, run)


def jdbc_options(server: Any, driver: str) -> dict[str, str]:
    """Options of Spark's JDBC writer for the table `orders`."""
    kind, extra, batch = DRIVERS[driver]
    return {
        "url": f"jdbc:mysql://127.0.0.1:{server.port}/{DATABASE}?rewriteBatchedStatements=true&{extra}",
        "driver": kind,
        "dbtable": "orders",
        "user": server.user,
        "password": server.password,
        "batchsize": str(batch),
    }


def load_files(bench: Bench, count: int) -> list[Path]:
    """The rows as text for LOAD DATA, in so many files."""
    from airflow_ft.sinks.mysql.encoding import TargetColumn, form_of, load_lines

    folder = bench.folder / f"load-{count}"
    paths = [folder / f"{index}.txt" for index in range(count)]
    if not folder.exists():
        folder.mkdir()
        table: pa.Table = bench.table
        columns = [TargetColumn(field.name, field.name, form_of(field.type)) for field in table.schema]
        step = -(-table.num_rows // count)
        for index, path in enumerate(paths):
            with path.open("wb") as file:
                for batch in table.slice(index * step, step).to_batches(max_chunksize=65_536):
                    file.write(load_lines(batch, columns))
    return paths


def mysql_job(
    bench: Bench,
    server: Any,
    rows: Any,
    strategy: str,
    settings: Mapping[str, Any],
    *,
    local_infile: bool = True,
    tls: bool = False,
) -> dict[str, Any]:
    """What `benchmarks.delivering` needs for a new pipeline's first checkpoint into the table `orders`.

    `tls`: as the connection would be by default; the other contenders are measured without.
    """
    from airflow_ft.protocol.model import ParticipantPlan, Plan
    from airflow_ft.sinks.mysql.spec import MySqlSink

    number = next(bench.servers.numbers)
    sink = MySqlSink(table="orders", conn_id="shop", strategy=strategy, **settings)
    chosen = ParticipantPlan("shop", "mysql", strategy, sink.promise, 0, {"orders": sink.settings()})
    plan = Plan(f"orders-{number}", INSTALLATION, 1, (rows,), (chosen,), None)
    extra = {"local_infile": local_infile, "ssl_mode": "PREFERRED" if tls else "DISABLED"}
    connection = connection_to(server, **extra)
    return {"plan": plan.to_json(), "connection": connection}


def connection_to(server: Any, **extra: Any) -> dict[str, Any]:
    """The fields of the connection "shop"."""
    return {
        "conn_id": "shop",
        "conn_type": "mysql",
        "host": server.host,
        "port": server.port,
        "login": server.user,
        "password": server.password,
        "schema": DATABASE,
        "extra": extra,
    }
