"""The pipelines that are simulated: every mix of promises, alone and in a crowd."""

from __future__ import annotations

from dataclasses import replace

from airflow_ft.protocol.model import CheckpointingMode, ExternalizedRetention
from tests.simulation.world import Scenario

_MYSQL = {"rows": ("mysql", "db")}
_KAFKA = {"copies": ("kafka", "log")}
_BOTH = {**_MYSQL, **_KAFKA}
_TWO_MYSQL = {"rows": ("mysql", "db"), "more": ("mysql", "shop")}
_BRANCHES = {"held": ("two-phase", "xa")}

DB = ("db restarts", "db refuses item 1", "db refuses item 2", "prepare declines item 1")
LOG = ("log times out", "prepare declines item 2")
XA = ("xa loses its branches",)

BOTH = Scenario("MySQL decides, Kafka follows", _BOTH, events=DB + LOG)
ONE_ITEM = replace(BOTH, name="one checkpoint", runs=(1,))
KAFKA = Scenario("Kafka alone: the store decides", _KAFKA, events=LOG)
TWO_PHASE = Scenario("two-phase and Kafka: the store decides", {**_BRANCHES, **_KAFKA}, events=LOG + XA)

_XA = {"orders": ("xa", "maria")}
_XA_MYSQL = {"orders": ("xa", "mysql")}
MARIA = ("maria restarts", "maria loses its branches", "maria forgets its last XA COMMITs", "maria refuses item 1")
MYSQL = ("mysql restarts", "mysql loses its branches", "mysql refuses item 2", "prepare declines item 2")
XA_MARIA = Scenario("xa on MariaDB", _XA, events=MARIA)
XA_MYSQL = Scenario("xa on MySQL", _XA_MYSQL, events=MYSQL)
XA_KAFKA = Scenario("xa and Kafka", {**_XA, **_KAFKA}, events=MARIA + LOG)

_UPSERT = {"keyed": ("upsert", "side")}
SIDE = ("side restarts", "side refuses item 1", "prepare declines item 2")
SERVED = ("mysql restarts",)
BRANCHES_LOST = ("maria loses its branches",)

BRANCHED = (
    XA_MARIA,
    XA_MYSQL,
    XA_KAFKA,
    replace(XA_KAFKA, name="xa and Kafka, side by side", parallel=True, runs=(1, 2)),
    replace(XA_MYSQL, name="xa, two runs at once", runs=(1, 2), concurrent=True),
    Scenario("xa on two servers", {**_XA, "copies": ("xa", "mysql")}, runs=(1, 2), events=MARIA + MYSQL),
    replace(XA_MARIA, name="xa, a person aborts what is prepared", person="abort carried", runs=(2, 3)),
    Scenario("MySQL decides, xa prepared", {**_MYSQL, **_XA}, events=DB + MARIA),
    Scenario("xa that loses its branches", _XA, events=BRANCHES_LOST, event_weight=12),
    Scenario(
        "xa that loses its branches, two runs", _XA, runs=(1, 2), concurrent=True, events=BRANCHES_LOST, event_weight=12
    ),
    Scenario("upsert and Kafka", {**_UPSERT, **_KAFKA}, runs=(1, 2), events=SIDE + LOG),
    Scenario("upsert and xa, side by side", {**_UPSERT, **_XA_MYSQL}, parallel=True),
)

_HELD = {"held": ("held", "log")}
HELD = Scenario("held alone", _HELD, events=LOG)
HOLDING = (
    HELD,
    Scenario("MySQL decides, held follows", {**_MYSQL, **_HELD}, events=DB + LOG),
    Scenario("xa and held", {**_XA, **_HELD}, events=MARIA + LOG),
    Scenario("two clusters, one holds", {**_HELD, "copies": ("kafka", "other")}, runs=(1, 2), events=LOG),
    replace(HELD, name="held, side by side", parallel=True, runs=(1, 2)),
    replace(HELD, name="held, two runs at once", concurrent=True, runs=(1, 2)),
    replace(HELD, name="held, a person aborts", person="abort carried", runs=(2, 3)),
)

CLOCKS = ("clock jumps ahead", "clock jumps back", "store-clock jumps ahead", "store-clock jumps back")
PEOPLE = (
    replace(BOTH, name="a person quarantines", person="quarantine, recover", runs=(2, 3)),
    replace(BOTH, name="quarantined, then aborted", person="quarantine, abort carried", runs=(2, 3)),
    replace(XA_KAFKA, name="xa, quarantined, then committed", person="quarantine, commit", runs=(2, 3)),
    replace(HELD, name="held, quarantined, then aborted", person="quarantine, abort rewound", runs=(2, 3)),
    replace(BOTH, name="clocks jump", events=CLOCKS, event_weight=6, runs=(1, 2), person="recover"),
    replace(
        BOTH,
        name="clocks jump, leases respected",
        events=CLOCKS,
        event_weight=6,
        runs=(1, 2),
        lease=30.0,
        concurrent=True,
        person="recover",
    ),
    replace(XA_KAFKA, name="xa, clocks jump", events=(*CLOCKS, "maria restarts"), event_weight=6, person="recover"),
    replace(
        HELD,
        name="held, clocks jump",
        events=(*CLOCKS, *LOG),
        event_weight=6,
        person="recover",
        concurrent=True,
        runs=(1, 2),
    ),
)

