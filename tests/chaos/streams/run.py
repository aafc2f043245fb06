"""The stage `streams`: fault after fault over one stream, and a count of its rows in the end."""

from __future__ import annotations

import os
import random
import signal
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from airflow_ft.protocol.pipelines import RequestKind
from airflow_ft.store.decision_log import DecisionLog
from tests.chaos.streams.world import PIPELINE, Feeder, Servers, Task, await_delivery, is_locked, judge, writers
from tests.waiting import wait_for
from tools.demo.console import Console
from tools.servers import Yarn

RECOVERY_SECONDS = 600.0
FROZEN_SECONDS = 4.0  # longer than the lease of the tasks
POSTGRES = "PostgreSQL, with the decision log"
S3 = "the S3 server, with the write-ahead log"
YARN = "of YARN"


@dataclass(frozen=True)
class Fault:
    """What is done to a stream that is at work; returns once it is done, also when that takes a while."""

    name: str
    strike: Callable[[Streams], None]


@dataclass(frozen=True)
class Hit:
    """A fault that hit unfinished work: what was unfinished, and the seconds until something new was confirmed."""

    fault: str
    state: str
    recovery: float


@dataclass
class Report:
    """Grows while the faults go on. `violations` are sentences; none: exact, which has a `meaning`."""

    seed: int
    wanted: int
    store: str
    wal: str
    master: str
    hits: list[Hit] = field(default_factory=list)
    missed: int = 0
    numbers: int = 0
    checkpoints: int = 0
    tries: int = 0
    judged: bool = False
    violations: list[str] = field(default_factory=list)
    interrupted: bool = False
    seconds: float = 0.0
    meaning: str = "each number once in both sinks, the same rows in both, state counted once"

    @property
    def exact(self) -> bool:
        """All faults were made, the judge has seen everything, and found nothing wrong."""
        return self.judged and not self.violations and not self.interrupted and len(self.hits) == self.wanted

    def data(self) -> Mapping[str, Any]:
        """Plain JSON."""
        return {"exact": self.exact, **asdict(self)}

    def __str__(self) -> str:
        by_fault: dict[str, list[float]] = {}
        for hit in self.hits:
            by_fault.setdefault(hit.fault, []).append(hit.recovery)
        lines = [
            f"  {name:<36} {len(found):>4}   median {statistics.median(found):5.1f} s   worst {max(found):5.1f} s"
            for name, found in sorted(by_fault.items())
        ]
        lines += [
            f"  {len(self.hits)} of {self.wanted} hit unfinished work, {self.missed} others did not count",
            f"  {self.numbers:,} numbers in {self.checkpoints:,} checkpoints, {self.tries} tries of the task",
            f"  {self.seconds:.0f} s, seed {self.seed}, decision log in {self.store}, files in {self.wal},"
            f" Spark on {self.master}",
        ]
        if self.exact:
            result = f"EXACT: {self.meaning}."
        else:
            found_ = self.violations or ["interrupted" if self.interrupted else "not all faults were made"]
            result = "NOT EXACT:\n" + "\n".join(f"  - {each}" for each in found_)
        return "\n".join([*lines, result])


@dataclass(frozen=True)
class Options:
    """Where, how many, which faults ([]: all), what holds the logs, and where Spark works.

    `store`: "sqlite" or "postgres"; `wal`: "local", "s3" or "hdfs"; `master`: "local" or "yarn".
    """

    folder: Path
    kills: int
    seed: int
    faults: Sequence[str] = ()
    store: str = "sqlite"
    wal: str = "local"
    master: str = "local"


