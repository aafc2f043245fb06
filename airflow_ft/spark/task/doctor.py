"""Can a Spark driver be started here? Looks for Spark and Java, and starts neither a session nor a cluster."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from airflow_ft.clients.bucket_limits import check_bucket_spark
from airflow_ft.clients.buckets import is_bucket
from airflow_ft.protocol.doctor import Check, Examination
from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.protocol.numbers import count_text
from airflow_ft.spark.request import listed
from airflow_ft.spark.session import connector, kubernetes, masters, s3a, yarn
from airflow_ft.spark.session.home import spark_home
from airflow_ft.spark.session.submit import jar_files, require_user
from airflow_ft.spark.session.yarn_archive import ARCHIVE, archived_version
from airflow_ft.wal.hdfs import HdfsFileSystem

MINIMUM_JAVA = 17
_ON_YARN = (ARCHIVE, "spark.yarn.jars")
_UPLOAD = "airflow ft yarn-archive --to hdfs://NAMENODE:PORT/FOLDER"
_TIMEOUT = 30  # seconds for `java -version`


def examine_spark(
    master: str | None,
    jars: Sequence[str],
    conf: Mapping[str, str] = MappingProxyType({}),
    *,
    needs_connector: bool | None = None,
    wal_root: str = "",
) -> list[Check]:
    """`master` "" is local[*], as for spark-submit; None: unknown.

    conf: Spark's settings. wal_root: the write-ahead log, which may need S3A.

    needs_connector: whether a source needs the connector; None: unknown, so a missing one is only a warning.
    """
    exam = Examination("spark")
    home = exam.attempt("spark-submit", spark_home)
    if home is not None:
        submit = home / "bin" / "spark-submit"
        if os.access(submit, os.X_OK):
            exam.ok("spark-submit", str(submit) if master is None else f"{submit}, master {master or 'local[*]'}")
        else:
            remedy = "Reinstall pyspark (`pip install --force-reinstall pyspark`), or correct SPARK_HOME."
            exam.problem("spark-submit", f"{submit} cannot be run", remedy)
    exam.attempt("user", require_user)
    _examine_java(exam)
    files = exam.attempt("jars", lambda: jar_files(tuple(jars)))
    if files:
        exam.ok("jars", count_text(len(files), "jar file"))
    cluster = "" if master is None else master or conf.get("spark.master", "")
    if yarn.is_yarn(cluster):
        _examine_yarn(exam, conf)
    elif kubernetes.is_kubernetes(cluster) and home is not None:
        answers = f"{cluster} accepts connections, and executors have an image"
        exam.passes("kubernetes", answers, lambda: kubernetes.require_cluster(cluster, conf))
    elif masters.is_standalone(cluster):
        exam.passes("master", f"{cluster} accepts connections", lambda: masters.require_master(cluster))
    if home is not None and needs_connector is not False:
        _examine_connector(exam, home, files or [], conf, needs_connector=bool(needs_connector))
    if home is not None and is_bucket(wal_root):
        _examine_s3a(exam, home, files or [], conf)
        if master is not None:
            fits = lambda: check_bucket_spark(wal_root, master, conf)  # noqa: E731
            exam.passes("log in a bucket", "master and settings fit", fits)
    return exam.checks


def _examine_yarn(exam: Examination, conf: Mapping[str, str]) -> None:
    """Check what YARN needs: its configuration, a ResourceManager, the queue, and Spark's jars."""
    name = "yarn"
    before = len(exam.checks)
    found = exam.attempt(name, lambda: yarn.require_cluster(conf))
    if found is not None:
        servers = ", ".join(f"{host}:{port}" for host, port in found.addresses()) or "its address is not in the files"
        exam.ok(name, f"ResourceManager {servers}, as {found.folder} says; paths without a scheme: {found.file_system}")
        _examine_queue(exam, found, conf.get(yarn.QUEUE, "default"))
    elif len(exam.checks) == before:
        exam.warn(name, "not checked: spark-env.sh may set HADOOP_CONF_DIR", "Set HADOOP_CONF_DIR for the workers.")
    name = "spark jars"
    archive, here = conf.get(ARCHIVE, ""), connector.installed_version()
    if here and (of := archived_version(archive)) not in ("", here):
        what = f"{archive} has the jars of Spark {of} for the executors, but the driver is Spark {here}"
        exam.problem(name, what, f"Run `{_UPLOAD}`, and set {ARCHIVE} to what it prints.")
    elif archive.startswith("hdfs://") and not archive.startswith("hdfs:///"):  # without a server: the cluster's own
        there = exam.attempt(name, lambda: HdfsFileSystem().seen(archive))
        if there is False:
            exam.problem(name, f"{archive} does not exist", f"Run `{_UPLOAD}`, and set {ARCHIVE} to what it prints.")
        elif there:
            exam.ok(name, f"{ARCHIVE} is {archive}")
    elif given := [each for each in _ON_YARN if conf.get(each)]:
        exam.ok(name, f"{given[0]} is {conf[given[0]]}")
    else:
        exam.warn(
            name,
            "neither spark.yarn.archive nor spark.yarn.jars is set, so each run uploads Spark's jars (417 MB with 4.2)",
            f"Run `{_UPLOAD}` once, and set {ARCHIVE} in spark_conf to what it prints. Or set"
            " spark.yarn.jars=local:/path/on/all/nodes/jars/*.",
        )