SCENARIOS = (
    BOTH,
    KAFKA,
    TWO_PHASE,
    replace(BOTH, name="tasks side by side", parallel=True),
    replace(BOTH, name="two runs, one after the other", runs=(1, 3)),
    replace(BOTH, name="two runs at once", runs=(1, 2), concurrent=True),
    replace(BOTH, name="a run that finds nothing new", parallel=True, runs=(2, 2)),
    replace(BOTH, name="three runs at once", runs=(1, 2, 3), concurrent=True),
    replace(BOTH, name="several numbers delivered as one", max_rows=1000, runs=(2, 4)),
    replace(BOTH, name="leases respected", lease=30.0, runs=(1, 2), concurrent=True),
    Scenario("MySQL alone", _MYSQL, events=DB),
    Scenario("two MySQL servers", _TWO_MYSQL, events=(*DB, "shop restarts", "shop refuses item 2")),
    Scenario("MySQL decides, two-phase prepared", {**_MYSQL, **_BRANCHES}, events=DB + XA),
    replace(TWO_PHASE, name="two-phase and Kafka, side by side", parallel=True, runs=(1, 2)),
    replace(BOTH, name="a person aborts, the rows are carried", person="abort carried", runs=(2, 3)),
    replace(BOTH, name="a person aborts, the rows are computed again", person="abort rewound", runs=(2, 3)),
    replace(TWO_PHASE, name="a person aborts what is prepared", person="abort carried", runs=(2, 3)),
    replace(BOTH, name="a person commits", person="commit"),
    replace(BOTH, name="a stage that was given up beside its delivery", parallel=True, tries=1),
    Scenario("all promises", {**_BOTH, **_BRANCHES}, runs=(1, 2), events=DB + LOG + XA),
)

RESTORED = replace(
    BOTH,
    name="a decision log restored from a backup",
    runs=(1, 2),
    events=("store is backed up", "store is restored", "store is restored"),
    may_halt=True,
    event_weight=14,
)
FORGETTING = replace(
    BOTH, name="Kafka forgets its tokens", runs=(1, 2), events=("log forgets its tokens",), may_halt=True
)

_PASSED = ("store-clock passes the time-out",)
RUNNING = (*_PASSED, "job fails", "source grows", "clock jumps ahead")
STREAM = Scenario(
    "a stream into MySQL and Kafka", _BOTH, runs=(4,), begins=2, events=DB + LOG + RUNNING, event_weight=6
)
STREAMS = (
    STREAM,
    replace(STREAM, name="a stream into Kafka", sinks=_KAFKA, events=LOG + RUNNING),
    replace(STREAM, name="a stream into two-phase and Kafka", sinks=TWO_PHASE.sinks, events=LOG + XA + RUNNING),
    replace(STREAM, name="a stream into xa and Kafka", sinks=XA_KAFKA.sinks, events=MARIA + LOG + RUNNING),
    replace(STREAM, name="a stream into xa on MySQL", sinks=_XA_MYSQL, events=MYSQL + RUNNING),
    replace(STREAM, name="a stream into held", sinks=_HELD, events=LOG + RUNNING),
    replace(STREAM, name="a stream into MySQL and held", sinks={**_MYSQL, **_HELD}),
    replace(
        STREAM,
        name="a stream into upsert and xa",
        sinks={**_UPSERT, **_XA_MYSQL},
        events=SIDE + SERVED + RUNNING,
    ),
    replace(STREAM, name="a stream into all promises", sinks={**_BOTH, **_BRANCHES}, runs=(3,)),
    replace(STREAM, name="a stream, several numbers as one", begins=3, max_rows=1000),
    replace(STREAM, name="a stream, leases respected", lease=30.0),
    replace(STREAM, name="a stream that a person stops", person="stop", tries=4),
    replace(STREAM, name="a stream that a person stops at once", person="stop at once"),
    replace(STREAM, name="streams one after another", runs=(3, 4), person="stop, stop"),
    replace(STREAM, name="streams at once", runs=(3, 4), concurrent=True, person="stop"),
    replace(
        STREAM, name="a stream that gates wait for", person="gate as of now, gate of the published, gate as of now"
    ),
    replace(STREAM, name="a stream whose checkpoints expire", tolerable=-1, events=_PASSED, person="gate as of now"),
    replace(
        STREAM, name="a stream whose checkpoints expire, into held", sinks=_HELD, tolerable=1, events=_PASSED + LOG
    ),
    replace(
        STREAM,
        name="a stream whose checkpoints expire, into xa",
        sinks=XA_KAFKA.sinks,
        tolerable=-1,
        events=(*_PASSED * 4, *MARIA),
    ),
    replace(STREAM, name="a stream that runs ahead", unaligned=True, begins=6, runs=(7,), retained=5),
    replace(STREAM, name="a stream, one checkpoint at a time", concurrent_checkpoints=1, events=DB + RUNNING),
    replace(STREAM, name="a stream, the job fails", events=("job fails", "source grows"), event_weight=20),
    replace(STREAM, name="a stream, clocks jump", events=(*CLOCKS, *LOG), tolerable=-1, person="recover"),
    replace(STREAM, name="a stream, a person aborts", person="abort carried, stop"),
    replace(STREAM, name="a stream, the rows are computed again", person="abort rewound", events=DB + RUNNING),
    replace(STREAM, name="a stream, a person quarantines", person="quarantine, commit"),
)

PAUSING = replace(STREAM, name="a stream that pauses between checkpoints", min_pause=4.0)
PAUSED = (
    PAUSING,
    replace(PAUSING, name="a stream that pauses, the job fails", events=("job fails", "source grows"), event_weight=20),
    replace(PAUSING, name="a stream that pauses, clocks jump", events=(*CLOCKS, *LOG), tolerable=-1),
    replace(PAUSING, name="a stream that pauses, its checkpoints expire", tolerable=-1, events=_PASSED),
    replace(PAUSING, name="streams that pause, at once", runs=(3, 4), concurrent=True, person="stop"),
)