class Streams:
    """See the module. `run` may be called once."""

    patience = RECOVERY_SECONDS  # until something new has to be confirmed

    def __init__(self, options: Options, console: Console) -> None:
        self._options, self._console = options, console
        self.folder, self.store, self.wal, self.master = options.folder, options.store, options.wal, options.master
        self.report = Report(options.seed, options.kills, options.store, options.wal, options.master)
        self.random = random.Random(options.seed)
        options.folder.mkdir(parents=True, exist_ok=True)
        options.folder.chmod(0o711)
        self.servers = self.make_servers()
        self.task: Task | None = None
        self._old: list[Task] = []
        self.feeder: Feeder | None = None
        self.wrote: dict[int, int] = {}  # the epoch of who wrote each checkpoint

    def close(self) -> None:
        """Ends what is left."""
        for task in [*self._old, *([self.task] if self.task else [])]:
            if not task.is_over:
                os.killpg(task.process.pid, signal.SIGKILL)
                task.process.wait()
        self.servers.__exit__()

    def run(self) -> Report:
        """All faults, then the judge."""
        began = time.monotonic()
        report = self.report
        faults = self.faults()
        names = self._options.faults or possible(faults, self.store, self.wal, self.master)
        self.servers.__enter__()
        try:
            inputs = self.servers.inputs
            with Feeder(self.servers.kafka, topics=inputs) as feeder, closing(self.servers.open_store()) as store:
                self.feeder = feeder
                store.register(PIPELINE)
                self.begin()
                order: list[str] = []
                while len(report.hits) < report.wanted:
                    order = order or self.random.sample(list(names), len(names))
                    self._strike(store, faults[order.pop()])
                self.settle()
                feeder.stop()
                report.numbers = feeder.sent
                self.await_task(store)
                assert self.task is not None
                await_delivery(self.servers, feeder.sent, self.task, self.patience)
                store.ask(PIPELINE, RequestKind.STOP, {}, "make chaos")
                if self.task.process.wait(self.patience) != 0:
                    report.violations.append(f"the stopped task failed; see {self.task.log}")
                left = [c for c in store.open_checkpoints(PIPELINE) if not c.is_settled or c.rollback_pending]
                report.violations += [f"checkpoint {c.number} is left {c.state}" for c in left]
                report.checkpoints = store.pipeline(PIPELINE).last_published
                report.violations += self.judge(feeder.sent)
                report.judged = True
        except KeyboardInterrupt:
            report.interrupted = True
            raise
        finally:
            report.tries = 0 if self.task is None else self.task.number
            report.seconds = time.monotonic() - began
        return report

    def begin(self) -> None:
        """A further try of the task."""
        if self.task is not None:
            self._old.append(self.task)
        self.task = self.make_task(self.task.number + 1 if self.task else 1)

    # --- what another stage has others of -------------------------------------------------------------------------

    def faults(self) -> Mapping[str, Fault]:
        """By name."""
        return FAULTS

    def make_servers(self) -> Servers:
        """With the tables and topics of the pipeline."""
        return Servers(self.folder, store=self.store, wal=self.wal, master=self.master)

    def make_task(self, number: int) -> Task:
        """A try, which has begun."""
        return Task(self.folder, self.servers.stream(), number)

    def strike(self, store: DecisionLog, fault: Fault) -> None:
        """Makes a fault; returns when something new is confirmed."""
        fault.strike(self)
        self.await_task(store)

    def settle(self) -> None:
        """Nothing is struck any more."""

    def judge(self, sent: int) -> list[str]:
        """What is wrong in the end."""
        return judge(self.servers, sent, self.wrote)

    # --- one after another ----------------------------------------------------------------------------------------

    def await_task(self, store: DecisionLog) -> int:
        """Waits until the stream confirms something new, with further tries where one has ended; the number."""
        before = _confirmed(store)
        deadline = time.monotonic() + self.patience
        while (now := _confirmed(store)) <= before:
            assert self.task is not None
            if self.task.is_over:
                self.begin()
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing was confirmed for {self.patience:.0f} s; see {self.task.log}")
            time.sleep(0.02)
        return now

    def stopped(self, arguments: Mapping[str, Any]) -> str:
        """Has the stream stop, with further tries where one has ended before it heard; what it has answered."""
        with closing(self.servers.open_store()) as store:
            asked = store.ask(PIPELINE, RequestKind.STOP, arguments, "make chaos")
            deadline = time.monotonic() + self.patience
            while not (outcome := store.request(PIPELINE, asked).outcome):
                assert self.task is not None
                if self.task.is_over:
                    self.begin()
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the stream was not stopped; see {self.task.log}")
                time.sleep(0.1)
        assert self.task is not None
        self.task.process.wait(self.patience)
        return outcome

    def _strike(self, store: DecisionLog, fault: Fault) -> None:
        for _ in range(self.random.randint(1, 3)):
            self.await_task(store)
        time.sleep(self.random.uniform(0.0, 0.7))
        unfinished = [
            c.state.value for c in store.open_checkpoints(PIPELINE) if c.is_undelivered or c.state == "TRIGGERED"
        ]
        if not unfinished:
            self.report.missed += 1
            return
        at = time.monotonic()
        self.strike(store, fault)
        self.wrote |= writers(self.servers)
        hit = Hit(fault.name, ", ".join(sorted(unfinished)), round(time.monotonic() - at, 1))
        self.report.hits.append(hit)
        self._console.say(f"{len(self.report.hits):>3}. {hit.fault}: {hit.state}; {hit.recovery:.1f} s")


def possible(faults: Iterable[str], store: str, wal: str, master: str = "local") -> list[str]:
    """Return those that can be made where these hold the logs, and where Spark works there."""
    servers = {POSTGRES: store == "postgres", S3: wal == "s3", YARN: master == "yarn"}
    without = [server for server, there in servers.items() if not there]
    return [name for name in faults if not any(server in name for server in without)]


def _confirmed(store: DecisionLog) -> int:
    latest = store.latest_confirmed(PIPELINE)
    return latest.number if latest else 0


def _kill(pid: int) -> None:
    if pid:
        os.kill(pid, signal.SIGKILL)


