"""What the operators are given, judged when the DAG is parsed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from inspect import isclass
from typing import Any

from airflow_ft.core.arguments import check_text, check_texts, check_type, shown
from airflow_ft.core.config import CheckpointConfig, check_name
from airflow_ft.core.errors import ConfigurationError

_SINK = ("kind", "conn_id", "strategy", "promise", "settings")
_SOURCE = ("conn_id", "to_json", "read")


def check_sources(sources: object, *, required: bool = True) -> None:
    """A dictionary of sources by name; ConfigurationError names what is none."""
    _check_specs("source", sources, _SOURCE, 'KafkaSource(topics=["orders"])')
    if required and not sources:
        raise ConfigurationError(
            "sources is empty.", remedy='declare what the job reads: {"orders": KafkaSource(topics=["orders"])}.'
        )


def check_sinks(sinks: object) -> None:
    """A dictionary of sinks by name; ConfigurationError names what is none."""
    _check_specs("sink", sinks, _SINK, 'MySqlSink(table="shop.orders")')


def _check_specs(kind: str, given: object, attributes: tuple[str, ...], example: str) -> None:
    check_type(f"{kind}s", given, Mapping, f'give a dictionary by name: {{"orders": {example}}}.')
    assert isinstance(given, Mapping)
    for name, spec in given.items():
        check_name(kind, name)
        if isclass(spec) or not is_dataclass(spec) or not all(hasattr(spec, attribute) for attribute in attributes):
            raise ConfigurationError(
                f"{kind}s[{name!r}] is {shown(spec)}, which is no {kind}.", remedy=f"give {example}, for example."
            )


def check_checkpointing(checkpointing: object) -> None:
    """A CheckpointConfig, or its settings by name."""
    remedy = "give CheckpointConfig(timeout=timedelta(minutes=10)), for example."
    check_type("checkpointing", checkpointing, (CheckpointConfig, Mapping), remedy, optional=True)


def check_places(**given: object) -> None:
    """Arguments that are text, or left out: store, wal_root, spark_master ..."""
    for name, value in given.items():
        check_text(name, value, optional=True)


def check_switches(**given: object) -> None:
    """Arguments that are True or False."""
    for name, value in given.items():
        check_type(name, value, bool, "give True or False.")


def check_spark(spark_conf: Any, jars: object, packages: object, job_args: object) -> None:
    """Settings of Spark, and what its driver gets."""
    check_type("spark_conf", spark_conf, Mapping, 'give {"spark.driver.memory": "2g"}, for example.', optional=True)
    for name, value in (spark_conf or {}).items():
        check_text("a name in spark_conf", name)
        if not isinstance(value, str):  # it may be a secret: only its type is told
            raise ConfigurationError(
                f"spark_conf[{name!r}] is a {type(value).__name__}.", remedy=f'give text: {{"{name}": "..."}}.'
            )
    if jars is not None and not isinstance(jars, str):
        check_texts("jars", jars)
    check_texts("packages", packages)
    check_type("job_args", job_args, Mapping, 'give a dictionary, such as {"limit": 100}.', optional=True)
    for name in job_args if isinstance(job_args, Mapping) else ():
        check_text("a name in job_args", name)
