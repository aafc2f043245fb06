"""Hadoop's S3A in a driver: which jars, and settings whose keys appear nowhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.clients.buckets import BucketPlace, BucketSettings
from airflow_ft.protocol.doctor import Verdict
from airflow_ft.protocol.errors import ConfigurationError, StageError
from airflow_ft.protocol.model import RunKey
from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.session import connector, s3a
from airflow_ft.spark.session.home import spark_home
from airflow_ft.spark.session.submit import environment, prepare, settings
from airflow_ft.spark.task.doctor import examine_spark
from tests.raising import raises
from tools.servers.base import local_folder

SETTINGS = BucketSettings("lake", "us-east-1", "http://127.0.0.1:9", "hidden-id", "hidden-key", "hidden-token")
INSTALLED = local_folder() / "jars" / "s3a"


def request(**more: Any) -> StageRequest:
    given: dict[str, Any] = {
        "pipeline": "orders", "run": RunKey("d", "r"), "epoch": 3, "attempt": 7, "store_url": "sqlite:////ft.db",
        "wal_root": "s3://lake@wal/log", "job": "jobs.orders", "sinks": ("orders",), "buckets": [SETTINGS.to_json()],
    }  # fmt: skip
    return StageRequest(**{**given, **more})


def test_the_jars_are_those_that_maven_resolves() -> None:
    """tools/jars/s3a/pom.xml names the modules; a jar more or less would show here."""
    chosen = s3a.s3a(spark_home())
    assert {jar.file for jar in chosen.jars} == {path.name for path in INSTALLED.glob("*.jar")}
    assert all(connector._is_whole(INSTALLED / jar.file, jar) for jar in chosen.jars)


def test_a_spark_with_another_hadoop_needs_its_own_jars(tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    for name in ("spark-core_2.13-4.0.0.jar", "hadoop-client-api-3.4.1.jar"):
        (tmp_path / "jars" / name).touch()
    with raises(ConfigurationError, "spark_unfit", version="4.0.0"):
        s3a.s3a(tmp_path)
    assert s3a.given(tmp_path, ["/jars/hadoop-aws-3.4.1.jar"], [], s3a.ARTIFACT) == "/jars/hadoop-aws-3.4.1.jar"


def test_keys_are_in_no_setting_argument_or_text(tmp_path: Path) -> None:
    asked = request(jars=(str(INSTALLED),))
    command = prepare(tmp_path, asked)
    properties = (tmp_path / "spark.properties").read_text()
    written = "".join(path.read_text() for path in tmp_path.iterdir() if path.name != "request.json")
    assert "hadoop-aws" in written
    assert "hidden" not in " ".join([*command, repr(asked), repr(SETTINGS), properties, written])
    kept = tmp_path / "request.json"
    assert kept.stat().st_mode & 0o077 == 0
    again = StageRequest.from_json(json.loads(kept.read_text()))
    assert BucketSettings(**again.buckets[0]) == SETTINGS
    assert asked.redactor()("a hidden-key, a hidden-id and a hidden-token") == "a ***, a *** and a ***"


def test_a_bucket_has_its_own_settings() -> None:
    found = s3a.hadoop_settings(BucketPlace.of("s3://lake@wal/log"), SETTINGS)
    assert {name.rpartition("bucket.wal.")[0] for name in found} == {"fs.s3a."}
    assert found["fs.s3a.bucket.wal.aws.credentials.provider"].endswith(".TemporaryAWSCredentialsProvider")
    assert found["fs.s3a.bucket.wal.connection.ssl.enabled"] == "false"


def test_spark_does_not_upload_keys_of_the_environment_to_yarn(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would write them into a file for the containers. Elsewhere they stay in the driver."""
    keys = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"}
    for name in keys:
        monkeypatch.setenv(name, "hidden")

    def given(**more: Any) -> set[str]:
        return keys & environment(request(**more)).keys()

    own = "s3://wal/log"
    assert not given(wal_root=own, master="yarn") | given(wal_root=own, conf={"spark.master": "yarn"})
    assert given(wal_root="/wal", master="yarn") == given(wal_root=own) == given(master="yarn") == keys


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"master": "local-cluster[2,1,512]"}, "log_in_bucket"),
        ({"conf": {"spark.master": "local-cluster[2,1,512]"}}, "log_in_bucket"),
        ({"keep_session": 60.0}, "log_in_bucket"),
        ({"conf": {"spark.hadoop.fs.s3a.bucket.wal.endpoint": "http://elsewhere"}}, "spark_setting_unsafe"),
        ({"conf": {"spark.redaction.regex": "nothing"}}, "spark_setting_unsafe"),
    ],
)
def test_the_task_also_refuses_settings_unfit_for_a_bucket(more: dict[str, Any], code: str) -> None:
    """The configuration, a Spark connection or `spark_conf` may say it, which no DAG parse sees."""
    with raises(ConfigurationError, code):
        request(**more)
    request(**{**more, "wal_root": "/wal"})


def test_what_goes_with_a_bucket() -> None:
    for more in (
        {"master": "local[2]"},
        {"master": "local"},
        {"master": "spark://host:7077"},
        {"master": "yarn"},
        {"conf": {"spark.master": "k8s://https://host"}},
        {"streaming": True},
        {"conf": {"spark.hadoop.fs.s3a.bucket.other.endpoint": "http://elsewhere"}},
    ):
        request(**more)


def test_the_doctor_says_where_s3a_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))

    def verdicts(*jars: str, master: str = "local[2]", **more: Any) -> dict[str, Verdict]:
        found = {check.name: check.verdict for check in examine_spark(master, jars, **more)}
        return {name: verdict for name, verdict in found.items() if name in ("s3a", "log in a bucket")}

    root = "s3://lake@wal/log"
    assert verdicts(wal_root=root) == {"s3a": Verdict.OK, "log in a bucket": Verdict.OK}
    assert verdicts(str(INSTALLED), wal_root=root)["s3a"] is Verdict.OK
    assert verdicts(wal_root=root, master="local-cluster[2,1,512]")["log in a bucket"] is Verdict.PROBLEM
    assert verdicts(wal_root="/wal") == {}
    monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", (tmp_path / "nothing").as_uri())
    assert verdicts(wal_root=root)["s3a"] is Verdict.PROBLEM


def test_jars_are_fetched_once_and_only_with_their_contents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    fetched = settings(request(), tmp_path)["spark.jars"].split(",")
    assert {Path(each).name for each in fetched} == {jar.file for jar in s3a.FILES}
    monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", (tmp_path / "nothing").as_uri())
    assert settings(request(), tmp_path)["spark.jars"].split(",") == fetched
    Path(fetched[0]).write_bytes(b"damaged")
    with raises(StageError, "dependency_unreachable", file=Path(fetched[0]).name):
        settings(request(), tmp_path)
    assert "spark.jars" not in settings(request(wal_root="/wal"), tmp_path)
