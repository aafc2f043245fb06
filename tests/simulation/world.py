"""A pipeline with its servers, and an Airflow that starts its tasks, retries them, and takes sleepers for dead."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any

from airflow_ft.protocol.announced import Announcement
from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AbortedHeuristicCommitError, StageError
from airflow_ft.protocol.lease import Worker, new_epoch
from airflow_ft.protocol.model import (
    AfterAbort,
    Checkpoint,
    CheckpointingMode,
    CheckpointState,
    ExternalizedRetention,
    ParticipantPlan,
    Promise,
    RunKey,
    SparkPosition,
)
from airflow_ft.protocol.planning import Delivery, plan_delivery
from airflow_ft.protocol.recovery import in_doubt, recover
from airflow_ft.protocol.resolution import Resolver
from airflow_ft.protocol.steps import (
    Confirmation,
    Context,
    announce_step,
    commit_step,
    confirm_step,
    load_step,
    prepare_step,
    recover_step,
    require_active,
    take_turn,
)
from airflow_ft.protocol.sweep import ORPHAN_AGE
from airflow_ft.protocol.transitions import MAY_BE_VISIBLE
from airflow_ft.sinks.files.participant import open_participant as open_folder
from airflow_ft.sinks.files.spec import FilesSink
from airflow_ft.sinks.kafka.cluster import KafkaParticipant
from airflow_ft.sinks.kafka.plain import PlainParticipant
from airflow_ft.sinks.kafka.shared_slots import SharedHeldParticipant
from airflow_ft.sinks.kafka.spec import KafkaSink
from airflow_ft.sinks.mysql.participant import STRATEGIES
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.spark.state.catching_up import catch_up, is_planned
from airflow_ft.spark.state.locations import open_location
from airflow_ft.store.errors import UnknownPipelineError
from tests.simulation.adapters import Running
from tests.simulation.databases import ModelServer, Participant
from tests.simulation.files import Files
from tests.simulation.folders import FolderServer
from tests.simulation.kafka_broker import KafkaCluster, ModelClients
from tests.simulation.kafka_coordinator import ModelAdmin
from tests.simulation.kernel import Chooser, Kernel, Process, Violation
from tests.simulation.laws import PIPELINE, Laws
from tests.simulation.memory_database import RealStore
from tests.simulation.model import ModelSink
from tests.simulation.model_store import ModelStore
from tests.simulation.mysql_server import MySqlServer
from tests.simulation.mysql_session import ModelSession
from tests.simulation.mysql_state import LIMITS
from tests.simulation.operators import Operators
from tests.simulation.prepared_server import PreparedServer
from tests.simulation.prepared_sink import PreparedSink
from tests.simulation.savepoints import VERBS, Savepoints
from tests.simulation.source import EMPTY, Wal, empties, opened
from tests.simulation.spark import Spark
from tests.simulation.store_client import StoreClient
from tests.simulation.streams import Streams
from tests.simulation.two_phase import TwoPhaseParticipant, TwoPhaseServer
from tests.simulation.windows import Windows

HEALING_TRIES = 12
JUMP = 2 * 86_400.0  # seconds: more than any time-out, lease, or age after which something is done
LATE = 1_200.0  # more than a checkpoint's time-out
Branched = MySqlServer | PreparedServer
Server = MySqlServer | PreparedServer | KafkaCluster | TwoPhaseServer | FolderServer | ModelServer


@dataclass(frozen=True)
class Scenario:
    """What is delivered into what, and by whom.

    `sinks` maps a sink to (kind, connection), where a kind is one of `delivery`; connections named `mysql...` are MySQL
    servers, other ones of these kinds are MariaDB. `runs` says how many items the source holds when each run stages.
    `parallel`: prepare and commit have a task for each participant. `mapped`: before a participant's vote its branches
    are announced, and loaded by a task each (`parallel` is needed). `concurrent`: all runs are started at once.
    `lease`: seconds that a challenger waits. `person`: what somebody does to a number in doubt, at any time ("abort
    carried", "abort rewound", "commit", "quarantine", "set aside"; "recover" is the periodic one), some after commas.
    `events` may happen to the servers, and to the clocks of processes and of the decision log; with `may_halt` one of
    them is such that a person has to act, so that HALTED is a good end.

    With `begins` each run is a stream: the source holds so many items at first, and grows up to what `runs` says. A run
    ends when the DAG is paused, which happens when nothing else does, or when a person asks ("stop", "stop at once").
    "gate as of now" and "gate of the published" are sensors. `concurrent_checkpoints`, `min_pause` (seconds),
    `tolerable` and `unaligned` are settings of the stream, `retained` is how many micro-batches Spark keeps state for.

    `modes` are those of the runs, in turn; the run that heals all has the last one. AT_MOST_ONCE is for streams.

    "savepoint" takes one as soon as there is something new, "restore" goes on from one when more was confirmed since
    ("again", "continue", "leaving", "claim", "oldest", "middle", "changed", "once", "copy"; "beginning": everything is
    read anew, "now": at once), one "then" another; "stop
    with a savepoint" is of streams. "rescale" and "convert" make another savepoint of one; that needs an operator,
    which a job has that is `stateful`. `jobs` are those of the runs of a stream, in turn: see `operators`.
    `sources` are what runs read, in turn: see `sources`.

    With `windows` the job of a stream holds back the newest item until the next one comes, or somebody drains the
    stream ("drain"). After that a run is refused, until somebody drops the state ("reset state"); or it goes on from
    the state before (`resumes`). `leaves` says what is kept of a stream that has ended. With "task stop" and "task
    drain" a task does it (also "with a savepoint"), and waits for the answer.
    """

    name: str
    sinks: Mapping[str, tuple[str, str]]
    runs: tuple[int, ...] = (2,)
    parallel: bool = False
    mapped: bool = False
    concurrent: bool = False
    max_rows: int = 0
    lease: float = 0.0
    tries: int = 3
    person: str = ""
    events: tuple[str, ...] = ()
    may_halt: bool = False
    event_weight: int = 2  # how often one is chosen, beside other deviations
    begins: int = 0
    concurrent_checkpoints: int = 2
    min_pause: float = 0.0
    tolerable: int = 0
    unaligned: bool = False
    retained: int = 8
    modes: tuple[CheckpointingMode, ...] = (CheckpointingMode.EXACTLY_ONCE,)
    windows: bool = False
    stateful: bool = False
    jobs: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    resumes: bool = False
    leaves: ExternalizedRetention = ExternalizedRetention.RETAIN_ON_CANCELLATION

    @property
    def items(self) -> int:
        """How many items there are in the end."""
        return max(self.runs)

    def delivery(self, mode: CheckpointingMode) -> Delivery:
        """What the DAG declares."""
        makers: Mapping[str, Callable[[str, str], Any]] = {
            "mysql": lambda sink, conn: MySqlSink(table=f"shop.{sink}", conn_id=conn),
            "xa": lambda sink, conn: MySqlSink(table=f"shop.{sink}", conn_id=conn, strategy="xa"),
            "upsert": lambda sink, conn: MySqlSink(
                table=f"shop.{sink}", conn_id=conn, strategy="upsert", key_columns=["id"], version_column="version"
            ),
            "kafka": lambda sink, conn: KafkaSink(topic=sink, conn_id=conn),
            "held": lambda sink, conn: KafkaSink(topic=sink, conn_id=conn, strategy="held"),
            "slots": lambda sink, conn: KafkaSink(topic=sink, conn_id=conn, strategy="held", slots=2),
            "two-phase": lambda sink, conn: ModelSink(conn, Promise.TWO_PHASE, kind="two-phase", strategy="model"),
            "model": lambda sink, conn: ModelSink(conn_id=conn),
            "prepared": lambda sink, conn: ModelSink(conn, Promise.TWO_PHASE, kind="prepared", strategy="prepared"),
            "disk": lambda sink, conn: FilesSink(folder=f"/{conn}", name=conn),
            "bucket": lambda sink, conn: FilesSink(folder=f"s3://lake/{conn}", name=conn),
        }
        return plan_delivery({sink: makers[kind](sink, conn) for sink, (kind, conn) in self.sinks.items()}, mode=mode)

    def config(self) -> CheckpointConfig:
        """How checkpoints are made."""
        if not self.begins:
            return CheckpointConfig(max_delivery_rows=self.max_rows, num_retained=1)
        many: dict[str, Any] = {"max_concurrent": self.concurrent_checkpoints}
        if self.unaligned or self.min_pause:
            many = {"unaligned": self.unaligned, "min_pause": timedelta(seconds=self.min_pause)}
        return CheckpointConfig(
            interval=timedelta(seconds=1),
            tolerable_failures=self.tolerable,
            max_delivery_rows=self.max_rows,
            num_retained=1,
            resume_drained=self.resumes,
            externalized_retention=self.leaves,
            **many,
        )

    @property
    def rows(self) -> Mapping[str, int]:
        """How many rows an item has in each sink: enough for two branches where there are any."""
        several = {
            "xa",
            "prepared",
            "slots",
            "disk",
            "bucket",
            "model",
            *(["mysql"] if "set aside" in self.person else []),
        }
        return {sink: 2 if kind in several else 1 for sink, (kind, _) in self.sinks.items()}


@dataclass
class Run:
    """A DAG run: tasks that wait for one another, each with its tries."""

    key: RunKey
    letter: str
    items: int
    phases: list[list[list[str]]]
    begun: bool = False
    over: bool = False
    waiting: set[int] = field(default_factory=set)  # tasks of the present phase
    tries: dict[int, int] = field(default_factory=dict)
    confirmed: bool = False
    announced: dict[str, dict[str, Any] | None] = field(default_factory=dict)  # by participant, as XCom holds it


class World:
    """One schedule's world; `play` plays it to its end, under the laws."""

    cut_back = True  # an attempt continues in its own copy of Spark's location, cut back to what was published

    def __init__(
        self,
        scenario: Scenario,
        choose: Chooser,
        running: Running,
        *,
        tracing: bool = False,
        real_store: bool = False,
    ) -> None:
        self.scenario = scenario
        self.kernel = kernel = Kernel(choose, tracing=tracing)
        running.kernel, running.names = kernel, itertools.count(1)
        running.connect, running.admin, running.folder = self._connect, self._admin, self._folder
        self._declines = running.declines = dict[int, int]()
        self._judge = running.judge
        self._store_is_ahead = 0.0  # seconds
        store: Any = (RealStore if real_store else ModelStore)(self.store_clock)
        self.log = store
        self.wal = Wal()
        self.wal.ask = lambda what, call: kernel.call(
            what, call, lambda _: OSError(5, "Input/output error"), local=True
        )
        self.files = running.files = Files(kernel, self.wal, by_operator=bool(scenario.jobs))
        self.operators = Operators(self)
        deliveries = {mode: scenario.delivery(mode) for mode in scenario.modes}
        self._deliveries = [deliveries[mode] for mode in scenario.modes]
        self.delivery = self._deliveries[-1]
        self.config = scenario.config()
        self.servers: dict[str, Server] = {}
        makers: Mapping[str, Callable[[Kernel, str], Server]] = {
            "mysql": lambda kernel, name: MySqlServer(kernel, name, is_mariadb=not name.startswith("mysql")),
            "kafka": KafkaCluster,
            "two-phase": TwoPhaseServer,
            "files": FolderServer,
            "model": ModelServer,
            "prepared": PreparedServer,
        }
        for participant in self.delivery.participants:
            self.servers[participant.name] = makers[participant.kind](kernel, participant.name)
        sinks = {participant.name: tuple(participant.sinks) for participant in self.delivery.participants}
        plans = [participant for delivery in self._deliveries for participant in delivery.participants]
        repeats = {participant.name for participant in plans if participant.promise is Promise.AT_LEAST_ONCE}
        self.laws = Laws(
            store,
            self.servers,
            self.wal,
            scenario.rows,
            sinks,
            may_halt=scenario.may_halt,
            repeats=repeats,
            modes=scenario.modes,
            process=lambda: kernel.owner.name if kernel.owner is not None else "",
        )
        self.store: Any = StoreClient(kernel, store, self.laws)
        self.spark = running.spark = Spark(self)
        self.laws.sources = self.spark.sources
        self.windows = running.windows = Windows(self)
        running.store = self.store
        self._clients = {
            name: ModelClients(server) for name, server in self.servers.items() if isinstance(server, KafkaCluster)
        }
        kernel.watch, kernel.on_event = self.laws.watch, self._event
        kernel.on_end, kernel.on_sleep, kernel.on_death = self._ended, self._slept, self._died
        self.runs: list[Run] = []
        self._backup: Any = None
        self.tasks: dict[str, tuple[Run, int, int]] = {}
        self.held = 0  # items in the source of a stream
        self.streams = Streams(self) if scenario.begins else None
        has_savepoints = "savepoint" in scenario.person or "beginning" in scenario.person
        self.savepoints = Savepoints(self) if has_savepoints else None

    # --- Airflow --------------------------------------------------------------------------------------------------

    def play(self) -> None:
        """All runs, then a run without any fault, which must bring everything to its end (I7)."""
        kernel = self.kernel
        try:
            for index, items in enumerate(self.scenario.runs):
                self._add_run(chr(ord("A") + index), items)
            self._start_runs()
            for number, action in enumerate(filter(None, self.scenario.person.split(", ")), 1):
                if action == "set aside":
                    self.laws.may_set_aside.add(f"P{number}")
                kernel.start(f"P{number}", partial(self._person, action), asleep=not action.startswith(VERBS))
            kernel.run()
            kernel.choose = lambda *_: None
            self.spark.failures = 0
            self._declines.clear()
            for server in self.servers.values():
                if isinstance(server, Branched | ModelServer):
                    server.refuses.clear()  # what is decided and refused waits for a target that somebody mends
                    server.forbids.clear()
            if kernel.tracing:
                kernel.say(Process("-"), "everything can be reached and takes every row; one more run, without faults")
            if not self.laws.halted:
                kernel.start("P", self._release)
                kernel.run()
                healing = self._add_run("Z", self.scenario.items)
                self._begin(healing)
                kernel.run()
                self.laws.at_the_end(self.held if self.streams else self.scenario.items, healing.confirmed)
        finally:
            kernel.end()
            self.log.close()

    def _add_run(self, letter: str, items: int) -> Run:
        names = self.delivery.names
        if self.scenario.parallel and letter != "Z":
            shared = [name for name in names if self.scenario.mapped and name in self._shared]
            phases = [
                [["recover", "stage"]],
                *([[[f"announce {name}"] for name in shared]] if shared else []),
                *([[[f"load {name} {branch}"] for name in shared for branch in (1, 2)]] if shared else []),
                [[f"prepare {name}"] for name in names],
                [[f"commit {name}"] for name in names],
                [["confirm"]],
            ]
        elif self.streams is not None:
            phases = [[["recover", "stream"]]]
        else:
            prepares, commits = [f"prepare {name}" for name in names], [f"commit {name}" for name in names]
            phases = [[["recover", "stage", *prepares, *commits, "confirm"]]]
        run = Run(RunKey("dag", f"run-{letter}"), letter, items, phases)
        self.runs.append(run)
        return run

    def delivery_of(self, run: RunKey) -> Delivery:
        """What the DAG declares in that run."""
        return self._deliveries[self._turn(run)]

    def config_of(self, run: RunKey) -> CheckpointConfig:
        """How its checkpoints are made."""
        return replace(self.config, mode=self.scenario.modes[self._turn(run)])

    def _turn(self, run: RunKey) -> int:
        letter = run.run_id[-1]
        return -1 if letter == "Z" else (ord(letter) - ord("A")) % len(self._deliveries)

    def _start_runs(self) -> None:
        for run in self.runs if self.scenario.concurrent else self.runs[:1]:
            self._begin(run)

    def _begin(self, run: Run) -> None:
        if not run.phases:
            run.over = True
            following = [other for other in self.runs if other.key > run.key and not other.over]
            if not self.scenario.concurrent and following and run.letter != "Z":
                self._begin(following[0])
            return
        run.begun = True
        if self.streams is not None:
            self.streams.unpause()
        run.waiting = set(range(len(run.phases[0])))
        run.tries = {}
        for task in sorted(run.waiting):
            self._start_task(run, task)

    def _start_task(self, run: Run, task: int) -> None:
        number = run.tries[task] = run.tries.get(task, 0) + 1
        phase = len(run.phases)
        steps = run.phases[0][task]
        name = f"{run.letter}{number}" if len(run.phases[0]) == 1 else f"{run.letter}{number}{'abcd'[task]}"
        if self.scenario.parallel:
            name += {"announce": "n", "load": "l", "prepare": "p", "commit": "c", "confirm": "f"}.get(
                steps[0].partition(" ")[0], ""
            )
        self.tasks[name] = (run, phase, task)
        self.kernel.start(name, lambda: self._task(run, number, steps))

    @property
    def _shared(self) -> set[str]:
        """Participants whose branches several processes may load."""
        several = {conn for kind, conn in self.scenario.sinks.values() if kind in ("xa", "prepared", "slots")}
        return {p.name for p in self.delivery.participants if p.name in several}

    def _task(self, run: Run, number: int, steps: list[str]) -> None:
        announced = dict(run.announced)  # XComs are read when a task begins
        worker = Worker(f"{run.key}/{'+'.join(steps[:2])}", number)
        context = Context(
            store=self.store,
            pipeline=PIPELINE,
            run=run.key,
            participants=self.open,
            worker=worker,
            lease_seconds=self.scenario.lease,
            run_is_over=lambda other: other != run.key and next(r.over for r in self.runs if r.key == other),
        )
        for step in steps:
            verb, _, name = step.partition(" ")
            match verb:
                case "recover":
                    recover_step(context, again=self.streams is not None)
                case "stream" if self.streams is not None:
                    last_try = number == self._most_tries(run)
                    self.streams.step(context, last_try=last_try, gate=partial(self._gate, run))
                case "stage":
                    self._stage(context, run.items)
                case "announce":
                    found = announce_step(context, self.delivery_of(run.key), self.config, name)
                    # As Airflow keeps it. A zombie's may come late: nothing may depend on that.
                    run.announced[name] = None if found is None else found.to_json()
                case "load":
                    name, _, branch = name.partition(" ")
                    if (data := announced.get(name)) is not None:
                        load_step(context, Announcement.from_json(data), data["branches"][int(branch) - 1])
                case "prepare":
                    data = announced.get(name)
                    continued = None if data is None else Announcement.from_json(data)
                    prepare_step(context, self.delivery_of(run.key), self.config, name, continued)
                case "commit":
                    commit_step(context, name)
                case "confirm":
                    self._gate(run, confirm_step(context, self.config, self.wal))
                case _:
                    raise ValueError(step)

    def _gate(self, run: Run, confirmation: Confirmation) -> None:
        process = self.kernel.owner
        assert process is not None
        _, phase, task = self.tasks[process.name]
        if phase != len(run.phases) or not process.name.startswith(f"{run.letter}{run.tries[task]}"):
            return  # a zombie: Airflow does not listen to it any more
        run.confirmed = True
        self.laws.gate_opened(run.key, 0 if self.streams is not None else run.items, confirmation)

    def _ended(self, process: Process) -> None:
        if process.leader is process:
            self._died(process)  # its connections are closed
        self.laws.check_error(process.name, process.error)
        if self.laws.states is not None and process.name in self.tasks:
            run, _, task = self.tasks[process.name]
            last_try = run.tries[task] == self._most_tries(run)
            self.laws.states.ended_with(process.name, process.error, last_try=last_try)
        if process.name not in self.tasks:  # a person, or a late request
            if self.streams is not None and process.error is not None:
                self.streams.retry(process.name)
            return
        run, phase, task = self.tasks[process.name]
        error = process.error
        if phase != len(run.phases) or task not in run.waiting:
            return  # a zombie: Airflow has gone on
        if self.streams is not None and process.name != f"{run.letter}{run.tries[task]}":
            return  # a zombie: another try is at work
        if error is not None and run.tries[task] < self._most_tries(run):
            if run.letter == "Z":
                self.kernel.start(f"P{run.tries[task]}", self._release)  # who was refused does what he is told
            self._start_task(run, task)
            return
        self._task_over(run, task)

    def _most_tries(self, run: Run) -> int:
        return HEALING_TRIES if run.letter == "Z" else self.scenario.tries

    def _task_over(self, run: Run, task: int) -> None:
        run.waiting.discard(task)
        if not run.waiting:  # all_done: what follows runs, also beside a failed sibling
            run.phases.pop(0)
            self._begin(run)

    def _slept(self, process: Process) -> None:
        """Airflow takes it for dead: another try is started, or the task has failed."""
        if process.leader.name not in self.tasks:
            if self.streams is not None:
                self.streams.retry(process.leader.name)
            return
        run, phase, task = self.tasks[process.leader.name]
        if phase == len(run.phases) and task in run.waiting:
            if run.tries[task] < self.scenario.tries:
                self._start_task(run, task)
            else:
                self._task_over(run, task)

    def _person(self, action: str) -> None:
        """`airflow ft in-doubt` on what is quarantined or in doubt; or `airflow ft recover`, which is also periodic."""
        verb, _, after = action.partition(" ")
        if verb in VERBS and self.savepoints is not None:
            for each in action.split(" then "):
                self.savepoints.person(*each.partition(" ")[::2])
            return
        if verb in ("stop", "drain", "task", "reset", "gate") and self.streams is not None:
            return self.streams.person(verb, after)
        try:
            if verb == "recover":
                recover(self.store, PIPELINE, self.open, Worker("a sweep"), min_age=ORPHAN_AGE, lease_seconds=0.0)
                return
            kept = [c for c in self.store.open_checkpoints(PIPELINE) if c.state is CheckpointState.QUARANTINED]
            doubtful = kept or in_doubt(self.store, PIPELINE)
        except UnknownPipelineError:
            return
        if not doubtful:
            return
        resolver = self._resolver()
        if verb == "quarantine":
            resolver.quarantine(doubtful[0].number)
        elif verb == "abort":
            resolver.abort(doubtful[-1].number, AfterAbort(after))
        elif verb == "set":
            self._set_aside(resolver, doubtful[0])
        else:
            resolver.commit(doubtful[-1].number)

    def _set_aside(self, resolver: Resolver, found: Checkpoint) -> None:
        """`airflow ft in-doubt --dead-letter`."""
        epoch = self.log.pipeline(PIPELINE).epoch
        try:
            resolver.dead_letter(found.number)
        except OSError:  # the disk that takes the dead letters: whoever has asked is told
            now = self.log.checkpoint(PIPELINE, found.number).state
            unchanged = self.log.pipeline(PIPELINE).epoch == epoch + 1
            if found.state is CheckpointState.QUARANTINED is not now and unchanged:
                what = f"{found.number} was QUARANTINED, and is {now} since an act failed"
                self.kernel.violate("I9", what)

    def _release(self) -> None:
        """In the end a person takes back what is QUARANTINED, and goes on after a drain."""
        try:
            opened = self.store.open_checkpoints(PIPELINE)
        except UnknownPipelineError:
            return
        if self.laws.halted_by_hand:
            self._settle_by_hand(opened)
        for checkpoint in opened:
            if checkpoint.state is CheckpointState.QUARANTINED:
                self._resolver().commit(checkpoint.number)
        if self.streams is not None:
            self.streams.reset_state()

    def _settle_by_hand(self, opened: Sequence[Checkpoint]) -> None:
        """Branches were committed by hand: the rest is delivered; or they are deleted, where that was aborted."""
        for checkpoint in opened:
            servers = [server for server in self.servers.values() if isinstance(server, Branched)]
            found = [s for s in servers if any(number == checkpoint.number for number, _ in s.branches.by_hand)]
            plan = checkpoint.plan
            if plan is None:
                continue
            if checkpoint.state is CheckpointState.ABORTED and found:
                self._take_out(checkpoint.number)
            elif checkpoint.state in MAY_BE_VISIBLE or (checkpoint.state is CheckpointState.STAGED and found):
                try:
                    self._resolver().commit(checkpoint.number)
                except AbortedHeuristicCommitError as error:
                    self._take_out(error.checkpoint)
        self.store.resume(PIPELINE, "a person")  # who was late may have halted it once more

    def _take_out(self, number: int) -> None:
        """Delete what was committed by hand of a number that cannot be delivered."""
        plan = self.store.checkpoint(PIPELINE, number).plan
        assert plan is not None
        for server in self.servers.values():
            if isinstance(server, Branched) and any(found == number for found, _ in server.branches.by_hand):
                server.branches.take_out(number)
                self.laws.taken_out(server.name, plan)
        self.store.resume(PIPELINE, "a person")

    def _resolver(self) -> Resolver:
        return Resolver(self.store, PIPELINE, self.open, "a person", Worker("a person"), self.scenario.lease)

    def store_clock(self) -> int:
        return int((self.kernel.clock + self._store_is_ahead) * 1e6) + self.kernel.steps

    # --- servers --------------------------------------------------------------------------------------------------

    def open(self, plan: ParticipantPlan) -> Any:
        server = self.servers[plan.name]
        if isinstance(server, MySqlServer):
            sinks = {name: MySqlSink.from_settings(plan.name, plan.strategy, s) for name, s in plan.sinks.items()}
            info = ConnectionInfo(plan.name, "mysql", schema="shop")
            return STRATEGIES[plan.strategy](plan, sinks, info, self.wal, LIMITS)
        if isinstance(server, KafkaCluster):
            kind: type[KafkaParticipant] = SharedHeldParticipant if plan.strategy == "held" else KafkaParticipant
            if not plan.keeps_markers:
                kind = PlainParticipant
            return kind(plan, self._clients[plan.name], self.wal)
        if isinstance(server, FolderServer):
            return open_folder(plan, ConnectionInfo(plan.name, ""), self.wal)
        if isinstance(server, ModelServer):
            return Participant(plan, server, self.wal)
        if isinstance(server, PreparedServer):
            return PreparedSink(plan, server, self.wal, self._judge)
        return TwoPhaseParticipant(plan, server, self.wal)

    def _connect(self, conn_id: str) -> ModelSession:
        server = self.servers[conn_id]
        assert isinstance(server, MySqlServer)
        return ModelSession(server, LIMITS)

    def _folder(self, name: str) -> FolderServer:
        server = self.servers[name]
        assert isinstance(server, FolderServer)
        return server

    def _admin(self, conn_id: str) -> ModelAdmin:
        server = self.servers[conn_id]
        assert isinstance(server, KafkaCluster)
        return ModelAdmin(server)

    def _died(self, process: Process) -> None:
        if process.leader is not process:
            return
        for server in self.servers.values():
            if isinstance(server, Branched):
                server.process_died(process)

    def _event(self, name: str) -> None:
        """`<server> <what happens>`."""
        subject, _, what = name.partition(" ")
        server = self.servers.get(subject)
        match what:
            case "restarts" if isinstance(server, Branched):
                server.restart()
            case "times out" if isinstance(server, KafkaCluster):
                server.time_out()
            case "forgets its tokens" if isinstance(server, KafkaCluster):
                server.forget_offsets()
            case "loses its branches" if isinstance(server, TwoPhaseServer):
                server.lose_branches()
            case "commits a branch by hand" | "rolls a branch back by hand" if isinstance(server, Branched):
                server.branches.end_by_hand(commit=what.startswith("commits"))
            case "loses its branches" if isinstance(server, Branched):
                server.branches.lose()
            case "forgets its last XA COMMITs" if isinstance(server, MySqlServer):
                server.branches.forget_commits()
            case "refuses item 1" | "refuses item 2" if isinstance(server, Branched | ModelServer):
                server.refuses[int(what[-1])] = 1
            case "forbids item 1" | "forbids item 2" if isinstance(server, Branched | ModelServer):
                server.forbids.add(int(what[-1]))
                server.forbade.add(int(what[-1]))
            case "declines item 1" | "declines item 2" | "declines item 3":
                self._declines[int(what[-1])] = 1
            case "jumps ahead" | "jumps back" if subject == "clock":
                process = self.kernel.owner
                assert process is not None
                process.wall += JUMP if what == "jumps ahead" else -JUMP
                process.ahead += JUMP if what == "jumps ahead" else 0.0
            case "jumps ahead" | "jumps back" if subject == "store-clock":
                self._store_is_ahead += JUMP if what == "jumps ahead" else -JUMP
                if self.streams is not None and what == "jumps back":
                    self.streams.laws.clock_went_back = True
            case "passes the time-out" if subject == "store-clock":
                self._store_is_ahead += LATE
            case "is damaged" if self.savepoints is not None:
                self.savepoints.damage()
            case "fails" if subject == "job":
                self.spark.failures += 1
            case "is recreated" if self.spark.sources is not None:
                self.spark.sources.recreate(subject)
            case "grows" if subject == "source" and self.streams is not None:
                self.streams.grow()
            case "is backed up":
                self._backup = self.log.snapshot()
            case "is restored":
                if self._backup is not None:
                    self.log.put_back(self._backup)
                    self.laws.store_restored()
                    # Whoever restores it stops all tasks before: see docs/simulation.md for what happens otherwise.
                    for process in self.kernel.processes:
                        process.dead = True
                        self._died(process)
            case _:
                raise Violation("-", f"no such event: {name}")

    # --- Spark ----------------------------------------------------------------------------------------------------

    def _stage(self, context: Context, items: int) -> None:
        """What `spark.stage`, the driver and its publisher do, without Spark: each batch is one item."""
        store, run = self.store, context.run
        store.register(PIPELINE)
        require_active(store, PIPELINE)
        row = store.run(PIPELINE, run)
        if (row is not None and row.staged) or not take_turn(context):
            return
        with new_epoch(store, PIPELINE, context.worker, f"stage of {run}", context.lease_seconds) as (epoch, keeper):
            before = store.pipeline(PIPELINE)
            attempt = store.begin_stage(PIPELINE, epoch, run)
            if self.spark.sources is not None:
                self.held = items
                result = self.spark.stage(self.spark.make_request(run)(before, epoch, attempt))
                keeper.check()
                store.end_stage(PIPELINE, epoch, run, result.position, complete=result.complete)
                return
            variant, location = f"v{epoch}.{attempt}", f"file:///wal/{PIPELINE}/spark/{epoch}-{attempt}"
            state: dict[int, str] = {}
            base = self.spark.beginnings.base(before.base)
            if base is not None:
                found = self.wal.states.get(base.location)
                if (found is None or base.batch not in found) and self.laws.restored:
                    raise StageError("the state of the base is gone: the decision log is older than the files.")
                if found is None or base.batch not in found:
                    raise Violation("I10", f"the state at {base} is needed and gone")
                state = {batch: kept for batch, kept in found.items() if batch <= base.batch or not self.cut_back}
            if self.savepoints is not None and is_planned(base):
                try:
                    copied = open_location("file:///wal", PIPELINE, epoch, attempt, base, False)
                    catch_up(copied, self.spark.compute_planned)
                    state = self.wal.states[location]
                except (OSError, KeyError) as error:  # as the driver tells it; a newer owner has swept it
                    raise StageError("the state was not brought to where the pipeline stands.") from error
            self.wal.states[location] = state
            self.spark.continues(base, location)
            if base is None:
                self.spark.beginnings.begin(location, before.base)
            predecessor = before.last_published
            while (batch := max(state, default=0) + 1) - empties(state.get(batch - 1, "")) <= items:
                number = store.trigger(PIPELINE, epoch, run)
                state[batch] = variant + EMPTY * empties(state.get(batch - 1, ""))
                segment = self.wal.write(epoch, attempt, number, opened(state, batch), self.scenario.rows)
                self.spark.begins(location, batch)
                position = SparkPosition(location, batch)
                store.publish(PIPELINE, epoch, number, predecessor, segment, position, {})
                predecessor = number
            keeper.check()
            last = max(state, default=0)
            store.end_stage(PIPELINE, epoch, run, SparkPosition(location, last) if last else None)
