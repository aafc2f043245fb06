"""Streams in the simulator's world: a source that grows, runs that go on until they are to stop, and who waits."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

from airflow_ft.pipeline.checkpoints import Gate
from airflow_ft.protocol.errors import (
    ConfigurationError,
    StateConflictError,
    StoreUnavailableError,
    TerminalError,
)
from airflow_ft.protocol.lease import Worker, new_epoch
from airflow_ft.protocol.model import CheckpointingMode, ExternalizedRetention, RunKey
from airflow_ft.protocol.pipelines import RequestKind
from airflow_ft.protocol.steps import Confirmation, Context
from airflow_ft.spark.savepoints.stopping import AT_ONCE, DRAIN, SAVEPOINT, stop
from airflow_ft.spark.state.reset import reset_state
from airflow_ft.spark.task.answers import answer_stops, stops
from airflow_ft.spark.task.stage import Staging
from airflow_ft.spark.task.stream import finish_step, stream_step
from airflow_ft.store.errors import UnknownPipelineError
from tests.simulation.kernel import DeviationKind
from tests.simulation.laws import PIPELINE
from tests.simulation.request_laws import RequestLaws
from tests.simulation.savepoints import FOLDER
from tests.simulation.spark import RESTART, Driver
from tests.simulation.state_laws import StateLaws
from tests.simulation.stream_laws import StreamLaws

if TYPE_CHECKING:
    from tests.simulation.world import World

MOST_STEPS = 20_000
_LOOK_SECONDS = 5.0
_STOP_SECONDS = 60.0
_STOP_TRIES = 3


class Halting:
    """The decision log as somebody reads it who lets others go on between any two calls."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._world.store, name)

        def call(*args: Any, **named: Any) -> Any:
            self._world.kernel.wait(0.1)
            return method(*args, **named)

        return call


