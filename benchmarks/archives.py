"""A class archive for the pipelines that are measured."""

from __future__ import annotations

from pathlib import Path

from airflow_ft.spark.session.submit import spark_home
from airflow_ft.spark.task import warm_up
from benchmarks.pipeline import SPARK_CONF, spark_jars


def class_archive(folder: Path) -> str:
    """What `airflow ft class-archive` makes; the folder that holds it."""
    archives = folder / "class-archives"
    warm_up.make(str(archives), spark_home(), SPARK_CONF, spark_jars(), lambda _: None)
    return str(archives)
