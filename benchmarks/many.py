"""Many pipelines on one decision log in PostgreSQL: their writes, their sensors, the page, and their DAG files.

`python -m benchmarks.many [writes] [sensors] [page] [dags]` runs the named parts, without names all four, and prints
what they took. Other work on the machine makes latencies longer: run it alone.

- writes: 50 pipelines, each in a process of its own, make 10 checkpoints a second together.
- sensors: 500 deferred sensors in one event loop, as in a triggerer, while nothing is confirmed.
- page: 20 viewers ask for the list every five seconds, as the page does, beside 5 checkpoints a second. The log has
  1,000 pipelines of 1,000 checkpoints each.
- dags: 1,000 DAGs of one pipeline each are executed and serialised.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from airflow_ft.protocol.pipelines import Lease
from airflow_ft.store import open_store
from benchmarks import history
from benchmarks.bench import say
from benchmarks.beside import used_by
from benchmarks.history import RUN, RUNS, Log, Place, checkpoint, postgres_place
from benchmarks.page import copy_pipeline
from tools.servers import Postgres
from tools.servers.processes import free_port

PIPELINES, RATE, SECONDS = 50, 10.0, 60.0
SENSORS, INTERVAL, LOOKING = 500, 10.0, 40.0
LISTED, EACH, VIEWERS, PAUSE, BESIDE = 1_000, 1_000, 20, 5.0, 5.0
DAGS = 1_000
_LEASE = Lease("bench", 0, "dag/task", 1, 0)


class Timed:
    """A decision log that notes how many milliseconds each call takes."""

    def __init__(self, store: Any, taken: dict[str, list[float]]) -> None:
        self._store, self._taken = store, taken

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found):
            return found

        def call(*given: Any, **more: Any) -> Any:
            began = time.monotonic()
            try:
                return found(*given, **more)
            finally:
                self._taken.setdefault(name, []).append((time.monotonic() - began) * 1000)

        return call


def writes(server: Postgres) -> None:
    """Checkpoints of many pipelines: milliseconds of each call to the log."""
    url = _url(server, "writes")
    open_store(url).close()
    spawning = multiprocessing.get_context("spawn")
    ready, results = spawning.Barrier(PIPELINES + 1), spawning.Queue()
    workers = [
        spawning.Process(target=_write, args=(url, f"p{i:03}", RATE / PIPELINES, SECONDS, ready, results), daemon=True)
        for i in range(PIPELINES)
    ]
    for worker in workers:
        worker.start()
    ready.wait(300)
    before = _used(server)
    found = [results.get(timeout=SECONDS + 120) for _ in workers]
    cpu = _used(server) - before
    for worker in workers:
        worker.join(30)
    done, client = sum(each[0] for each in found), sum(each[1] for each in found)
    say(f"writes: {PIPELINES} pipelines, {done / SECONDS:.1f} checkpoints a second")
    say(f"  CPU of a checkpoint: clients {1000 * client / done:.1f} ms, PostgreSQL {1000 * cpu / done:.1f} ms")
    taken: dict[str, list[float]] = {}
    for _, _, calls in found:
        for name, each in calls.items():
            taken.setdefault(name, []).extend(each)
    for name, each in sorted(taken.items()):
        say(f"  {name:20} {_percentiles(each)}")
    say(f"  {'all calls':20} {_percentiles([one for each in taken.values() for one in each])}")


def _write(url: str, name: str, rate: float, seconds: float, ready: Any, results: Any) -> None:
    history.PIPELINE = name
    taken: dict[str, list[float]] = {}
    with closing(open_store(url)) as store:
        epoch = _begun(store, name)
        checkpoint(store, epoch)  # imports and statements of the first one are not counted
        ready.wait(300)
        began, cpu, done = time.monotonic(), time.process_time(), 0
        due = began + random.random() / rate
        while due < began + seconds:
            time.sleep(max(0.0, due - time.monotonic()))
            checkpoint(Timed(store, taken), epoch)  # type: ignore[arg-type]
            done, due = done + 1, due + 1 / rate
        results.put((done, time.process_time() - cpu, taken))


def sensors(server: Postgres) -> None:
    """Deferred sensors that wait: what they cost the triggerer and PostgreSQL."""
    from airflow_ft.pipeline.checkpoints import Gate
    from airflow_ft.triggers.checkpoint import CheckpointTrigger

    url = _url(server, "sensors")
    names = [f"p{i:03}" for i in range(SENSORS)]
    with closing(open_store(url)) as store:
        for history.PIPELINE in names:
            checkpoint(store, _begun(store, history.PIPELINE))
    triggers = [
        CheckpointTrigger(pipeline=name, gate=Gate(number=1_000).to_json(), store=url, poll_interval=INTERVAL)
        for name in names
    ]
    asyncio.run(_look(server, triggers))


async def _look(server: Postgres, triggers: Sequence[Any]) -> None:
    late: list[float] = []

    async def wait_for(trigger: Any) -> None:
        async for _ in trigger.run():
            pass

    async def watch() -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.1)
            late.append((time.monotonic() - began - 0.1) * 1000)

    tasks = [asyncio.create_task(each) for each in (*map(wait_for, triggers), watch())]
    await asyncio.sleep(2 * INTERVAL)  # the first looks open the log
    late.clear()
    cpu, of_server, sessions, began = time.process_time(), _used(server), _sessions(server), time.monotonic()
    await asyncio.sleep(LOOKING)
    seconds = time.monotonic() - began
    opened = _sessions(server) - sessions - 1  # the question itself
    say(f"sensors: {len(triggers)} that wait, each looks every {INTERVAL:.0f} s")
    say(
        f"  CPU: this process {(time.process_time() - cpu) / seconds:.1%} of a core,"
        f" PostgreSQL {(_used(server) - of_server) / seconds:.1%}; {opened / seconds:.1f} new sessions a second"
    )
    say(f"  lateness of the event loop: {_percentiles(late)}; {threading.active_count()} threads")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _used(server: Postgres) -> float:
    """Return the seconds of CPU of a server with all its sessions, also ended ones."""
    import psutil  # type: ignore[import-untyped]

    own = psutil.Process(server.pid).cpu_times()
    return used_by(server.pid) + float(own.children_user + own.children_system)


def _sessions(server: Postgres) -> int:
    return int(server.sql("SELECT sessions FROM pg_stat_database WHERE datname = 'postgres'")[0][0])


def page(server: Postgres) -> None:
    """The page's list under viewers: milliseconds of an answer over HTTP."""
    import httpx

    place = postgres_place(server, "page")
    epoch = Log(place, EACH - 1, RUNS).epoch
    copy_pipeline(place, LISTED, EACH)
    with place.opened() as execute:
        execute("VACUUM ANALYZE")
    port = free_port()
    with tempfile.TemporaryDirectory() as home:
        settings = {
            "AIRFLOW_HOME": home,
            "AIRFLOW__AIRFLOW_FT__STORE": place.url,
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        }
        command = [sys.executable, "-m", "benchmarks.page_server", str(port)]
        serving = subprocess.Popen(command, env={**os.environ, **settings})
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
                _await(lambda: client.get("/v1/pipelines").status_code == 200, serving)
            asyncio.run(_view(f"http://127.0.0.1:{port}", place.url, epoch, serving.pid))
        finally:
            serving.terminate()
            serving.wait(30)


