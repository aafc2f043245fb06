"""A task as a run by hand would have it: Jinja in its arguments is rendered with the defaults of its DAG's params.

What only a run knows (its dates, outputs of other tasks) is left out, and named.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeVar, cast

from airflow_ft.templates import is_template

T = TypeVar("T")
_SPECS = {"sinks": "_sink_classes", "sources": "_source_classes"}


def rendered(task: T | None, left_out: dict[str, str]) -> T | None:
    """A copy of the task (None: of none); in `left_out` is noted what could not be rendered, and why."""
    if task is None:
        return None
    found: Any = copy.copy(task)
    render = _renderer(found)
    for name in found.template_fields:
        value = getattr(found, name)
        if name not in _SPECS:
            if not _holds_template(value):
                continue
            try:
                setattr(found, name, render(value))
            except Exception as error:  # whatever Jinja or a filter raises
                left_out[name] = _why(value, error)
                setattr(found, name, type(value)() if isinstance(value, dict | list) else None)
            continue
        specs, classes = {}, dict(getattr(found, _SPECS[name]))
        for spec, fields in value.items():
            try:
                specs[spec] = render(fields)
            except Exception as error:
                left_out[f"{name.removesuffix('s')} {spec!r}"] = _why(fields, error)
                del classes[spec]
        setattr(found, name, specs)
        setattr(found, _SPECS[name], classes)
    return cast("T", found)


def _renderer(task: Any) -> Callable[[Any], Any]:
    params = {**_values(task.dag.params), **_values(task.params)}
    variables = {"value": _Variables(), "json": _Variables(is_json=True)}
    context = {"params": params, "dag": task.dag, "task": task, "var": variables}
    environment = task.get_template_env()
    return lambda value: task.render_template(value, context, environment)


def _values(params: Any) -> dict[str, Any]:
    return {name: params.get_param(name).resolve(suppress_exception=True) for name in params}


class _Variables:
    def __init__(self, *, is_json: bool = False) -> None:
        self._is_json = is_json

    def __getattr__(self, name: str) -> Any:
        from airflow.models.variable import Variable

        return Variable.get(name, deserialize_json=self._is_json)

    def get(self, name: str, default: Any = None) -> Any:
        from airflow.models.variable import Variable

        return Variable.get(name, default_var=default, deserialize_json=self._is_json)


def _holds_template(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_holds_template(each) for each in value.values())
    if isinstance(value, list | tuple):
        return any(_holds_template(each) for each in value)
    return is_template(value) or hasattr(value, "iter_references")


def _why(value: Any, error: Exception) -> str:
    def texts(each: Any) -> list[str]:
        if isinstance(each, dict):
            each = list(each.values())
        if isinstance(each, list | tuple):
            return [text for item in each for text in texts(item)]
        return [each] if is_template(each) else []

    found = ", ".join(texts(value)) or "the output of another task"
    return f"{found}: {error}".splitlines()[0]
