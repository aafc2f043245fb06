"""One process at a time: real synchronous code in greenlets, and every call to a server a place to interfere.

A process runs on until a `Deviation` says otherwise, so a schedule is nothing but the list of its deviations: it is
short, it can be replayed, and it stays meaningful when some of them are taken away (see `shrinking`).

A process may have threads, and children that die with it (`Kernel.start`). Those that wait for something take turns;
when all of them do, and nothing has changed for some turns, the world may go on (`on_quiet`), or a sleeper wakes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NoReturn, TypeVar

from greenlet import getcurrent, greenlet  # type: ignore[import-untyped]

T = TypeVar("T")
MOST_STEPS = 4000
QUIET_TURNS = 3
MOST_IDLE_TURNS = 20_000  # of waits with nothing in between that could end them


class Death(BaseException):
    """The process was killed: nothing that it still tries reaches anybody."""


class Violation(AssertionError):
    """A law does not hold; `law` names it (I1 to I10)."""

    def __init__(self, law: str, what: str) -> None:
        self.law = law
        super().__init__(f"{law}: {what}")


class Blocked(Exception):
    """A call that has to wait for what `holder` holds; `in_vain` is what it gets after so many `seconds`."""

    def __init__(self, holder: Process | None, in_vain: Exception, seconds: float = 0.0) -> None:
        self.holder = holder
        self.in_vain = in_vain
        self.seconds = seconds
        super().__init__()


class DeviationKind(StrEnum):
    """What can happen at a call."""

    DIE_BEFORE = "is killed before this call"
    DIE_AFTER = "is killed when this call has taken effect"
    LOSE_REQUEST = "gets no answer: the request was lost"
    LOSE_REPLY = "gets no answer: the reply was lost"
    DELAY = "gets no answer: the request is still under way"
    SLEEP = "stands still before this call, until all others have ended"
    STALL = "stands still before this call, and with it this thread alone"
    YIELD = "is overtaken before this call"
    EVENT = "before this call"


FAULTS = (
    DeviationKind.DIE_BEFORE,
    DeviationKind.DIE_AFTER,
    DeviationKind.LOSE_REQUEST,
    DeviationKind.LOSE_REPLY,
    DeviationKind.DELAY,
)


@dataclass(frozen=True, slots=True, order=True)
class Deviation:
    """At the `call`-th call (from 1) of `process`; `to` names who overtakes it (YIELD), or what happens (EVENT)."""

    process: str
    call: int
    kind: DeviationKind
    to: str = ""

    def __str__(self) -> str:
        return f"{self.process}:{self.call}:{self.kind.name}{':' + self.to if self.to else ''}"

    @classmethod
    def parse(cls, text: str) -> Deviation:
        """The inverse of `str`."""
        process, call, kind, *to = text.split(":", 3)
        return cls(process, int(call), DeviationKind[kind], to[0] if to else "")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a story."""

    process: str
    call: int
    what: str
    answer: object = ""


class Process:
    """A process of the operating system, one of its threads, or a request that is still under way.

    All threads of a process have its first one as `leader`; a process that dies with another has that as `parent`.
    """

    __slots__ = (
        *("ahead", "asleep", "calls", "dead", "ended", "error", "greenlet", "leader", "name", "parent", "seen"),
        *("turns", "waiting", "wall"),
    )

    def __init__(self, name: str, leader: Process | None = None, parent: Process | None = None) -> None:
        self.name = name
        self.leader = leader or self
        self.parent = parent
        self.waiting = False  # for something that others do
        self.turns = self.seen = 0  # so many waits since it has seen so many changes
        self.calls = 0
        self.ahead = 0.0  # seconds by which its monotonic clock has jumped: never back
        self.wall = 0.0  # and that on the wall
        self.asleep = False  # until nobody else can go on
        self.dead = False
        self.ended = False
        self.error: BaseException | None = None
        self.greenlet: Any = None

    def __repr__(self) -> str:
        return self.name


Chooser = Callable[["Kernel", Process, bool], "tuple[DeviationKind, str] | None"]


