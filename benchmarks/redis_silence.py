"""How long Redis answers no other client while it takes the rows of one checkpoint, for each strategy."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import redis

from airflow_ft.protocol.sink_spec import SinkSpec
from benchmarks.bench import Bench
from benchmarks.into_keyed import IntoRedis
from benchmarks.measuring import Comparison, Contender

MOST_ROWS = 100_000  # that `atomic` takes
PAUSE = 0.001  # seconds between two PINGs


def silence(bench: Bench) -> list[Comparison]:
    """The longest time until a PING is answered, while a checkpoint is delivered."""
    return _Silence(replace(bench, rows=min(bench.rows, MOST_ROWS))).comparisons()


class _Silence(IntoRedis):
    def __init__(self, bench: Bench) -> None:
        super().__init__(bench, "redis-silence")

    def comparisons(self) -> list[Comparison]:
        contenders = [Contender(sink.strategy, partial(self._measure, sink)) for sink in self.sinks()]
        title = f"Redis: the longest wait of another client while it takes a checkpoint of {self.rows.num_rows:,} rows"
        return [Comparison("redis-silence", title, contenders, [], unit="ms")]

    def _measure(self, sink: SinkSpec) -> float:
        self.empty()
        with self._pinged() as waits:
            self._deliver(sink)
        self.check(sink.strategy)
        return max(waits) * 1000

    @contextmanager
    def _pinged(self) -> Iterator[list[float]]:
        waits: list[float] = []
        ended = threading.Event()

        def ping() -> None:
            with redis.Redis(port=self._server.port, password=self._server.password) as client:
                while not ended.is_set():
                    began = time.monotonic()
                    client.ping()
                    waits.append(time.monotonic() - began)
                    time.sleep(PAUSE)

        with ThreadPoolExecutor(1) as pool:
            pinging = pool.submit(ping)
            try:
                yield waits
            finally:
                ended.set()
            pinging.result()