def _examine_queue(exam: Examination, found: yarn.HadoopConfiguration, queue: str) -> None:
    known = yarn.queues(found)
    if not known:
        exam.ok("queue", f"{queue} was not checked: the ResourceManager's page does not list queues")
    elif queue in known:
        exam.ok("queue", queue)
    else:
        short = sorted(each for each in known if not each.startswith("root."))
        remedy = f"Name one of the cluster's leaf queues in spark_conf: {yarn.QUEUE}."
        exam.problem("queue", f"YARN has no queue {queue!r}, but {', '.join(short)}", remedy, "queue_unknown")


def _examine_connector(
    exam: Examination, home: Path, jars: Sequence[str], conf: Mapping[str, str], *, needs_connector: bool
) -> None:
    """Which Kafka connector a driver would get; what would have to be fetched is asked for, and not fetched."""
    name = "kafka connector"
    all_jars = (*listed(conf.get("spark.jars", "")), *jars)
    packages = listed(conf.get("spark.jars.packages", ""))
    version = exam.attempt(name, lambda: connector.spark_version(home))
    if version is None:
        return
    if found := connector.given(home, all_jars, packages):
        theirs = re.search(r"2\.\d+[-:](\d+\.\d+)", found)
        if theirs and not version.startswith(f"{theirs[1]}."):
            what = f"{found} is for another Spark than {version}"
            exam.warn(name, what, f"Use the connector for {version}, or remove it: airflow-ft then fetches one.")
        else:
            exam.ok(name, f"{found}, for Spark {version}")
        return
    try:
        chosen = connector.choose(version)
        if wanted := connector.lacking(chosen):
            connector.reachable(chosen, wanted, conf)
            exam.ok(name, f"{chosen}: the first driver that reads Kafka fetches it into {connector.folder()}")
        else:
            exam.ok(name, f"{chosen}, in {connector.folder()}")
        if not chosen.same_minor:
            exam.warn(name, f"{chosen} is the newest known one, but untested with this Spark", "Test it first.")
    except AirflowFtError as error:
        (exam.problem if needs_connector else exam.warn)(name, error.what, error.remedy)


def _examine_s3a(exam: Examination, home: Path, jars: Sequence[str], conf: Mapping[str, str]) -> None:
    """Check which S3A a driver would get; does not fetch it."""
    name = "s3a"
    packages = listed(conf.get("spark.jars.packages", ""))
    if found := connector.given(home, (*listed(conf.get("spark.jars", "")), *jars), packages, s3a.ARTIFACT):
        return exam.ok(name, found)
    chosen = exam.attempt(name, lambda: s3a.s3a(home))
    if chosen is None:
        return
    try:
        if wanted := connector.lacking(chosen):
            connector.reachable(chosen, wanted, conf)
            exam.ok(name, f"{chosen}: the first driver fetches it into {connector.folder()}")
        else:
            exam.ok(name, f"{chosen}, in {connector.folder()}")
    except AirflowFtError as error:
        exam.problem(name, error.what, error.remedy)


def _examine_java(exam: Examination) -> None:
    java = _java()
    remedy = f"Install a Java runtime, version {MINIMUM_JAVA} or later, or set JAVA_HOME for the workers."
    if java is None:
        exam.problem("java", "no java on the PATH, and JAVA_HOME is not set", remedy)
        return
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, encoding="utf-8", errors="replace", timeout=_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        exam.problem("java", f"{java} cannot be run: {type(error).__name__}", remedy)
        return
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    if done.returncode or match is None or int(match[1]) < MINIMUM_JAVA:
        found = match[1] if match else "unknown"
        exam.problem("java", f"{java} is version {found}", remedy)
    else:
        exam.ok("java", f"{java}, version {match[1]}")


def _java() -> Path | None:
    """Return the Java program that spark-submit starts: that of $JAVA_HOME, else of the PATH."""
    home = os.environ.get("JAVA_HOME")
    found = Path(home, "bin", "java") if home else shutil.which("java")
    return Path(found) if found else None
