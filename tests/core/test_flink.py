"""Flink's keys: what is taken, what is refused with the reason, what is warned of; and that the page says the same."""

from __future__ import annotations

import logging
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.core.config import CheckpointConfig
from airflow_ft.core.errors import ConfigurationError
from airflow_ft.core.flink import KEYS, RESTART_KEYS, RESTART_TYPES
from airflow_ft.core.model import CheckpointingMode
from airflow_ft.core.restart import ExponentialDelay, FailureRate, FixedDelay, NoRestart, RestartStrategy

PAGE = Path(__file__).resolve().parents[2] / "docs" / "from-flink.md"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10 min", timedelta(minutes=10)),
        ("90s", timedelta(seconds=90)),
        ("600000", timedelta(minutes=10)),
        (600000, timedelta(minutes=10)),
        ("1500 ms", timedelta(seconds=1.5)),
        ("2 Hours", timedelta(hours=2)),
        ("1d", timedelta(days=1)),
        ("2 days", timedelta(days=2)),
        ("3 secs", timedelta(seconds=3)),
        ("1500000 \u00b5s", timedelta(seconds=1.5)),
        ("1500000\u03bcs", timedelta(seconds=1.5)),
        ("2000000 micros", timedelta(seconds=2)),
        ("2000000 Microseconds", timedelta(seconds=2)),
        ("2000000000 ns", timedelta(seconds=2)),
        ("2000000001 nanoseconds", timedelta(seconds=2, microseconds=1)),
        ("1 nano", None),
        (timedelta(minutes=2), timedelta(minutes=2)),
        (timedelta(minutes=-2), r"timeout=-2 min: give a duration"),
        ("5 millis", None),
        ("soon", "give a duration"),
        ("9 us", "give a duration"),
        ("\u0663 s", "give a duration"),
        ("9" * 30 + " d", "give a duration"),
        ("-1 s", "give a duration"),
        ("1.5 s", "give a duration"),
        ("3 parsecs", "give a duration"),
        (None, "give a duration"),
    ],
)
def test_durations_are_read_as_flink_reads_them(text: Any, expected: Any) -> None:
    settings = {"execution.checkpointing.timeout": text}
    if isinstance(expected, timedelta):
        assert CheckpointConfig.from_flink(settings) == CheckpointConfig(timeout=expected)
    else:  # no duration, or one under the least
        with pytest.raises(ConfigurationError, match=expected or "at least 1 s"):
            CheckpointConfig.from_flink(settings)


def test_what_is_taken_counts_as_given() -> None:
    config = CheckpointConfig.from_flink({"state.checkpoints.num-retained": "7"})
    assert config.to_json() == {"num_retained": 7}
    assert CheckpointConfig.from_flink({}).to_json() == {}
    for name in ("num-retained", "max-concurrent-checkpoints", "tolerable-failed-checkpoints"):
        for wrong in (3.7, True):
            with pytest.raises(ConfigurationError, match=rf"{name}={wrong}: give a whole number"):
                CheckpointConfig.from_flink({f"execution.checkpointing.{name}": wrong})


def test_every_key_that_would_promise_more_is_named_with_its_reason() -> None:
    with pytest.raises(ConfigurationError) as caught:
        CheckpointConfig.from_flink(
            {
                "execution.checkpointing.interval-during-backlog": "10s",
                "execution.checkpointing.mode": "AT_MOST_ONCE",
                "execution.checkpointing.timeout": "10min",
                "execution.checkpointing.speed": "fast",
                "restart-strategy.speed": "none",
            }
        )
    for words in (
        "interval-during-backlog='10s': a backlog is read",
        "mode='AT_MOST_ONCE': give EXACTLY_ONCE or AT_LEAST_ONCE",
        "speed: Flink has no",
        "restart-strategy.speed: Flink has no such key for restarts",
    ):
        assert words in str(caught.value)
    assert "timeout" not in str(caught.value)


