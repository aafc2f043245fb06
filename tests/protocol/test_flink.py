"""Flink's keys: what is taken, what is refused with the reason, what is warned of; and that the page says the same."""

from __future__ import annotations

import logging
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.flink import KEYS, RESTART_KEYS, RESTART_TYPES
from airflow_ft.protocol.model import CheckpointingMode
from airflow_ft.protocol.restart import ExponentialDelay, FailureRate, FixedDelay, NoRestart, RestartStrategy
from tests.raising import raises

PAGE = Path(__file__).resolve().parents[2] / "docs" / "from-flink.md"


TIMEOUT = "execution.checkpointing.timeout"


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
        (timedelta(minutes=2), timedelta(minutes=2)),
    ],
)
def test_durations_are_read_as_flink_reads_them(text: Any, expected: timedelta) -> None:
    assert CheckpointConfig.from_flink({TIMEOUT: text}) == CheckpointConfig(timeout=expected)


@pytest.mark.parametrize(
    "text", ["soon", "9 us", "\u0663 s", "9" * 30 + " d", "-1 s", "1.5 s", "3 parsecs", None, timedelta(minutes=-2)]
)
def test_what_is_no_duration_is_refused(text: Any) -> None:
    value = "-2 min" if isinstance(text, timedelta) else repr(text)
    with raises(ConfigurationError, "argument_invalid", keys=[TIMEOUT], values=[value]) as caught:
        CheckpointConfig.from_flink({TIMEOUT: text})
    assert caught.error and "10 min" in caught.error.headline  # an example


@pytest.mark.parametrize("text", ["1 nano", "5 millis"])
def test_a_duration_under_the_least_is_refused(text: str) -> None:
    with raises(ConfigurationError, "argument_invalid", keys=[TIMEOUT], values=[repr(text)]) as caught:
        CheckpointConfig.from_flink({TIMEOUT: text})
    assert caught.error and "1 s" in caught.error.headline


def test_what_is_taken_counts_as_given() -> None:
    config = CheckpointConfig.from_flink({"state.checkpoints.num-retained": "7"})
    assert config.to_json() == {"num_retained": 7}
    assert CheckpointConfig.from_flink({}).to_json() == {}
    for name in ("num-retained", "max-concurrent-checkpoints", "tolerable-failed-checkpoints"):
        for wrong in (3.7, True):
            key = f"execution.checkpointing.{name}"
            with raises(ConfigurationError, "argument_invalid", keys=[key], values=[str(wrong)]):
                CheckpointConfig.from_flink({key: wrong})


def test_every_refused_key_is_named_with_its_reason() -> None:
    prefix = "execution.checkpointing."
    refused = {
        f"{prefix}interval-during-backlog": "setting_unsupported",
        f"{prefix}mode": "argument_invalid",
        f"{prefix}speed": "argument_unknown",
        "restart-strategy.speed": "argument_unknown",
    }
    with raises(ConfigurationError, "several_problems", keys=list(refused), codes=list(refused.values())):
        CheckpointConfig.from_flink(
            {
                "execution.checkpointing.interval-during-backlog": "10s",
                "execution.checkpointing.mode": "AT_MOST_ONCE",
                "execution.checkpointing.timeout": "10min",
                "execution.checkpointing.speed": "fast",
                "restart-strategy.speed": "none",
            }
        )


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
    for name, wrong, allowed in (
        ("externalized-checkpoint-retention", "KEEP", "RETAIN_ON_CANCELLATION"),
        ("unaligned.enabled", "perhaps", "true or false"),
    ):
        key = f"execution.checkpointing.{name}"
        with raises(ConfigurationError, "argument_invalid", keys=[key], values=[repr(wrong)]) as caught:
            CheckpointConfig.from_flink({key: wrong})
        assert caught.error and allowed in caught.error.headline
    with raises(ConfigurationError, "arguments_conflict", arguments=["min_pause", "max_concurrent"]):
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
        for unknown in ("restart-strategy.fixed-delay.tries", "parallelism.default"):
            with raises(ConfigurationError, "argument_unknown", keys=[unknown]):
                from_flink({**WHOLE, unknown: 3})