_ONCE, _AT_LEAST = CheckpointingMode.EXACTLY_ONCE, CheckpointingMode.AT_LEAST_ONCE
REPEATING = replace(BOTH, name="at least once", modes=(_AT_LEAST,), runs=(1, 2))
REPEATED = (
    REPEATING,
    replace(REPEATING, name="at least once, side by side", parallel=True),
    replace(REPEATING, name="at least once, two runs at once", concurrent=True),
    replace(REPEATING, name="at least once, several numbers as one", runs=(3,), max_rows=1000),
    replace(REPEATING, name="at least once, a person quarantines", person="quarantine, commit", runs=(2, 3)),
    replace(
        REPEATING,
        name="at least once into upsert, local and Kafka",
        sinks={**_UPSERT, "lines": ("mysql", "mysql"), **_KAFKA},
        events=SIDE + SERVED + LOG,
    ),
    replace(REPEATING, name="the mode changes", modes=(_ONCE, _AT_LEAST), runs=(1, 2, 3)),
    replace(REPEATING, name="the mode changes back", modes=(_AT_LEAST, _ONCE), runs=(1, 2, 3)),
    replace(REPEATING, name="the mode changes, runs at once", modes=(_AT_LEAST, _ONCE), concurrent=True),
    replace(STREAM, name="a stream, at least once", modes=(_AT_LEAST,)),
    replace(
        STREAM,
        name="a stream, at least once, into Kafka",
        modes=(_AT_LEAST,),
        sinks=_KAFKA,
        events=LOG + RUNNING,
        person="stop",
    ),
    replace(
        STREAM,
        name="a stream that runs ahead, at least once",
        modes=(_AT_LEAST,),
        sinks=_KAFKA,
        events=LOG + RUNNING,
        concurrent_checkpoints=8,
        begins=6,
        runs=(7,),
    ),
    replace(STREAM, name="streams, the mode changes", modes=(_AT_LEAST, _ONCE), runs=(3, 4), person="stop, stop"),
)

_AT_MOST = CheckpointingMode.AT_MOST_ONCE
LOSING = replace(STREAM, name="a stream, at most once", modes=(_AT_MOST,))
LOST = (
    LOSING,
    replace(LOSING, name="a stream, at most once, into Kafka", sinks=_KAFKA, events=LOG + RUNNING, person="stop"),
    replace(
        LOSING, name="a stream, at most once, the job fails", events=("job fails", "source grows"), event_weight=20
    ),
    replace(LOSING, name="a stream, at most once, its checkpoints expire", tolerable=-1, events=_PASSED),
    replace(
        LOSING,
        name="a stream, at most once, that gates wait for",
        person="gate as of now, gate of the published, gate as of now",
    ),
    replace(LOSING, name="a stream, at most once, rows are given up", person="abort rewound", events=DB + RUNNING),
    replace(LOSING, name="streams, at most once, at once", runs=(3, 4), concurrent=True, person="stop"),
    replace(LOSING, name="streams, from at most to exactly once", modes=(_AT_MOST, _ONCE), runs=(3, 4), person="stop"),
    replace(LOSING, name="streams, from exactly to at most once", modes=(_ONCE, _AT_MOST), runs=(3, 4), person="stop"),
)

DRAINED = replace(STREAM, name="a stream that a person drains", windows=True, person="drain", runs=(3,), tries=4)
RESUMED = replace(DRAINED, name="a stream that goes on after a drain", resumes=True, person="drain, drain", runs=(3, 4))
DELETING = replace(
    STREAM,
    name="a stream that deletes what it leaves when it is stopped",
    windows=True,
    leaves=ExternalizedRetention.DELETE_ON_CANCELLATION,
    person="stop",
    runs=(2, 3, 4),
    begins=1,
)
WINDOWED = (
    replace(STREAM, name="a stream with windows", windows=True),
    DRAINED,
    replace(DRAINED, name="a drain into Kafka", sinks=_KAFKA, events=LOG + RUNNING),
    replace(DRAINED, name="a drain into xa and Kafka", sinks=XA_KAFKA.sinks, events=MARIA + LOG + RUNNING),
    replace(DRAINED, name="a drain into held", sinks=_HELD, events=LOG + RUNNING),
    replace(DRAINED, name="a drain, several numbers as one", begins=3, max_rows=1000),
    replace(DRAINED, name="a drain, the job fails", events=("job fails", "source grows"), event_weight=20),
    replace(DRAINED, name="a drain, its checkpoint expires", tolerable=-1, events=_PASSED),
    replace(DRAINED, name="a drain that sinks refuse", events=("prepare declines item 2", "prepare declines item 3")),
    replace(DRAINED, name="a drain beside a stop at once", person="drain, stop at once"),
    replace(DRAINED, name="a drain, and a gate", person="gate as of now, drain, gate of the published"),
    replace(DRAINED, name="a run after a drain", runs=(3, 4), person="drain, reset state, stop"),
    replace(DRAINED, name="a drain, runs at once", runs=(3, 4), person="drain, reset state", concurrent=True),
    replace(DRAINED, name="a drain by a run that reads nothing new", runs=(2, 2, 3), person="stop, drain"),
    replace(RESUMED, name="a drain by each run that goes on", runs=(2, 2, 3), person="stop, drain, drain"),
    replace(DRAINED, name="a drain, rows are computed again", person="drain, abort rewound"),
    RESUMED,
    replace(RESUMED, name="a drain, runs at once, which go on", concurrent=True),
    replace(DRAINED, name="a drain, at most once", modes=(_AT_MOST,), runs=(3, 4)),
)
DELETED = (
    DELETING,
    replace(DELETING, name="a stream without state that deletes what it leaves", windows=False),
    replace(DELETING, name="streams at once that delete what they leave", concurrent=True, person="stop, stop"),
    replace(DELETING, name="a drain, and all is deleted", person="drain, drain"),
    replace(DELETING, name="a drain, and all is deleted, runs at once", person="drain, stop", concurrent=True),
    replace(
        DELETING,
        name="a stream that deletes also when it fails",
        leaves=ExternalizedRetention.NO_EXTERNALIZED_CHECKPOINTS,
        tries=2,
    ),
    replace(DELETING, name="a stream that deletes nothing that is quarantined", person="quarantine, stop, commit"),
    replace(DELETING, name="a stream that deletes, its checkpoints expire", tolerable=-1, events=_PASSED),
)
SAVING = replace(
    DELETING,
    name="a stream that keeps a savepoint and deletes the rest",
    person="stop with a savepoint, stop with a savepoint",
)
REQUESTED = (
    SAVING,
    replace(SAVING, name="a stream that keeps a savepoint of a job without windows", windows=False, stateful=True),
    replace(SAVING, name="drains with savepoints", person="drain with a savepoint, drain with a savepoint"),
    replace(
        SAVING,
        name="savepoints and drains, runs at once",
        concurrent=True,
        person="stop with a savepoint, drain, drain with a savepoint",
    ),
    replace(SAVING, name="tasks that stop a stream", person="task stop with a savepoint, task drain"),
    replace(
        SAVING,
        name="a task that stops a stream, and people",
        person="stop, task drain with a savepoint, drain, stop with a savepoint",
    ),
    replace(
        DRAINED,
        name="a task that drains a stream",
        runs=(2, 3),
        person="task drain with a savepoint, reset state, task stop with a savepoint",
    ),
)

