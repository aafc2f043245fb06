"""Answers of the page's API on pipelines and checkpoints. OpenAPI describes them.

The page's scripts are checked against OpenAPI.

Times are texts in ISO 8601, durations are seconds, sizes bytes. What is not known is "", 0, -1 or null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal

from typing_extensions import TypedDict

from airflow_ft.protocol.model import CheckpointState
from airflow_ft.protocol.overview import Condition
from airflow_ft.protocol.reasons import WaitReason
from airflow_ft.protocol.timing import Spread, Step

# --- all pipelines ---------------------------------------------------------------------------------------------------


class Failure(TypedDict):
    """The last error of a run or of a sink. `message`: what happened, `remedy`: what to do; "": not known.

    kind, code: the error's class and stable code.
    reason: the abort or halt reason that it leads to; "": none.
    dag_id, run_id, map_index, task_id, try_number: the task whose log says more; "", -1 and 0: there is none.
    """

    kind: str
    code: str
    reason: str
    message: str
    remedy: str
    dag_id: str
    run_id: str
    map_index: int
    task_id: str
    try_number: int
    at: str


class Halt(TypedDict):
    """The error that halted a pipeline. `reason`: in capitals. `remedy`: what to do."""

    reason: str
    code: str
    message: str
    remedy: str


class Warned(TypedDict):
    """A warning that stays until a confirmed run no longer reports it. `subject`: which source, sink or file; ""."""

    code: str
    subject: str
    message: str
    remedy: str
    at: str


class AtWork(TypedDict):
    """The run that is active ("": none), and the progress of a long delivery.

    `alive_at`: the last sign of life of a run that did not renew its lease in time; "": there is none.
    """

    at_work: str
    doing: Sequence[str]
    alive_at: str


class SourceLag(TypedDict):
    """Unpublished input of a source, at the time `at`.

    `rate`: what was read per second in the last minute; null: too early to measure. `expected` is how much there was
    when a scheduled run began, `done` how much of it is read. Both are 0 of a stream. `seconds_left`: until all is
    read; null: unknown.
    """

    source: str
    unit: str
    behind: int
    rate: float | None
    done: int
    expected: int
    seconds_left: float | None
    at: str


class Delivered(TypedDict):
    """A completed checkpoint and its rows."""

    number: int
    rows: int


class PipelineInShort(AtWork):
    """A pipeline in a list. `rate`: rows a second; null: too few checkpoints to measure. `lag`: where it is known."""

    name: str
    condition: Condition
    description: str
    dags: Sequence[str]
    confirmed: int
    confirmed_at: str
    waiting: int
    lag: Sequence[SourceLag]
    rate: float | None
    recent: Sequence[Delivered]
    warnings: int


class Pipelines(TypedDict):
    """A part of the pipelines. `total`: of those asked for. `conditions`: how many are in each, also of those not."""

    total: int
    conditions: Mapping[Condition, int]
    pipelines: Sequence[PipelineInShort]


# --- checkpoints -----------------------------------------------------------------------------------------------------


class StateSizes(TypedDict):
    """Size of the state after a checkpoint: bytes that it changed, and of the newest full snapshot (0: none).

    `replayed`: micro-batches since that snapshot, whose changes are replayed when the state is loaded.
    """

    changes: int
    snapshot: int
    replayed: int


class Timed(TypedDict):
    """Duration and size of a checkpoint: `bytes` in the log. `seconds`: null while it is not completed.

    `lag`, by source: what it had beyond this checkpoint while it was the newest one; empty: not measured.
    `state_sizes`: null: not measured, or no state.
    """

    number: int
    state: CheckpointState
    reason: str
    rows: int
    bytes: int
    triggered_at: str
    completed_at: str
    steps: Mapping[Step, float]
    seconds: float | None
    lag: Mapping[str, int]
    state_sizes: StateSizes | None


class Explained(TypedDict):
    """Why a checkpoint failed, what happens to its rows, and what to do; "": it has not failed."""

    cause: str
    fate: str
    remedy: str


class Failed(Timed, Explained):
    """A checkpoint that failed."""


class Participant(TypedDict):
    """A system that takes part in a checkpoint. `counts`: rows by sink, when they are proven."""

    name: str
    kind: str
    strategy: str
    promise: str
    predecessor: int
    sinks: Sequence[str]
    attempt: int
    prepared: int
    proof: bool
    outcome: str
    counts: Mapping[str, int]
    problem: Failure | None


class CheckpointListed(Timed, Explained):
    """A checkpoint in a list. `rows_of`: rows by sink; `delivers`: the checkpoints whose rows it brings."""

    delivered_by: int
    dag_id: str
    run_id: str
    map_index: int
    rows_of: Mapping[str, int]
    at: str
    message: str
    delivers: Sequence[int]
    reasons: Sequence[str]
    spec: str
    participants: Sequence[Participant]


class Event(TypedDict):
    """An event of the event log."""

    at: str
    epoch: int
    kind: str
    message: str


class Marker(TypedDict):
    """A system's memory of a checkpoint, and its vote.

    `digest`, `epoch` and `detail` are read from its own marker or token ("", 0, nothing: not yet). `notes` are its
    vote's, from which another process could finish it: for example the id of a transaction.
    """

    participant: str
    digest: str
    epoch: int
    notes: Mapping[str, Any]
    detail: Mapping[str, Any]


class CheckpointWhole(CheckpointListed):
    """All that is known of a checkpoint. `positions`: by source, in words of its kind.

    `task`: the task that staged it. `application`: Spark's id of the application that was to compute it. `spark`: the
    address of Spark's history ("": not known). `plan`: the digest that markers must have. `finalised_at`: when the work
    after the confirmation was done ("": not yet, or its event is forgotten).
    """

    task: str
    application: str
    spark: str
    markers: Sequence[Marker]
    plan: str
    finalised_at: str
    epoch: int
    predecessor: int
    log: str
    digest: str
    location: str
    positions: Mapping[str, Any]
    commit_point: str | None
    events: Sequence[Event]


class Checkpoints(TypedDict):
    """A part of a pipeline's checkpoints, newest first."""

    checkpoints: Sequence[CheckpointListed]


