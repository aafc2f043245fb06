"""Why a checkpoint failed, and why none is triggered although it is due: two closed lists, each with what to do.

The decision log, the command line, the page, logs and metrics show these members. docs/failures.md lists them;
tests/test_failures.py names the test that provokes each.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class _Explanation:
    """Texts of a reason. `cause` says only what is known where the reason is written. `counts`: see
    `AbortReason.counts`.
    """

    cause: str
    rows: str
    remedy: str
    counts: bool = False


class _Explained(StrEnum):
    """A reason with its texts."""

    @property
    def cause(self) -> str:
        """Return what happened, as far as the aborting process knew; or what the next checkpoint waits for."""
        return _EXPLANATIONS[self].cause

    @property
    def rows(self) -> str:
        """Return what becomes of the rows."""
        return _EXPLANATIONS[self].rows

    @property
    def remedy(self) -> str:
        """Return what a person should do."""
        return _EXPLANATIONS[self].remedy


class AbortReason(_Explained):
    """Why a checkpoint is ABORTED. Stored by name: members are added, and never renamed or taken away."""

    JOB_FAILED = "JOB_FAILED"
    TOO_MANY_DEAD_LETTERS = "TOO_MANY_DEAD_LETTERS"
    STAGE_FAILED = "STAGE_FAILED"
    DATA_LOSS = "DATA_LOSS"
    SEAL_FAILED = "SEAL_FAILED"
    PUBLISH_FAILED = "PUBLISH_FAILED"
    HALTED = "HALTED"
    STOPPED = "STOPPED"
    FENCED = "FENCED"
    ATTEMPT_ENDED = "ATTEMPT_ENDED"
    EXPIRED = "EXPIRED"
    DECLINED = "DECLINED"
    SUPERSEDED = "SUPERSEDED"
    PREDECESSOR_ABORTED = "PREDECESSOR_ABORTED"
    USER = "USER"

    @property
    def explanation(self) -> str:
        """All three."""
        return f"{self.cause} {self.rows} {self.remedy}"

    @property
    def counts(self) -> bool:
        """Return whether `CheckpointConfig.tolerable_failures` counts it: the checkpoint failed, not its computation.

        The restart strategy handles everything else that ends an attempt, as in Flink.
        """
        return _EXPLANATIONS[self].counts


class OtherReason(str):
    """A reason that a newer release wrote and this one does not know. It is shown and passed on unchanged.

    `AfterAbort` says what becomes of the rows, so nothing depends on the reason.
    """

    __slots__ = ()
    cause = "A newer airflow-ft wrote this reason, which this version does not know."
    rows = "The checkpoint says where they go: the next number delivers them, or they are computed again."
    remedy = "Read the message, and install that version everywhere."
    counts = False

    @property
    def value(self) -> str:
        """As `AbortReason.value`."""
        return str(self)

    @property
    def explanation(self) -> str:
        """As `AbortReason.explanation`."""
        return f"{self.cause} {self.rows} {self.remedy}"


Reason = AbortReason | OtherReason
"""As it is read."""
_REASON = re.compile(r"[A-Z][A-Z_]*")


def reason_of(text: str) -> Reason:
    """The reason of that name; ValueError for what can be none."""
    if text in AbortReason.__members__:
        return AbortReason(text)
    if _REASON.fullmatch(text) is None:
        raise ValueError(f"{text!r} is no reason")
    return OtherReason(text)


class WaitReason(_Explained):
    """Why no checkpoint is triggered although one is due. Nothing has failed: it is triggered later."""

    MIN_PAUSE = "MIN_PAUSE"
    TOO_MANY_QUEUED = "TOO_MANY_QUEUED"
    NOT_ACTIVE = "NOT_ACTIVE"


def failure_text(pipeline: str, number: int, reason: Reason, message: str) -> str:
    """The line that a log has for a failed checkpoint: which, why, and what now. `FAILURE` reads it."""
    said = " ".join(message.split())
    return (
        f"checkpoint {number} of {pipeline} failed ({reason}): {said}{'' if said.endswith('.') else '.'} {reason.rows}"
        f" {reason.remedy}"
    )


FAILURE = re.compile(rf"checkpoint (?P<number>\d+) of \S+ failed \((?P<reason>{'|'.join(AbortReason)})\): ")

_AGAIN = "Its rows were not published. The next attempt computes them again (only mode AT_MOST_ONCE drops them)."
_UNREAD = "They stay in the sources and are read later."
_EXPLANATIONS: dict[_Explained, _Explanation] = {
    AbortReason.JOB_FAILED: _Explanation(
        "The job's code raised an error, or returned something other than rows.",
        _AGAIN,
        "Correct the job. The task's log names file and line.",
    ),
    AbortReason.TOO_MANY_DEAD_LETTERS: _Explanation(
        "More of its rows are dead letters than `DeadLetters` allows.",
        _AGAIN,
        "Correct the source or the job, or allow more. `airflow ft dry-run` shows some of them.",
    ),
    AbortReason.STAGE_FAILED: _Explanation(
        "Spark, a source, the disk or memory failed, or the driver was killed.",
        _AGAIN,
        "Repair what the message names.",
    ),
    AbortReason.DATA_LOSS: _Explanation(
        "A source lost unread records: a topic was recreated, or retention was faster.",
        _AGAIN,
        "Check the source. To continue without the lost records, set `fail_on_data_loss=False` for one run.",
    ),
    AbortReason.SEAL_FAILED: _Explanation(
        "Its files or Spark's location could not be read back, summed up or made durable.",
        _AGAIN,
        "Check whether the disk of `wal_root` is full or unreachable.",
        counts=True,
    ),
    AbortReason.PUBLISH_FAILED: _Explanation(
        "The decision log refused the publication, or could not be reached.",
        _AGAIN,
        "Repair the decision log as the message says.",
    ),
    AbortReason.HALTED: _Explanation(
        "The pipeline was HALTED while the checkpoint was computed.",
        _AGAIN,
        "Settle what halted the pipeline (`airflow ft pipelines`), then run `airflow ft resume`.",
    ),
    AbortReason.STOPPED: _Explanation(
        "The Spark driver was ended meanwhile: `airflow ft stop --now`, a task that was marked or cleared, or a failed"
        " delivery beside it.",
        _AGAIN,
        "Do nothing, unless the delivery failed: then see the task's error.",
    ),
    AbortReason.FENCED: _Explanation(
        "A newer owner took over while the older one held a lease. The older one no longer renewed it, or was an older"
        " try of the same task.",
        _AGAIN,
        "Do nothing: the older owner cannot change anything. If it is frequent, find out why its process hangs.",
    ),
    AbortReason.ATTEMPT_ENDED: _Explanation(
        "The next owner found it unpublished, and its owner gone without a trace.",
        _AGAIN,
        "Do nothing. If it repeats, read the end of that attempt's log.",
    ),
    AbortReason.EXPIRED: _Explanation(
        "It was not staged, or in a stream not decided, within CheckpointConfig.timeout. The message says which.",
        "Not staged: the next attempt computes the same input again (AT_MOST_ONCE: they are lost). Not decided: the"
        " next number delivers them.",
        "Raise the timeout, make micro-batches smaller, or find out why the sinks are slow.",
        counts=True,
    ),
    AbortReason.DECLINED: _Explanation(
        "A sink refused the rows or their schema.",
        "The pipeline was rewound: the next run computes them again, or your program gives their position again"
        " (AT_MOST_ONCE: they are lost).",
        "Correct what the message names.",
    ),
    AbortReason.SUPERSEDED: _Explanation(
        "The pipeline's sinks were changed before it was prepared, or another number took its rows.",
        "A later number delivers them into the sinks that are declared then.",
        "If you removed a sink, declare it again until its rows are delivered.",
    ),
    AbortReason.PREDECESSOR_ABORTED: _Explanation(
        "An earlier checkpoint was aborted, and later ones must follow it in order.",
        "As those of the earlier one: the next number delivers them, or they are computed again. Rows that your program"
        " gave are delivered after those of the earlier one.",
        "See the earlier one.",
    ),
    AbortReason.USER: _Explanation(
        "A person asked for it.",
        "As asked: the next number delivers them. Or the pipeline was rewound: the next run computes them again, or"
        " your program gives their position again.",
        "If your program gives the rows and the pipeline was rewound, give their position again. Otherwise do nothing."
        " The event log has the user and the reason.",
    ),
    WaitReason.MIN_PAUSE: _Explanation(
        "`min_pause` since the last confirmation is not over.",
        _UNREAD,
        "Do nothing: `min_pause` asks for it.",
    ),
    WaitReason.TOO_MANY_QUEUED: _Explanation(
        "As many checkpoints wait for delivery as `max_concurrent` allows, or as Spark keeps state for.",
        _UNREAD,
        "Do nothing if the sinks catch up. Otherwise `airflow ft in-doubt` shows what they wait for.",
    ),
    WaitReason.NOT_ACTIVE: _Explanation(
        "The pipeline is suspended: a checkpoint is QUARANTINED, or it is HALTED.",
        _UNREAD,
        "Settle it: `airflow ft in-doubt` shows how. A HALTED pipeline also needs `airflow ft resume`.",
    ),
}
