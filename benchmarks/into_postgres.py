"""WAL -> PostgreSQL: the strategies against Spark's JDBC writer, and against plain COPY."""

from __future__ import annotations

import io
import os
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv

from benchmarks.bench import DATABASE, Bench, check
from benchmarks.beside import used_by
from benchmarks.data import segment
from benchmarks.into_mysql import INSTALLATION
from benchmarks.measuring import Claim, Comparison, Contender, timed

TYPES = {"DATETIME(6)": "timestamptz", "DOUBLE": "double precision", "TINYINT": "smallint"}
UPSERT = {"key_columns": ["id"], "version_column": "version"}
VERSION, BY_HAND = ", version bigint NOT NULL DEFAULT 0", "upsert by hand"
WANTED = {"local": 1.2, "prepared": 1.5}
BRANCHES = (1, 2, 4)  # of `prepared`
BATCHES = (1_000, 10_000)  # rows of Spark's INSERT statements, with reWriteBatchedInserts


def postgres(bench: Bench) -> list[Comparison]:
    """All contenders; each run fills an empty table with a primary key."""
    return [IntoPostgres(bench).comparison()]


def by_key(bench: Bench) -> list[Comparison]:
    """`upsert` against the statements that a person would write."""
    return [IntoPostgres(bench).by_key()]


def branches(bench: Bench) -> list[Comparison]:
    """`prepared` in several branches of one process: seconds, and the CPU time of a row."""
    return IntoPostgres(bench).branches()