class Streams:
    """The part of a world that plays streams."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.paused = False  # the DAG: then streams stop
        kernel = world.kernel
        kernel.most_steps, kernel.on_quiet = MOST_STEPS, self._quiet
        self.laws = world.laws.streams = StreamLaws(
            world.laws,
            world.log,
            at_work=self._at_work,
            streaming=self._streaming,
            run=self._run,
            stood_still=lambda: any(
                each.kind in (DeviationKind.SLEEP, DeviationKind.STALL) or "clock" in each.to for each in kernel.done
            ),
            requests=RequestLaws(
                world.laws,
                world.log,
                has_state=world.windows.has_state,
                is_faultless=lambda: not kernel.done and not self.laws.somebody_is_in_a_hurry,
            ),
            windows=world.scenario.windows,
            min_pause=timedelta(seconds=world.scenario.min_pause),
        )
        self._stopping: dict[str, tuple[str, int]] = {}  # tasks that stop it, by process: how, and which try it is
        self._began: dict[str, datetime] = {}  # processes, by the decision log's clock
        if world.scenario.windows or world.scenario.leaves is not ExternalizedRetention.RETAIN_ON_CANCELLATION:
            world.laws.states = StateLaws(
                world.laws,
                world.log,
                world.wal,
                world.scenario,
                is_asked=self._is_asked,
                run=lambda: self._run_of(self._sender()),
                process=self._sender,
                since=self._since,
            )
        self._grow(world.scenario.begins)

    def step(self, context: Context, *, last_try: bool, gate: Callable[[Confirmation], None]) -> None:
        """As `StreamingPipelineOperator` runs it; `gate` starts what stands behind it."""
        world = self._world
        self._began[self._process()] = world.log.now()
        config = world.config_of(context.run)
        overlap = (world.delivery_of(context.run), world.config, lambda _: None, world.wal)
        end = stream_step(
            context,
            Staging(
                make_request=world.spark.make_request(context.run),
                on_line=lambda _: None,
                resume_drained=config.resume_drained or config.mode is CheckpointingMode.AT_MOST_ONCE,
            ),
            overlap,
            strategy=RESTART,
            why_stop=lambda: "the DAG is paused" if self.paused else "",
            last_try=last_try,
        )
        confirmation, outcome = finish_step(context, overlap, end)
        gate(confirmation)
        answer_stops(context, outcome)

    # --- the source -----------------------------------------------------------------------------------------------

    def grow(self) -> None:
        """One item more, if there is one."""
        if self._world.held < self._world.scenario.items:
            self._grow(self._world.held + 1)

    def _grow(self, items: int) -> None:
        self._world.held = items
        self._world.kernel.steps += 1  # no two times are the same
        self.laws.source_holds(items)
        self._world.kernel.steps += 1

    def _quiet(self, all_awake: bool) -> bool:
        """All that are awake wait in vain: the source grows; when nobody sleeps any more either, the DAG is paused."""
        world = self._world
        target = max((run.items for run in world.runs if run.begun), default=0)
        if not all_awake:
            if world.held < target:
                self.grow()
                return True
        elif not self.paused:
            self.laws.quiet()
            self.paused = True
            self.laws.last_asked = world.log.now()
            return True
        return False

    def unpause(self) -> None:
        """So that a run can begin; until now streams were to stop."""
        if self.paused:
            self.paused = False
            self.laws.last_asked = self._world.log.now()

    # --- people ---------------------------------------------------------------------------------------------------

    def person(self, verb: str, after: str) -> None:
        """What somebody does: stop, drain, drop the state that was drained, wait at a gate."""
        match verb:
            case "stop" | "drain":
                saved = FOLDER if after == "with a savepoint" else ""
                self.ask(at_once=after == "at once", drain=verb == "drain", savepoint=saved)
            case "task":
                self._stop_by_task(after, 1)
            case "reset":
                self.reset_state()
            case _:
                self.wait_for(after)

    def reset_state(self) -> None:
        """`airflow ft reset-state`, by somebody who was told that the pipeline is drained."""
        store, windows, scenario = self._world.store, self._world.windows, self._world.scenario
        try:
            if scenario.resumes or windows.drain_of(store, PIPELINE) is None:
                return
            with new_epoch(store, PIPELINE, Worker("a person"), "reset-state", scenario.lease) as (epoch, _):
                if windows.drain_of(store, PIPELINE) is not None:
                    reset_state(store, PIPELINE, epoch, "a person")
        except UnknownPipelineError:
            return

    def ask(self, *, at_once: bool = False, drain: bool = False, savepoint: str = "") -> None:
        """`airflow ft stop`, again until it is known to have been heard."""
        store = self._world.store
        self.laws.somebody_is_in_a_hurry |= at_once
        for _ in range(3):
            try:
                asked = {AT_ONCE: at_once, DRAIN: drain, SAVEPOINT: savepoint}
                store.ask(PIPELINE, RequestKind.STOP, asked, "a person")
                return
            except StoreUnavailableError:
                continue
            except UnknownPipelineError:
                return

    def _stop_by_task(self, how: str, number: int) -> None:
        """One try of a task that stops or drains a stream (also "with a savepoint"), and waits for the answer."""
        world, owner = self._world, self._process()
        self._stopping[owner] = (how, number)
        folder = FOLDER if "with a savepoint" in how else ""
        drain, asked_at = "drain" in how, world.log.now()
        over = {run.key for run in world.runs if run.over}
        try:
            said = stop(
                *(world.store, PIPELINE, f"a task: {how}"),
                drain=drain,
                savepoint_dir=folder,
                wait=_STOP_SECONDS,
                first_try=1,
                is_retry=number > 1,
                is_over=over.__contains__,
            )
        except (UnknownPipelineError, TerminalError, ConfigurationError):
            return  # it has failed for good
        except StateConflictError as error:
            if error.code == "stop_timeout":
                self.retry(owner)
            return
        if number == 1:  # else it was asked before
            self.laws.requests.told({DRAIN: drain, SAVEPOINT: folder}, said, asked_at, owner)

    def retry(self, process: str) -> None:
        """Start the next try of a task that stops the stream, after it has failed or is taken for dead."""
        how, number = self._stopping.pop(process, ("", 0))
        if 0 < number < _STOP_TRIES:
            name = f"{process.partition('t')[0]}t{number + 1}"
            self._world.kernel.start(name, lambda: self._stop_by_task(how, number + 1))

    def wait_for(self, what: str) -> None:
        """A sensor: as of now, or for what is published by now."""
        world, store = self._world, Halting(self._world)
        held, gate = (world.held, Gate(as_of=world.store.now())) if what == "as of now" else (0, self._published())
        while any(run.begun and not run.over for run in world.runs):
            try:
                if gate.is_open(cast(Any, store), PIPELINE):
                    if gate.number is None:
                        self.laws.opened_as_of(held)
                    else:
                        self.laws.opened_through(gate.number)
                    return
            except StoreUnavailableError:
                pass
            world.kernel.wait(_LOOK_SECONDS)

    def _published(self) -> Gate:
        while True:
            try:
                return Gate.published(self._world.store, PIPELINE)
            except StoreUnavailableError:
                continue

    # --- for the laws ---------------------------------------------------------------------------------------------

    def _process(self) -> str:
        process = self._world.kernel.owner
        return process.name if process is not None else ""

    def _since(self) -> datetime | None:
        """When the current process began to stage for the last time."""
        mine = self._sender()
        drivers = [driver for driver in self._world.spark.drivers if driver.process.name.startswith(f"{mine}d")]
        return max((driver.began for driver in drivers), default=self._began.get(mine))

    def _is_asked(self) -> bool:
        """Whether the current process may have heard that streams are to stop: also a sleeper, of what is over."""
        began, asked = self._began.get(self._sender()), self.laws.last_asked
        seen_requests = began is not None and asked is not None and asked >= began
        return self.paused or seen_requests or bool(stops(self._world.log, PIPELINE))

    def _sender(self) -> str:
        """The process that has sent what happens now, which may have been under way for long."""
        return self._process().partition("~")[0]

    def _run(self) -> RunKey | None:
        return self._run_of(self._process())

    def _run_of(self, process: str) -> RunKey | None:
        task = self._world.tasks.get(process)
        return task[0].key if task is not None else None

    def _at_work(self) -> list[str]:
        mine = self._world.kernel.owner
        return [driver.process.name for driver in self._alive() if driver.process.parent is mine]

    def _streaming(self, at: datetime, run: RunKey | None) -> list[str]:
        epoch = self._world.log.pipeline(PIPELINE).epoch
        found = [d for d in self._alive() if d.request.epoch == epoch and d.began <= at]
        return [driver.process.name for driver in found if run in (None, driver.request.run)]

    def _alive(self) -> list[Driver]:
        drivers = self._world.spark.drivers
        return [driver for driver in drivers if not driver.process.dead and not driver.process.ended]
