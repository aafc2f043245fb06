"""`Abandoned`: whether the program of another plain run has died."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from airflow_ft.protocol.decision_log import LeaseLog
from airflow_ft.protocol.lease import LeaseWatch
from airflow_ft.protocol.model import RunKey


@dataclass
class Abandoned:
    """Check whether another plain run has ended without a record: its process has died.

    While it works it renews a lease. So it is over when no lease of the pipeline has moved for `seconds`. If it is not
    dead but asleep, it is fenced when it wakes up (I5). Only Airflow knows about a DAG run, so none is ever over here.

    `watch` has what this wait has seen of the leases, so that `take_epoch` does not wait for them again.
    """

    store: LeaseLog
    pipeline: str
    seconds: float
    monotonic: Callable[[], float] = time.monotonic
    watch: LeaseWatch = field(init=False)
    _seen: tuple[RunKey, Mapping[str, int]] | None = None
    _since: float = 0.0

    def __post_init__(self) -> None:
        self.watch = LeaseWatch(self.monotonic)

    def __call__(self, holder: RunKey) -> bool:
        """To be asked again and again."""
        if not holder.is_plain:
            return False
        leases = self.store.leases(self.pipeline)
        self.watch.look(leases)
        seen = holder, {lease.holder: lease.counter for lease in leases}
        if seen != self._seen:
            self._seen, self._since = seen, self.monotonic()
        return self.monotonic() - self._since >= self.seconds
