"""Check the names of arguments: unknown, missing and unnamed ones raise ConfigurationError, and not TypeError."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, signature
from typing import Any, ParamSpec, TypeVar

from airflow_ft.protocol.errors import ConfigurationError

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
_SYNONYMS: Mapping[str, Sequence[str]] = {
    "checkpoint": ("number",),
    "connection": ("conn_id",),
    "connection_id": ("conn_id",),
    "key": ("key_columns", "primary_key", "row_key"),
    "keys": ("key_columns", "primary_key", "row_key", "key"),
    "name": ("pipeline",),
    "path": ("folder", "table"),
    "pipelines": ("streams", "pipeline"),
    "pipeline_name": ("pipeline",),
    "table": ("topic", "key", "folder"),
    "topic": ("topics", "table"),
    "trigger": ("interval",),
}
"""Names that another sink, source or system has for an argument."""
_OF_CONNECTIONS = {
    *("bootstrap_servers", "brokers", "servers", "host", "hosts", "port", "url", "uri", "database", "schema"),
    *("user", "username", "login", "password"),
}
"""What an author may look for in a sink or source, and an Airflow connection has."""


def closest(name: str, known: Sequence[str]) -> list[str]:
    """Return the known name that is meant, if one is similar, a usual synonym or has a word of it."""
    words = set(name.split("_"))
    synonyms = [each for each in _SYNONYMS.get(name, ()) if each in known]
    return (synonyms or get_close_matches(name, known, 1) or [e for e in known if words & set(e.split("_"))])[:1]


def unknown_argument(
    name: str, known: Sequence[str], what: str, *, remedy: str = "", **more: Any
) -> ConfigurationError:
    """Return the error for an argument that does not exist. `what` begins the message: "a pipeline has"."""
    close = closest(name, known)
    return ConfigurationError(
        f"{what} no argument {name}.",
        code="argument_unknown",
        remedy=remedy or (f"Did you mean {close[0]}?" if close else f"Give some of {', '.join(known)}."),
        argument=name,
        **more,
    )


def unnamed_arguments(of: str, meant: Sequence[str]) -> ConfigurationError:
    """Return the error for arguments without names. `meant` are some that it has."""
    what = f"{of} takes its arguments by name."
    remedy = f"Write {of}({', '.join(f'{each}=...' for each in meant)})."
    return ConfigurationError(what, code="argument_unnamed", remedy=remedy, of=of)


def missing_argument(name: str, of: str) -> ConfigurationError:
    """Return the error for an argument that is needed."""
    return ConfigurationError(
        f"{name} of {of} is missing.", code="argument_missing", remedy=f"Give {name}=...", argument=name, of=of
    )


def raising_at_the_caller(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a constructor: Airflow shows the last two frames of a ConfigurationError, one being the DAG's line."""

    @wraps(function)
    def call(*unnamed: P.args, **named: P.kwargs) -> R:
        try:
            return function(*unnamed, **named)
        except ConfigurationError as error:
            raise error.with_traceback(None) from error.__cause__

    return call


def by_name(cls: type[T]) -> type[T]:
    """Decorate a dataclass: unknown, missing and unnamed arguments raise ConfigurationError instead of TypeError.

    Its class attribute `meant`, if there is one, holds remedies for arguments that it does not have.
    """
    arguments = [each for each in fields(cls) if each.init]  # type: ignore[arg-type]
    known = [each.name for each in arguments]
    of_authors = [each.name for each in arguments if each.compare]  # `replace` passes the others
    needed = [each.name for each in arguments if each.default is MISSING and each.default_factory is MISSING]

    def unknown(name: str) -> ConfigurationError:
        remedy = getattr(cls, "meant", {}).get(name, "")
        if not remedy and "conn_id" in known and name in _OF_CONNECTIONS:
            remedy = f"Write {name} into the Airflow connection, and its id as conn_id."
        return unknown_argument(name, of_authors, f"{cls.__name__} has", remedy=remedy, of=cls.__name__)

    in_order = [*needed, *(each for each in known if each not in needed)]
    return _checked(cls, in_order, needed, unknown, unnamed=0)


def arguments_by_name(cls: type[T]) -> type[T]:
    """Decorate a class: an unknown, missing or surplus argument raises ConfigurationError instead of TypeError."""
    _, *parameters = signature(cls.__init__).parameters.values()
    known = [each.name for each in parameters]  # those by name alone come last
    unnamed = sum(each.kind is not Parameter.KEYWORD_ONLY for each in parameters)
    needed = [each.name for each in parameters if each.default is Parameter.empty]

    def unknown(name: str) -> ConfigurationError:
        return unknown_argument(name, known, f"{cls.__name__} has", of=cls.__name__)

    return _checked(cls, known, needed, unknown, unnamed)


def _checked(
    cls: type[T],
    known: Sequence[str],
    needed: Sequence[str],
    unknown: Callable[[str], ConfigurationError],
    unnamed: int,
) -> type[T]:
    """Let the class check the names of its arguments. The first `unnamed` of `known` may be given without a name."""
    created = cls.__init__

    @wraps(created)
    def create(self: T, *given: Any, **named: Any) -> None:
        if len(given) > unnamed:
            raise unnamed_arguments(cls.__name__, known[: len(given)])
        for each in named:
            if each not in known:
                raise unknown(each)
        for each in needed:
            if each not in named and each not in known[: len(given)]:
                raise missing_argument(each, cls.__name__)
        created(self, *given, **named)

    cls.__init__ = raising_at_the_caller(create)  # type: ignore[arg-type, method-assign]
    return cls