class IntoPostgres:
    """The server and its contenders."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.server = bench, bench.servers.postgres
        self._segment = segment(
            bench.folder / "wal", f"postgres-{next(bench.servers.numbers)}", {"orders": bench.table}
        )
        self._worker = bench.servers.worker("benchmarks.delivering")

    def comparison(self) -> Comparison:
        """Ours, Spark's, and what the server itself can take."""
        ours = [self._ours("local"), self._ours("prepared"), self._ours("upsert", **UPSERT)]
        spark = [self._spark(rows) for rows in BATCHES]
        writers = tuple(contender.name for contender in spark)
        claims = [
            Claim(f"WAL -> PostgreSQL, `{each.name}` against Spark JDBC", each.name, writers, WANTED.get(each.name))
            for each in ours
        ]
        claims.append(Claim("WAL -> PostgreSQL, `local` against one plain COPY", "local", ("1 x COPY",), None))
        title = "WAL -> PostgreSQL, committed (prepare and commit), against writers from Parquet"
        contenders = [*ours, *spark, self._plain_copy()]
        return Comparison("postgres", title, contenders, claims, rows=self.bench.rows)

    def by_key(self) -> Comparison:
        """Changes by key, ours and by hand."""
        contenders = [self._ours("upsert", **UPSERT), self._by_hand()]
        claims = [Claim("WAL -> PostgreSQL, `upsert` against the same by hand", "upsert", (BY_HAND,), 1 / 1.3)]
        title = "WAL -> PostgreSQL by key, committed (prepare and commit), against COPY and INSERT ... ON CONFLICT"
        return Comparison("postgres-by-key", title, contenders, claims, rows=self.bench.rows)

    def branches(self) -> list[Comparison]:
        """Two comparisons by the number of branches, of the same runs."""
        used: dict[tuple[int, str], float] = {}

        def run(number: int) -> float:
            before = self._used()
            seconds = self._ours("prepared", branches=number).run()
            for what, late, early in zip(("client", "server"), self._used(), before, strict=True):
                used[number, what] = (late - early) * 1e6 / self.bench.rows
            return seconds

        title = "WAL -> PostgreSQL, `prepared` in branches of one process"
        seconds = [Contender(f"{number} branches", partial(run, number)) for number in BRANCHES]
        claims = [
            Claim(f"PostgreSQL, `prepared`: {number} branches against one", f"{number} branches", ("1 branches",), None)
            for number in BRANCHES[1:]
        ]
        costs = [
            Contender(f"{number} branches, {what}", partial(used.__getitem__, (number, what)), warm_up=0)
            for number in BRANCHES
            for what in ("client", "server")
        ]
        return [
            Comparison("postgres-branches", title, seconds, claims, rows=self.bench.rows),
            Comparison("postgres-branches-cpu", f"CPU time of a row, {title}", costs, [], unit="us"),
        ]

    def _used(self) -> tuple[float, float]:
        """Seconds of CPU of the client, and of the server with its sessions, also of those that have ended."""
        fields = Path(f"/proc/{self.server.pid}/stat").read_text().rpartition(")")[2].split()
        ended = (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
        return used_by(self._worker.pid), used_by(self.server.pid) + ended

    def _ours(self, strategy: str, **settings: Any) -> Contender:
        """Prepare and commit of a checkpoint of a new pipeline, in a process that stays warm."""

        def run() -> float:
            self._empty_table(VERSION if strategy == "upsert" else "")
            answer = self._worker.ask("deliver", **self._job(strategy, settings))
            self._check(strategy)
            seconds: float = answer["seconds"]
            return seconds

        return Contender(strategy, run)

    def _job(self, strategy: str, settings: dict[str, Any]) -> dict[str, Any]:
        from airflow_ft.protocol.model import ParticipantPlan, Plan, Promise
        from airflow_ft.sinks.postgres.spec import PostgresSink

        sink = PostgresSink(table="orders", conn_id="shop", strategy=strategy, **settings)
        chosen = ParticipantPlan("shop", "postgres", strategy, sink.promise, 0, {"orders": sink.settings()})
        decides = "shop" if sink.promise is Promise.ATOMIC else None
        pipeline = f"orders-{next(self.bench.servers.numbers)}"
        plan = Plan(pipeline, INSTALLATION, 1, (self._segment,), (chosen,), decides)
        server = self.server
        connection = {
            "conn_id": "shop", "conn_type": "postgres", "host": server.host, "port": server.port, "login": server.user,
            "password": server.password, "schema": DATABASE, "extra": {},
        }  # fmt: skip
        return {"plan": plan.to_json(), "connection": connection}

    def _spark(self, rows: int) -> Contender:
        """Spark's JDBC writer in a session that stays warm."""
        name = f"Spark, {rows:,} rows an INSERT"
        options = {
            "url": f"jdbc:postgresql://127.0.0.1:{self.server.port}/{DATABASE}?reWriteBatchedInserts=true",
            "driver": "org.postgresql.Driver",
            "dbtable": "orders",
            "user": self.server.user,
            "password": self.server.password,
            "batchsize": str(rows),
        }

        def run() -> float:
            self._empty_table()
            answer = self.bench.servers.spark.ask("jdbc", source=str(self.bench.source), **options)
            self._check(name)
            seconds: float = answer["seconds"]
            return seconds

        return Contender(name, run)

    def _plain_copy(self) -> Contender:
        """COPY of text that was made before, in one transaction: what the server can take."""
        data = io.BytesIO()
        pa.csv.write_csv(self.bench.table, data, pa.csv.WriteOptions(include_header=False))

        def copy() -> None:
            data.seek(0)
            with closing(self.server.connect(DATABASE)) as connection, connection.cursor() as cursor:
                cursor.copy_expert("COPY orders FROM STDIN WITH (FORMAT csv)", data, size=1 << 20)

        def run() -> float:
            self._empty_table()
            seconds = timed(copy)
            self._check("1 x COPY")
            return seconds

        return Contender("1 x COPY", run)

    def _by_hand(self) -> Contender:
        """COPY of text that was made before into a temporary table, and INSERT ... ON CONFLICT, in one transaction."""
        data = io.BytesIO()
        pa.csv.write_csv(self.bench.table, data, pa.csv.WriteOptions(include_header=False))
        names = ", ".join(self.bench.table.schema.names)
        changed = ", ".join(f"{name} = excluded.{name}" for name in [*self.bench.table.schema.names[1:], "version"])

        def change() -> None:
            data.seek(0)
            with closing(self.server.connect(DATABASE)) as connection, connection.cursor() as cursor:
                cursor.execute("BEGIN; CREATE TEMPORARY TABLE changes (LIKE orders INCLUDING DEFAULTS) ON COMMIT DROP")
                cursor.copy_expert(f"COPY changes ({names}) FROM STDIN WITH (FORMAT csv)", data, size=1 << 20)
                cursor.execute(
                    f"INSERT INTO orders ({names}, version) SELECT {names}, 1 FROM changes"
                    f" ON CONFLICT (id) DO UPDATE SET {changed}; COMMIT"
                )

        def run() -> float:
            self._empty_table(VERSION)
            seconds = timed(change)
            self._check(BY_HAND)
            return seconds

        return Contender(BY_HAND, run)

    def _empty_table(self, more: str = "") -> None:
        self.server.sql("DROP TABLE IF EXISTS orders", DATABASE)
        sql = self.bench.dataset.create_sql("orders", more).replace(" CHARACTER SET utf8mb4", "")
        for theirs, kind in TYPES.items():
            sql = sql.replace(theirs, kind)
        self.server.sql(sql, DATABASE)

    def _check(self, who: str) -> None:
        """MeasurementError unless the table holds just the rows."""
        schema, data = self.bench.table.schema, io.BytesIO()
        with closing(self.server.connect(DATABASE)) as connection, connection.cursor() as cursor:
            cursor.execute("SET timezone = 'UTC'")
            names = ", ".join(schema.names)
            cursor.copy_expert(f"COPY (SELECT {names} FROM orders ORDER BY 1) TO STDOUT WITH (FORMAT csv)", data)
        data.seek(0)
        columns = [field.name for field in schema]
        types = {f.name: pa.timestamp("us", "UTC") if pa.types.is_timestamp(f.type) else f.type for f in schema}
        found = pa.csv.read_csv(
            data,
            pa.csv.ReadOptions(column_names=columns),
            pa.csv.ParseOptions(newlines_in_values=True),
            pa.csv.ConvertOptions(column_types=types, strings_can_be_null=True, quoted_strings_can_be_null=False),
        )
        check(who, self.bench.dataset.content(found), self.bench.content)
