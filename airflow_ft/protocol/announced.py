"""An attempt that is announced: other processes store its branches, and `prepare` then votes for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from airflow_ft.protocol.model import Checkpoint, CheckpointState
from airflow_ft.protocol.planning import wants_vote


@dataclass(frozen=True, slots=True)
class Announcement:
    """An attempt at a participant's vote. `branches` are labels; `notes` are what the participant said, as plain JSON.

    It holds no secrets, so it may travel through XCom. It proves nothing: decision log and sink say whether it holds.
    """

    number: int
    participant: str
    epoch: int
    attempt: int
    branches: Sequence[str]
    notes: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Plain data for XCom."""
        return asdict(self) | {"branches": list(self.branches), "notes": dict(self.notes)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Announcement:
        """The inverse of `to_json`; ignores what else is in `data`."""
        return cls(**{each.name: data[each.name] for each in fields(cls)})

    def holds(self, checkpoint: Checkpoint, epoch: int) -> bool:
        """Return whether it is the participant's newest attempt, of this epoch, and has not voted."""
        vote = checkpoint.votes.get(self.participant)
        return (
            vote is not None
            and checkpoint.state in (CheckpointState.STAGED, CheckpointState.PREPARED)
            and wants_vote(checkpoint, self.participant)
            and (self.number, self.epoch, self.attempt) == (checkpoint.number, epoch, vote.attempt)
            and vote.prepared != vote.attempt
        )

    def has_voted(self, checkpoint: Checkpoint, epoch: int) -> bool:
        """Return whether this attempt, of this epoch, has voted, and none has begun after it."""
        vote = checkpoint.votes.get(self.participant)
        return (
            vote is not None
            and (self.number, self.epoch) == (checkpoint.number, epoch)
            and vote.prepared == vote.attempt == self.attempt
        )