class RunOfPipeline(TypedDict):
    """Results of a DAG's run for a pipeline."""

    name: str
    map_index: int
    checkpoints: Sequence[CheckpointListed]


class Runs(TypedDict):
    """Results of a DAG's run, by pipeline and map index."""

    pipelines: Sequence[RunOfPipeline]


# --- one pipeline ----------------------------------------------------------------------------------------------------


class Hindrance(StrEnum):
    """Why a DAG does nothing for a user."""

    MISSING = "MISSING"
    """There is none, or he may not see it."""
    FORBIDDEN = "FORBIDDEN"
    """He may not trigger it."""
    UNSUITABLE = "UNSUITABLE"
    """It has no parameters `pipeline` and `action`."""
    PAUSED = "PAUSED"


class Hindered(TypedDict):
    """A DAG by which the user cannot act."""

    dag: str
    why: Hindrance


class Offered(TypedDict):
    """The actions that the user may do, with the DAG that does each."""

    actions: Mapping[str, str]
    hindered: Sequence[Hindered]


class CheckpointCounts(TypedDict):
    """Number of checkpoints since the first one. `subsumed`: delivered with a later one."""

    triggered: int
    in_progress: int
    completed: int
    subsumed: int
    failed: int
    restored: int


class DeadLetters(TypedDict):
    """Unusable rows of the newest `checkpoints`: `rows` of `of` rows went into `sink`.

    A checkpoint with more than `max_rows`, or a larger share than `max_share`, fails; null: no such limit. A pipeline
    without a sink for them: null.
    """

    sink: str
    max_rows: int | None
    max_share: float | None
    checkpoints: int
    rows: int
    of: int


class Noted(TypedDict):
    """Note on a checkpoint."""

    number: int
    at: str
    message: str


class HeldBack(TypedDict):
    """Why a stream triggers no checkpoint although its sources have more, and since when none was."""

    reason: WaitReason
    since: str
    cause: str
    remedy: str


class CheckpointOpen(CheckpointListed):
    """An open checkpoint. `fitting`: the actions on it that are not refused in its state."""

    fitting: Sequence[str]


class Pipeline(AtWork, Offered):
    """State of a pipeline. `triggered`: assigned numbers; `waiting`: checkpoints that wait for delivery.

    `halt`: null if it is not HALTED. `held_back`: null if it need not wait. `failure`: the last error of its newest
    run; null: none is known. `fitting`: the actions on the whole pipeline that its state allows.
    """

    name: str
    condition: Condition
    description: str
    halt: Halt | None
    dags: Sequence[str]
    confirmed: int
    waiting: int
    held_back: HeldBack | None
    lag: Sequence[SourceLag]
    triggered: int
    epoch: int
    streaming: bool
    failure: Failure | None
    warnings: Sequence[Warned]
    fitting: Sequence[str]
    open: Sequence[CheckpointOpen]
    completed: Timed | None
    failed: Failed | None
    savepoint: Noted | None
    restored: Noted | None
    counts: CheckpointCounts
    dead_letters: DeadLetters | None


class Timings(TypedDict):
    """The newest checkpoints. `states`, `reasons`: how many; `summary`: of completed ones, by step and measure."""

    states: Mapping[str, int]
    reasons: Mapping[str, int]
    summary: Mapping[str, Spread]
    checkpoints: Sequence[Timed]


class Positions(TypedDict):
    """Source positions of a checkpoint."""

    checkpoint: int
    sources: Mapping[str, Any]


class Setting(TypedDict):
    """A setting as it counts. `name`: as an argument of a pipeline, `checkpointing.timeout`."""

    name: str
    value: Any
    origin: Literal["the pipeline", "[airflow_ft]", "default"]


class Job(TypedDict):
    """Specification of a pipeline at `checkpoint` (0: unknown). `defaults`: arguments with default values.

    `settings`: all of them, and those of checkpointing with default values.
    """

    checkpoint: int
    spec: Mapping[str, Any]
    defaults: Sequence[str]
    settings: Sequence[Setting]
    confirmed: Positions
    read: Positions
