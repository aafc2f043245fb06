"""Specifications that contain Jinja: taken apart for Airflow to render, put together and validated afterwards.

Airflow renders strings inside dictionaries and lists, never inside frozen dataclasses. So an operator keeps the
fields of each specification in a template field, and the specification itself beside it.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from airflow_ft.protocol.arguments import is_resolved_later, is_template, late_text
from airflow_ft.protocol.config import check_name
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.model import Promise
from airflow_ft.protocol.planning import participant_name
from airflow_ft.protocol.sink_spec import SinkSpec

S = TypeVar("S")
_JINJA = re.compile(r"\{\{.*?\}\}|\{%.*?%\}", re.DOTALL)


def without_jinja(text: object, instead: str = "*") -> str:
    """The text with each expression or statement of Jinja replaced, or all of it when it is an argument to resolve."""
    return _JINJA.sub(instead, text) if isinstance(text, str) else instead


def declared_name(pipeline: str, suffix: object) -> tuple[str, object]:
    """Pipeline and suffix as an operator keeps them: one name when both are known. ConfigurationError if it is none."""
    if suffix is None or is_resolved_later(suffix) or is_resolved_later(pipeline):
        name, left = pipeline, suffix
    else:
        if str(suffix).strip() in ("", "None"):
            raise no_suffix(pipeline, suffix)
        name, left = f"{pipeline}-{suffix}", None
    if not is_template(name):
        check_name("pipeline" if suffix is None else "pipeline, with its suffix", name)
    return name, left


def no_suffix(pipeline: str, suffix: object) -> ConfigurationError:
    """Return what to raise where a suffix that was declared turns out to be none."""
    return ConfigurationError(
        f"suffix is {suffix!r}, which does not distinguish pipelines.",
        code="name_invalid",
        remedy="Give each pipeline its own suffix, or leave suffix out. The values over which a group is expanded must"
        " not be empty.",
        argument="suffix",
        value=repr(suffix),
        pipeline=without_jinja(pipeline),
    )


def require_value(argument: str, written: object, given: object) -> None:
    """Raise ConfigurationError if an argument became None in this run, or one of its expressions did.

    `written`: as its author wrote it, with Jinja or as the output of a task.
    """
    if is_template(written) and (given is None or _has_none(written, str(given))):
        raise _without_value(argument, written, given)


def require_filled(argument: str, written: object, given: object) -> None:
    """Raise ConfigurationError if an argument, or one of its expressions, became None or an empty text in this run.

    For a text that distinguishes runs. Airflow renders an unknown name as an empty text. Adjacent expressions count as
    one. A text with statements ({% ... %}) may be empty in parts on purpose.
    """
    require_value(argument, written, given)
    if not isinstance(written, str) or not is_template(written) or "{%" in written:
        return
    if _has(re.split(r"(?:\{\{.*?\}\})+", written, flags=re.DOTALL), "", str(given)):
        raise _without_value(argument, written, given)


def _without_value(argument: str, written: object, given: object) -> ConfigurationError:
    return ConfigurationError(
        f"{argument} is {written!r}, which is {given!r} in this run.",
        code="template_without_value",
        remedy="Give the param, variable or output that it names a value, or correct the name.",
        argument=argument,
        value=repr(given),
    )


def _has_none(written: object, text: str) -> bool:
    """Return whether an expression of an argument, as `written`, may have become None in the rendered text."""
    if not isinstance(written, str):
        return text == "None"
    return _has(_JINJA.split(written), "None", text)


def _has(literals: Sequence[str], value: str, text: str) -> bool:
    """Return whether a text of these literals may have the value between two of them."""
    escaped = [glob.escape(each) for each in literals]
    places = range(1, len(escaped))
    return any(fnmatchcase(text, f"{'*'.join(escaped[:at])}{value}{'*'.join(escaped[at:])}") for at in places)


def plain(value: Any) -> Any:
    """A value in containers that Airflow renders; of a specification (a dataclass) its fields by name."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value) if field.init}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain(item) for item in value]
    return value


def rebuild(
    declared: Mapping[str, S], rendered: Mapping[str, Mapping[str, Any]], *, kind: str = "sink"
) -> dict[str, S]:
    """Return the specifications by name, validated again.

    `kind`: "sink" or "source".

    Raises:
        ConfigurationError: names the one that cannot work.
    """
    specs = {}
    for name, values in rendered.items():
        try:
            _check_rendered(declared[name], values)
            specs[name] = spec = type(declared[name])(**values)
            if hasattr(spec, "check_rendered"):
                spec.check_rendered(declared[name])
        except ConfigurationError as error:
            if kind != "sink":
                error.what = f"{kind} {name!r}: {error.what}"
                error.fields[kind] = name
            error.located(sink=name if kind == "sink" else "")
            raise
    return specs


def _check_rendered(spec: Any, values: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for Jinja that is left, and for values that became None, such as a table's name."""
    if left := late_text(values):
        raise ConfigurationError(
            f"{left!r} still contains Jinja after rendering.",
            code="template_not_rendered",
            remedy="Correct the param, variable or output that it names: its value contains Jinja.",
            value=left,
        )
    for each in fields(spec):
        if not each.init or each.default is None:  # None is what it is without a word, too
            continue
        for written, given in _texts(plain(getattr(spec, each.name)), values.get(each.name)):
            require_value(each.name, written, given)


def _texts(written: Any, given: Any) -> list[tuple[Any, Any]]:
    """A value, or those of a list, before and after rendering; mappings are for others to judge."""
    if isinstance(written, list):
        return list(zip(written, given, strict=False)) if isinstance(given, list) else []
    return [] if isinstance(written, Mapping) else [(written, given)]


@dataclass(frozen=True, slots=True)
class _Declared:
    """A sink as far as it is known before rendering: what decides on tasks and their order, no settings."""

    sink: SinkSpec

    @property
    def kind(self) -> str:
        return self.sink.kind

    @property
    def conn_id(self) -> str:
        return self.sink.conn_id

    @property
    def participant(self) -> str:
        return participant_name(self.sink)

    @property
    def strategy(self) -> str:
        return self.sink.strategy

    @property
    def promise(self) -> Promise:
        return self.sink.promise

    def at_least_once(self) -> Promise:
        return self.sink.at_least_once()

    def settings(self) -> Mapping[str, Any]:
        return {}


def declared(sinks: Mapping[str, SinkSpec]) -> dict[str, SinkSpec]:
    """The sinks without their settings, which may contain Jinja: enough to plan the tasks of a DAG."""
    return {name: _Declared(sink) for name, sink in sinks.items()}