def test_a_streams_settings_are_taken() -> None:
    given = {
        "interval": "1 s",
        "min-pause": "500 ms",
        "tolerable-failed-checkpoints": "3",
        "unaligned.enabled": "true",
        "aligned-checkpoint-timeout": "30 s",
        "max-concurrent-checkpoints": 1,
        "externalized-checkpoint-retention": "delete_on_cancellation",
    }
    config = CheckpointConfig.from_flink({f"execution.checkpointing.{name}": value for name, value in given.items()})
    assert config.to_json() == {
        "interval": 1.0,
        "min_pause": 0.5,
        "max_concurrent": 1,
        "tolerable_failures": 3,
        "unaligned": True,
        "aligned_timeout": 30.0,
        "externalized_retention": "DELETE_ON_CANCELLATION",
    }
    with pytest.raises(
        ConfigurationError, match=r"externalized-checkpoint-retention='KEEP': give one of RETAIN_ON_CANC"
    ):
        CheckpointConfig.from_flink({"execution.checkpointing.externalized-checkpoint-retention": "KEEP"})
    with pytest.raises(ConfigurationError, match=r"unaligned.enabled='perhaps': give true or false"):
        CheckpointConfig.from_flink({"execution.checkpointing.unaligned.enabled": "perhaps"})
    with pytest.raises(ConfigurationError, match="one checkpoint at a time"):
        CheckpointConfig.from_flink(
            {"execution.checkpointing.min-pause": "1 s", "execution.checkpointing.max-concurrent-checkpoints": 2}
        )


WHOLE = {
    "execution": {"checkpointing": {"interval": "5 s", "unaligned": {"enabled": "false"}}},
    "execution.checkpointing.num-retained": 7,
    "restart-strategy": {"type": "fixed-delay"},
    "restart-strategy.fixed-delay.attempts": 3,
    "restart-strategy.failure-rate.delay": "1 s",
}


def test_one_configuration_serves_checkpoints_and_restarts(caplog: pytest.LogCaptureFixture) -> None:
    config = CheckpointConfig.from_flink(WHOLE)
    assert config.to_json() == {"interval": 5.0, "num_retained": 7, "unaligned": False}
    assert not caplog.records
    assert RestartStrategy.from_flink(WHOLE) == FixedDelay(attempts=3)
    assert CheckpointConfig.from_flink({"restart-strategy": "none"}) == CheckpointConfig()
    assert RestartStrategy.from_flink({"state.backend": "hashmap"}) == ExponentialDelay()
    for from_flink in (CheckpointConfig.from_flink, RestartStrategy.from_flink):
        with pytest.raises(ConfigurationError, match=r"restart-strategy\.fixed-delay\.tries: Flink has no such key"):
            from_flink({**WHOLE, "restart-strategy.fixed-delay.tries": 3})
        with pytest.raises(ConfigurationError, match=r"parallelism\.default: Flink has no such key"):
            from_flink({**WHOLE, "parallelism.default": 3})


