"""Taking an epoch, and keeping a lease while working.

A lease permits to take an epoch and proves nothing: safety rests on epochs and attempts alone (I5). A challenger
watches the holders' counters over its own monotonic clock, so that no clock of another machine matters.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace

from airflow_ft.protocol.decision_log import EpochLog, QueryLog
from airflow_ft.protocol.delivery_progress import DELIVERY_PROGRESS, Taken
from airflow_ft.protocol.errors import FencedError, LeaseHeldError, StateConflictError
from airflow_ft.protocol.model import RunKey
from airflow_ft.protocol.pipelines import LEASE_SECONDS as LEASE_SECONDS
from airflow_ft.protocol.pipelines import Lease

log = logging.getLogger(__name__)


class LeaseWatch:
    """Since when each lease of a pipeline is unchanged, by the monotonic clock of this process.

    A process that hands one watch to several waits for a dead owner waits once. A lease is known by holder, epoch and
    counter. So a lease that was renewed, released or taken in between starts at zero. No look is needed in between:
    an equal counter proves that there was no renewal. An owner that could not renew meanwhile, because it slept or the
    decision log was away, is fenced (I5), and its work is done again.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._since: dict[tuple[str, int, int], float] = {}

    def look(self, leases: Iterable[Lease]) -> None:
        """Remember the leases as they are now, all of the pipeline. The clock is read after the decision log."""
        now = self._monotonic()
        self._since = {key: self._since.get(key, now) for key in map(_identity, leases)}

    def unchanged(self, lease: Lease) -> float:
        """Return the seconds since a look first found the lease as it is; KeyError if the last look did not."""
        return self._monotonic() - self._since[_identity(lease)]


def _identity(lease: Lease) -> tuple[str, int, int]:
    return lease.holder, lease.epoch, lease.counter


@dataclass
class Abandoned:
    """Check whether another plain run has ended without a record: its process has died.

    While it works it renews a lease. So it is over when no lease of the pipeline has moved for `seconds`. If it is not
    dead but asleep, it is fenced when it wakes up (I5). Only Airflow knows about a DAG run, so none is ever over here.

    `watch` gets what this wait has seen of the leases, so that `take_epoch` does not wait for them again. `has_moved`:
    the last look found other leases than the one before.
    """

    store: QueryLog
    pipeline: str
    seconds: float
    watch: LeaseWatch
    monotonic: Callable[[], float] = time.monotonic
    has_moved: bool = False
    _seen: tuple[RunKey, Mapping[str, int]] | None = None
    _since: float = 0.0

    def __call__(self, holder: RunKey) -> bool:
        """Return whether the run is over. Call it repeatedly."""
        if not holder.is_plain:
            return False
        leases = self.store.leases(self.pipeline)
        self.watch.look(leases)
        seen = holder, {lease.holder: lease.counter for lease in leases}
        self.has_moved = self._seen not in (None, seen)
        if seen != self._seen:
            self._seen, self._since = seen, self.monotonic()
        return self.monotonic() - self._since >= self.seconds


@dataclass(frozen=True, slots=True)
class Worker:
    """The process that works. `task` is the Airflow task instance without its try ("" outside Airflow).

    `watch`: what the process has seen of the pipeline's leases (None: nothing yet).
    """

    task: str = ""
    try_number: int = 1
    watch: LeaseWatch | None = field(default=None, compare=False, repr=False)

    def lease(self, seconds: float = LEASE_SECONDS) -> Lease:
        """Return a new lease that holds for `seconds` without a renewal.

        Its holder, "host:pid:random", is unique and shows people where to look.
        """
        holder = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:12]}"
        return Lease(holder, epoch=0, task=self.task, try_number=self.try_number, counter=0, seconds=seconds)


def _is_older_try(other: Lease, mine: Lease) -> bool:
    return bool(mine.task) and other.task == mine.task and other.try_number < mine.try_number


