"""What is killed and when: a process or server, a moment told by the decision log, and a random delay after it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from tests.chaos.decision_log import Event

MYSQL, KAFKA = "mysql_default", "kafka_default"
GROUP = "flights"  # the task group's id


class Part(Enum):
    """Which process is meant."""

    TASK = "task process"
    SUPERVISOR = "supervisor"
    DRIVER = "Spark driver (JVM)"
    PYTHON = "Spark driver (Python)"
    WORKER = "Spark's Python workers"
    MARIADB = "MariaDB"
    BROKER = "Kafka"

    @property
    def is_server(self) -> bool:
        return self in (Part.MARIADB, Part.BROKER)


@dataclass(frozen=True)
class Moment:
    """The `nth` event of a kind in the round. `of`: the participant it must concern. `phase`: of an attempt.

    The kind RUNNING is no event: the task was seen at work.
    """

    kind: str
    nth: int = 1
    of: str = ""
    phase: str = ""

    def __str__(self) -> str:
        text = f"{self.kind} {self.nth}" if self.kind != "RUNNING" else "the task is at work"
        return " ".join([text, *([f"({self.phase})"] if self.phase else []), *([self.of] if self.of else [])])

    def reached(self, events: Sequence[Event]) -> bool:
        """Whether it is among the round's events."""
        return sum(self._matches(event, events) for event in events) >= self.nth

    def _matches(self, event: Event, events: Sequence[Event]) -> bool:
        if event.kind != self.kind or (self.of and event.detail.get("participant") != self.of):
            return False
        if not self.phase:
            return True
        prepared = any(e.kind == "PREPARED" and e.number == event.number and e.id < event.id for e in events)
        return prepared == (self.phase == "commit")


@dataclass(frozen=True)
class Fault:
    """A kind of kill. `task` is the id of the task that is meant, or whose processes are; '' for a server.

    `moments` come with the longest delay after each, in seconds: about as long as what follows it takes.
    """

    name: str
    part: Part
    task: str
    moments: tuple[tuple[Moment, float], ...]
    recovery: bool = False
    """The run is abandoned in the middle of its delivery, and its successor's recover is what is killed."""


@dataclass(frozen=True)
class Choice:
    """A fault with a moment and a delay that were drawn for it; `pause`: seconds until a killed server is restarted."""

    fault: Fault
    moment: Moment
    delay: float
    pause: float

    def __str__(self) -> str:
        return f"{self.fault.name} at {self.moment} + {self.delay * 1000:.0f} ms"


def _nth(kind: str, numbers: Iterable[int], delay: float, of: str = "", phase: str = "") -> list[tuple[Moment, float]]:
    return [(Moment(kind, n, of, phase), delay) for n in numbers]


_RUNNING = _nth("RUNNING", [1], 1.5)
_STAGING = [*_nth("TRIGGERED", range(1, 5), 0.8), *_nth("STAGED", range(1, 4), 0.5)]


def _preparing(name: str) -> list[tuple[Moment, float]]:
    return [
        *_nth("PLANNED", [1, 2], 0.3),
        *_nth("ATTEMPT", [1, 2], 0.3, name, "prepare"),
        *_nth("VOTED", [1, 2], 0.1, name),
    ]


def _committing(name: str) -> list[tuple[Moment, float]]:
    return [
        *_nth("ATTEMPT", [1, 2], 0.3, name, "commit"),
        *_nth("ATTEMPT", [1, 2], 0.05, name, "commit"),
        *_nth("PROVEN", [1], 0.3, name),
    ]


def _faults() -> Iterable[Fault]:
    stage = f"{GROUP}.stage"
    for part in (Part.DRIVER, Part.PYTHON, Part.WORKER):
        moments = _STAGING if part is not Part.WORKER else _nth("TRIGGERED", range(1, 5), 0.5)
        yield Fault(part.value, part, stage, tuple(moments))
    yield Fault("stage task", Part.TASK, stage, tuple(_STAGING))
    yield Fault("stage supervisor", Part.SUPERVISOR, stage, tuple(_STAGING))
    for name, short in ((MYSQL, "mysql"), (KAFKA, "kafka")):
        prepare, commit = f"{GROUP}.prepare.{name}", f"{GROUP}.commit.{name}"
        yield Fault(f"prepare.{short} task", Part.TASK, prepare, (*_RUNNING, *_preparing(name)))
        yield Fault(f"commit.{short} task", Part.TASK, commit, (*_RUNNING, *_committing(name)))
        yield Fault(f"commit.{short} supervisor", Part.SUPERVISOR, commit, tuple(_committing(name)))
    confirming = [*_nth("RUNNING", [1], 0.3), *_nth("FINALISED", [1, 2], 0.03), *_nth("PRUNING", [1], 0.02)]
    yield Fault("confirmed task", Part.TASK, f"{GROUP}.confirmed", tuple(confirming))
    recovering = [*_nth("EPOCH", [1], 0.3), *_nth("ATTEMPT", [1, 2], 0.3), *_nth("ATTEMPT", [1], 0.05)]
    yield Fault("recover task", Part.TASK, f"{GROUP}.recover", tuple(recovering), recovery=True)
    mysql = [
        *_nth("ATTEMPT", [1], 0.3, MYSQL, "prepare"),
        *_nth("PREPARED", [1, 2], 1.5),
        *_nth("ATTEMPT", [1, 2], 0.2, MYSQL, "commit"),
        *_nth("ATTEMPT", [1, 2], 0.05, MYSQL, "commit"),
    ]
    yield Fault("MariaDB", Part.MARIADB, "", tuple(mysql))
    kafka = [
        *_nth("TRIGGERED", range(1, 5), 0.8),
        *_nth("ATTEMPT", [1], 0.5, KAFKA, "prepare"),
        *_nth("COMMITTING", [1], 1.0),
        *_nth("ATTEMPT", [1, 2], 0.4, KAFKA, "commit"),
        *_nth("ATTEMPT", [1, 2], 0.1, KAFKA, "commit"),
    ]
    yield Fault("Kafka", Part.BROKER, "", tuple(kafka))


FAULTS: Mapping[str, Fault] = {fault.name: fault for fault in _faults()}


def deck(seed: int, kills: int, names: Sequence[str] = ()) -> list[Fault]:
    """The faults of a whole chaos run: each kind comes once before any comes again, in a seeded order."""
    chosen = [FAULTS[name] for name in names] or list(FAULTS.values())
    shuffle = random.Random(seed)
    drawn: list[Fault] = []
    while len(drawn) < kills:
        drawn += shuffle.sample(chosen, len(chosen))
    return drawn[:kills]


def choose(fault: Fault, seed: int, kill: int, repeat: int) -> Choice:
    """Moment and delay of a kill; `repeat` counts the tries at it, so that another moment is drawn for each.

    The delays get shorter with them: what follows a moment takes less time on a fast machine.
    """
    source = random.Random(f"{seed}/{kill}/{repeat}")
    moment, longest = source.choice(fault.moments)
    return Choice(fault, moment, source.uniform(0, longest / 2**repeat), source.uniform(0, 3))