@pytest.mark.parametrize("unaligned", [{}, {"execution.checkpointing.unaligned.enabled": "false"}])
def test_a_time_out_of_alignment_that_is_not_given_up_has_no_effect(
    unaligned: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    config = CheckpointConfig.from_flink({**unaligned, "execution.checkpointing.aligned-checkpoint-timeout": "30 s"})
    assert not config.unaligned and not config.aligned_timeout and "aligned_timeout" not in config.given
    (record,) = caplog.records
    assert record.getMessage().startswith("execution.checkpointing.aligned-checkpoint-timeout='30 s' has no effect")


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({"execution.checkpointing.timeout": "5 ms"}, "execution.checkpointing.timeout='5 ms': give at least 1 s"),
        ({"execution.checkpointing.timeout": 5}, "execution.checkpointing.timeout=5 ms: give at least 1 s"),
        (
            {"execution.checkpointing.timeout": timedelta(microseconds=5)},
            "execution.checkpointing.timeout=5 \u00b5s: give at least 1 s",
        ),
        ({"state.checkpoints.num-retained": "0"}, "state.checkpoints.num-retained='0': give a whole number from 1"),
        (
            {"execution.checkpointing.min-pause": 90000, "execution.checkpointing.max-concurrent-checkpoints": 2},
            "execution.checkpointing.min-pause=90 s, execution.checkpointing.max-concurrent-checkpoints=2: ",
        ),
    ],
)
def test_an_error_names_the_key_and_shows_the_value_in_flinks_units(settings: dict[str, Any], shown: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        CheckpointConfig.from_flink(settings)
    assert shown in caught.value.what and caught.value.remedy
    assert "timedelta" not in str(caught.value)


def test_settings_of_restarts_that_do_not_fit_are_named_by_their_keys() -> None:
    settings = {key("type"): "exponential-delay", key("exponential-delay.initial-backoff"): "10 min"}
    with pytest.raises(ConfigurationError, match=r"restart-strategy\.exponential-delay\.initial-backoff='10 min': "):
        RestartStrategy.from_flink(settings)


def test_unaligned_checkpoints_need_exactly_once() -> None:
    unaligned = {"execution.checkpointing.unaligned.enabled": "true"}
    for more, mode in (("mode", "AT_LEAST_ONCE"), ("interval", "0")):  # 0: no checkpoints
        with pytest.raises(ConfigurationError, match="unaligned needs mode EXACTLY_ONCE"):
            CheckpointConfig.from_flink({**unaligned, f"execution.checkpointing.{more}": mode})
    assert CheckpointConfig.from_flink({**unaligned, "execution.checkpointing.mode": "EXACTLY_ONCE"}).concurrent == 1


@pytest.mark.parametrize("mode", ["EXACTLY_ONCE", "at_least_once"])
def test_a_mode_is_taken(mode: str) -> None:
    config = CheckpointConfig.from_flink({"execution.checkpointing.mode": mode})
    assert config == CheckpointConfig(mode=CheckpointingMode(mode.upper())) and config.given == {"mode"}


@pytest.mark.parametrize("interval", [0, "0 s", "-1", -1, "-1 ms"])
def test_no_checkpoints_are_at_most_once(interval: Any) -> None:
    key = "execution.checkpointing.interval"
    config = CheckpointConfig.from_flink({key: interval})
    assert config == CheckpointConfig(mode=CheckpointingMode.AT_MOST_ONCE, interval=timedelta(0))
    assert CheckpointConfig.from_flink({key: "1 ms"}).mode is CheckpointConfig.from_flink({}).mode
    with pytest.raises(ConfigurationError, match="mode=EXACTLY_ONCE: Flink makes no checkpoints with an interval of 0"):
        CheckpointConfig.from_flink({key: interval, "execution.checkpointing.mode": "EXACTLY_ONCE"})


def test_a_value_that_is_what_is_done_anyway_is_no_mistake(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    CheckpointConfig.from_flink(
        {
            "execution.checkpointing.mode": "exactly_once",
            "execution.checkpointing.unaligned.enabled": False,
            "execution.checkpointing.min-pause": 0,
            "execution.checkpointing.tolerable-failed-checkpoints": 0,
        }
    )
    assert not caplog.records
    CheckpointConfig.from_flink({"execution.checkpointing.dir": "s3://x"})
    assert ["execution.checkpointing.dir has no effect" in record.getMessage() for record in caplog.records] == [True]


FLINK_2 = """
execution.checkpointing.: aligned-checkpoint-timeout alignment-timeout approximate-local-recovery
    checkpoints-after-tasks-finish checkpoints-after-tasks-finish.enabled cleaner.parallel-mode create-subdir
    data-inline-threshold dir externalized-checkpoint-retention file-merging.across-checkpoint-boundary
    file-merging.enabled file-merging.max-file-size file-merging.max-space-amplification
    file-merging.max-subtasks-per-file file-merging.pool-blocking incremental interval interval-during-backlog
    local-backup.dirs local-backup.enabled max-concurrent-checkpoints min-pause mode num-retained
    recover-without-channel-state.checkpoint-id savepoint-dir snapshot-compression storage timeout
    tolerable-failed-checkpoints unaligned unaligned.enabled unaligned.forced unaligned.interruptible-timers.enabled
    unaligned.max-subtasks-per-channel-state-file unaligned.recover-output-on-downstream.enabled
    unaligned.during-recovery.enabled write-buffer-size
execution.: savepoint-restore-mode savepoint.ignore-unclaimed-state savepoint.path
    state-recovery.approximate-local-recovery state-recovery.claim-mode state-recovery.from-local
    state-recovery.ignore-unclaimed-state state-recovery.path state-recovery.without-channel-state.checkpoint-id
savepoints.state.backend.fs.: dir
state.: backend backend.changelog.enabled backend.changelog.max-failures-allowed
    backend.changelog.periodic-materialize.enabled backend.changelog.periodic-materialize.interval
    backend.changelog.storage backend.fs.checkpointdir backend.fs.memory-threshold backend.fs.write-buffer-size
    backend.incremental backend.local-recovery backend.type changelog.enabled changelog.max-failures-allowed
    changelog.periodic-materialize.enabled changelog.periodic-materialize.interval changelog.storage
    checkpoint-storage checkpoint.cleaner.parallel-mode checkpoints.create-subdir checkpoints.dir
    checkpoints.num-retained savepoints.dir storage.fs.memory-threshold storage.fs.write-buffer-size
taskmanager.state.local.: root-dirs
"""
"""What Flink 2.0.1 reads: keys and older names of CheckpointingOptions, StateBackendOptions, StateChangelogOptions and
StateRecoveryOptions, and snapshot-compression of ExecutionOptions; and what 2.3 adds for unaligned checkpoints.
"""


@pytest.mark.parametrize("group", FLINK_2.strip().replace("\n    ", " ").splitlines())
def test_every_key_of_flink_2_has_an_answer_of_its_own(group: str) -> None:
    prefix, _, names = group.partition(": ")
    for name in names.split():
        try:
            CheckpointConfig.from_flink({prefix + name: "?"})  # taken, refused for its value, or without an effect
        except ConfigurationError as error:
            assert f"{prefix}{name}='?': " in str(error)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"execution.checkpointing.intervall": "1 s"}, r"did you mean execution\.checkpointing\.interval\?"),
        ({"interval": "1 s"}, r"did you mean execution\.checkpointing\.interval\?"),
        ({"state.backend.type": "hashmap"}, r"type='hashmap': .*stateStore\.providerClass"),
        ({"state.backend.rocksdb.memory.managed": "true"}, r"managed: .*stateStore\.rocksdb"),
        ({"execution.savepoint.path": "/s"}, r"path='/s': .*from_savepoint"),
        (
            {"execution.checkpointing.unaligned": "true", "execution.checkpointing.unaligned.enabled": "false"},
            "an older or newer name of this key says otherwise",
        ),
    ],
)
def test_what_is_not_taken_says_what_is_to_be_done_instead(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        CheckpointConfig.from_flink(settings)


def test_a_nested_configuration_is_taken_as_flinks_config_yaml_has_it() -> None:
    given = {
        "interval": "1 s",
        "unaligned": {"enabled": True},
        "externalized-checkpoint-retention": "NO_EXTERNALIZED_CHECKPOINTS",
    }
    config = CheckpointConfig.from_flink({"execution": {"checkpointing": given}, "state": {"backend": "rocksdb"}})
    assert config.to_json() == {
        "interval": 1.0,
        "unaligned": True,
        "externalized_retention": "NO_EXTERNALIZED_CHECKPOINTS",
    }
    restart = {"type": "fixed-delay", "fixed-delay": {"attempts": 3, "delay": "10 s"}}
    assert RestartStrategy.from_flink({"restart-strategy": restart}) == FixedDelay(
        attempts=3, delay=timedelta(seconds=10)
    )


def key(name: str) -> str:
    return f"restart-strategy.{name}"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ExponentialDelay()),
        ({key("type"): "exponential-delay"}, ExponentialDelay()),
        *(({key("type"): name}, NoRestart()) for name in ("none", "off", "disable", " OFF")),
        ({"restart-strategy": "fixeddelay"}, FixedDelay()),
        ({"restart-strategy": "failurerate", key("type"): "failure-rate"}, FailureRate()),
        (
            {key("type"): "fixed-delay", key("fixed-delay.attempts"): "7", key("fixed-delay.delay"): "10 s"},
            FixedDelay(attempts=7, delay=timedelta(seconds=10)),
        ),
        ({key("type"): "fixed-delay", key("fixed-delay.attempts"): 2147483647}, FixedDelay(attempts=None)),
        (
            {
                key("type"): "failure-rate",
                key("failure-rate.max-failures-per-interval"): 3,
                key("failure-rate.failure-rate-interval"): "5 min",
                key("failure-rate.delay"): 500,
            },
            FailureRate(
                max_failures_per_interval=3,
                failure_rate_interval=timedelta(minutes=5),
                delay=timedelta(milliseconds=500),
            ),
        ),
        (
            {
                key("type"): "exponentialdelay",
                key("exponential-delay.initial-backoff"): "10 s",
                key("exponential-delay.max-backoff"): "2 min",
                key("exponential-delay.backoff-multiplier"): "1.4",
                key("exponential-delay.reset-backoff-threshold"): "10 min",
                key("exponential-delay.jitter-factor"): 0.2,
                key("exponential-delay.attempts-before-reset-backoff"): "10",
            },
            ExponentialDelay(
                initial_backoff=timedelta(seconds=10),
                max_backoff=timedelta(minutes=2),
                backoff_multiplier=1.4,
                reset_backoff_threshold=timedelta(minutes=10),
                jitter_factor=0.2,
                attempts_before_reset_backoff=10,
            ),
        ),
        (
            {key("type"): "exponential-delay", key("exponential-delay.attempts-before-reset-backoff"): "infinite"},
            ExponentialDelay(),
        ),
    ],
)
def test_a_restart_strategy_is_taken_from_flinks_keys(
    settings: dict[str, Any], expected: RestartStrategy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    assert RestartStrategy.from_flink(settings) == expected
    assert not caplog.records


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({key("type"): "org.example.Mine"}, "type='org.example.Mine': give one of none, off, disable, fixed-delay"),
        ({key("type"): "none", "restart-strategy": "fixed-delay"}, "type='none', restart-strategy='fixed-delay': give"),
        ({key("fixed-delay.attempts"): 3}, "attempts: Flink does not look at it without restart-strategy.type"),
        (
            {key("type"): "fixed-delay", key("fixed-delay.tries"): 3},
            r"restart-strategy\.fixed-delay\.tries: Flink has no",
        ),
        ({key("type"): "none", "fixed-delay.delay": 3}, "fixed-delay.delay: Flink has no such key"),
        ({"execution.checkpointing.timeouts": "1 min"}, r"did you mean execution\.checkpointing\.timeout\?"),
        ({key("type"): "fixed-delay", key("fixed-delay.attempts"): 3.7}, "attempts=3.7: give a whole number"),
        ({key("type"): "fixed-delay", key("fixed-delay.delay"): "soon"}, "delay='soon': give a duration"),
        (
            {key("type"): "exponential-delay", key("exponential-delay.jitter-factor"): "2"},
            "jitter-factor='2': give a number from 0 to 1",
        ),
    ],
)
def test_a_restart_key_that_cannot_be_is_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as caught:
        RestartStrategy.from_flink(settings)
    assert caught.value.remedy