_MANY = (1, 2, 4)
KEPT = replace(BOTH, name="a savepoint, which is restored", runs=_MANY, person="savepoint, restore again")
KEPT_STREAM = replace(STREAM, name="a stream, its savepoint is restored", person="savepoint, restore again", begins=1)
_DAMAGED = ("savepoint is damaged",)
SAVED = (
    KEPT,
    replace(KEPT, name="a savepoint, runs at once", concurrent=True),
    replace(KEPT, name="a savepoint, tasks side by side", parallel=True),
    replace(KEPT, name="a savepoint, leases respected", lease=30.0, concurrent=True),
    replace(KEPT, name="savepoints, two restores at once", person="savepoint, restore again, restore again"),
    replace(KEPT, name="savepoints, restored only where nothing is later", person="savepoint, restore, restore"),
    replace(
        KEPT,
        name="savepoints, the oldest and the newest are restored",
        runs=(1, 2, 3, 4),
        person="savepoint, savepoint, restore oldest again, savepoint now, restore, restore oldest, restore",
    ),
    replace(
        KEPT,
        name="savepoints, to and fro",
        runs=(1, 2),
        person="savepoint, savepoint then restore oldest again then savepoint now then restore middle then restore",
    ),
    replace(KEPT, name="savepoints, a run restores once", person="savepoint, restore again once, restore again once"),
    replace(KEPT, name="savepoints that are claimed", person="savepoint, restore again claim, restore claim"),
    replace(KEPT, name="a savepoint that is claimed and copied", person="savepoint, restore copy, restore again claim"),
    replace(KEPT, name="a savepoint, damaged", events=_DAMAGED, event_weight=20),
    replace(KEPT, name="a savepoint beside people", person="savepoint, abort rewound, restore again, recover"),
    replace(KEPT, name="a savepoint, quarantined", person="savepoint, quarantine, restore again, commit"),
    replace(KEPT, name="a savepoint, several numbers as one", max_rows=1000, runs=(2, 4)),
    replace(KEPT, name="a savepoint, into xa", sinks=_XA_MYSQL, events=("mysql restarts",)),
    replace(KEPT, name="a savepoint, into held", sinks=_HELD, events=LOG),
    replace(
        KEPT,
        name="a savepoint, into upsert and xa",
        sinks={**_UPSERT, **_XA_MYSQL},
        events=SIDE + SERVED,
    ),
    replace(KEPT, name="a savepoint, two-phase", sinks=TWO_PHASE.sinks, events=LOG),
    replace(KEPT, name="a savepoint, at least once", modes=(_AT_LEAST,)),
    KEPT_STREAM,
    replace(KEPT_STREAM, name="a stream, its savepoint, at once", runs=(3, 4), concurrent=True),
    replace(KEPT_STREAM, name="a stream, its savepoint, into xa", sinks=_XA_MYSQL, events=("mysql restarts", *RUNNING)),
    replace(KEPT_STREAM, name="a stream, its savepoint, Spark keeps little", retained=3),
    replace(KEPT_STREAM, name="a stream, its savepoint, checkpoints expire", tolerable=-1, events=_PASSED),
    replace(
        KEPT_STREAM,
        name="a stream that stops with a savepoint",
        runs=(3, 4),
        person="stop with a savepoint, restore, stop with a savepoint, restore claim",
    ),
)

