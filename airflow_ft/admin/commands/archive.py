"""`airflow ft class-archive`: lets Spark drivers on this machine start in half of the time."""

from __future__ import annotations

import sys
from argparse import Namespace

from airflow_ft.admin.commands.common import command, say
from airflow_ft.pipeline import settings


def _show(line: str) -> None:
    sys.stderr.write(f"{line}\n")


@command
def class_archive(args: Namespace) -> None:
    """`airflow ft class-archive`: once for each machine, or image, and again when Java or Spark is another one."""
    from airflow_ft.spark.request import listed
    from airflow_ft.spark.session.submit import spark_home
    from airflow_ft.spark.task.warm_up import make

    say("running a Spark driver once to record the classes that it loads; this takes about half a minute")
    made = make(settings.class_archives(), spark_home(), settings.spark_conf(), listed(settings.spark_jars()), _show)
    say(f"{made}: {made.stat().st_size >> 20} MB. Spark drivers on this machine use it from now on.")