class Kernel:
    """Runs processes, one at a time, and asks `choose` at each call whether something else happens.

    `watch` is called after every call that may have changed something; `on_end` and `on_sleep` tell the world (which
    may start a successor), `on_death` lets servers notice a closed connection, `on_event` performs an EVENT. `on_quiet`
    is asked when all that are awake wait in vain, once before a sleeper is woken and once when there is none (True):
    whether something happens now.
    """

    def __init__(self, choose: Chooser, *, tracing: bool = False) -> None:
        self.choose = choose
        self.tracing = tracing
        self.story: list[Line] = []
        self.processes: list[Process] = []
        self.names: Counter[tuple[str, str]] = Counter()  # given to threads and children of processes
        self.clock = 1_000_000.0
        self.steps = 0
        self.current: Process | None = None
        self.done: list[Deviation] = []  # those that took place
        self.watch: Callable[[], None] = lambda: None
        self.on_end: Callable[[Process], None] = lambda _: None
        self.on_sleep: Callable[[Process], None] = lambda _: None
        self.on_death: Callable[[Process], None] = lambda _: None
        self.on_event: Callable[[str], None] = lambda _: None
        self.on_quiet: Callable[[bool], bool] = lambda _: False
        self.changes = 0
        self.most_steps = MOST_STEPS
        self.violation: Violation | None = None  # what product code may have taken for an error of its own
        self._idle = 0
        self._next: Process | None = None
        self._hub = getcurrent()

    # --- processes ------------------------------------------------------------------------------------------------

    def start(
        self,
        name: str,
        body: Callable[[], object],
        *,
        asleep: bool = False,
        thread_of: Process | None = None,
        child_of: Process | None = None,
    ) -> Process:
        """A process that runs `body` when its turn comes; a thread of a process, or one that dies with its parent."""
        process = Process(name, thread_of and thread_of.leader, child_of and child_of.leader)
        process.asleep = asleep

        def main() -> None:
            try:
                if process.dead:
                    raise Death
                body()
            except (Death, Exception) as error:
                process.error = error
            process.ended = True

        process.greenlet = greenlet(main, self._hub)
        self.processes.append(process)
        return process

    def run(self) -> None:
        """Until every process has ended; raises a Violation of whoever meets it."""
        while (process := self._choose_next()) is not None:
            self.current = process
            process.waiting = False
            process.greenlet.switch()
            self.current = None
            if self.violation is not None:
                raise self.violation
            if process.ended:
                self.processes.remove(process)
                if isinstance(process.error, Violation):
                    raise process.error
                self.changes += 1
                if process.leader is process:
                    self.kill(process)
                self.on_end(process)

    def kill(self, leader: Process) -> None:
        """All threads of a process that dies, or has ended, and all processes that die with it."""
        for process in self.processes:
            if not process.dead and _dies_with(process, leader):
                process.dead, process.asleep = True, False
                self.on_death(process)

    def violate(self, law: str, what: str) -> NoReturn:
        """A law is broken, and product code that takes it for an error of its own must not hide it."""
        self.violation = self.violation or Violation(law, what)
        raise self.violation

    def end(self) -> None:
        """Unwinds what still stands in a call, so that nothing of an abandoned schedule goes on."""
        for process in self.processes:
            process.dead = True
            self.current = process
            if process.greenlet:  # begun and not ended
                process.greenlet.throw(Death)
        self.processes.clear()

    def _choose_next(self) -> Process | None:
        wanted, self._next = self._next, None
        if wanted is not None and not wanted.ended:
            self._wake(wanted)
            return wanted
        while True:
            awake = [process for process in self.processes if not process.asleep]
            if awake and not all(self._is_idle(process) for process in awake):
                return awake[0]
            if awake and self.on_quiet(False):
                self.changes += 1
                continue
            if len(awake) < len(self.processes):
                sleeper = next(process for process in self.processes if process.asleep)
                self._wake(sleeper)
                self.changes += 1
                return sleeper
            if not awake:
                return None
            if self.on_quiet(True):
                self.changes += 1
                continue
            self._idle += 1
            if self._idle > MOST_IDLE_TURNS:
                raise Violation("I7", f"{', '.join(process.name for process in awake)} wait for ever")
            return awake[0]

    def _is_idle(self, process: Process) -> bool:
        waits = process.waiting and not process.dead
        return waits and process.seen == self.changes and process.turns >= QUIET_TURNS

    def _wake(self, process: Process) -> None:
        for other in self.processes:
            if other.leader is process.leader:
                other.asleep = False

    def _give_way(self, to: Process | None) -> None:
        """The baton goes to `to`, or to whoever is next."""
        process = self.current
        assert process is not None
        self._next = to
        if to is None:  # behind all others
            self.processes.remove(process)
            self.processes.append(process)
        self._hub.switch()

    @property
    def owner(self) -> Process | None:
        """The current process, whichever of its threads is at work."""
        return self.current.leader if self.current is not None else None

    def others(self) -> list[Process]:
        """Who could go on in place of the current process."""
        return [process for process in self.processes if process is not self.current]

    def sleep(self, seconds: float) -> None:
        """Time passes: whoever is awake goes on meanwhile."""
        process = self.current
        if process is None or process.dead:
            return
        self.clock += seconds
        if any(not other.asleep for other in self.others()):
            self._give_way(None)
            if process.dead:
                raise Death

    def wait(self, seconds: float, *, ends: bool = False) -> None:
        """Some time passes in which this thread waits for something that others do; or, if it `ends`, for the time."""
        process = self.current
        if process is None:
            return
        if process.dead:
            raise Death
        self.clock += seconds
        process.waiting = True
        process.turns = 0 if ends else process.turns + 1 if process.seen == self.changes else 1
        process.seen = self.changes
        self._give_way(None)
        if process.dead:
            raise Death

    def monotonic(self) -> float:
        """The clock that all processes share, which moves when somebody sleeps, as this process reads it."""
        return self.clock + (self.current.leader.ahead if self.current is not None else 0.0)

    def wall_clock(self) -> float:
        """The time of day as this process reads it."""
        return self.clock + (self.current.leader.wall if self.current is not None else 0.0)

    # --- calls ----------------------------------------------------------------------------------------------------

    def call(
        self,
        what: str,
        call: Callable[[], T],
        lost: Callable[[bool], Exception],
        *,
        writes: bool = True,
        routine: bool = False,
        local: bool = False,
    ) -> T:
        """A call of the current process: `kind` is what the server does, `lost(sent)` the error of a lost answer.

        `routine`: nobody waits for what it changes. `local`: it is no message, and cannot be under way for long.
        """
        process = self.current
        if process is None:  # the world itself
            return call()
        if process.dead or self.violation is not None:
            raise Death
        process.calls += 1
        self.steps += 1
        try:
            if self.steps > self.most_steps:
                raise Violation("I7", f"no end after {self.most_steps} calls")
            chosen = self.choose(self, process, writes)
            if chosen is None:
                result = self._perform(process, what, call)
            else:
                kind, to = chosen
                if kind is DeviationKind.DELAY and local:
                    kind = DeviationKind.LOSE_REQUEST
                result = self._deviate(process, what, call, lost, kind, to)
        except Violation as met:
            self.violation = self.violation or met
            raise
        finally:
            if writes and not routine:
                self.changes += 1
        return result

    def _perform(self, process: Process, what: str, call: Callable[[], T]) -> T:
        waited = 0
        while True:
            try:
                result = call()
            except Blocked as blocked:
                holder = blocked.holder
                waited += 1
                if holder is None or holder.leader is process.leader or holder.ended or holder.asleep or waited > 2:
                    self.clock += blocked.seconds
                    self.trace(process, what, blocked.in_vain)
                    raise blocked.in_vain from None
                self._give_way(holder)
                if process.dead:
                    raise Death from None
                continue
            except Exception as error:
                self.trace(process, what, error)
                self.watch()
                raise
            self.trace(process, what, result)
            self.watch()
            return result

    def _deviate(
        self,
        process: Process,
        what: str,
        call: Callable[[], T],
        lost: Callable[[bool], Exception],
        kind: DeviationKind,
        to: str,
    ) -> T:
        self.done.append(Deviation(process.name, process.calls, kind, to))
        if kind is DeviationKind.EVENT:
            self.say(process, f"{kind.value}: {to}")
            self.on_event(to)
            self.watch()
            if process.dead:
                raise Death
            return self._perform(process, what, call)
        if kind in (DeviationKind.SLEEP, DeviationKind.STALL, DeviationKind.YIELD):
            self.say(process, kind.value + (f" by {to}" if to else ""), what)
            if kind is DeviationKind.STALL:
                process.asleep = True
            if kind is DeviationKind.SLEEP:
                for thread in self.processes:
                    thread.asleep = thread.asleep or thread.leader is process.leader
                self.on_sleep(process)
            self._give_way(next((other for other in self.processes if other.name == to), None) if to else None)
            if process.dead:
                raise Death
            return self._perform(process, what, call)
        if kind is DeviationKind.DIE_BEFORE:
            self.say(process, kind.value, what)
            self._kill(process)
        if kind is DeviationKind.LOSE_REQUEST:
            self.say(process, kind.value, what)
            raise lost(False)
        if kind is DeviationKind.DELAY:
            self.say(process, kind.value, what)
            name = f"{process.name}~{process.calls}"
            self.start(name, lambda: self._arrive(name, what, call), asleep=True)
            raise lost(True)
        try:
            self._perform(process, what, call)
        except Exception:
            if kind is DeviationKind.LOSE_REPLY:
                raise lost(True) from None
        self.say(process, kind.value, what)
        if kind is DeviationKind.DIE_AFTER:
            self._kill(process)
        raise lost(True)

    def _kill(self, process: Process) -> None:
        self.kill(process.leader)
        self.watch()
        raise Death

    def _arrive(self, name: str, what: str, call: Callable[[], T]) -> None:
        late = self.current
        assert late is not None
        if late.dead:
            return
        try:
            self._perform(late, what, call)
        except Violation:
            raise
        except Exception:
            pass  # refused, and nobody is there to be told

    # --- the story ------------------------------------------------------------------------------------------------

    def trace(self, process: Process, what: str, answer: object) -> None:
        """A call and its answer."""
        if self.tracing:
            self.story.append(Line(process.name, process.calls, what, answer))

    def say(self, process: Process, what: str, at: str = "") -> None:
        """Something that is no call."""
        if self.tracing:
            self.story.append(Line(process.name, process.calls, f"*** {what}" + (f" [{at}]" if at else "")))


def _dies_with(process: Process | None, leader: Process) -> bool:
    while process is not None:
        if process.leader is leader:
            return True
        process = process.leader.parent
    return False