CONTINUED = replace(KEPT, name="a savepoint, and what came later stays", person="savepoint, restore continue")
CONTINUED_STREAM = replace(
    KEPT_STREAM, name="a stream, its savepoint, and what came later stays", person="savepoint, restore continue"
)
OTHER_JOBS = replace(
    CONTINUED_STREAM,
    name="a stream, its savepoint, and jobs that change",
    runs=(2, 3, 4),
    jobs=("d", "cd", "dc"),
    person="savepoint, restore continue",
)
CHANGED = replace(
    KEPT,
    name="a savepoint that is rescaled",
    stateful=True,
    runs=(1, 2, 3),
    person="savepoint, rescale, restore changed again",
)
_BACK = "savepoint, rescale then restore changed continue, restore again, restore changed continue"
SAVED += (
    OTHER_JOBS,
    replace(OTHER_JOBS, name="a stream, its savepoint, jobs that change, the job fails", events=("job fails",)),
    replace(OTHER_JOBS, name="a stream, its savepoint, jobs that change, at once", concurrent=True),
    replace(
        OTHER_JOBS,
        name="a stream, its savepoint, jobs that leave state",
        jobs=("jd", "c", "cj", "djc"),
        runs=(2, 3, 3, 4),
        person="savepoint, restore again leaving, restore continue leaving, restore",
    ),
    replace(
        OTHER_JOBS,
        name="a stream, its savepoint, jobs that leave state of what has not caught up",
        jobs=("dj", "c", "dcj"),
        person="savepoint, restore continue then savepoint now then restore continue leaving then savepoint now,"
        " restore oldest continue",
    ),
    CONTINUED,
    replace(CONTINUED, name="a savepoint, what came later stays, runs at once", concurrent=True),
    replace(CONTINUED, name="a savepoint, what came later stays, tasks side by side", parallel=True),
    replace(
        CONTINUED,
        name="savepoints, what came later stays twice",
        person="savepoint, restore continue, restore continue",
    ),
    replace(
        CONTINUED,
        name="savepoints, what came later stays, and again at once",
        person="savepoint, restore continue then restore continue",
    ),
    replace(
        CONTINUED,
        name="savepoints, what came later stays, or comes again",
        runs=(1, 2, 3, 4),
        person="savepoint, restore continue, restore again, savepoint now, restore oldest continue, restore",
    ),
    replace(
        CONTINUED,
        name="savepoints of what has not caught up",
        runs=(1, 2, 3, 4),
        person="savepoint, restore continue then savepoint now then restore, restore copy, restore oldest continue",
    ),
    replace(CONTINUED, name="a savepoint, what came later stays, into xa", sinks=_XA_MYSQL, events=("mysql restarts",)),
    replace(
        CONTINUED, name="a savepoint, what came later stays, a run does it", person="savepoint, restore continue once"
    ),
    replace(
        CONTINUED,
        name="a savepoint, what came later stays, beside people",
        person="savepoint, abort rewound, restore continue, recover",
    ),
    CONTINUED_STREAM,
    replace(
        CONTINUED_STREAM, name="a stream, its savepoint, what came later stays, the job fails", events=("job fails",)
    ),
    replace(
        CONTINUED_STREAM,
        name="a stream, its savepoint, what came later stays twice",
        person="savepoint, restore continue, restore continue",
    ),
    replace(
        CONTINUED_STREAM,
        name="a stream, its savepoint, what came later stays, Spark keeps little",
        retained=3,
        begins=2,
        runs=(3, 6),
    ),
    replace(
        CONTINUED_STREAM, name="a stream, its savepoint, what came later stays, at once", runs=(3, 4), concurrent=True
    ),
    CHANGED,
    replace(CHANGED, name="a savepoint that is converted", person="savepoint, convert, restore changed again"),
    replace(
        CHANGED,
        name="savepoints, rescaled and converted",
        runs=(1, 2, 3, 4),
        person="savepoint, rescale, convert changed, rescale changed, savepoint, restore changed oldest again,"
        " restore changed again",
    ),
    replace(CHANGED, name="savepoints, rescaled, and what came later stays", runs=(1, 2, 3, 4), person=_BACK),
    replace(
        CHANGED,
        name="savepoints, converted, and what came later stays",
        runs=(1, 2, 3, 4),
        person=_BACK.replace("rescale", "convert"),
    ),
    replace(
        CHANGED,
        name="savepoints, rescaled, to and fro",
        runs=(1, 2),
        person="savepoint, savepoint then restore oldest again then savepoint now then rescale then restore middle"
        " then restore changed then restore changed continue",
    ),
    replace(
        CHANGED,
        name="savepoints, rescaled and claimed",
        person="savepoint, rescale, restore again claim, restore changed",
    ),
    replace(
        CHANGED, name="a savepoint, rescaled, for a copy", person="savepoint, rescale, restore changed copy, convert"
    ),
    replace(
        CHANGED,
        name="a savepoint, damaged, which is rescaled",
        events=_DAMAGED,
        event_weight=20,
        person="savepoint, rescale, restore changed again",
    ),
    replace(
        CONTINUED_STREAM,
        name="a stream, its savepoint, rescaled, and what came later stays",
        stateful=True,
        person="savepoint, rescale, restore changed continue, restore continue",
    ),
    replace(
        CONTINUED_STREAM,
        name="a stream, its savepoint, converted",
        stateful=True,
        person="savepoint, convert, restore changed continue, convert changed, restore changed again",
    ),
)

FULL_REFRESH = replace(KEPT, name="everything is read anew", person="restore beginning again")
FULL_REFRESH_STREAM = replace(
    KEPT_STREAM, name="a stream, everything is read anew", person="restore beginning again, restore beginning again"
)
_UPSERTED = {**_UPSERT, "more": ("upsert", "mysql")}
REFRESHED = (
    FULL_REFRESH,
    replace(FULL_REFRESH, name="everything is read anew, runs at once", concurrent=True),
    replace(FULL_REFRESH, name="everything is read anew, tasks side by side", parallel=True),
    replace(FULL_REFRESH, name="everything is read anew, leases respected", lease=30.0, concurrent=True),
    replace(
        FULL_REFRESH,
        name="everything is read anew, and again",
        person="restore beginning again, restore beginning again",
    ),
    replace(
        FULL_REFRESH,
        name="everything is read anew, from the first moment on",
        person="restore beginning again now, restore beginning again now, restore beginning again",
    ),
    replace(
        FULL_REFRESH,
        name="everything is read anew, a run does it once",
        person="restore beginning again now once, restore beginning again once",
    ),
    replace(
        FULL_REFRESH,
        name="everything is read anew, where rows are replaced",
        sinks=_UPSERTED,
        events=SIDE + SERVED,
        person="restore beginning, restore beginning continue, restore beginning again",
    ),
    replace(
        FULL_REFRESH,
        name="everything is to be read anew, and is refused",
        sinks={**_BOTH, **_UPSERT},
        person="restore beginning, restore beginning continue, restore beginning now",
    ),
    replace(
        FULL_REFRESH,
        name="everything is read anew, beside people",
        person="abort rewound, restore beginning again, recover, abort carried",
    ),
    replace(
        FULL_REFRESH, name="everything is read anew, quarantined", person="quarantine, restore beginning again, commit"
    ),
    replace(FULL_REFRESH, name="everything is read anew, several numbers as one", max_rows=1000, runs=(2, 4)),
    replace(FULL_REFRESH, name="everything is read anew, into xa", sinks=_XA_MYSQL, events=("mysql restarts",)),
    replace(FULL_REFRESH, name="everything is read anew, into held", sinks=_HELD, events=LOG),
    replace(FULL_REFRESH, name="everything is read anew, two-phase", sinks=TWO_PHASE.sinks, events=LOG),
    replace(FULL_REFRESH, name="everything is read anew, at least once", modes=(_AT_LEAST,)),
    replace(
        FULL_REFRESH,
        name="savepoints, and everything is read anew",
        runs=(1, 2, 3),
        person="savepoint, restore beginning again, restore again, savepoint now, restore oldest continue",
    ),
    replace(
        FULL_REFRESH,
        name="savepoints, and everything is read anew at once",
        runs=(1, 2),
        person="savepoint, restore beginning again then savepoint now then restore oldest again then restore beginning"
        " again then restore then savepoint now then restore middle again",
    ),
    FULL_REFRESH_STREAM,
    replace(FULL_REFRESH_STREAM, name="a stream, everything is read anew, at once", runs=(3, 4), concurrent=True),
    replace(FULL_REFRESH_STREAM, name="a stream, everything is read anew, the job fails", events=("job fails",)),
    replace(
        FULL_REFRESH_STREAM,
        name="a stream, everything is read anew, into xa",
        sinks=_XA_MYSQL,
        events=("mysql restarts", *RUNNING),
    ),
    replace(
        FULL_REFRESH_STREAM, name="a stream, everything is read anew, checkpoints expire", tolerable=-1, events=_PASSED
    ),
    replace(
        FULL_REFRESH_STREAM,
        name="a stream, everything is read anew, a run does it once",
        person="restore beginning again now once, restore beginning again once",
    ),
    replace(
        FULL_REFRESH_STREAM,
        name="a stream, its savepoint, and everything is read anew",
        runs=(2, 3, 4),
        person="savepoint, restore beginning again, restore again, restore oldest continue, stop with a savepoint",
    ),
)

