"""The names of the acts that can be asked for in Airflow. Cheap to import: a DAG is parsed with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from airflow_ft.core.arguments import check_texts, shown
from airflow_ft.core.errors import ConfigurationError

SETTLING: Mapping[str, str] = {
    "commit": "Deliver it under its marker",
    "abort": "Give it up",
    "quarantine": "Keep it as it is, and deliver nothing later until you take it back",
    "redeliver": "Deliver it, also into a sink that has lost its token: are you sure that its rows are not there",
    "dead_letter": "Deliver it, and set aside for good the rows that a sink refuses",
}
"""Acts on one checkpoint that is not settled, and the question before each."""

ACTIONS: Mapping[str, str] = {
    "recover": "settle what is in doubt, from the stored plans",
    "commit": "deliver a checkpoint under its marker",
    "abort": "give up a checkpoint that is not decided",
    "quarantine": "keep a checkpoint as it is; nothing later is delivered meanwhile",
    "redeliver": "deliver a decided checkpoint, also into a sink that has lost its token",
    "dead_letter": "deliver a decided checkpoint, and set aside the rows that a sink refuses",
    "rewind": "compute all rows that are not delivered yet again",
    "reset_state": "drop operator state and keep positions: counts begin anew",
    "resume": "let a HALTED pipeline go on",
    "retire": "silence a pipeline: no alerts until its next run",
    "verify": "compare the write-ahead log with what is in the sinks",
    "doctor": "examine everything that the pipeline needs",
    "savepoint": "keep where the pipeline stands, with its state",
    "stop": "stop a stream after the checkpoint under way",
    "stop_now": "stop a stream at once: what is not published is computed again",
    "stop_with_savepoint": "stop a stream, and keep where it has stopped",
    "drain": "stop a stream for good: what is open in windows is delivered",
    "drain_with_savepoint": "the same, and keep where it has stopped",
    "restore": "have the pipeline go on from a savepoint",
    "dispose": "delete a savepoint",
}
"""Each act, and what it does."""

READING = frozenset({"verify", "doctor"})
"""These change nothing."""

_OF_ONE = frozenset({*SETTLING, "verify", "savepoint"})
_TAKEN = {
    "rewind": {"abort"},
    "folder (savepoint_dir)": {"savepoint", "stop_with_savepoint", "drain_with_savepoint"},
    "savepoint": {"restore", "dispose"},
    "allow_repeated": {"verify"},
    "full": {"verify"},
}
"""What an act may be told besides a checkpoint, and which acts."""


def check_action(name: str) -> str:
    """Returns the name of an act; ConfigurationError with the nearest one for any other text."""
    if isinstance(name, str) and name in ACTIONS:
        return name
    [nearest] = get_close_matches(str(name), ACTIONS, 1, 0.0)
    raise ConfigurationError(
        f"there is no action {shown(name)}.", remedy=f"did you mean {nearest!r}? Known are: {', '.join(ACTIONS)}."
    )


def check_actions(names: Sequence[str] | None) -> tuple[str, ...]:
    """The acts of these names, each once; None: all. ConfigurationError for an empty list, and as `check_action`."""
    if names is None:
        return tuple(ACTIONS)
    check_texts("actions", names)
    if not names:
        raise ConfigurationError("actions is empty.", remedy=f"leave it out, or name some of: {', '.join(ACTIONS)}.")
    return tuple(dict.fromkeys(map(check_action, names)))


def check_number(action: str, number: int | None) -> None:
    """ConfigurationError for a checkpoint that the act lacks, or that it would pass over."""
    if number is None and action in SETTLING:
        raise ConfigurationError(f"{action} is of one checkpoint, and none is named.", remedy="give its number.")
    if number is not None and action not in _OF_ONE:
        raise ConfigurationError(
            f"checkpoint is {number}, but {action} is of the whole pipeline.",
            remedy="leave the checkpoint out, if that is what you want.",
        )


def check_told(action: str, given: Mapping[str, bool]) -> None:
    """ConfigurationError for what is `given` to an act that would pass it over."""
    for name, is_given in given.items():
        if is_given and action not in _TAKEN[name]:
            raise ConfigurationError(
                f"{name} is given, but {action} would pass it over.",
                remedy=f"leave it out: it is for {', '.join(sorted(_TAKEN[name]))}."
                + (" The action 'rewind' is of all that is not delivered." if name == "rewind" else ""),
            )