@pytest.mark.parametrize("unaligned", [{}, {"execution.checkpointing.unaligned.enabled": "false"}])
def test_an_aligned_timeout_needs_unaligned_mode_to_take_effect(
    unaligned: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    config = CheckpointConfig.from_flink({**unaligned, "execution.checkpointing.aligned-checkpoint-timeout": "30 s"})
    assert not config.unaligned and not config.aligned_timeout and "aligned_timeout" not in config.given
    (record,) = caplog.records
    assert record.getMessage().startswith("execution.checkpointing.aligned-checkpoint-timeout='30 s' has no effect")


@pytest.mark.parametrize(
    ("key", "given", "value", "least"),
    [
        (TIMEOUT, "5 ms", "'5 ms'", "1 s"),
        (TIMEOUT, 5, "5 ms", "1 s"),
        (TIMEOUT, timedelta(microseconds=5), "5 \u00b5s", "1 s"),
        ("state.checkpoints.num-retained", "0", "'0'", "1"),
    ],
)
def test_an_error_names_the_key_and_the_value_in_flinks_units(key: str, given: Any, value: str, least: str) -> None:
    with raises(ConfigurationError, "argument_invalid", keys=[key], values=[value]) as caught:
        CheckpointConfig.from_flink({key: given})
    assert caught.error and f"at least {least}" in caught.error.headline and caught.error.remedy
    assert caught.error and "timedelta" not in caught.error.headline


def test_conflicting_settings_are_named_by_their_flink_keys() -> None:
    settings = {"execution.checkpointing.min-pause": 90000, "execution.checkpointing.max-concurrent-checkpoints": 2}
    with raises(ConfigurationError, "arguments_conflict", keys=list(settings)) as caught:
        CheckpointConfig.from_flink(settings)
    assert caught.error and "execution.checkpointing.min-pause=90 s" in caught.error.headline
    longest = key("exponential-delay.initial-backoff")
    with raises(ConfigurationError, "arguments_conflict", keys=[longest]) as caught:
        RestartStrategy.from_flink({key("type"): "exponential-delay", longest: "10 min"})
    assert caught.error and f"{longest}='10 min'" in caught.error.headline


def test_unaligned_checkpoints_need_exactly_once() -> None:
    unaligned = {"execution.checkpointing.unaligned.enabled": "true"}
    for more, mode in (("mode", "AT_LEAST_ONCE"), ("interval", "0")):  # 0: no checkpoints
        with raises(ConfigurationError, "arguments_conflict", arguments=["unaligned", "mode"]):
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
    mode = "execution.checkpointing.mode"
    with raises(ConfigurationError, "arguments_conflict", keys=[mode], values=["EXACTLY_ONCE"]):
        CheckpointConfig.from_flink({key: interval, mode: "EXACTLY_ONCE"})


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
            assert error.fields["keys"] == [prefix + name] and error.fields["values"] == ["'?'"]
            assert error.code in ("argument_invalid", "setting_unsupported")


@pytest.mark.parametrize(
    ("key", "value", "code", "instead"),
    [
        ("execution.checkpointing.intervall", "1 s", "argument_unknown", "execution.checkpointing.interval"),
        ("interval", "1 s", "argument_unknown", "execution.checkpointing.interval"),
        ("state.backend.type", "hashmap", "setting_unsupported", "stateStore.providerClass"),
        ("state.backend.rocksdb.memory.managed", "true", "argument_unknown", "stateStore.rocksdb"),
        ("execution.savepoint.path", "/s", "setting_unsupported", "from_savepoint"),
    ],
)
def test_what_is_not_taken_says_what_is_to_be_done_instead(key: str, value: str, code: str, instead: str) -> None:
    with raises(ConfigurationError, code, keys=[key]) as caught:
        CheckpointConfig.from_flink({key: value})
    assert caught.error and instead in caught.error.headline.replace(key, "", 1)


def test_two_names_of_a_key_say_the_same() -> None:
    unaligned = "execution.checkpointing.unaligned"
    with raises(ConfigurationError, "arguments_conflict", keys=[f"{unaligned}.enabled"], values=["'false'"]):
        CheckpointConfig.from_flink({unaligned: "true", f"{unaligned}.enabled": "false"})


def test_a_nested_configuration_is_read_like_flinks_yaml() -> None:
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
    ("settings", "code", "bad", "value", "words"),
    [
        (
            {key("type"): "org.example.Mine"},
            "argument_invalid",
            key("type"),
            "'org.example.Mine'",
            "none, off, disable",
        ),
        ({key("fixed-delay.attempts"): 3}, "argument_missing", key("fixed-delay.attempts"), "", key("type")),
        (
            {key("type"): "fixed-delay", key("fixed-delay.tries"): 3},
            "argument_unknown",
            key("fixed-delay.tries"),
            "",
            "",
        ),
        ({key("type"): "none", "fixed-delay.delay": 3}, "argument_unknown", "fixed-delay.delay", "", ""),
        ({f"{TIMEOUT}s": "1 min"}, "argument_unknown", f"{TIMEOUT}s", "", f"{TIMEOUT}?"),
        (
            {key("type"): "fixed-delay", key("fixed-delay.attempts"): 3.7},
            "argument_invalid",
            key("fixed-delay.attempts"),
            "3.7",
            "",
        ),
        (
            {key("type"): "fixed-delay", key("fixed-delay.delay"): "soon"},
            "argument_invalid",
            key("fixed-delay.delay"),
            "'soon'",
            "10 min",
        ),
        (
            {key("type"): "exponential-delay", key("exponential-delay.jitter-factor"): "2"},
            "argument_invalid",
            key("exponential-delay.jitter-factor"),
            "'2'",
            "from 0 to 1",
        ),
    ],
)
def test_a_restart_key_that_cannot_be_is_named(
    settings: dict[str, Any], code: str, bad: str, value: str, words: str
) -> None:
    with raises(ConfigurationError, code, keys=[bad], values=[value]) as caught:
        RestartStrategy.from_flink(settings)
    assert caught.error and words in caught.error.headline and caught.error.remedy


