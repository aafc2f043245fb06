"""Arguments of operators and sensors: a wrong one is a ConfigurationError that names it, and the line of the DAG."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.bases.operator import BaseOperatorMeta

from airflow_ft.protocol.argument_names import (
    closest,
    missing_argument,
    raising_at_the_caller,
    unknown_argument,
    unnamed_arguments,
)

if TYPE_CHECKING:
    from airflow.sdk.definitions.mappedoperator import OperatorPartial


class NamedArguments(BaseOperatorMeta):
    """Metaclass of operators and sensors. Airflow itself would raise a TypeError without a fix.

    An operator of a map index has `expanded_to_none`: the arguments for which `expand` has the item None.
    """

    def __init__(cls, *made: Any, **more: Any) -> None:
        super().__init__(*made, **more)
        # `help` would show the parameters of `__call__`.
        _, *parameters = inspect.signature(cls.__init__).parameters.values()  # type: ignore[misc]
        cls.__signature__ = inspect.Signature(parameters)
        if not any(isinstance(each, NamedArguments) for each in cls.__mro__[1:]):
            type.__setattr__(cls, "partial", classmethod(_partial))  # Airflow lets operators have their own

    @raising_at_the_caller
    def __call__(cls, *unnamed: Any, **named: Any) -> Any:
        """Create the operator.

        Raises:
            ConfigurationError: an argument has no name, does not exist, is missing, or has a wrong value.
        """
        own, usual = _checked(cls, unnamed, named)
        try:
            made = super().__call__(**named)
        except TypeError as error:
            # Only Airflow knows what the default_args of DAG and groups give.
            if "missing" in str(error):
                for name in re.findall(r"'(\w+)'", str(error)):
                    if (name in own or name in usual) and name not in named:
                        raise missing_argument(name, cls.__name__) from None
            raise
        if "_airflow_from_mapped" in named:
            made.expanded_to_none = [name for name in own if name in named and named[name] is None]
        return made


@raising_at_the_caller
def _partial(cls: Any, *unnamed: Any, **named: Any) -> OperatorPartial:
    """Return a mapped operator without what `expand` gives it.

    Raises:
        ConfigurationError: an argument has no name, or does not exist, or there is no task_id.
    """
    own, _ = _checked(cls, unnamed, named)
    named = {name: value for name, value in named.items() if value is not None or name not in own}
    if "task_id" not in named:
        raise missing_argument("task_id", f"{cls.__name__}.partial")
    made: OperatorPartial = vars(BaseOperator)["partial"].__get__(None, cls)(**named)
    if usual_retries := getattr(cls, "usual_retries", None):
        around = [getattr(made.kwargs[each], "default_args", {}) for each in ("dag", "task_group")]
        made.kwargs.update(usual_retries({**around[0], **around[1], **named}))
    return made


def _checked(
    cls: type, unnamed: Sequence[object], named: Collection[str]
) -> tuple[Mapping[str, bool], Mapping[str, bool]]:
    """Return what `_arguments` does, after a look for arguments without names, and for unknown ones."""
    own, usual = _arguments(cls)
    if unnamed:
        raise unnamed_arguments(cls.__name__, ["task_id", *(name for name, must in own.items() if must)])
    for name in named:
        if name not in own and name not in usual and not name.startswith("_"):  # `_airflow_from_mapped`
            close = closest(name, list(own)) or get_close_matches(name, usual, 1)
            remedy = f"Did you mean {close[0]}?" if close else ""
            raise unknown_argument(name, list(own), f"{cls.__name__} has", remedy=remedy, of=cls.__name__)
    return own, usual


@cache
def _arguments(cls: type) -> tuple[dict[str, bool], dict[str, bool]]:
    """Return the arguments that this package gives an operator, and those of Airflow; True: it needs the argument."""
    own: dict[str, bool] = {}
    usual: dict[str, bool] = {}
    for each in cls.__mro__:
        if "__init__" not in vars(each):
            continue
        found = usual if each.__module__.startswith("airflow.") else own
        for name, argument in inspect.signature(each.__init__).parameters.items():  # type: ignore[misc]
            if name != "self" and argument.kind not in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD):
                found.setdefault(name, argument.default is argument.empty)
    return own, usual