def test_off_of_a_yaml_file_is_a_restart_strategy() -> None:
    assert RestartStrategy.from_flink({"restart-strategy": {"type": False}}) == NoRestart()


def test_keys_of_another_restart_strategy_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    settings = {key("failure-rate.delay"): "9 s", key("type"): "fixed-delay"}
    assert RestartStrategy.from_flink(settings) == FixedDelay()
    assert [record.getMessage() for record in caplog.records] == [
        "restart-strategy.failure-rate.delay has no effect: the strategy is fixed-delay"
    ]


def shown_keys(table: int) -> dict[str, str]:
    """What a table of the page says, by Flink's key."""
    text = PAGE.read_text().split("| key | here | status |")[table].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.+?) \| (.+?) \|", text, re.MULTILINE)
    return {key: text for keys, text in rows for key in re.findall(r"`([\w.-]+)`", keys)}


def test_the_page_names_each_restart_key() -> None:
    shown = shown_keys(2)
    for name, meaning in RESTART_KEYS.items():
        strategy = type(RestartStrategy.from_json({"type": name.partition(".")[0]}))
        assert shown.pop(name, "").startswith(f"`{strategy.__name__}.{meaning.name}`"), name
    kinds = shown.pop("type")
    assert shown.pop("restart-strategy") and not shown
    for kind in set(RESTART_TYPES.values()):
        assert f"`{type(RestartStrategy.from_json({'type': kind})).__name__}`" in kinds


def test_the_page_names_each_key() -> None:
    shown = shown_keys(1)
    kinds = {"_Refused": "refused", "_Idle": "no effect", "_Taken": "`CheckpointConfig."}
    for key, meaning in KEYS.items():
        assert shown.pop(key, "").startswith(kinds[type(meaning).__name__]), key
    assert not shown
