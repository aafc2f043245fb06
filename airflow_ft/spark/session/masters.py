"""The forms of a Spark master that a driver beside its task can use."""

from __future__ import annotations

import re
from collections.abc import Mapping

from airflow_ft.protocol.arguments import is_template, shown, wrong

_FORMS = re.compile(
    r"local|local\[\s*(\*|\d+)\s*(,\s*\d+\s*)?\]|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]|yarn"
    r"|spark://\S+|k8s://\S+"
)
_CONNECTION = "conn:"
_DEPLOY_MODE = "spark.submit.deployMode"


def check_master(master: str | None) -> None:
    """Raise ConfigurationError for a master that Spark does not know; Jinja and connections are known later."""
    if not master or is_template(master) or master.startswith(_CONNECTION) or _FORMS.fullmatch(master):
        return
    raise wrong(
        "spark_master",
        shown(master),
        "Give local[4], local[*], yarn, spark://HOST:7077, k8s://https://HOST:PORT or conn:CONNECTION_ID.",
        code="master_invalid",
        why=", which is not a master of Spark",
    )


def check_conf(conf: Mapping[str, object]) -> None:
    """Raise ConfigurationError for settings that Spark would ignore, or that put the driver elsewhere."""
    for name in conf:
        if not name.startswith("spark."):
            raise wrong(
                "spark_conf",
                shown(name),
                f"Write spark.{name.removeprefix('.')}, if Spark has it.",
                what=f"spark_conf has {shown(name)}, which Spark ignores: its settings begin with 'spark.'.",
            )
    if str(conf.get(_DEPLOY_MODE, "client")) != "client" and not is_template(conf.get(_DEPLOY_MODE)):
        raise wrong(
            f"spark_conf[{_DEPLOY_MODE!r}]",
            shown(conf[_DEPLOY_MODE]),
            f"Remove {_DEPLOY_MODE}. Executors run on the cluster in any case.",
            why=", but the driver must run beside the task, so that it ends with the task",
        )
