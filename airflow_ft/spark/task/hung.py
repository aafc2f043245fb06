"""A driver that hangs: it holds a checkpoint long after its time-out, which it should have ended itself.

That happens if a job's own code keeps Python's lock, such as a regular expression that never ends, or if the process is
stopped. Then no thread of the driver runs, so the task looks from outside.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from airflow_ft.protocol.errors import CheckpointExpiredError, StoreUnavailableError
from airflow_ft.protocol.model import CheckpointState

if TYPE_CHECKING:
    from airflow_ft.store.decision_log import DecisionLog

LOOK_SECONDS = 10.0
GRACE_SECONDS = 120.0
"""Beyond the time-out. A driver waits up to a minute for the decision log, and then for its files."""


class HungDriver:
    """Looks at the decision log for a checkpoint of this epoch that is not STAGED long after its time-out.

    Attributes:
        timeout: seconds from TRIGGERED to STAGED; infinite until the request is known.
        error: what `check` has raised.
    """

    def __init__(self, store: DecisionLog, pipeline: str, epoch: int) -> None:
        self._store, self._pipeline, self._epoch = store, pipeline, epoch
        self._seen: dict[int, float] = {}
        self._next = 0.0
        self.timeout = math.inf
        self.error: CheckpointExpiredError | None = None

    def check(self) -> None:
        """CheckpointExpiredError: it hangs. Looks every `LOOK_SECONDS`; a log that is away says nothing."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + LOOK_SECONDS
        with suppress(StoreUnavailableError):
            opened = self._store.open_checkpoints(self._pipeline)
            computing = [c.number for c in opened if c.state is CheckpointState.TRIGGERED and c.epoch == self._epoch]
            self._seen = {number: self._seen.get(number, now) for number in computing}
            for number, since in self._seen.items():
                if now - since > self.timeout + GRACE_SECONDS:
                    self.error = self._expired(number)
                    raise self.error

    def _expired(self, number: int) -> CheckpointExpiredError:
        return CheckpointExpiredError(
            f"it was not staged within CheckpointConfig.timeout ({self.timeout:g} s). The Spark driver should have"
            " aborted it and has not, so it is killed.",
            pipeline=self._pipeline,
            checkpoint=number,
            remedy="Look in the job for code that may never return, such as a regular expression. If storage below"
            " wal_root is slow, raise CheckpointConfig.timeout.",
            timeout=self.timeout,
        )


def of_group(error: CheckpointExpiredError) -> CheckpointExpiredError:
    """Return the error of all streams in one driver that hung. Which of their jobs hangs is unknown."""
    return CheckpointExpiredError(
        f"the driver of the group hung, so it was killed: checkpoint {error.checkpoint} of {error.pipeline} was neither"
        f" staged nor aborted long after CheckpointConfig.timeout ({error.fields['timeout']:g} s).",
        remedy=f"{error.remedy} The job of any stream of the group may be the cause.",
        **error.fields,
    )
