"""Restart strategies: what they refuse, and when they say to try again, as Flink 2 would."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError
from datetime import timedelta
from typing import Any

import pendulum
import pytest

from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.restart import ExponentialDelay, FailureRate, FixedDelay, NoRestart, RestartStrategy
from tests.raising import raises

SECOND = timedelta(seconds=1)
MIDDLE = 0.5
"""A random number that leaves a wait as it is."""
ALL: list[RestartStrategy] = [
    NoRestart(),
    FixedDelay(attempts=3, delay=timedelta(seconds=90)),
    FixedDelay(attempts=None),
    FailureRate(max_failures_per_interval=3, failure_rate_interval=timedelta(minutes=5), delay=timedelta(0)),
    ExponentialDelay(),
    ExponentialDelay(
        initial_backoff=timedelta(milliseconds=250),
        max_backoff=timedelta(hours=2),
        backoff_multiplier=3,
        reset_backoff_threshold=timedelta(days=1),
        jitter_factor=0,
        attempts_before_reset_backoff=5,
    ),
]


def waits(strategy: RestartStrategy, *ran: float, random: float = MIDDLE) -> list[float | None]:
    """What it says to failures after so many seconds of running each, with the waits between them."""
    now, found = 1000.0, []
    restarts = strategy.begin(now)
    for seconds in ran:
        now += seconds
        wait = restarts.failed(now, random)
        found.append(wait)
        now += wait or 0
    return found


def test_no_restart_gives_up_at_once() -> None:
    assert waits(NoRestart(), 10) == [None]


def test_a_fixed_delay_never_resets_its_count_of_attempts() -> None:
    strategy = FixedDelay(attempts=2, delay=timedelta(seconds=7))
    assert waits(strategy, 0, 0, 0) == [7, 7, None]
    assert waits(strategy, 0, 1e6, 1e6) == [7, 7, None]
    assert waits(FixedDelay(attempts=0), 0) == [None]
    assert waits(FixedDelay(attempts=None, delay=SECOND), *[0] * 5000) == [1] * 5000


def test_a_duration_of_pendulum_is_as_good() -> None:
    strategy = FixedDelay(attempts=2, delay=pendulum.duration(minutes=1))
    assert str(strategy) == str(FixedDelay(attempts=2, delay=timedelta(minutes=1)))


def test_each_beginning_counts_by_itself() -> None:
    strategy = FixedDelay(attempts=1)
    assert waits(strategy, 0, 0) == waits(strategy, 0, 0) == [1, None]


def test_a_failure_rate_counts_what_lies_in_the_interval() -> None:
    strategy = FailureRate(max_failures_per_interval=2, failure_rate_interval=timedelta(seconds=10), delay=SECOND)
    assert waits(strategy, 0, 0, 0) == [1, 1, None]
    assert waits(strategy, 0, 0, 9) == [1, 1, 1]  # 11 s after the first
    assert waits(strategy, *[5] * 100) == [1] * 100  # at 0, 6, 12, ...: each interval has two
    assert waits(strategy, *[5] * 100, 0) == [*[1] * 100, None]


def test_failures_exactly_one_interval_apart_count_together() -> None:
    strategy = FailureRate(max_failures_per_interval=1, failure_rate_interval=timedelta(seconds=10), delay=SECOND)
    assert waits(strategy, 0, 9) == [1, None]  # 10 s apart
    assert waits(strategy, 0, 9.001) == [1, 1]


def test_an_exponential_delay_grows_up_to_its_limit() -> None:
    assert waits(ExponentialDelay(backoff_multiplier=2, max_backoff=timedelta(seconds=10)), *[0] * 6) == [
        *(1, 2, 4, 8),
        *(10, 10),
    ]
    endless = waits(ExponentialDelay(backoff_multiplier=1000), *[0] * 1000)
    assert endless[2:] == [60] * 998


def test_the_jitter_keeps_the_wait_within_both_limits() -> None:
    strategy = ExponentialDelay(
        initial_backoff=timedelta(seconds=10),
        max_backoff=timedelta(seconds=45),
        backoff_multiplier=2,
        jitter_factor=0.2,
    )
    assert waits(strategy, *[0] * 5, random=0.0) == [10, 16, 32, 45, 45]
    assert waits(strategy, *[0] * 5, random=1.0) == [12, 24, 45, 45, 45]
    assert waits(strategy, *[0] * 3, random=0.75) == pytest.approx([11, 22, 44])


def test_an_exponential_delay_resets_after_a_long_enough_run() -> None:
    strategy = ExponentialDelay(
        backoff_multiplier=2, reset_backoff_threshold=timedelta(seconds=100), attempts_before_reset_backoff=3
    )
    assert waits(strategy, 0, 0, 0, 0) == [1, 2, 4, None]
    assert waits(strategy, 0, 0, 0, 99.9) == [1, 2, 4, None]  # the wait itself is no run
    assert waits(strategy, 0, 0, 0, 100, 0, 0, 0) == [1, 2, 4, 1, 2, 4, None]


def test_whoever_counts_can_tell_how_often_it_failed() -> None:
    restarts = FixedDelay(attempts=5).begin(0)
    restarts.failed(1, MIDDLE)
    restarts.failed(2, MIDDLE)
    assert (restarts.count, restarts.since) == (2, 3)


def test_what_is_not_given_is_as_in_flink() -> None:
    assert FixedDelay() == FixedDelay(attempts=1, delay=SECOND)
    assert FailureRate() == FailureRate(
        max_failures_per_interval=1, failure_rate_interval=timedelta(minutes=1), delay=SECOND
    )
    assert ExponentialDelay() == ExponentialDelay(
        initial_backoff=SECOND,
        max_backoff=timedelta(minutes=1),
        backoff_multiplier=1.5,
        reset_backoff_threshold=timedelta(hours=1),
        jitter_factor=0.1,
        attempts_before_reset_backoff=None,
    )


def test_it_is_frozen_and_equal_by_value() -> None:
    assert FixedDelay(attempts=3) == FixedDelay(attempts=3) != FixedDelay(attempts=4)
    with pytest.raises(FrozenInstanceError):
        FixedDelay().attempts = 5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("strategy", "text"),
    [
        (NoRestart(), "never"),
        (FixedDelay(attempts=0), "never"),
        (FixedDelay(), "once, after 1 s"),
        (FixedDelay(attempts=3, delay=timedelta(seconds=10)), "3 times, 10 s apart"),
        (FixedDelay(attempts=None, delay=timedelta(minutes=2)), "without end, 2 min apart"),
        (FailureRate(), "after 1 s, up to 1 failure in 1 min"),
        (FailureRate(max_failures_per_interval=3, delay=timedelta(0)), "after 0 s, up to 3 failures in 1 min"),
        (
            ExponentialDelay(),
            "without end, after 1 s, each time 1.5 times as long, +-10 %, up to 1 min;"
            " reset after 1 h without a failure",
        ),
        (
            ALL[-1],
            "5 times, after 0.25 s, each time 3 times as long, up to 2 h; reset after 1 d without a failure",
        ),
    ],
)
def test_it_says_what_it_does(strategy: RestartStrategy, text: str) -> None:
    assert str(strategy) == text


@pytest.mark.parametrize(
    ("kind", "settings", "value"),
    [
        (FixedDelay, {"attempts": -1}, "-1"),
        (FixedDelay, {"attempts": True}, "True"),
        (FixedDelay, {"attempts": 2.5}, "2.5"),
        (FixedDelay, {"delay": 10}, "10"),
        (FixedDelay, {"delay": -SECOND}, None),
        (FailureRate, {"max_failures_per_interval": 0}, "0"),
        (FailureRate, {"max_failures_per_interval": None}, "None"),
        (FailureRate, {"failure_rate_interval": timedelta(0)}, None),
        (FailureRate, {"delay": None}, "None"),
        (ExponentialDelay, {"initial_backoff": timedelta(0)}, None),
        (ExponentialDelay, {"backoff_multiplier": 1}, "1"),
        (ExponentialDelay, {"backoff_multiplier": float("inf")}, "inf"),
        (ExponentialDelay, {"backoff_multiplier": 10**400}, f"1{59 * '0'}..."),
        (ExponentialDelay, {"backoff_multiplier": True}, "True"),
        (ExponentialDelay, {"reset_backoff_threshold": timedelta(0)}, None),
        (ExponentialDelay, {"jitter_factor": 1.1}, "1.1"),
        (ExponentialDelay, {"jitter_factor": -0.1}, "-0.1"),
        (ExponentialDelay, {"jitter_factor": float("nan")}, "nan"),
        (ExponentialDelay, {"attempts_before_reset_backoff": 0}, "0"),
    ],
)
def test_what_cannot_be_is_named_with_the_remedy(kind: Any, settings: dict[str, Any], value: str | None) -> None:
    ((name, given),) = settings.items()
    shown = value or f"a timedelta ({given!r})"
    with raises(ConfigurationError, "argument_invalid", of=kind.__name__, argument=name, value=shown) as caught:
        kind(**settings)
    assert caught.error and caught.error.remedy


def test_the_first_wait_is_no_longer_than_the_longest() -> None:
    with raises(ConfigurationError, "arguments_conflict", arguments=["initial_backoff", "max_backoff"]) as caught:
        ExponentialDelay(max_backoff=timedelta(milliseconds=900))
    assert caught.error and "0.9 s" in caught.error.headline and "1 s" in caught.error.remedy
    with raises(ConfigurationError, "arguments_conflict", arguments=["initial_backoff", "max_backoff"]):
        RestartStrategy.from_json({"type": "exponential-delay", "initial_backoff": 120})


@pytest.mark.parametrize("strategy", ALL)
def test_it_survives_json(strategy: RestartStrategy) -> None:
    plain = json.loads(json.dumps(strategy.to_json()))
    assert RestartStrategy.from_json(plain) == strategy
    as_jinja_makes_it = {name: "infinite" if value is None else str(value) for name, value in plain.items()}
    assert RestartStrategy.from_json(as_jinja_makes_it) == strategy


def test_what_is_not_in_the_plain_data_has_its_default() -> None:
    assert RestartStrategy.from_json({"type": "fixed-delay", "delay": "2.5"}) == FixedDelay(
        delay=timedelta(seconds=2.5)
    )
    assert RestartStrategy.from_json({"type": "disable"}) == NoRestart()


@pytest.mark.parametrize(
    ("plain", "code", "of", "argument", "value"),
    [
        ({"attempts": 3}, "argument_missing", "restart", "type", "missing"),
        ({"type": "fixed"}, "argument_invalid", "restart", "type", "'fixed'"),
        ({"type": None}, "argument_invalid", "restart", "type", "None"),
        ({"type": ["none"]}, "argument_invalid", "restart", "type", "a list"),
        ({"type": "none", "attempts": 3}, "argument_unknown", "restart (none)", "attempts", None),
        ({"type": "fixed-delay", "attemps": 3}, "argument_unknown", "restart (fixed-delay)", "attemps", None),
        ({"type": "fixed-delay", "delay": "soon"}, "argument_invalid", "restart (fixed-delay)", "delay", "'soon'"),
        ({"type": "fixed-delay", "delay": None}, "argument_invalid", "restart (fixed-delay)", "delay", "None"),
        (
            {"type": "fixed-delay", "attempts": "many"},
            "argument_invalid",
            "restart (fixed-delay)",
            "attempts",
            "'many'",
        ),
        ({"type": "fixed-delay", "attempts": "-1"}, "argument_invalid", "FixedDelay", "attempts", "-1"),
        (
            {"type": "exponential-delay", "jitter_factor": "little"},
            "argument_invalid",
            "restart (exponential-delay)",
            "jitter_factor",
            "'little'",
        ),
    ],
)
def test_plain_data_that_cannot_be_is_named(
    plain: dict[str, Any], code: str, of: str, argument: str, value: str | None
) -> None:
    with raises(ConfigurationError, code, of=of, argument=argument, value=value) as caught:
        RestartStrategy.from_json(plain)
    assert caught.error and caught.error.remedy


@pytest.mark.parametrize("plain", [{}, {"type": "fixed"}])
def test_an_unknown_type_is_answered_with_those_that_there_are(plain: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        RestartStrategy.from_json(plain)
    assert "none, fixed-delay, failure-rate, exponential-delay" in caught.value.remedy


def test_an_unknown_setting_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ConfigurationError) as caught:
        RestartStrategy.from_json({"type": "fixed-delay", "attemps": 3})
    assert "attempts, delay" in caught.value.remedy
