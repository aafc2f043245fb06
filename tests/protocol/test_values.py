from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_ft.protocol.config import CheckpointConfig, check_name
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import ConfigurationError, DeclinedError, SinkAccessError
from airflow_ft.protocol.model import CheckpointingMode, CheckpointState
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.protocol.transitions import TRANSITIONS, is_allowed
from tests.raising import raises


@pytest.mark.parametrize("name", ["orders", "a", "0-x_y", "x" * 63])
def test_good_names(name: str) -> None:
    assert check_name("pipeline", name) == name


@pytest.mark.parametrize("name", ["", "Orders", "-a", "a b", "x" * 64, "a'b", "é", None])
def test_bad_names_are_refused_with_what_is_allowed(name: str) -> None:
    with raises(ConfigurationError, "name_invalid", kind="pipeline"):
        check_name("pipeline", name)


@pytest.mark.parametrize(
    "settings",
    [
        {"timeout": timedelta(0)},
        {"timeout": 5},
        {"num_retained": 0},
        {"max_delivery_rows": -1},
        {"externalized_retention": "DELETE_ON_CANCELLATION"},
        {"externalized_retention": None},
    ],
)
def test_bad_checkpoint_settings_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        CheckpointConfig(**settings)  # type: ignore[arg-type]


def test_checkpoint_settings_survive_json_but_unknown_ones_fail() -> None:
    config = CheckpointConfig(timeout=timedelta(seconds=90), num_retained=7, max_delivery_rows=5)
    assert CheckpointConfig.from_json(config.to_json()) == config
    assert CheckpointConfig.from_json({"timeout": "90", "num_retained": "7", "max_delivery_rows": 5}) == config
    with raises(ConfigurationError, "argument_unknown", of="checkpointing", argument="minimum_pause"):
        CheckpointConfig.from_json({"minimum_pause": 3})


def test_a_mode_is_read_from_text_and_a_wrong_one_is_refused() -> None:
    config = CheckpointConfig(mode=CheckpointingMode.AT_MOST_ONCE)
    assert config.to_json() == {"mode": "AT_MOST_ONCE"} and type(config.to_json()["mode"]) is str
    for text in ("AT_MOST_ONCE", " at_most_once\n"):
        assert CheckpointConfig.from_json({"mode": text}) == config
    assert CheckpointConfig().with_defaults(config).mode is CheckpointingMode.AT_MOST_ONCE
    names = "EXACTLY_ONCE, AT_LEAST_ONCE or AT_MOST_ONCE"
    for wrong in ("ONCE", 1, None):
        with raises(ConfigurationError, "argument_invalid", argument="mode", value=repr(wrong)) as caught:
            CheckpointConfig.from_json({"mode": wrong})
        assert caught.error and names in caught.error.remedy
    with raises(ConfigurationError, "argument_invalid", of="CheckpointConfig", argument="mode") as caught:
        CheckpointConfig(mode="AT_MOST_ONCE")  # type: ignore[arg-type]
    assert caught.error and f"CheckpointingMode.{names}" in caught.error.remedy


def test_an_explicit_built_in_value_overrides_other_defaults() -> None:
    defaults = CheckpointConfig(timeout=timedelta(seconds=90), num_retained=7)
    own = CheckpointConfig(timeout=timedelta(minutes=10), quarantine_after=None)
    assert own.timeout == CheckpointConfig().timeout
    found = own.with_defaults(defaults)
    assert (found.timeout, found.num_retained, found.quarantine_after) == (timedelta(minutes=10), 7, None)
    for same in (copy.deepcopy(own), pickle.loads(pickle.dumps(own)), CheckpointConfig.from_json(own.to_json())):
        assert same.with_defaults(defaults) == found
    assert own.to_json() == {"timeout": 600, "quarantine_after": None}
    varied = replace(own, num_retained=9)
    assert varied.to_json() == {"timeout": 600, "num_retained": 9, "quarantine_after": None}
    assert (
        replace(CheckpointConfig(num_retained=5), timeout=timedelta(seconds=30)).with_defaults(defaults).num_retained
        == 5
    )
    assert replace(CheckpointConfig(), num_retained=5).with_defaults(defaults).timeout == timedelta(seconds=90)


