"""What befalls a delivery, where and when: drawn from a seed, so that the same seed gives the same faults."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from tests.chaos.deliveries.points import Point
from tests.chaos.deliveries.targets import BY_DEFAULT, MYSQL_FAMILY, NEWEST, STORES, TARGETS, Target

NAMES = {
    "mariadb": "MariaDB",
    "mysql": "MySQL",
    "postgres": "PostgreSQL",
    "kafka": "Kafka",
    "redis": "Redis",
    "hbase": "HBase",
    "cassandra": "Cassandra",
    "iceberg": "Iceberg's catalog",
    "hive": "Hive's metastore",
}
# Calls that send Kafka a request which changes something: what is lost of the others is just asked again.
_WRITES = (".prepare", ".commit", "producer.init", "producer.flush", "producer.write", "coordinator.end")
# Where something is written down or made visible.
_DECISIVE = re.compile(
    r"COMMIT|XA |LOAD|INSERT|UPDATE|EVAL|BATCH|mutateRowsTs|checkAndPut|commit_table|add_partitions|"
    r"write (snapshot|document)|producer\.|coordinator\.end|wal\.|\.(prepare|commit|proof|forget)$"
    r"|store\.(take_epoch|trigger|publish|end_stage|plan|begin_attempt|vote|decide|record_proof|finalise|prune)$"
)
_COMMITS = {"postgres": b"COMMIT\0", **dict.fromkeys(NEWEST, b"")}
"""A statement's end, as UPDATE ... 'COMMITTING' is none; the others have no such word, so any request counts."""
HOURS = (-30, -7, -1, 1, 7, 20)  # below a day: after that a checkpoint in doubt would be quarantined, as it should


class Kind(Enum):
    """What is done."""

    KILL = "kill"
    ZOMBIE = "zombie"
    RESTART = "restart"
    LOST_REPLY = "lost reply"
    LOST_REQUEST = "lost request"
    FULL_LOG = "full log"
    FULL_STORE = "full store"
    READ_ONLY = "read-only"
    CLOCK = "clock"
    RIVAL = "rival"


@dataclass(frozen=True)
class Fault:
    """`server`: whom it is about, if anybody. `at_random`: at a random moment rather than at a named point.

    `weight`: how often it comes, compared with others. `in_recovery`: a process was killed at a named point before, and
    the fault befalls its successor.
    """

    name: str
    kind: Kind
    weight: int
    server: str = ""
    at_random: bool = False
    in_recovery: bool = False

    def fits(self, target: Target, store: str) -> bool:
        """Whether it can befall this pipeline."""
        if self.kind is Kind.FULL_STORE:
            return store == "sqlite"
        if self.server == "postgres":
            return store == "postgres"
        return not self.server or self.server in target.servers

    def points(self, trace: Sequence[Point]) -> list[Point]:
        """Which points of a quiet run it may strike at; `trace` is that of the time with something unfinished."""
        match self.kind:
            case Kind.FULL_LOG:
                return [p for p in trace if p.name == "wal.write_segment" and p.when == "before"]
            case Kind.FULL_STORE:
                return [p for p in trace if p.name.startswith("store.") and p.when == "before"]
            case Kind.READ_ONLY:  # between calls: a server waits with it for transactions that are committing
                return [p for p in trace if not p.is_inside]
            case Kind.LOST_REPLY | Kind.LOST_REQUEST | Kind.RESTART:
                mine = "store." if self.server == "postgres" else f"{self.server}-"
                found = [p for p in trace if p.name.startswith(mine) and p.when == "before"]
                if self.server == "kafka" and self.kind is not Kind.RESTART:
                    return [p for p in found if p.name.endswith(_WRITES)]
                return found
            case _:
                return list(trace)


def _faults() -> list[Fault]:
    return [
        Fault("kill -9 at a point", Kind.KILL, 24),
        Fault("kill -9 at random", Kind.KILL, 10, at_random=True),
        Fault("kill -9 in recovery", Kind.KILL, 8, at_random=True, in_recovery=True),
        Fault("zombie at a point", Kind.ZOMBIE, 12),
        Fault("zombie at random", Kind.ZOMBIE, 5, at_random=True),
        Fault("zombie in recovery", Kind.ZOMBIE, 4, at_random=True, in_recovery=True),
        Fault("rival at a point", Kind.RIVAL, 8),
        Fault("rival at random", Kind.RIVAL, 4, at_random=True),
        *(Fault(f"kill -9 of {NAMES[s]}", Kind.RESTART, 3, s) for s in NAMES),
        *(Fault(f"lost reply of {NAMES[s]}", Kind.LOST_REPLY, 4, s) for s in NAMES),
        *(Fault(f"lost request to {NAMES[s]}", Kind.LOST_REQUEST, 2, s) for s in NAMES),
        Fault("full disk of the log", Kind.FULL_LOG, 3),
        Fault("full disk of the store", Kind.FULL_STORE, 3),
        *(Fault(f"read-only {NAMES[s]}", Kind.READ_ONLY, 3, s) for s in MYSQL_FAMILY),
        Fault("clock jump", Kind.CLOCK, 5),
    ]