def _await(answers: Callable[[], bool], serving: subprocess.Popen[bytes]) -> None:
    import httpx

    for _ in range(600):
        if serving.poll() is not None:
            raise SystemExit("the page's server has ended")
        try:
            if answers():
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise SystemExit("the page's server does not answer")


async def _view(address: str, url: str, epoch: int, serving: int) -> None:
    import httpx

    taken: list[float] = []
    end = time.monotonic() + SECONDS

    def write() -> int:
        done = 0
        with closing(open_store(url)) as store:
            while time.monotonic() < end:
                checkpoint(store, epoch)
                done += 1
                time.sleep(1 / BESIDE)
        return done

    async with httpx.AsyncClient(base_url=address, timeout=60) as client:

        async def view(number: int) -> None:
            tag = ""
            await asyncio.sleep(PAUSE * number / VIEWERS)
            while time.monotonic() < end:
                began = time.monotonic()
                answer = await client.get("/v1/pipelines", headers={"If-None-Match": tag} if tag else {})
                taken.append((time.monotonic() - began) * 1000)
                if answer.status_code not in (200, 304):
                    raise SystemExit(f"the list answers {answer.status_code}")
                tag = answer.headers.get("etag", "")
                await asyncio.sleep(PAUSE)

        cpu = used_by(serving)
        writing = asyncio.create_task(asyncio.to_thread(write))
        await asyncio.gather(*map(view, range(VIEWERS)))
        done = await writing
    say(f"page: {VIEWERS} viewers of the list, {LISTED:,} pipelines of {EACH:,} checkpoints")
    say(f"  an answer: {_percentiles(taken)}; beside {done / SECONDS:.1f} checkpoints a second")
    say(f"  CPU of the server: {(used_by(serving) - cpu) / SECONDS:.1%} of a core")