_RECREATED = ("refunds is recreated", "returns is recreated")
MOVING = replace(
    BOTH, name="sources that change", runs=(1, 2, 3, 4), sources=("o", "ro", "oc", "cro"), events=_RECREATED
)
MOVING_STREAM = replace(
    STREAM,
    name="a stream, sources that change",
    begins=1,
    runs=(2, 3, 4, 5),
    sources=("o", "ro", "oc", "cro"),
    events=(*_RECREATED, *RUNNING),
    person="stop, stop",
)
MOVED = (
    MOVING,
    MOVING_STREAM,
    replace(MOVING, name="sources that change, runs at once", concurrent=True),
    replace(MOVING_STREAM, name="a stream, sources that change, at once", concurrent=True),
    replace(MOVING, name="sources that move", sources=("or", "oR", "Ro", "roc")),
    replace(MOVING_STREAM, name="a stream, sources that move", sources=("or", "oR", "Ro", "roc")),
    replace(MOVING, name="sources that change, of files", sources=("fo", "or", "Fo", "ofr")),
    replace(
        MOVING, name="sources that change, of files, runs at once", sources=("fo", "o", "of", "rof"), concurrent=True
    ),
    replace(MOVING_STREAM, name="a stream, sources that change, of files", sources=("of", "o", "fro", "cFo")),
    replace(
        MOVING_STREAM,
        name="a stream, sources that change, of files, and everything is read anew",
        sources=("of", "o", "fo", "cFo"),
        person="restore beginning again, stop, restore beginning again late",
    ),
    replace(MOVING, name="sources that change, a person aborts", person="abort rewound, abort carried, recover"),
    replace(MOVING_STREAM, name="a stream, sources that change, rows are computed again", person="abort rewound, stop"),
    replace(
        MOVING,
        name="sources that change, and everything is read anew",
        person="restore beginning again, restore beginning again",
    ),
    replace(
        MOVING_STREAM,
        name="a stream, sources that change, and everything is read anew",
        person="restore beginning again, stop, restore beginning again",
    ),
    replace(
        MOVING,
        name="sources that change, and everything is read anew later",
        person="restore beginning again late",
    ),
    replace(
        MOVING_STREAM,
        name="a stream, sources that change, and everything is read anew later",
        person="restore beginning again late, restore beginning again late",
    ),
    replace(
        MOVING,
        name="sources that change, and a savepoint is restored",
        person="savepoint, savepoint, restore oldest again, restore again",
    ),
    replace(
        MOVING_STREAM,
        name="a stream, sources that change, and a savepoint is restored",
        person="savepoint, restore again, savepoint, restore oldest again",
    ),
)

_FORBIDDING = ("side forbids item 1", "side forbids item 2")
ASIDE = Scenario(
    "rows that are set aside",
    {**_MYSQL, "lines": ("mysql", "side")},
    runs=(2, 3),
    events=_FORBIDDING,
    event_weight=10,
    person="set aside, set aside",
)
SET_ASIDE = (
    ASIDE,
    replace(ASIDE, name="rows that are set aside, side by side", parallel=True),
    replace(ASIDE, name="rows that are set aside, runs at once", concurrent=True),
    replace(ASIDE, name="rows that are set aside, several numbers as one", max_rows=1000, runs=(2, 4)),
    replace(ASIDE, name="rows that are set aside, quarantined", person="quarantine, set aside, set aside"),
    replace(
        ASIDE,
        name="rows that are set aside, at least once",
        sinks=_BOTH,
        events=("db forbids item 1", "db forbids item 2"),
        modes=(_AT_LEAST,),
    ),
    replace(
        ASIDE,
        name="rows that are set aside, branches that were lost",
        sinks=_XA,
        events=(*BRANCHES_LOST, *BRANCHES_LOST, "maria forbids item 1", "maria forbids item 2"),
    ),
    replace(
        ASIDE,
        name="rows that are set aside, one transaction",
        sinks={"lines": ("model", "shelf"), "more": ("model", "store")},
        events=("store forbids item 1", "store forbids item 2"),
    ),
)

_HANDS = ("maria commits a branch by hand", "maria rolls a branch back by hand")
_OTHER_HANDS = tuple(event.replace("maria", "mysql") for event in _HANDS)
BY_HAND = replace(
    XA_MARIA,
    name="a commit by hand",
    runs=(2, 3),
    events=(*_HANDS, _HANDS[0], "prepare declines item 1", "prepare declines item 2"),
    event_weight=12,
    person="abort carried, commit",
)
ENDED_BY_HAND = (
    BY_HAND,
    replace(BY_HAND, name="a commit by hand, rows are computed again", person="abort rewound, commit"),
    replace(BY_HAND, name="a commit by hand, runs at once", concurrent=True),
    replace(BY_HAND, name="a commit by hand, tasks side by side", parallel=True),
    replace(
        BY_HAND,
        name="a commit by hand, on MySQL",
        sinks=_XA_MYSQL,
        events=(*_OTHER_HANDS, _OTHER_HANDS[0], "mysql restarts", "prepare declines item 2"),
    ),
    replace(BY_HAND, name="a commit by hand, and Kafka", sinks={**_XA, **_KAFKA}, events=(*_HANDS, _HANDS[0], *LOG)),
    replace(BY_HAND, name="a commit by hand, MySQL decides", sinks={**_MYSQL, **_XA}, events=(*_HANDS, *_HANDS, *DB)),
    replace(BY_HAND, name="a commit by hand, quarantined", person="quarantine, abort carried, commit"),
)

