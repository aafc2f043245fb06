"""A task as a run by hand would have it: Jinja in its arguments is rendered with the defaults of its DAG's params.

What only a run knows (its dates, outputs of other tasks) is left out, and named.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.arguments import is_late_anywhere, is_template

if TYPE_CHECKING:
    from airflow_ft.operators.base import CheckpointOperator

_SPECS = ("sinks", "sources")
_NEEDED = ("pipeline", "job")


def rendered(task: CheckpointOperator, left_out: dict[str, str]) -> dict[str, Any]:
    """The task's fields of its specification; in `left_out` is noted what could not be rendered, and why."""
    render = _renderer(task)
    found: dict[str, Any] = {}
    for name in task.carried():
        if name == "position":  # nothing asks for it before a run
            continue
        value = getattr(task, name)
        if name in _SPECS:
            found[name] = {}
            for spec, fields in value.items():
                try:
                    found[name][spec] = render(fields)
                except Exception as error:  # whatever Jinja or a filter raises
                    left_out[f"{name.removesuffix('s')} {spec!r}"] = _why(fields, error)
            continue
        try:
            found[name] = render(value) if is_late_anywhere(value) else value
        except Exception as error:
            left_out[name] = _why(value, error)
            if name not in _NEEDED:
                found[name] = type(value)() if isinstance(value, dict | list) else None
    return found


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


def _why(value: Any, error: Exception) -> str:
    def texts(each: Any) -> list[str]:
        if isinstance(each, dict):
            each = list(each.values())
        if isinstance(each, list | tuple):
            return [text for item in each for text in texts(item)]
        return [each] if is_template(each) else []

    found = ", ".join(texts(value)) or "the output of another task"
    return f"{found}: {error}".splitlines()[0]
