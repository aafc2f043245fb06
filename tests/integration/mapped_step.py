"""A process that takes one step of a delivery by many tasks, to be killed, or stopped at a named place.

A stop is "vote", or "before REGEX" and "after REGEX" for the first statement whose beginning matches. With Kafka it is
one of `kafka_process.POINTS`.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

from airflow_ft.protocol import steps
from airflow_ft.protocol.announced import Announcement
from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.protocol.model import CheckpointState, RunKey
from airflow_ft.sinks.base import slices
from airflow_ft.store import open_store
from airflow_ft.store.decision_log import DecisionLog
from airflow_ft.testing import nursery
from airflow_ft.wal.retention import WalArchive
from tests.integration.kafka_process import POINTS
from tests.integration.real_world import RealWorld
from tests.sinks.mysql.committer import stopping_at


def run(order: Mapping[str, Any]) -> None:
    """In the process of `Step`."""
    stopped = False

    def stop() -> None:
        nonlocal stopped
        if not stopped:  # once: the next try goes through
            stopped = True
            os.kill(os.getpid(), signal.SIGSTOP)

    if order["stop"] == "vote":
        vote = DecisionLog.vote

        def voting(self: DecisionLog, *args: Any) -> Any:
            stop()
            return vote(self, *args)

        DecisionLog.vote = voting  # type: ignore[assignment, method-assign]
    elif order["stop"] and order["connection"]["conn_type"] == "kafka":
        owner, name, after = POINTS[order["stop"]]
        method = getattr(owner, name)

        def stopping(*args: Any, **named: Any) -> Any:
            if not after:
                stop()
            answer = method(*args, **named)
            if after:
                stop()
            return answer

        setattr(owner, name, stopping)
    elif order["stop"]:
        session = import_module(f"airflow_ft.sinks.{order['connection']['conn_type']}.session").Session
        session.run = stopping_at(session.run, *order["stop"].split(" ", 1), stop)
    slices.MIN_ROWS = 2
    print("ready", flush=True)
    with closing(open_store(order["store"])) as store:
        world = MappedWorld(store, Path(order["root"]), order["database"], pipeline=order["pipeline"])
        world.lease_seconds = 3600.0  # never renewed: a stop in that write would keep the lock of SQLite
        world.run, world.fields = RunKey(*order["run"]), order["connection"]
        try:
            answer = {"result": world.step(order["step"], order["announced"], order["branch"], order["try"])}
        except AirflowFtError as error:
            answer = {"error": type(error).__name__, "message": str(error)}
    print(json.dumps(answer), flush=True)


class MappedWorld(RealWorld):
    """`rows` goes into MySQL, or into the database that `fields` names, in three branches."""

    fields: Mapping[str, Any] = {}

    def load(self, announced: Any) -> None:
        """Load all branches, as mapped tasks do."""
        for branch in announced["branches"]:
            assert self.step("load", announced, branch) is True

    def deliver(self) -> None:
        """Commit and confirm."""
        self.commit("shop")
        steps.confirm_step(self.context(), self.config, WalArchive(str(self.root)))

    def check_proven(self, numbers: list[int]) -> None:
        """Each is complete, and nothing of it was delivered from the log again."""
        for number in numbers:
            found = self.store.checkpoint(self.pipeline, number)
            assert found.state is CheckpointState.COMPLETED
            proof = found.votes["shop"].proof
            assert proof is not None and "redelivered" not in proof.detail

    @property
    def sinks(self) -> dict[str, Any]:
        from airflow_ft import KafkaSink, MySqlSink, PostgresSink

        if self.fields.get("conn_type") == "kafka":
            return {"rows": KafkaSink(topic=self.fields["schema"], conn_id="shop", strategy="held", slots=3)}

        if self.fields.get("conn_type") == "postgres":
            return {"rows": PostgresSink(table="orders", conn_id="shop", strategy="prepared", branches=3)}
        return {"rows": MySqlSink(table="orders", conn_id="shop", strategy="xa", branches=3)}

    def connections(self, conn_id: str) -> Any:
        from airflow_ft.protocol.connections import ConnectionInfo

        return ConnectionInfo(**self.fields) if self.fields else super().connections(conn_id)

    def step(self, step: str, announced: Any = None, branch: str = "", number: int | None = None) -> Any:
        """One task's step; what it returns is plain JSON, as XCom holds it."""
        context = self.context()
        found = None if announced is None else Announcement.from_json(announced)
        match step:
            case "announce":
                made = steps.announce_step(context, self.delivery, self.config, "shop")
                return None if made is None else json.loads(json.dumps(made.to_json()))
            case "load":
                assert found is not None
                return steps.load_step(context, found, branch)
            case "prepare":
                return [c.number for c in steps.prepare_step(context, self.delivery, self.config, "shop", found)]
            case _:
                raise ValueError(step)


class Step:
    """The parent's side. Ends the process when it leaves the `with`."""

    def __init__(self, world: MappedWorld, url: str, step: str, *, stop: str, announced: Any = None, branch: str = ""):
        info = world.connections("shop")
        self._order = {
            "store": url,
            "root": str(world.root),
            "database": "",
            "pipeline": world.pipeline,
            "run": [world.run.dag_id, world.run.run_id],
            "connection": {
                "conn_id": "shop", "conn_type": info.conn_type, "host": info.host, "port": info.port,
                "login": info.login, "password": info.password, "schema": info.schema,
            },
            "step": step,
            "announced": announced,
            "branch": branch,
            "stop": stop,
            "try": 1,
        }  # fmt: skip

    def __enter__(self) -> Step:
        ours, theirs = os.pipe()
        try:
            self._process = nursery.fork(__name__, self._order, self._order["connection"]["conn_type"], theirs)
        finally:
            os.close(theirs)
        self._output = os.fdopen(ours)
        assert (line := self._output.readline()) == "ready\n", line + self._output.read()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._output.close()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def wait_until_stopped(self, seconds: float = 240) -> None:
        deadline = time.monotonic() + seconds
        stat = Path(f"/proc/{self._process.pid}/stat")
        while stat.read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < deadline and self._process.poll() is None, "it did not reach its stop"
            time.sleep(0.01)

    def wake(self) -> dict[str, Any]:
        """What becomes of it."""
        self._process.send_signal(signal.SIGCONT)
        self._process.wait(240)
        answer: dict[str, Any] = json.loads(self._output.read().splitlines()[-1])
        return answer


def stopped_anywhere(
    world: MappedWorld, url: str, step: str, stop: str, end: str, *, branch: str, finish: Callable[[list[int]], None]
) -> list[int]:
    """Stop a task of the first checkpoint, whose next try is finished; return its number and that of a second one.

    The task is "killed", or "woken" (`end`) when branches of the second checkpoint are loaded. `branch`: what `load`
    loads.
    """
    numbers = world.stage()
    announced = None if step == "announce" else world.step("announce")
    if step == "prepare" and stop == "vote":
        world.load(announced)
    with Step(world, url, step, stop=stop, announced=announced, branch=branch if step == "load" else "") as other:
        other.wait_until_stopped()
        if end == "killed":
            other.kill()
        announced = announced or world.step("announce")
        if step != "prepare":
            world.load(announced)
        assert world.step("prepare", announced) == numbers
        finish(numbers)
        numbers += world.stage()
        later = world.step("announce")
        world.load(later)
        if end == "woken":
            answer = other.wake()
            assert "error" in answer or answer["result"] in (None, True, False, [1])
        world.step("prepare", later)
    return numbers