def take_epoch(
    store: EpochLog,
    pipeline: str,
    lease: Lease,
    why: str,
    *,
    lease_seconds: float = LEASE_SECONDS,
    after: int | None = None,
    watch: LeaseWatch | None = None,
    sleep: Callable[[float], None] = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
) -> int:
    """Take the next epoch once every other holder is an older try of this task or did not renew for `lease_seconds`.

    `watch` counts what this process has seen of the leases before, by its own clock (None: nothing, by `monotonic`).

    Raises:
        LeaseHeldError: another holder renewed its lease meanwhile.
        StoreUnavailableError: the store is unavailable.
        FencedError: the newest epoch is not `after`; no epoch was taken.
    """
    watch = watch or LeaseWatch(monotonic)
    found: dict[str, Lease] = {}
    while True:
        epoch = store.pipeline(pipeline).epoch
        if after is not None and epoch != after:
            raise FencedError(
                f"another process took epoch {epoch} after epoch {after}.",
                remedy="Do nothing: that process continues.",
                pipeline=pipeline,
                epoch=epoch,
            )
        leases = store.leases(pipeline)
        watch.look(leases)
        waits = False
        for other in leases:
            if other.holder == lease.holder or _is_older_try(other, lease):
                continue
            first = found.setdefault(other.holder, other)
            left = lease_seconds - watch.unchanged(other)
            if first is other and left > 0:
                log.info(
                    "waiting for %s, which has epoch %d of %s: without a renewed lease it counts as dead in %g s",
                    other.task or other.holder,
                    other.epoch,
                    pipeline,
                    round(left, 1),
                )
            if _identity(first) != _identity(other):
                raise LeaseHeldError(
                    f"{other.task or 'another process'} (try {other.try_number}) works on the pipeline with epoch"
                    f" {other.epoch}.",
                    pipeline=pipeline,
                    remedy="Wait until it has finished, then try again. A stream does not finish: first run"
                    f" `airflow ft stop {pipeline}`, or pause its DAG.",
                    task=other.task,
                    epoch=other.epoch,
                )
            waits = waits or left > 0
        if not waits:
            try:
                return store.take_epoch(pipeline, epoch, {other.holder: other.counter for other in leases}, lease, why)
            except (LeaseHeldError, StateConflictError, FencedError):
                continue  # another process changed it meanwhile: look again
        sleep(min(1.0, lease_seconds / 10))


class LeaseKeeper:
    """Renews a lease from a thread, until closed; `check` raises what has ended that: only a newer owner does."""

    def __init__(self, store: EpochLog, pipeline: str, epoch: int, holder: str, lease_seconds: float) -> None:
        self._store, self._pipeline, self._epoch, self._holder = store, pipeline, epoch, holder
        self._interval = lease_seconds / 3
        self._stop = threading.Event()
        self._fenced: FencedError | None = None
        self._measured: dict[str, Taken] = {}
        self._thread = threading.Thread(target=self._renew, name=f"lease-{pipeline}", daemon=True)
        self._thread.start()

    def _renew(self) -> None:
        while not self._stop.wait(self._interval):
            try:
                taken = DELIVERY_PROGRESS.now(self._pipeline)
                self._store.renew_lease(self._pipeline, self._epoch, self._holder, "; ".join(map(str, taken)))
                self._measure(taken)
            except FencedError as error:
                self._fenced = error
                return
            except Exception as error:  # the lease may run out meanwhile: that is safe (I5)
                log.warning("cannot renew the lease on %s: %s", self._pipeline, error)

    def _measure(self, taken: Sequence[Taken]) -> None:
        """Report progress to the meter; finished deliveries go back to 0. Only logs errors, so the lease is still
        renewed.
        """
        now = {each.sink: each for each in taken}
        over = [replace(each, rows=0, of=0) for sink, each in self._measured.items() if sink not in now]
        self._measured = now
        try:
            for each in (*over, *taken):
                self._store.meter.taken(self._pipeline, each)
        except Exception as error:
            log.warning("cannot measure the progress of deliveries of %s: %s", self._pipeline, error)

    def check(self) -> None:
        """Raises FencedError once a renewal was refused: a cheap early stop; safety does not rest on it."""
        if self._fenced is not None:
            raise self._fenced

    def close(self) -> None:
        """Stops renewing and gives the lease back; raises nothing, which would hide what has ended the work."""
        self._stop.set()
        self._thread.join()
        self._measure(())
        try:
            self._store.release_lease(self._pipeline, self._holder)
        except Exception as error:
            log.warning("cannot release the lease on %s, so it expires: %s", self._pipeline, error)


@contextmanager
def new_epoch(
    store: EpochLog,
    pipeline: str,
    worker: Worker,
    why: str,
    lease_seconds: float = LEASE_SECONDS,
    *,
    after: int | None = None,
) -> Iterator[tuple[int, LeaseKeeper]]:
    """Takes an epoch, as `take_epoch` does, and holds its lease for the duration of the block."""
    lease = worker.lease(lease_seconds)
    epoch = take_epoch(store, pipeline, lease, why, lease_seconds=lease_seconds, after=after, watch=worker.watch)
    with closing(LeaseKeeper(store, pipeline, epoch, lease.holder, lease_seconds)) as keeper:
        yield epoch, keeper


@contextmanager
def joined_epoch(
    store: EpochLog, pipeline: str, epoch: int, worker: Worker, lease_seconds: float = LEASE_SECONDS
) -> Iterator[LeaseKeeper]:
    """Joins the epoch that a run's tasks share; FencedError when it is no longer the pipeline's."""
    lease = worker.lease(lease_seconds)
    store.hold_lease(pipeline, epoch, lease)
    with closing(LeaseKeeper(store, pipeline, epoch, lease.holder, lease_seconds)) as keeper:
        yield keeper