def test_two_types_of_restarts_are_refused() -> None:
    with raises(ConfigurationError, "argument_invalid") as caught:
        RestartStrategy.from_flink({key("type"): "none", "restart-strategy": "fixed-delay"})
    text = caught.error.headline if caught.error else ""
    assert "restart-strategy.type='none'" in text and "restart-strategy='fixed-delay'" in text


@pytest.mark.parametrize("name", ["restart-strategy", "restart-strategy.type"])
def test_an_empty_restart_strategy_is_not_none(name: str) -> None:
    with raises(ConfigurationError, "argument_invalid", keys=[name], values=["None"]):
        RestartStrategy.from_flink({name: None})


@pytest.mark.parametrize("value", ["nan", "inf", "1_5", True])
def test_what_is_no_number_is_refused(value: Any) -> None:
    key = "restart-strategy.exponential-delay.backoff-multiplier"
    with raises(ConfigurationError, "argument_invalid", keys=[key], values=[repr(value)]):
        RestartStrategy.from_flink({"restart-strategy.type": "exponential-delay", key: value})


@pytest.mark.parametrize("value", ["1_000", "\u0663", "5.0", 5.0, "0x5", True, None, [5]])
def test_what_is_no_whole_number_is_refused(value: Any) -> None:
    key = "execution.checkpointing.num-retained"
    with raises(ConfigurationError, "argument_invalid", keys=[key], values=[repr(value)]):
        CheckpointConfig.from_flink({key: value})
    assert CheckpointConfig.from_flink({key: " +5 "}).num_retained == 5


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("restart-strategy.fixed-delay.atempts", "restart-strategy.fixed-delay.attempts"),
        ("restart-strategy.failure-rate.interval", "restart-strategy.failure-rate.delay"),
        ("Restart-Strategy.Type", "restart-strategy.type"),
    ],
)
def test_the_closest_restart_key_is_told(key: str, meant: str) -> None:
    for owner in (RestartStrategy, CheckpointConfig):
        with raises(ConfigurationError, "argument_unknown", keys=[key]) as caught:
            owner.from_flink({key: "3"})
        assert caught.error and f"did you mean {meant}?" in caught.error.headline


@pytest.mark.parametrize("given", ["execution.checkpointing.interval: 10 s", None, [], [("a", 1)], 7])
@pytest.mark.parametrize("owner", [RestartStrategy, CheckpointConfig])
def test_what_is_no_configuration_is_refused(owner: Any, given: Any) -> None:
    with raises(ConfigurationError, "argument_invalid", argument="from_flink"):
        owner.from_flink(given)


@pytest.mark.parametrize("given", [{"execution": None}, {"execution": {"checkpointing": None}}, {"state": {}}])
def test_an_empty_section_says_nothing(given: Any) -> None:
    assert CheckpointConfig.from_flink(given) == CheckpointConfig()
    assert RestartStrategy.from_flink(given) == RestartStrategy.from_flink({})


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
        here = shown.pop(name, "")
        assert re.search(rf"\b{meaning.name}\b", here) and re.search(rf"\b{strategy.__name__}\b", here), name
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
