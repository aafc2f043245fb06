"""Can a Spark driver be started here? Looks for Spark and Java, and starts neither a session nor a cluster."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence

from airflow_ft.core.doctor import Check, Examination
from airflow_ft.spark import class_archive
from airflow_ft.spark.submit import _jar_files, spark_home

MINIMUM_JAVA = 17
_TIMEOUT = 30  # seconds for `java -version`


def examine_spark(master: str, jars: Sequence[str], class_archives: str = "") -> list[Check]:
    """`master` "" is local[*], as for spark-submit; `class_archives` is the folder of `airflow ft class-archive`."""
    exam = Examination("spark")
    home = exam.attempt("spark-submit", spark_home)
    if home is not None:
        submit = home / "bin" / "spark-submit"
        if os.access(submit, os.X_OK):
            exam.ok("spark-submit", f"{submit}, master {master or 'local[*]'}")
        else:
            exam.problem("spark-submit", f"{submit} cannot be run", "install pyspark whole, or mend $SPARK_HOME.")
    _examine_java(exam)
    files = exam.attempt("jars", lambda: _jar_files(tuple(jars)))
    if files:
        exam.ok("jars", f"{len(files)} jar files")
    if home is not None and class_archives:
        archive = class_archive.find(class_archives, home)
        exam.ok("class archive", str(archive or class_archive.NONE))
    return exam.checks


def _examine_java(exam: Examination) -> None:
    java = class_archive.java()
    remedy = f"install a Java runtime, version {MINIMUM_JAVA} or later, or set JAVA_HOME for the workers."
    if java is None:
        exam.problem("java", "there is no java on the PATH, and JAVA_HOME is not set", remedy)
        return
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        exam.problem("java", f"{java} cannot be run: {type(error).__name__}", remedy)
        return
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    if done.returncode or match is None or int(match[1]) < MINIMUM_JAVA:
        found = match[1] if match else "unknown"
        exam.problem("java", f"{java} is version {found}", remedy)
    else:
        exam.ok("java", f"{java}, version {match[1]}")
