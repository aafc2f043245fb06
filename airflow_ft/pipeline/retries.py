"""A restart strategy as Airflow's arguments of a task."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow_ft.pipeline.spec import PipelineSpec
from airflow_ft.protocol.arguments import is_template, kind_of
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.restart import ExponentialDelay, FixedDelay, NoRestart, RestartStrategy

USUAL = FixedDelay(attempts=3, delay=timedelta(seconds=15))
"""The default. This package is made for killed tasks, so it retries them soon."""

OF_A_STREAM = FixedDelay(attempts=5000, delay=timedelta(seconds=3))
"""The default for the task of a stream, which runs for weeks and is retried when its worker dies.

Until the retry nothing is delivered.
"""


def task_retries(spec: PipelineSpec, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a single task's arguments of retries, as far as neither it nor its `default_args` set them."""
    return not_given({**usual_arguments(spec), **restart_arguments(spec)}, kwargs)


def not_given(arguments: Mapping[str, Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of an operator's arguments that neither `kwargs` nor its `default_args` contain."""
    given = {**(kwargs.get("default_args") or {}), **kwargs}
    return {name: value for name, value in arguments.items() if name not in given}


def usual_arguments(spec: PipelineSpec) -> dict[str, Any]:
    """Return the default arguments of the retries of a pipeline's tasks."""
    return airflow_arguments(OF_A_STREAM if spec.streaming else USUAL)


def restart_arguments(spec: PipelineSpec) -> dict[str, Any]:
    """Return what `restart` sets; {}: nothing. ConfigurationError: Airflow cannot do that."""
    if spec.restart is None or spec.streaming:  # a stream restarts in its task
        return {}
    if isinstance(spec.restart, Mapping):
        late = ", ".join(name for name, value in spec.restart.items() if is_template(value))
        raise ConfigurationError(
            f"restart contains Jinja ({late}), but Airflow must know a task's retries when it parses the DAG.",
            code="value_known_too_late",
            remedy=f"Write the values of restart themselves, without Jinja: {late}.",
            pipeline=spec.pipeline,
            argument="restart",
        )
    return airflow_arguments(spec.restart)


def airflow_arguments(strategy: RestartStrategy) -> dict[str, Any]:
    """Return `retries`, `retry_delay`, `retry_exponential_backoff` and `max_retry_delay` (docs/restarts.md).

    They count for each task of each run separately. Jitter is Airflow's own, and nothing needs a reset, because each
    run starts a new count.

    Raises:
        ConfigurationError: Airflow does not support it: a rate of failures, or retries without end.
    """
    match strategy:
        case NoRestart():
            return _arguments(0, timedelta(0))
        case FixedDelay(attempts=int(attempts), delay=delay):
            return _arguments(attempts, delay)
        case ExponentialDelay(attempts_before_reset_backoff=int(attempts)):
            return _arguments(attempts, strategy.initial_backoff, strategy.backoff_multiplier, strategy.max_backoff)
        case FixedDelay() | ExponentialDelay():
            name = "attempts" if isinstance(strategy, FixedDelay) else "attempts_before_reset_backoff"
            raise ConfigurationError(
                f"restart has no limit ({type(strategy).__name__}.{name} is None), but Airflow's retries need one.",
                code="argument_invalid",
                remedy=f"Set how often Airflow may retry a task: {name}=10, for example.",
                argument="restart",
                value=type(strategy).__name__,
            )
    raise ConfigurationError(
        f"restart is {kind_of(strategy)}, but Airflow counts tries of a task and not failures per time.",
        code="argument_invalid",
        remedy="Give FixedDelay(attempts=3, delay=timedelta(seconds=15)) or an ExponentialDelay, for example.",
        argument="restart",
        value=type(strategy).__name__,
    )


def _arguments(
    retries: int, delay: timedelta, multiplier: float = 0, longest: timedelta | None = None
) -> dict[str, Any]:
    return {
        "retries": retries,
        "retry_delay": delay,
        "retry_exponential_backoff": multiplier,
        "max_retry_delay": longest,
    }
