"""Restart strategies: how often, and after which wait, what has failed is tried again. Names and defaults are Flink's.

One value serves both ways of restarting. The tasks of a scheduled pipeline get it as Airflow's arguments
(`airflow_ft.pipeline.retries`); a process that restarts what runs in it counts with `RestartStrategy.begin`.
"""

from __future__ import annotations

import logging
import random
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar

from airflow_ft.protocol.argument_names import by_name
from airflow_ft.protocol.arguments import shown, wrong
from airflow_ft.protocol.delivery_log import RunLog
from airflow_ft.protocol.errors import (
    AirflowFtError,
    ConfigurationError,
    LeaseHeldError,
    RestartsExhaustedError,
    StoreUnavailableError,
    TerminalError,
)
from airflow_ft.protocol.flink import RESTART_TYPES, restart_of
from airflow_ft.protocol.kinds import Count, Duration, Number, accept_settings, kinds_of, read_settings
from airflow_ft.protocol.numbers import count_text

log = logging.getLogger(__name__)

_ANY = Duration(timedelta(0))
_SOME = Duration(timedelta(milliseconds=1))


class RestartStrategy(ABC):
    """Number and waits of the retries after a failure: `NoRestart`, `FixedDelay`, `FailureRate` or `ExponentialDelay`.
    No strategy retries a `TerminalError`.

    As text it is readable: "3 times, 10 s apart".
    """

    kind: ClassVar[str]
    """Its name in Flink's `restart-strategy.type`, and in plain data."""

    def __post_init__(self) -> None:
        accept_settings(self)

    @abstractmethod
    def __str__(self) -> str: ...

    @abstractmethod
    def _wait(self, restarts: Restarts, now: float, random: float) -> float | None:
        """Seconds to wait after the failure that `restarts` has just counted; see `Restarts.failed`."""

    @property
    def is_endless(self) -> bool:
        """Return whether failures far enough apart never end it."""
        return False

    def begin(self, now: float) -> Restarts:
        """The counter for something that starts at `now`, in seconds of a monotonic clock."""
        return Restarts(self, now)

    def to_json(self) -> dict[str, Any]:
        """Plain data; times in seconds."""
        kinds = kinds_of(type(self))
        return {"type": self.kind, **{name: kind.to_json(getattr(self, name)) for name, kind in kinds.items()}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RestartStrategy:
        """Return the inverse of `to_json`. Numbers may be text, as Jinja renders them; "infinite" means None.

        Raises:
            ConfigurationError: names are unknown or values impossible.
        """
        strategy, settings = cls.read(data)
        return strategy(**settings)

    @staticmethod
    def read(data: Mapping[str, Any]) -> tuple[type[RestartStrategy], dict[str, Any]]:
        """The strategy that plain data names, and the settings that are there; how they fit together is not judged."""
        name = RESTART_TYPES.get(str(data.get("type")))
        if name is None:
            found = shown(data["type"]) if "type" in data else "missing"
            code = "argument_invalid" if "type" in data else "argument_missing"
            raise wrong("type", found, f"Give one of {', '.join(_STRATEGIES)} as type.", code=code, of="restart")
        settings = {key: value for key, value in data.items() if key != "type"}
        return _STRATEGIES[name], read_settings(_STRATEGIES[name], settings, f"restart ({name})")

    @staticmethod
    def from_flink(settings: Mapping[str, Any]) -> RestartStrategy:
        """From Flink's own keys, such as {"restart-strategy.type": "fixed-delay"}.

        They may be a whole configuration, in which `CheckpointConfig.from_flink` reads the keys of checkpoints.
        ConfigurationError names keys that are unknown; those of another strategy have no effect, and are warned of.
        """
        name, known = restart_of(settings)
        strategy = _STRATEGIES[name]
        return known.build(strategy, kinds_of(strategy))


@dataclass(slots=True)
class Restarts:
    """Counts the failures of something that a strategy restarts. Has no clock: callers pass the time."""

    strategy: RestartStrategy
    since: float
    """When it was started last, in seconds of a monotonic clock; in a wait, when the wait ends."""
    count: int = 0
    """Failures so far; since the last reset where the strategy has one."""
    recent: deque[float] = field(default_factory=deque)
    """When it failed, for strategies that look back."""

    def failed(self, now: float, random: float) -> float | None:
        """Counts a failure at `now`; returns the seconds to wait before the next try, or None: give up.

        `random` is a number from 0 to 1, as `random.random` gives it; it chooses the jitter. Several failures of which
        one restart takes care are one failure.
        """
        self.count += 1
        wait = self.strategy._wait(self, now, random)
        if wait is not None:
            self.since = now + wait
        return wait


def wait_after(error: Exception, restarts: Restarts, what: str) -> float | None:
    """Counts that `what` has failed just now, and says so; the seconds until it is started again, or None: give up."""
    wait = restarts.failed(time.monotonic(), random.random())
    if wait is None:
        if restarts.count > 1:  # else nothing was restarted, and the error itself says enough
            log.error("%s is not restarted any more (%s)", what, restarts.strategy)
        return None
    log.warning("%s: %s", type(error).__name__, error)
    log.warning("%s is restarted in %.1f s (restart %d: %s)", what, wait, restarts.count, restarts.strategy)
    return wait


def is_tolerated(error: AirflowFtError, store: RunLog, pipeline: str, tolerable: int) -> bool:
    """Return whether only a checkpoint failed, and not more in a row than the stream tolerates (-1: any number).

    While the decision log is unavailable the count is unknown. Then it is a failure, and the strategy decides.
    """
    if not error.abort_reason.counts or tolerable == 0:
        return False
    try:
        return tolerable < 0 or store.failed_in_a_row(pipeline) <= tolerable
    except StoreUnavailableError as away:
        log.warning("cannot read how many checkpoints failed in a row: %s", away)
        return False


def given_up(error: AirflowFtError, strategy: RestartStrategy) -> AirflowFtError:
    """Return the error to raise for a stream's last failure. It is terminal, because Airflow's retries would start the
    strategy again. Airflow retries cover what the strategy does not: dead workers, an older owner, the decision log.
    """
    if isinstance(error, TerminalError | LeaseHeldError | StoreUnavailableError):
        return error
    what = f"{error.what.rstrip('.')}. It is not restarted any more ({strategy})."
    where = ("unconnected", "pipeline", "checkpoint", "participant", "sink", "column", "row")
    failed = RestartsExhaustedError(what, remedy=error.remedy, cause=error.code, **error.fields)
    return failed.located(**{name: getattr(error, name) for name in where})


@by_name
@dataclass(frozen=True, kw_only=True)
class NoRestart(RestartStrategy):
    """The first failure is the last."""

    kind = "none"

    def __str__(self) -> str:
        return "never"

    def _wait(self, restarts: Restarts, now: float, random: float) -> float | None:
        return None


@by_name
@dataclass(frozen=True, kw_only=True)
class FixedDelay(RestartStrategy):
    """A number of times, with the same wait before each. The number is for good: no success sets it back.

    Args:
        attempts: restarts before it is given up; None: no end.
        delay: the wait before each.
    """

    kind = "fixed-delay"
    attempts: int | None = field(default=1, metadata={"kind": Count(0, endless=True)})
    delay: timedelta = field(default=timedelta(seconds=1), metadata={"kind": _ANY})

    @property
    def is_endless(self) -> bool:
        """See `RestartStrategy.is_endless`."""
        return self.attempts is None

    def __str__(self) -> str:
        if self.attempts == 0:
            return "never"
        if self.attempts == 1:
            return f"once, after {_text(self.delay)}"
        return f"{_times(self.attempts)}, {_text(self.delay)} apart"

    def _wait(self, restarts: Restarts, now: float, random: float) -> float | None:
        return self.delay.total_seconds() if self.attempts is None or restarts.count <= self.attempts else None


@by_name
@dataclass(frozen=True, kw_only=True)
class FailureRate(RestartStrategy):
    """For as long as failures are rare enough, with the same wait before each restart.

    Args:
        max_failures_per_interval: with one more than these in the interval it is given up. As in Flink since 1.13
            (FLINK-20752), two failures that are just the interval apart are both in it.
        failure_rate_interval: the time that is looked back on from each failure.
        delay: the wait before each restart.
    """

    kind = "failure-rate"
    max_failures_per_interval: int = field(default=1, metadata={"kind": Count(1)})
    failure_rate_interval: timedelta = field(default=timedelta(minutes=1), metadata={"kind": _SOME})
    delay: timedelta = field(default=timedelta(seconds=1), metadata={"kind": _ANY})

    @property
    def is_endless(self) -> bool:
        """See `RestartStrategy.is_endless`."""
        return True

    def __str__(self) -> str:
        failures = count_text(self.max_failures_per_interval, "failure")
        return f"after {_text(self.delay)}, up to {failures} in {_text(self.failure_rate_interval)}"

    def _wait(self, restarts: Restarts, now: float, random: float) -> float | None:
        recent = restarts.recent
        recent.append(now)
        if len(recent) > self.max_failures_per_interval + 1:
            recent.popleft()
        is_full = len(recent) > self.max_failures_per_interval
        if is_full and now - recent[0] <= self.failure_rate_interval.total_seconds():
            return None
        return self.delay.total_seconds()


@by_name
@dataclass(frozen=True, kw_only=True)
class ExponentialDelay(RestartStrategy):
    """Restart with a wait that grows with each failure, until a run without failures resets it.

    Args:
        initial_backoff: the first wait, and the least.
        max_backoff: the longest wait.
        backoff_multiplier: factor of the wait after each failure, more than 1.
        reset_backoff_threshold: after a run of this length the next failure counts as the first.
        jitter_factor: random share of the wait, 0 to 1, by which it is longer or shorter, so that jobs that failed
            together do not restart together. As in Flink 2, the wait stays between `initial_backoff` and
            `max_backoff`. The share is of the wait without its upper limit, so in the end each wait is `max_backoff`.
        attempts_before_reset_backoff: restarts before it is given up, counted from the last reset; None: no end.
    """

    kind = "exponential-delay"
    initial_backoff: timedelta = field(default=timedelta(seconds=1), metadata={"kind": _SOME})
    max_backoff: timedelta = field(default=timedelta(minutes=1), metadata={"kind": _SOME})
    backoff_multiplier: float = field(default=1.5, metadata={"kind": Number(1, above=True)})
    reset_backoff_threshold: timedelta = field(default=timedelta(hours=1), metadata={"kind": _SOME})
    jitter_factor: float = field(default=0.1, metadata={"kind": Number(0, 1)})
    attempts_before_reset_backoff: int | None = field(default=None, metadata={"kind": Count(1, endless=True)})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.initial_backoff > self.max_backoff:
            raise ConfigurationError(
                f"ExponentialDelay: initial_backoff is {_text(self.initial_backoff)}, longer than max_backoff, which is"
                f" {_text(self.max_backoff)}.",
                code="arguments_conflict",
                remedy=f"Give a max_backoff of at least {_text(self.initial_backoff)}, or a shorter initial_backoff.",
                arguments=["initial_backoff", "max_backoff"],
            )

    @property
    def is_endless(self) -> bool:
        """See `RestartStrategy.is_endless`."""
        return self.attempts_before_reset_backoff is None

    def __str__(self) -> str:
        grows = f"after {_text(self.initial_backoff)}, each time {self.backoff_multiplier:g} times as long"
        jitter = f", +-{100 * self.jitter_factor:.3g} %" if self.jitter_factor else ""
        return (
            f"{_times(self.attempts_before_reset_backoff)}, {grows}{jitter}, up to {_text(self.max_backoff)};"
            f" reset after {_text(self.reset_backoff_threshold)} without a failure"
        )

    def _wait(self, restarts: Restarts, now: float, random: float) -> float | None:
        if now - restarts.since >= self.reset_backoff_threshold.total_seconds():
            restarts.count = 1
        if self.attempts_before_reset_backoff is not None and restarts.count > self.attempts_before_reset_backoff:
            return None
        least, most = self.initial_backoff.total_seconds(), self.max_backoff.total_seconds()
        try:
            backoff = least * float(self.backoff_multiplier) ** (restarts.count - 1)
        except OverflowError:  # after hundreds of failures
            return most
        return max(least, min(backoff * (1 + self.jitter_factor * (2 * random - 1)), most))


_STRATEGIES: Mapping[str, type[RestartStrategy]] = {
    each.kind: each for each in (NoRestart, FixedDelay, FailureRate, ExponentialDelay)
}


def _times(attempts: int | None) -> str:
    return "without end" if attempts is None else "once" if attempts == 1 else f"{attempts} times"


def _text(time: timedelta) -> str:
    for unit, name in ((timedelta(days=1), "d"), (timedelta(hours=1), "h"), (timedelta(minutes=1), "min")):
        if time and not time % unit:
            return f"{time // unit} {name}"
    return f"{time.total_seconds():g} s"