FAULTS: Mapping[str, Fault] = {fault.name: fault for fault in _faults()}


@dataclass(frozen=True)
class Draw:
    """One fault of a chaos run, and the pipeline that it befalls."""

    number: int
    fault: Fault
    target: Target
    store: str


def deck(seed: int, count: int, faults: Sequence[str] = (), targets: Sequence[str] = ()) -> list[Draw]:
    """Each fault once before any comes again, then by weight; each goes through all that it fits, in a seeded order."""
    chosen = [FAULTS[name] for name in faults] or list(FAULTS.values())
    source = random.Random(f"{seed}/deck")
    aims = [TARGETS[name] for name in targets] or BY_DEFAULT
    pairs: dict[str, list[tuple[Target, str]]] = {fault.name: [] for fault in chosen}
    chosen = [f for f in chosen if any(f.fits(t, store) for t in aims for store in STORES)]
    drawn: list[Fault] = source.sample(chosen, len(chosen))
    while len(drawn) < count and chosen:
        cycle = [fault for fault in chosen for _ in range(fault.weight)]
        drawn += source.sample(cycle, len(cycle))
    found = []
    for number, fault in enumerate(drawn[:count], 1):
        if not pairs[fault.name]:
            fitting = [(t, store) for t in aims for store in STORES if fault.fits(t, store)]
            pairs[fault.name] = source.sample(fitting, len(fitting))
        found.append(Draw(number, fault, *pairs[fault.name].pop()))
    return found


@dataclass(frozen=True)
class Choice:
    """How one try at a fault is carried out; `fraction` of a quiet run's time is when a random moment comes.

    `before`: where the process was killed whose successor it befalls.
    """

    point: Point | None
    before: Point | None
    fraction: float
    chunks: Sequence[int]
    max_delivery_rows: int
    all_done: bool
    new_run: bool
    skip: int
    pattern: bytes
    hours: int
    late: bool
    pause: float

    def __str__(self) -> str:
        if self.point is not None:
            return str(self.point)
        moment = f"after {self.fraction:.2f} of a quiet run"
        return f"{moment}, after a kill {self.before}" if self.before is not None else moment


def choose(draw: Draw, seed: int, repeat: int, trace: Sequence[Point]) -> Choice:
    """`repeat` counts the tries at this fault: another moment each time.

    Points between the calls and points within them (statements, requests) come equally often, whatever their number,
    and two of three where something is written down.
    """
    source = random.Random(f"{seed}/{draw.number}/{repeat}")
    points = draw.fault.points(trace)
    inside = source.random() < 0.5
    fitting = [p for p in points if p.is_inside == inside] or points
    if source.random() < 2 / 3:
        fitting = [p for p in fitting if _DECISIVE.search(p.name)] or fitting
    # What is recovered may be little, a call may make few requests, and the machine may be busier or less busy than in
    # the quiet run: later tries strike earlier, over two orders of magnitude, and later, in turn.
    share = source.random()
    fraction = 0.05 + 0.95 * share if repeat < 3 else 1 + 3 * share if repeat % 2 else 0.01**share
    drawn = source.choice(fitting) if fitting else None
    point = None if draw.fault.at_random else drawn
    sizes = [source.choice((7, 12, 40, 3000)) for _ in range(source.choice((1, 1, 2)))]
    commits = point is not None and not point.is_inside and source.random() < 0.5
    return Choice(
        point=point,
        before=drawn if draw.fault.in_recovery else None,
        fraction=fraction,
        chunks=sizes,
        max_delivery_rows=source.choice((0, 1_000_000)),
        all_done=source.random() < 0.5,
        new_run=source.random() < 0.25,
        skip=0 if commits or (point is not None and point.is_inside) else source.randrange(max(1, 4 - repeat)),
        pattern=_COMMITS.get(draw.fault.server, b"COMMIT") if commits else b"",
        hours=source.choice(HOURS),
        late=source.random() < 0.5,
        pause=source.uniform(0, 0.05),
    )
