"""How long it takes until a hundred prepared branches are committed and proven, with as many side by side as recovery
settles (`airflow_ft.protocol.sweep`): each checkpoint is one of a pipeline of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from airflow_ft.protocol.sweep import THREADS
from benchmarks.bench import DATABASE, Bench
from benchmarks.data import orders, segment
from benchmarks.delivering import commit, prepare
from benchmarks.into_mysql import mysql_job
from benchmarks.measuring import Claim, Comparison, Contender, MeasurementError

SHAPES = ((4, 25), (50, 2))  # pipelines, branches of each
LIMIT_SECONDS = 2.0


def in_doubt(bench: Bench) -> list[Comparison]:
    """One comparison a server: few checkpoints with many branches, and many with few, against two seconds."""
    found = []
    for server in (bench.servers.mariadb, bench.servers.mysql):
        contenders = [Contender(_label(*shape), _finish(bench, server, *shape), warm_up=0) for shape in SHAPES]
        limit = Contender("the limit", lambda: LIMIT_SECONDS, warm_up=0)
        claims = [
            Claim(
                f"{_label(*shape)} on {server.name}: {LIMIT_SECONDS:.0f} s against it", _label(*shape), (limit.name,), 1
            )
            for shape in SHAPES
        ]
        title = f"Branches in doubt on {server.name}, until all are committed and proven"
        found.append(Comparison(f"in-doubt/{server.name}", title, [*contenders, limit], claims))
    return found


def _label(pipelines: int, branches: int) -> str:
    return f"{pipelines} checkpoints with {branches} branches in doubt"


def _finish(bench: Bench, server: Any, pipelines: int, branches: int) -> Callable[[], float]:
    from airflow_ft.sinks.base import slices

    written = segment(
        bench.folder / "wal", f"doubt-{server.name}-{branches}", {"orders": orders(branches).select(["id"])}, 1
    )

    def run() -> float:
        slices.MIN_ROWS = 1  # else so few rows would have one branch
        server.sql("DROP TABLE IF EXISTS orders", DATABASE)
        server.sql("CREATE TABLE orders (id BIGINT)", DATABASE)
        jobs = [mysql_job(bench, server, written, "xa", {"branches": branches}, tls=True) for _ in range(pipelines)]
        waiting = [(job, prepare(**job)["notes"]) for job in jobs]
        prepared = len(server.sql("XA RECOVER"))
        began = time.monotonic()
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda each: commit(**each[0], attempt=2, notes=each[1]), waiting))
        seconds = time.monotonic() - began
        left = len(server.sql("XA RECOVER"))
        here = int(server.sql("SELECT COUNT(*) FROM orders", DATABASE)[0][0])
        if (prepared, left, here) != (pipelines * branches, 0, pipelines * branches):
            raise MeasurementError(f"{prepared} branches were prepared, {left} are left, {here} rows are there")
        return seconds

    return run
