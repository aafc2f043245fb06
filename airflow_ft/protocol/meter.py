"""The port for metrics and traces: counts what becomes of checkpoints."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_ft.protocol.delivery_progress import Taken
from airflow_ft.protocol.lag import Unit
from airflow_ft.protocol.model import Checkpoint
from airflow_ft.protocol.pipelines import Event
from airflow_ft.protocol.reasons import Reason, WaitReason
from airflow_ft.protocol.timing import Timing

MOST_EVENTS = 300
"""Most events of a checkpoint that its trace uses: a checkpoint that is retried for hours has thousands."""


class Meter:
    """Counts nothing; subclasses count the outcomes of checkpoints. An error in counting fails nothing."""

    @property
    def traces(self) -> bool:
        """Return whether `ended` needs a call, which costs a read of the decision log."""
        return False

    def ended(self, checkpoint: Checkpoint, events: Sequence[Event]) -> None:
        """One is COMPLETED or ABORTED; with what has happened to it, the newest first."""

    def failed(self, pipeline: str, reason: Reason) -> None:
        """One was aborted."""

    def confirmed(self, pipeline: str, count: int) -> None:
        """Add checkpoints that are proven to be in every sink: a COMPLETED one, and those delivered with it."""

    def completed(self, pipeline: str, timing: Timing) -> None:
        """A checkpoint is COMPLETED: how long it took, and the rows and bytes of all segments that it delivered."""

    def dead_letters(self, pipeline: str, sink: str, rows: int) -> None:
        """Add rows that were staged for the sink of dead letters."""

    def waited(self, pipeline: str, reason: WaitReason, seconds: float) -> None:
        """Add seconds without a trigger although a checkpoint was due."""

    def state(self, pipeline: str, changes: int, snapshot: int, replayed: int) -> None:
        """Report the size of the state, as in `airflow_ft.protocol.model.StateSizes`."""

    def taken(self, pipeline: str, taken: Taken) -> None:
        """Report the progress of a long delivery."""

    def lag(self, pipeline: str, source: str, unit: Unit, behind: int) -> None:
        """Report how much input of a source no published checkpoint contains."""
