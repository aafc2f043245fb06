"""Settings of a sink, as a plan keeps them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from airflow_ft.protocol.arguments import check_text, check_type, is_template, shown, wrong
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.sharing import SHARED

_PLAIN: Mapping[Any, tuple[type, str]] = {"int": (int, "Give a whole number."), "bool": (bool, "Give True or False.")}


class SinkArguments:
    """Base of what a DAG author writes for a sink, a dataclass: how it refuses an argument."""

    __slots__ = ()

    def _check_types(self) -> None:
        """ConfigurationError unless each text, number, and True or False is one, as its field declares it."""
        this: Any = self
        for field in fields(this):
            name, value, of = field.name, getattr(self, field.name), type(self).__name__
            if field.type in ("str", "str | None"):
                check_text(name, value, optional=field.type != "str", of=of)
                if field.type != "str" and isinstance(value, str) and not value.strip():
                    raise wrong(name, shown(value), f"Give a name, or leave {name} out.", of=of)
            elif field.type in _PLAIN:
                check_type(name, value, *_PLAIN[field.type], of=of)

    @classmethod
    def _invalid(cls, argument: str, value: object, remedy: str) -> ConfigurationError:
        return ConfigurationError(
            f"{argument} of {cls.__name__} is {shown(value)}.",
            code="argument_invalid",
            remedy=remedy,
            argument=argument,
            value=value,
        )


def refuse_unknown(settings: Mapping[str, Any], known: Iterable[str]) -> None:
    """ConfigurationError when the plan has settings that this release does not know."""
    if unknown := sorted(set(settings) - set(known)):
        what = f"the plan has settings that this release does not know: {', '.join(unknown)}."
        remedy = "Install the release of airflow-ft that made the plan, or a newer one."
        raise ConfigurationError(what, code="newer_release", remedy=remedy, settings=unknown)


def refuse_jinja(*texts: str | None) -> None:
    """ConfigurationError while Jinja is left in a text."""
    for text in texts:
        if is_template(text):
            what = f"{text!r} still contains Jinja, which nothing renders any more."
            remedy = "Give the value through a templated argument of the operator, so that Airflow renders it."
            raise ConfigurationError(what, code="template_not_rendered", remedy=remedy, value=text)


def shared_setting(shared: bool) -> dict[str, bool]:
    """Return what a plan keeps of `shared`: nothing where it is False."""
    return {SHARED: True} if shared else {}
