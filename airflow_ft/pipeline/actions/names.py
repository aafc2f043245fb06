"""The names of the actions that users can request in Airflow. Cheap to import, because DAG parsing imports it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from airflow_ft.protocol.arguments import check_texts, shown
from airflow_ft.protocol.errors import ConfigurationError

SETTLING: Mapping[str, str] = {
    "commit": "Deliver it under its own number",
    "abort": "Abort it",
    "quarantine": "Hold it, and all later checkpoints, until you decide",
    "redeliver": "Deliver it, even into a sink that lost its marker: are you sure that its rows are not there",
    "dead_letter": "Deliver it, and set aside the rows that a sink refuses (the sink never gets them)",
    "give_up": "Roll it back, and give up the prepared rows of",
}
"""Actions on one unresolved checkpoint, and the question before each.

Only the command line has `give_up`, for which a person must name the sink.
"""

ACTIONS: Mapping[str, str] = {
    "recover": "complete or abort the checkpoints in doubt",
    "commit": "deliver a checkpoint",
    "abort": "abort a checkpoint that is not decided",
    "quarantine": "hold a checkpoint and all later ones until you decide",
    "redeliver": "deliver a decided checkpoint, even into a sink that lost its marker",
    "dead_letter": "deliver a decided checkpoint, and set aside the rows that a sink refuses",
    "rewind": "compute all undelivered rows again",
    "reset_state": "drop operator state and keep source positions: counts start from zero",
    "resume": "let a HALTED pipeline continue",
    "retire": "silence a pipeline's alerts until its next run",
    "verify": "compare the write-ahead log with the sinks",
    "doctor": "check everything that the pipeline needs",
    "savepoint": "take a savepoint: source positions and state",
    "stop": "stop a stream after its current checkpoint",
    "stop_now": "stop a stream at once; the next run computes unpublished rows again",
    "stop_with_savepoint": "stop a stream and take a savepoint",
    "drain": "stop a stream and deliver its open windows, joins and timers",
    "drain_with_savepoint": "drain a stream and take a savepoint",
    "restore": "restore the pipeline from a savepoint",
    "dispose": "delete a savepoint",
}
"""Each action, and what it does."""

READING = frozenset({"verify", "doctor"})
"""These change nothing."""

_OF_ONE = frozenset({*SETTLING, "verify", "savepoint"})
_TAKEN = {
    "rewind": {"abort"},
    "folder (savepoint_dir)": {"savepoint", "stop_with_savepoint", "drain_with_savepoint"},
    "savepoint": {"restore", "dispose"},
    "allow_repeated": {"verify"},
    "halt_reason": {"resume"},
    "forget_sources": {"reset_state"},
}
"""Arguments besides the checkpoint, and the actions that take them."""


def check_action(name: str) -> str:
    """Return the name of an action. Raises ConfigurationError with the nearest name for any other text."""
    if isinstance(name, str) and name in ACTIONS:
        return name
    [nearest] = get_close_matches(str(name), ACTIONS, 1, 0.0)
    raise ConfigurationError(
        f"there is no action {shown(name)}.",
        code="argument_invalid",
        remedy=f"Did you mean {nearest!r}? The actions are {', '.join(ACTIONS)}.",
        argument="action",
        value=shown(name),
        nearest=nearest,
    )


def check_actions(names: Sequence[str] | None) -> tuple[str, ...]:
    """Return these actions, each once; None: all. ConfigurationError for an empty list, and as `check_action`."""
    if names is None:
        return tuple(ACTIONS)
    check_texts("actions", names)
    if not names:
        raise ConfigurationError(
            "`actions` is an empty list.",
            code="argument_invalid",
            remedy=f"Remove it to allow all actions, or name some of {', '.join(ACTIONS)}.",
            argument="actions",
        )
    return tuple(dict.fromkeys(map(check_action, names)))


def check_number(action: str, number: int | None) -> None:
    """Raise ConfigurationError if the action lacks a checkpoint number, or does not use it."""
    if number is None and action in SETTLING:
        raise ConfigurationError(
            f"{action} needs a checkpoint number.",
            code="argument_missing",
            remedy="Give the number in `checkpoint`: `airflow ft in-doubt` lists the checkpoints.",
            argument="checkpoint",
            action=action,
        )
    if number is not None and action not in _OF_ONE:
        raise ConfigurationError(
            f"`checkpoint` is {number}, but {action} works on the whole pipeline.",
            code="arguments_conflict",
            remedy="Remove `checkpoint`, if you want the whole pipeline.",
            argument="checkpoint",
            value=number,
            action=action,
        )


def check_arguments(action: str, given: Mapping[str, bool]) -> None:
    """Raise ConfigurationError if an argument is given that the action does not use."""
    for name, is_given in given.items():
        if is_given and action not in _TAKEN[name]:
            raise ConfigurationError(
                f"{name} is given, but {action} does not use it.",
                code="arguments_conflict",
                remedy=f"Remove it: it works with {', '.join(sorted(_TAKEN[name]))} only."
                + (" To compute all undelivered rows again, use the action 'rewind'." if name == "rewind" else ""),
                argument=name,
                action=action,
            )
