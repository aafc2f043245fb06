"""What all measurements share: servers, and rows, how many of them and how often."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.data import ORDERS, Content, Dataset, records_content, write_parquet
from benchmarks.measuring import MeasurementError
from benchmarks.workers import Worker

if TYPE_CHECKING:
    import pyarrow as pa

    from tools.servers import Kafka

DATABASE = "bench"


def say(line: str) -> None:
    """A line for people, at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@dataclass
class Servers:
    """What a run of the harness has started; each when it is first asked for."""

    folder: Path
    quick: bool
    stack: ExitStack
    numbers: Iterator[int] = field(default_factory=count)  # for names that must differ
    versions: dict[str, str] = field(default_factory=dict)  # of those that have been started

    @cached_property
    def mariadb(self) -> Any:
        """A MariaDB with the database `bench`."""
        from tools.servers import MariaDb

        return self._database(MariaDb, {"innodb-log-file-size": self._redo})

    @cached_property
    def mysql(self) -> Any:
        """A MySQL with the database `bench`."""
        from tools.servers import MySql

        return self._database(MySql, {"innodb-redo-log-capacity": self._redo})

    @cached_property
    def kafka(self) -> Kafka:
        """A broker."""
        from tools.servers import Kafka

        return self.stack.enter_context(Kafka(self.folder / "kafka"))

    @cached_property
    def postgres(self) -> Any:
        """A PostgreSQL with a database for tables."""
        from tools.servers import Postgres

        server = self.stack.enter_context(Postgres(self.folder / "postgres"))
        server.sql(f"CREATE DATABASE {DATABASE}")
        self.versions["postgres"] = str(server.sql("SHOW server_version")[0][0])
        return server

    @property
    def _redo(self) -> str:
        return "256M" if self.quick else "1G"

    def _database(self, kind: Callable[..., Any], options: dict[str, str]) -> Any:
        pool = {"innodb-buffer-pool-size": "256M" if self.quick else "1G", "max-allowed-packet": "64M"}
        server = kind(self.folder / kind.name, options={**pool, **options})  # type: ignore[attr-defined]
        self.stack.enter_context(server)
        server.sql(f"CREATE DATABASE {DATABASE}")
        self.versions[kind.name] = str(server.sql("SELECT VERSION()")[0][0])  # type: ignore[attr-defined]
        return server

    def worker(self, module: str, tree: Path | None = None, program: Sequence[str] = ()) -> Worker:
        """A child that lives as long as this run."""
        return self.stack.enter_context(Worker(module, self.folder / "workers", tree, program=program))

    @cached_property
    def spark(self) -> Worker:
        """The warm Spark session."""
        say("starting Spark")
        worker = self.worker("benchmarks.sparking")
        worker.ask("ready")
        return worker


@dataclass
class Bench:
    """One run of the harness over some rows, which are made when they are first asked for."""

    servers: Servers
    rows: int
    rounds: int
    dataset: Dataset = ORDERS

    @property
    def quick(self) -> bool:
        """Fewer rows, and less of what takes long."""
        return self.servers.quick

    @property
    def stack(self) -> ExitStack:
        """What ends with the run."""
        return self.servers.stack

    @property
    def of(self) -> str:
        """What tells this measurement from the same one over the usual rows."""
        return "" if self.dataset is ORDERS else f" ({self.dataset.name})"

    @cached_property
    def folder(self) -> Path:
        """For files about these rows."""
        folder = self.servers.folder / self.dataset.name
        folder.mkdir(mode=0o755)
        return folder

    def over(self, dataset: Dataset) -> Bench:
        """The same with other rows, at most as many."""
        other = replace(self, dataset=dataset)
        other.rows = other.table.num_rows
        return other

    @cached_property
    def table(self) -> pa.Table:
        """The rows."""
        made = self.dataset.make(self.rows)
        say(f"made {made.num_rows:,} {self.dataset.name}")
        return made

    @cached_property
    def content(self) -> Content:
        """What a table must hold with these rows."""
        return self.dataset.content(self.table)

    @cached_property
    def source(self) -> Path:
        """The rows as Parquet, for Spark to read."""
        return write_parquet(self.table, self.folder / "source", 2)

    @cached_property
    def records(self) -> pa.Table:
        """The rows as Kafka records."""
        return self.dataset.records(self.table)

    @cached_property
    def records_content(self) -> Content:
        """What a topic must hold with these records."""
        return records_content(self.records)

    @cached_property
    def records_source(self) -> Path:
        """The records as Parquet, for Spark to read."""
        return write_parquet(self.records, self.folder / "records", 2)

    def empty_table(self, server: Any, name: str = "orders", more: str = "") -> None:
        """A fresh table of that name; `more`: further columns."""
        server.sql(f"DROP TABLE IF EXISTS {name}", DATABASE)
        server.sql(self.dataset.create_sql(name, more), DATABASE)

    def check_table(self, server: Any, who: str, name: str = "orders", expected: Content | None = None) -> None:
        """MeasurementError unless the table holds just the rows."""
        found = Content(*map(int, server.sql(self.dataset.content_sql(name), DATABASE)[0]))
        check(who, found, expected or self.content)

    def check_topic(self, topic: str, who: str, expected: Content | None = None) -> None:
        """MeasurementError unless the topic holds just the records, for a reader of what is committed."""
        from benchmarks.reading import topic_content

        check(who, topic_content(self.servers.kafka.bootstrap, topic), expected or self.records_content)


def check(who: str, found: Content, expected: Content) -> None:
    """MeasurementError unless both are the same: a figure counts only for exact work."""
    if found != expected:
        raise MeasurementError(f"{who}: {found.rows:,} rows with checksum {found.checksum} are there, not {expected}")