def dags(_: Postgres) -> None:
    """DAGs with a pipeline into two sinks each, as the DAG processor has them."""
    import psutil
    from airflow.sdk import DAG
    from airflow.serialization.serialized_objects import DagSerialization

    from airflow_ft import CheckpointedPipeline, KafkaSink, KafkaSource, MySqlSink

    def declare(number: int) -> DAG:
        with DAG(f"orders_{number}", schedule="@hourly", catchup=False) as dag:
            CheckpointedPipeline(
                pipeline=f"orders-{number}",
                job="jobs.orders",
                sources={"orders": KafkaSource(topics=["orders"])},
                sinks={"orders": MySqlSink(table="shop.orders"), "alerts": KafkaSink(topic="alerts")},
            )
        return dag

    DagSerialization.to_dict(declare(-1))  # imports
    memory, cpu = psutil.Process().memory_info().rss, time.process_time()
    kept = [declare(number) for number in range(DAGS)]
    parsing = time.process_time() - cpu
    memory = psutil.Process().memory_info().rss - memory
    cpu = time.process_time()
    size = sum(len(json.dumps(DagSerialization.to_dict(each))) for each in kept)
    say(f"dags: {DAGS:,} with one pipeline each, {len(kept[0].tasks)} tasks a DAG")
    say(
        f"  a DAG: executed in {1000 * parsing / DAGS:.1f} ms of CPU, {memory / DAGS / 1000:.0f} KB of memory;"
        f" serialised in {1000 * (time.process_time() - cpu) / DAGS:.1f} ms, {size / DAGS / 1000:.1f} KB"
    )


def _begun(store: Any, name: str) -> int:
    """Return the epoch of a pipeline that has begun to stage."""
    store.register(name)
    epoch: int = store.take_epoch(name, store.pipeline(name).epoch, {}, _LEASE, "a benchmark")
    store.begin_stage(name, epoch, RUN)
    return epoch


def _url(server: Postgres, schema: str) -> str:
    place: Place = postgres_place(server, schema)
    return place.url


def _percentiles(taken: Sequence[float]) -> str:
    ordered = sorted(taken)

    def at(part: float) -> float:
        return ordered[min(len(ordered) - 1, int(len(ordered) * part))]

    return f"p50 {at(0.5):7.1f} ms, p99 {at(0.99):7.1f} ms, most {ordered[-1]:7.1f} ms, {len(ordered):,} in all"


PARTS: dict[str, Callable[[Postgres], None]] = {"writes": writes, "sensors": sensors, "page": page, "dags": dags}


def main(names: Sequence[str]) -> None:
    """Run the parts, all of them without names, over one PostgreSQL."""
    if unknown := sorted(set(names) - set(PARTS)):
        raise SystemExit(f"unknown: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["AIRFLOW_HOME"] = str(Path(folder) / "home")
        os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
        Path(folder).chmod(0o755)  # the server runs as another user
        with Postgres(Path(folder) / "postgres", options={"max_connections": 200, "shared_buffers": "256MB"}) as server:
            for name in names or PARTS:
                PARTS[name](server)


if __name__ == "__main__":
    main(sys.argv[1:])
