"""Why a checkpoint failed, and why none is triggered although it is due: two closed lists, each with what to do.

The decision log, the command line, the page, logs and metrics show these members. docs/failures.md lists them;
tests/test_failures.py names the test that provokes each.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class _Told:
    """`cause` is no more than what is known where the reason is written. `counts`: see `AbortReason.counts`."""

    cause: str
    rows: str
    remedy: str
    counts: bool = False


class AbortReason(StrEnum):
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
    def cause(self) -> str:
        """Return what happened, as far as the aborting process knew."""
        return _ABORTS[self].cause

    @property
    def rows(self) -> str:
        """Return what becomes of its rows."""
        return _ABORTS[self].rows

    @property
    def remedy(self) -> str:
        """Return what a person should do."""
        return _ABORTS[self].remedy

    @property
    def explanation(self) -> str:
        """All three."""
        return f"{self.cause} {self.rows} {self.remedy}"

    @property
    def counts(self) -> bool:
        """Whether it counts for `CheckpointConfig.tolerable_failures`: the checkpoint failed, not what computed it.

        Everything else that ends an attempt is the restart strategy's, as in Flink.
        """
        return _ABORTS[self].counts


class OtherReason(str):
    """One that this release does not know: a newer one has written it. It is shown as it stands, and handed on.

    What becomes of the rows is told apart from it (`AfterAbort`), so nothing is decided by it.
    """

    __slots__ = ()
    cause = "A newer airflow-ft has written this reason, and this one does not know it."
    rows = "They go where the checkpoint says: delivered by the next number, or computed again."
    remedy = "See what the message says, and install that version everywhere."
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


class WaitReason(StrEnum):
    """Why no checkpoint is triggered although one is due. Nothing has failed: it is triggered later."""

    MIN_PAUSE = "MIN_PAUSE"
    TOO_MANY_QUEUED = "TOO_MANY_QUEUED"
    NOT_ACTIVE = "NOT_ACTIVE"

    @property
    def cause(self) -> str:
        """Return what it waits for."""
        return _WAITS[self].cause

    @property
    def rows(self) -> str:
        """Return where the rows are meanwhile."""
        return _WAITS[self].rows

    @property
    def remedy(self) -> str:
        """Return what a person should do."""
        return _WAITS[self].remedy


def failure_text(pipeline: str, number: int, reason: Reason, message: str) -> str:
    """The line that a log has for a failed checkpoint: which, why, and what now. `FAILURE` reads it."""
    said = " ".join(message.split())
    return (
        f"checkpoint {number} of {pipeline} failed ({reason}): {said}{'' if said.endswith('.') else '.'} {reason.rows}"
        f" {reason.remedy}"
    )


FAILURE = re.compile(rf"checkpoint (?P<number>\d+) of \S+ failed \((?P<reason>{'|'.join(AbortReason)})\): ")

_AGAIN = "They were not published; the next attempt computes the same input again (AT_MOST_ONCE: they are lost)."
_ABORTS = {
    AbortReason.JOB_FAILED: _Told(
        "The job's own code raised, or returned what was not asked for.",
        _AGAIN,
        "Mend the job; the task's log names the error, with file and line.",
    ),
    AbortReason.TOO_MANY_DEAD_LETTERS: _Told(
        "More of its rows are dead letters than `DeadLetters` allows.",
        _AGAIN,
        "Mend the source or the job, or allow more; `airflow ft dry-run` shows some of them.",
    ),
    AbortReason.STAGE_FAILED: _Told(
        "Spark, a source, the disk or memory failed, or the driver was killed.",
        _AGAIN,
        "See to what the message names; it is tried again as the restart strategy says.",
    ),
    AbortReason.DATA_LOSS: _Told(
        "A source has lost what it still had to give: a topic was recreated, or retention was faster.",
        _AGAIN,
        "Look at the source; `fail_on_data_loss=False` for one run goes on without the lost records.",
    ),
    AbortReason.SEAL_FAILED: _Told(
        "Its files or Spark's location could not be sealed: read again, summed up, or made durable on the disk.",
        _AGAIN,
        "See whether the disk of `wal_root` is full, or away; it is tried again.",
        counts=True,
    ),
    AbortReason.PUBLISH_FAILED: _Told(
        "The decision log refused its publication, or was out of reach.",
        _AGAIN,
        "See to the decision log, as the message says; it is tried again.",
    ),
    AbortReason.HALTED: _Told(
        "The pipeline was HALTED while it was computed.",
        _AGAIN,
        "Settle what halted the pipeline (`airflow ft pipelines`), then run `airflow ft resume`.",
    ),
    AbortReason.STOPPED: _Told(
        "The Spark driver was ended while it was computed: the stream was to stop at once, the task was ended, or the"
        " delivery beside it had failed.",
        _AGAIN,
        "Nothing, unless its delivery failed: then see the task's error.",
    ),
    AbortReason.FENCED: _Told(
        "A newer owner took over while the one that computed it still held a lease: that one no longer renewed it, or"
        " was an older try of the same task.",
        _AGAIN,
        "Nothing: an older owner can change nothing any more. If it comes often, see why its process stands still.",
    ),
    AbortReason.ATTEMPT_ENDED: _Told(
        "The next owner found it unpublished, and nobody at work on it: whoever computed it had ended without a word.",
        _AGAIN,
        "Nothing. If it comes again, see how the log of that attempt ends.",
    ),
    AbortReason.EXPIRED: _Told(
        "It was not staged, or in a stream not decided, within CheckpointConfig.timeout; the message says which.",
        "Not staged: the next attempt computes the same input again (AT_MOST_ONCE: they are lost). Not decided: they"
        " are delivered with the next number.",
        "Raise the time-out, make the micro-batch smaller, or see why the sinks take so long.",
        counts=True,
    ),
    AbortReason.DECLINED: _Told(
        "A sink refused the rows or their schema.",
        "The pipeline was rewound: the next run computes them again (AT_MOST_ONCE: they are lost).",
        "Mend what the message names.",
    ),
    AbortReason.SUPERSEDED: _Told(
        "The pipeline's sinks were changed before it was prepared, or another number took over all of its rows.",
        "They are delivered by the next number, into the sinks as they are declared now.",
        "Nothing.",
    ),
    AbortReason.PREDECESSOR_ABORTED: _Told(
        "An earlier checkpoint was aborted, and order is kept.",
        "They go where that one's rows go: delivered by the next number, or computed again.",
        "Nothing here: see the earlier one.",
    ),
    AbortReason.USER: _Told(
        "Somebody asked for it.",
        "As was asked: delivered by the next number, or computed again.",
        "Nothing; the event log says who it was, and why.",
    ),
}
_UNREAD = "They stay in the sources, and are read later."
_WAITS = {
    WaitReason.MIN_PAUSE: _Told(
        "`min_pause` since the last confirmation is not over.",
        _UNREAD,
        "Nothing: so it was asked for.",
    ),
    WaitReason.TOO_MANY_QUEUED: _Told(
        "As many checkpoints wait for delivery as `max_concurrent` allows, or as Spark keeps state for (998).",
        _UNREAD,
        "Nothing, if the sinks catch up; else see what they wait for (`airflow ft in-doubt`), or make them faster.",
    ),
    WaitReason.NOT_ACTIVE: _Told(
        "The pipeline is suspended: a checkpoint is QUARANTINED, or it is HALTED.",
        _UNREAD,
        "Settle it: `airflow ft in-doubt` says how; a HALTED pipeline needs `airflow ft resume`, too.",
    ),
}