MAPPED_MARIA = replace(XA_MARIA, name="mapped xa on MariaDB", parallel=True, mapped=True, runs=(1, 2))
MAPPED_MYSQL = replace(XA_MYSQL, name="mapped xa on MySQL", parallel=True, mapped=True, runs=(1, 2))
MAPPED = (
    MAPPED_MARIA,
    MAPPED_MYSQL,
    replace(MAPPED_MARIA, name="mapped xa, no server fails", events=()),
    replace(MAPPED_MYSQL, name="mapped xa on MySQL, two runs at once", concurrent=True),
    replace(MAPPED_MARIA, name="mapped xa on MariaDB, two runs at once", concurrent=True),
    replace(MAPPED_MARIA, name="mapped xa, leases respected", lease=30.0, concurrent=True),
    replace(MAPPED_MARIA, name="mapped xa, several numbers as one", max_rows=1000, runs=(2, 4)),
    replace(MAPPED_MARIA, name="mapped xa and Kafka", sinks=XA_KAFKA.sinks, events=MARIA + LOG),
    replace(
        MAPPED_MYSQL, name="mapped xa on two servers", sinks={**_XA, "copies": ("xa", "mysql")}, events=MARIA + MYSQL
    ),
    replace(MAPPED_MYSQL, name="mapped xa, MySQL decides", sinks={**_MYSQL, **_XA_MYSQL}, events=DB + MYSQL),
    replace(MAPPED_MARIA, name="mapped xa, a person aborts", person="abort carried", runs=(2, 3)),
    replace(MAPPED_MYSQL, name="mapped xa, rows are computed again", person="abort rewound, recover", runs=(2, 3)),
    replace(MAPPED_MARIA, name="mapped xa, quarantined, then committed", person="quarantine, commit", runs=(2, 3)),
    replace(MAPPED_MARIA, name="mapped xa that loses its branches", events=BRANCHES_LOST, event_weight=12),
    replace(MAPPED_MARIA, name="mapped xa, clocks jump", events=(*CLOCKS, "maria restarts"), person="recover"),
    replace(
        MAPPED_MARIA,
        name="mapped xa, a commit by hand",
        events=(*_HANDS, _HANDS[0], "prepare declines item 1"),
        event_weight=12,
        person="abort carried, commit",
        runs=(2, 3),
    ),
)

_SLOTS = {"parts": ("slots", "log")}
_LATE = ("log times out", "log times out", "prepare declines item 1")
MAPPED_HELD = Scenario("mapped held", _SLOTS, parallel=True, mapped=True, runs=(1, 2), events=LOG)
MAPPED_SLOTS = (
    Scenario("held in two slots", _SLOTS, events=LOG),
    MAPPED_HELD,
    replace(MAPPED_HELD, name="mapped held, no server fails", events=()),
    replace(MAPPED_HELD, name="mapped held, two runs at once", concurrent=True),
    replace(MAPPED_HELD, name="mapped held, leases respected", lease=30.0, concurrent=True),
    replace(MAPPED_HELD, name="mapped held, several numbers as one", max_rows=1000, runs=(2, 4)),
    replace(MAPPED_HELD, name="mapped held and xa", sinks={**_SLOTS, **_XA}, events=LOG + MARIA),
    replace(MAPPED_HELD, name="mapped held, MySQL decides", sinks={**_SLOTS, **_MYSQL}, events=LOG + DB),
    replace(MAPPED_HELD, name="mapped held, a person aborts", person="abort carried", runs=(2, 3)),
    replace(MAPPED_HELD, name="mapped held, rows are computed again", person="abort rewound, recover", runs=(2, 3)),
    replace(MAPPED_HELD, name="mapped held whose transactions expire", events=_LATE, event_weight=12),
    replace(MAPPED_HELD, name="mapped held, clocks jump", events=(*CLOCKS, "log times out"), person="recover"),
)

_SHOP = {"held": ("prepared", "shop")}
SHOP = (
    "shop restarts",
    "shop refuses item 1",
    "prepare declines item 1",
    "prepare declines item 2",
)
SHOP_LOST = ("shop loses its branches", "shop loses its branches", "shop restarts")
_SHOP_HANDS = ("shop commits a branch by hand", "shop rolls a branch back by hand")
PREPARED = Scenario("prepared", _SHOP, events=SHOP)
MAPPED_PREPARED = replace(PREPARED, name="mapped prepared", parallel=True, mapped=True, runs=(1, 2))
PREPARING = (
    PREPARED,
    replace(PREPARED, name="prepared, two runs at once", runs=(1, 2), concurrent=True),
    replace(PREPARED, name="prepared, a task for each step", runs=(1, 2), parallel=True),
    replace(PREPARED, name="prepared, several numbers as one", max_rows=1000, runs=(2, 4)),
    replace(PREPARED, name="prepared, a person aborts", person="abort carried", runs=(2, 3)),
    replace(PREPARED, name="prepared, rows are computed again", person="abort rewound, recover", runs=(2, 3)),
    replace(PREPARED, name="prepared that loses its branches", events=SHOP_LOST, event_weight=12, runs=(1, 2)),
    replace(PREPARED, name="prepared and Kafka", sinks={**_SHOP, **_KAFKA}, events=SHOP + LOG, runs=(1, 2)),
    replace(PREPARED, name="prepared, MySQL decides", sinks={**_SHOP, **_MYSQL}, events=SHOP + DB),
    replace(
        PREPARED,
        name="prepared, a commit by hand",
        events=(*_SHOP_HANDS, _SHOP_HANDS[0], "prepare declines item 1"),
        event_weight=12,
        person="abort carried, commit",
        runs=(2, 3),
    ),
    replace(
        PREPARED,
        name="prepared, rows that are set aside",
        events=(*SHOP_LOST, "shop forbids item 1", "shop forbids item 2"),
        event_weight=10,
        person="set aside, set aside",
        runs=(2, 3),
    ),
    replace(STREAM, name="a stream into prepared", sinks=_SHOP, events=SHOP + RUNNING),
    replace(RESTORED, name="prepared, a decision log restored from a backup", sinks=_SHOP),
    MAPPED_PREPARED,
    replace(MAPPED_PREPARED, name="mapped prepared, no server fails", events=()),
    replace(MAPPED_PREPARED, name="mapped prepared, two runs at once", concurrent=True),
    replace(MAPPED_PREPARED, name="mapped prepared, leases respected", lease=30.0, concurrent=True),
    replace(MAPPED_PREPARED, name="mapped prepared, several numbers as one", max_rows=1000, runs=(2, 4)),
    replace(MAPPED_PREPARED, name="mapped prepared and Kafka", sinks={**_SHOP, **_KAFKA}, events=SHOP + LOG),
    replace(MAPPED_PREPARED, name="mapped prepared and xa", sinks={**_SHOP, **_XA}, events=SHOP + MARIA),
    replace(MAPPED_PREPARED, name="mapped prepared, MySQL decides", sinks={**_SHOP, **_MYSQL}, events=SHOP + DB),
    replace(MAPPED_PREPARED, name="mapped prepared, a person aborts", person="abort carried", runs=(2, 3)),
    replace(
        MAPPED_PREPARED, name="mapped prepared, rows are computed again", person="abort rewound, recover", runs=(2, 3)
    ),
    replace(MAPPED_PREPARED, name="mapped prepared that loses its branches", events=SHOP_LOST, event_weight=12),
    replace(MAPPED_PREPARED, name="mapped prepared, clocks jump", events=(*CLOCKS, "shop restarts"), person="recover"),
    replace(
        MAPPED_PREPARED,
        name="mapped prepared, a commit by hand",
        events=(*_SHOP_HANDS, _SHOP_HANDS[0], "prepare declines item 1"),
        event_weight=12,
        person="abort carried, commit",
        runs=(2, 3),
    ),
)

