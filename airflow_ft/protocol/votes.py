"""Answers of the participants of a checkpoint: votes, proofs and heads. All frozen, all plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from airflow_ft.protocol.failure import Failure


class Outcome(StrEnum):
    """Outcome of a checkpoint according to the sink's own marker."""

    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class Proof:
    """Outcome read from a sink's own marker or token (I6), never guessed.

    `counts` are what the server returned inside the delivering transaction, by sink name: affected rows, or
    acknowledged records. `detail` is plain JSON for people: attempts, connection, slow path taken, reason of an abort
    marker.
    """

    participant: str
    number: int
    outcome: Outcome
    digest: str
    epoch: int
    counts: Mapping[str, int] = field(default_factory=dict)
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SinkHead:
    """A sink's own memory of a pipeline: its owner, its newest epoch and the number it delivered last.

    `lost`: the head is gone, or older than the newest marker of a delivery. Then this is what the markers say.
    """

    installation: str
    epoch: int
    number: int
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Vote:
    """A participant's newest attempt at a checkpoint's step, numbered before the sink was touched.

    `prepared` is the attempt that voted yes (0: none). `notes` are that vote's plain JSON, from which another process
    can finish a TWO_PHASE participant. `proof` is set once its outcome was read. `problem`, only for people, is the
    error of the newest attempt (None: no error). `rolled_back`: it holds nothing of the ABORTED number, or is given up.
    """

    participant: str
    attempt: int
    prepared: int
    proof: Proof | None
    notes: Mapping[str, Any] = field(default_factory=dict)
    problem: Failure | None = field(default=None, compare=False)
    rolled_back: bool = False