def _send(pids: Sequence[int], sign: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, sign)


def _kill_driver(streams: Streams) -> None:
    assert streams.task is not None
    _kill(streams.task.driver())


def _kill_python(streams: Streams) -> None:
    assert streams.task is not None
    _kill(streams.task.python())


def _kill_task(streams: Streams) -> None:
    assert streams.task is not None
    streams.task.process.kill()
    streams.task.process.wait()


def _freeze_driver(streams: Streams) -> None:
    """The Python driver stands still for a while, and goes on."""
    assert streams.task is not None
    if pid := streams.task.python():
        os.kill(pid, signal.SIGSTOP)
        time.sleep(FROZEN_SECONDS)
        os.kill(pid, signal.SIGCONT)


def _zombie(streams: Streams) -> None:
    """The task and its driver stand still, a further try takes over, and they wake up beside it."""
    zombie = streams.task
    assert zombie is not None
    pids = [pid for pid in (zombie.process.pid, zombie.driver(), zombie.python()) if pid]
    _send(pids, signal.SIGSTOP)
    # SQLite's lock is nobody's to break: the error says to end its holder. PostgreSQL ends such a session.
    while streams.store == "sqlite" and is_locked(streams.folder):
        _send(pids, signal.SIGCONT)
        time.sleep(0.1)
        _send(pids, signal.SIGSTOP)
    streams.begin()
    with closing(streams.servers.open_store()) as store:
        streams.await_task(store)
    _send(pids, signal.SIGCONT)
    zombie.process.wait(RECOVERY_SECONDS)


def _rival(streams: Streams) -> None:
    """A further try begins while the first one is alive."""
    first = streams.task
    streams.begin()
    time.sleep(FROZEN_SECONDS)
    assert first is not None
    first.process.kill()
    first.process.wait()


def _mariadb(streams: Streams) -> None:
    streams.servers.mariadb.kill()
    streams.servers.mariadb.start()


def _kafka(streams: Streams) -> None:
    streams.servers.kafka.kill()
    streams.servers.kafka.start()


def _postgres(streams: Streams) -> None:
    """Of the decision log, not of a sink: nobody can take an epoch, publish or decide meanwhile."""
    server = streams.servers.postgres
    assert server is not None
    server.kill()
    time.sleep(streams.random.uniform(0.0, FROZEN_SECONDS))  # at once, or away for longer than a lease
    server.start()


def _s3(streams: Streams) -> None:
    """Nothing can be staged, published or delivered meanwhile."""
    server = streams.servers.versitygw
    assert server is not None
    server.kill()
    time.sleep(streams.random.uniform(0.0, FROZEN_SECONDS))
    server.start()


def _executor(streams: Streams) -> None:
    found = wait_for(_yarn(streams).executors, RECOVERY_SECONDS, "an executor")
    with suppress(ProcessLookupError):
        _kill(streams.random.choice(found).pid)


def _application_master(streams: Streams) -> None:
    for master in wait_for(_yarn(streams).masters, RECOVERY_SECONDS, "an application master"):
        with suppress(ProcessLookupError):
            _kill(master.pid)


def _machine(streams: Streams) -> None:
    """With its executors, and perhaps the application master. It comes back at once."""
    yarn = _yarn(streams)
    yarn.kill_node(streams.random.randrange(2))
    yarn.start_nodes()


def _resource_manager(streams: Streams) -> None:
    """Nothing gets a container meanwhile, and a driver that starts has to wait."""
    yarn = _yarn(streams)
    yarn.kill()
    time.sleep(streams.random.uniform(0.0, FROZEN_SECONDS))
    yarn.start()


def _yarn(streams: Streams) -> Yarn:
    assert streams.servers.yarn is not None
    return streams.servers.yarn


def _pause_mariadb(streams: Streams) -> None:
    streams.servers.mariadb.pause()
    time.sleep(FROZEN_SECONDS)
    streams.servers.mariadb.resume()


FAULTS: Mapping[str, Fault] = {
    name: Fault(name, strike)
    for name, strike in {
        "kill -9 of the JVM": _kill_driver,
        "kill -9 of the Python driver": _kill_python,
        "kill -9 of the task": _kill_task,
        "the driver stands still": _freeze_driver,
        "zombie beside its successor": _zombie,
        "two tries at once": _rival,
        "kill -9 of MariaDB": _mariadb,
        "kill -9 of Kafka": _kafka,
        "MariaDB stands still": _pause_mariadb,
        f"kill -9 of {POSTGRES}": _postgres,
        f"kill -9 of {S3}": _s3,
        f"kill -9 of an executor {YARN}": _executor,
        f"kill -9 of the application master {YARN}": _application_master,
        f"kill -9 of a NodeManager {YARN}, with its containers": _machine,
        f"kill -9 of the ResourceManager {YARN}": _resource_manager,
    }.items()
}