_DISK, _BUCKET = {"tables": ("disk", "lake")}, {"objects": ("bucket", "store")}
DISK = Scenario("files on a disk", _DISK, runs=(2,), events=("prepare declines item 2",))
BUCKET = Scenario("files in a bucket", _BUCKET, runs=(2,), events=("prepare declines item 2",))
FOLDERS = (
    DISK,
    BUCKET,
    replace(DISK, name="files on a disk, two runs at once", runs=(1, 2), concurrent=True),
    replace(BUCKET, name="files in a bucket, two runs at once", runs=(1, 2), concurrent=True),
    Scenario("MySQL decides, files follow", {**_MYSQL, **_DISK, **_BUCKET}, runs=(1, 2), events=DB),
    replace(DISK, name="files on a disk, a person aborts what is prepared", person="abort carried", runs=(2, 3)),
    replace(BUCKET, name="files in a bucket, a person aborts what is prepared", person="abort carried", runs=(2, 3)),
    replace(BUCKET, name="files in a bucket, side by side", sinks={**_DISK, **_BUCKET}, parallel=True, runs=(1, 2)),
    replace(BUCKET, name="files in a bucket, several numbers as one", max_rows=1000, runs=(2, 4)),
    replace(RESTORED, name="files in a bucket, a decision log restored from a backup", sinks=_BUCKET),
    replace(STREAM, name="a stream of files", sinks={**_DISK, **_BUCKET}, events=RUNNING),
    replace(STREAM, name="a stream of files that a person stops", sinks=_BUCKET, events=RUNNING, person="stop"),
    replace(BUCKET, name="files in a bucket, at least once", modes=(CheckpointingMode.AT_LEAST_ONCE,), runs=(1, 2)),
    replace(
        DISK,
        name="files on a disk, from at least once to exactly once",
        modes=(CheckpointingMode.AT_LEAST_ONCE, CheckpointingMode.EXACTLY_ONCE),
        runs=(1, 2),
    ),
    replace(STREAM, name="a stream into MySQL, files follow", sinks={**_MYSQL, **_BUCKET}, events=DB + RUNNING),
)

_MODEL, _OTHER = {"lines": ("model", "shelf")}, {"more": ("model", "store")}
SHELF = ("shelf refuses item 1", "shelf refuses item 2")
MODEL = Scenario("one transaction", _MODEL, runs=(2,), events=SHELF)
MODELS = (
    MODEL,
    replace(MODEL, name="one transaction, two runs at once", runs=(1, 2), concurrent=True),
    replace(MODEL, name="one transaction, a person aborts what is prepared", person="abort carried", runs=(2, 3)),
    replace(MODEL, name="one transaction, several numbers as one", max_rows=1000, runs=(2, 4)),
    Scenario("one transaction decides, Kafka follows", {**_MODEL, **_KAFKA}, events=SHELF + LOG),
    Scenario("one transaction decides, another follows", {**_MODEL, **_OTHER}, runs=(1, 2), events=SHELF),
    Scenario("one transaction, prepared before it", {**_MODEL, **_BRANCHES}, events=SHELF + XA),
    replace(RESTORED, name="one transaction, a decision log restored from a backup", sinks=_MODEL),
    replace(STREAM, name="a stream into one transaction", sinks=_MODEL, events=SHELF + RUNNING),
    replace(STREAM, name="a stream into one transaction and Kafka", sinks={**_MODEL, **_KAFKA}, events=RUNNING),
    replace(MODEL, name="one transaction, at least once", modes=(CheckpointingMode.AT_LEAST_ONCE,), runs=(1, 2)),
)

_SCHEDULED = (
    *SCENARIOS,
    *FOLDERS,
    *MODELS,
    *BRANCHED,
    *HOLDING,
    *PEOPLE,
    RESTORED,
    FORGETTING,
    *SET_ASIDE,
    *ENDED_BY_HAND,
    *MAPPED,
    *PREPARING,
)
ALL = (
    *(*_SCHEDULED, *STREAMS, *PAUSED, *REPEATED, *LOST, *WINDOWED, *DELETED, *REQUESTED, *SAVED, *REFRESHED, *MOVED),
    *MAPPED_SLOTS,
)


def scenario_of(seed: int) -> Scenario:
    """Which scenario a random schedule plays."""
    return ALL[seed % len(ALL)]