@pytest.mark.parametrize("mode", [CheckpointingMode.AT_LEAST_ONCE, CheckpointingMode.AT_MOST_ONCE])
def test_unaligned_needs_exactly_once_wherever_the_two_are_said(mode: CheckpointingMode) -> None:
    unaligned, moded = CheckpointConfig(unaligned=True), CheckpointConfig(mode=mode)
    tries: tuple[Callable[[], CheckpointConfig], ...] = (
        lambda: CheckpointConfig(unaligned=True, mode=mode),
        lambda: CheckpointConfig.from_json({"unaligned": "True", "aligned_timeout": "5", "mode": mode.value}),
        lambda: replace(unaligned, mode=mode),
        lambda: unaligned.with_defaults(moded),
        lambda: moded.with_defaults(unaligned).of_streams(),
    )
    for each in tries:
        with raises(ConfigurationError, "arguments_conflict", arguments=["unaligned", "mode"]) as caught:
            each()
        assert caught.error and mode in caught.error.headline
    exactly = CheckpointConfig(unaligned=True, mode=CheckpointingMode.EXACTLY_ONCE)
    assert exactly.with_defaults(moded).concurrent == CheckpointConfig(unaligned=True).concurrent == 1
    assert moded.with_defaults(unaligned.of_scheduled()).mode is mode  # says nothing to a scheduled pipeline


def test_turning_unaligned_off_drops_an_inherited_timeout() -> None:
    others = CheckpointConfig(unaligned=True, aligned_timeout=timedelta(seconds=30))
    assert CheckpointConfig(unaligned=False).with_defaults(others).to_json() == {"unaligned": False}
    later = CheckpointConfig(aligned_timeout=timedelta(seconds=5), unaligned=True).with_defaults(others)
    assert later.aligned_timeout == timedelta(seconds=5)


def test_final_states_are_final() -> None:
    final = {CheckpointState.COMPLETED, CheckpointState.ABORTED, CheckpointState.SUBSUMED}
    assert not {old for old, _ in TRANSITIONS} & final
    assert not is_allowed(CheckpointState.PREPARED, CheckpointState.SUBSUMED)  # R9: rows twice
    assert not is_allowed(CheckpointState.COMMITTING, CheckpointState.ABORTED)  # I3


def test_every_reason_explains_itself() -> None:
    assert all(reason.explanation.endswith(".") for reason in AbortReason)


def test_an_error_names_the_place_the_reason_and_the_remedy() -> None:
    error = DeclinedError("NULL in a NOT NULL column.", remedy="mend the job.", sink="orders", column="id")
    error.located(pipeline="shop", checkpoint=7, participant="mysql_default", sink="not me")
    assert str(error) == (
        "pipeline 'shop', checkpoint 7, connection 'mysql_default', sink 'orders', column 'id':"
        " NULL in a NOT NULL column. [declined]\nFix: mend the job."
    )


def test_an_error_names_a_sink_by_the_word_of_the_dag() -> None:
    where: dict[str, str | int] = {"unconnected": True, "participant": "files-data-out"}
    lost = SinkAccessError("it is gone.").located(**where)
    assert lost.headline == "sink 'files-data-out': it is gone." and lost.participant == "files-data-out"
    assert lost.located(sink="orders").headline == "sink 'orders': it is gone."
    wrong = SinkAccessError("it is wrong.", participant="lake").located(**where, sink="orders")
    assert wrong.headline == "connection 'lake', sink 'orders': it is wrong."


def test_a_connection_does_not_show_its_secrets() -> None:
    connection = ConnectionInfo("c", "mysql", password="hunter2", extra={"sasl.password": "hunter3"})
    assert "hunter" not in repr(connection)
