"""The strategies of MySqlSink side by side: `python -m benchmarks.mysql_strategies --help`.

Prints rows per second of prepare and commit together, and the ratio to `local`; each is measured several times,
in turns, and the best run counts. Then how long it takes to finish branches that are in doubt, as a recovery would.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

STRATEGIES: Mapping[str, Mapping[str, Any]] = {
    "local": {},
    "xa": {"branches": 2},
    "parallel": {"branches": 2},
    "upsert": {"key_columns": ("id",), "version_column": "version"},
}
INSTALLATION = "0" * 36
IN_DOUBT = ((4, 25), (50, 2))


def main() -> None:
    """Parses the arguments and prints one line a result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mysql_strategies", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--server", choices=("mariadb", "mysql"), action="append")
    parser.add_argument("--only-in-doubt", action="store_true")
    arguments = parser.parse_args()

    from tools.servers import MariaDb, MySql

    for name in arguments.server or ("mariadb", "mysql"):
        with tempfile.TemporaryDirectory(prefix="mysql-strategies-") as folder:
            options = {"innodb-buffer-pool-size": "512M"}
            with {"mariadb": MariaDb, "mysql": MySql}[name](Path(folder) / name, options=options) as server:
                server.sql("CREATE DATABASE shop")
                bench = Bench(server, Path(folder))
                if not arguments.only_in_doubt:
                    bench.throughput(arguments.rows, arguments.rounds)
                for pipelines, branches in IN_DOUBT:
                    bench.in_doubt(pipelines, branches)


@dataclass
class Bench:
    """One server, and a folder for the log."""

    server: Any
    folder: Path
    deliveries: int = 0

    def throughput(self, rows: int, rounds: int) -> None:
        """Rows per second of each strategy into an empty table with a primary key, and the ratio to `local`."""
        table = _rows(rows)
        best = dict.fromkeys(STRATEGIES, 0.0)
        for _ in range(rounds):
            for strategy, settings in STRATEGIES.items():
                self.server.sql("DROP TABLE IF EXISTS orders", "shop")
                self.server.sql(
                    "CREATE TABLE orders (id BIGINT PRIMARY KEY, customer INT, name VARCHAR(40), city VARCHAR(40),"
                    " amount DECIMAL(18,2), weight DOUBLE, at DATETIME(6), note VARCHAR(40),"
                    " version BIGINT NOT NULL DEFAULT 0)",
                    "shop",
                )
                seconds = next(self._deliver(strategy, settings, table))
                best[strategy] = max(best[strategy], rows / seconds)
        for strategy, found in best.items():
            _say(f"{self.server.name} {strategy:8}: {found:9,.0f} rows/s, {found / best['local']:.2f} of local")

    def in_doubt(self, pipelines: int, branches: int) -> None:
        """Seconds until so many prepared branches of so many pipelines are committed and proven."""
        from airflow_ft.sinks.mysql import slices

        slices.MIN_ROWS = 1
        self.server.sql("DROP TABLE IF EXISTS orders", "shop")
        self.server.sql("CREATE TABLE orders (id BIGINT, customer INT, name VARCHAR(40))", "shop")
        small = _rows(branches).select(["id", "customer", "name"])
        waiting = []
        for _ in range(pipelines):
            steps = self._deliver("xa", {"branches": branches}, small, stop_between=True)
            next(steps)
            waiting.append(steps)
        found = len(self.server.sql("XA RECOVER"))
        began = time.monotonic()
        for steps in waiting:
            next(steps)
        seconds = time.monotonic() - began
        left = len(self.server.sql("XA RECOVER"))
        _say(
            f"{self.server.name} in doubt: {found} branches of {pipelines} checkpoints finished in {seconds:.2f} s,"
            f" one after the other; {left} are left"
        )

    def _deliver(
        self, strategy: str, settings: Mapping[str, Any], table: pa.Table, *, stop_between: bool = False
    ) -> Iterator[float]:
        """Prepares, (yields,) commits, and yields the seconds of both."""
        from airflow_ft.core.model import Fence, ParticipantPlan, Plan, Vote
        from airflow_ft.core.ports import ConnectionInfo
        from airflow_ft.sinks.mysql.participant import open_participant
        from airflow_ft.sinks.mysql.spec import MySqlSink
        from airflow_ft.wal import open_wal
        from airflow_ft.wal.writer import SegmentFolder, write_segment

        self.deliveries += 1
        pipeline = f"orders-{self.deliveries}"
        segment = write_segment(SegmentFolder(str(self.folder / "wal"), pipeline, 1, 1, 1), 1, {"orders": table})
        sink = MySqlSink(table="orders", conn_id="shop", strategy=strategy, **settings)
        chosen = ParticipantPlan("shop", "mysql", strategy, sink.promise, 0, {"orders": sink.settings()})
        plan = Plan(pipeline, INSTALLATION, 1, (segment,), (chosen,), None)
        server = self.server
        info = ConnectionInfo("shop", "mysql", server.host, server.port, server.user, server.password, "shop")
        began = time.monotonic()
        with closing(open_participant(chosen, info, open_wal())) as participant:
            notes = participant.prepare(plan, Fence(pipeline, INSTALLATION, 1, 1))
        if stop_between:
            yield 0.0
        vote = Vote("shop", 1, 1, None, json.loads(json.dumps(notes)))
        with closing(open_participant(chosen, info, open_wal())) as participant:
            proof = participant.commit(plan, Fence(pipeline, INSTALLATION, 1, 2), vote)
        if sum(proof.counts.values()) != table.num_rows:
            raise SystemExit(f"{strategy} delivered {proof.counts}")
        yield time.monotonic() - began


def _rows(count: int) -> pa.Table:
    import numpy as np
    import pyarrow as pa

    ids = np.arange(count)
    text = pa.array(ids).cast(pa.string())
    cents = pa.array(ids % 100_000).cast(pa.decimal128(22, 2)).cast(pa.decimal128(18, 2))
    columns: Sequence[Any] = (ids, ids.astype("int32") % 1000, text, text, cents, ids / 7.0, ids, text)
    names = ["id", "customer", "name", "city", "amount", "weight", "at", "note"]
    table = pa.table(dict(zip(names, columns, strict=True)))
    return table.set_column(6, "at", pa.array(ids).cast(pa.timestamp("us")))


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
