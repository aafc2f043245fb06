"""The cluster of a master `k8s://...`: what is set for the driver, and what is refused before Spark starts."""

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from airflow_ft.protocol.doctor import Verdict
from airflow_ft.protocol.errors import ConfigurationError, StageError
from airflow_ft.spark.session import kubernetes
from airflow_ft.spark.session.kubernetes import (
    DRIVER_HOST,
    DRIVER_POD,
    IMAGES,
    NAMESPACE,
    api_server,
    require_cluster,
    settings,
)
from airflow_ft.spark.session.submit import settings as submitted
from airflow_ft.spark.task.doctor import examine_spark
from tests.raising import raises
from tests.spark.test_submit import _request
from tools.servers.processes import free_port

IMAGE = {IMAGES[0]: "registry.example/spark:4.2.0"}


@pytest.fixture(autouse=True)
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process runs in no pod, and Spark has no defaults."""
    monkeypatch.setattr(kubernetes, "_ACCOUNT", tmp_path)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def master() -> Iterator[str]:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield f"k8s://https://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    ("master", "server"),
    [
        ("k8s://https://host:6443", ("host", 6443)),
        ("k8s://https://host", ("host", 443)),
        ("k8s://http://host", ("host", 80)),
        ("k8s://host:6443", ("host", 6443)),
        ("k8s://https://[::1]:6443", ("::1", 6443)),
    ],
)
def test_a_master_names_the_api_server(master: str, server: tuple[str, int]) -> None:
    assert api_server(master) == server


@pytest.mark.parametrize("master", ["k8s://", "k8s://https://", "k8s://https://host:port", "k8s://ftp://host"])
def test_a_master_without_a_server_is_refused(master: str) -> None:
    with raises(ConfigurationError, "master_invalid", argument="spark_master"):
        api_server(master)


def test_executors_get_the_address_that_reaches_the_server(master: str) -> None:
    assert settings(master, {}) == {DRIVER_HOST: "127.0.0.1"}
    assert settings(master, {DRIVER_HOST: "driver.example"}) == {}
    assert submitted(_request(master=master), Path("/tmp/x"))[DRIVER_HOST] == "127.0.0.1"
    assert DRIVER_HOST not in submitted(_request(master="spark://host:7077"), Path("/tmp/x"))


def test_in_a_pod_executors_belong_to_it(outside: Path, master: str) -> None:
    (outside / "namespace").write_text("airflow\n")
    pod = {NAMESPACE: "airflow", DRIVER_POD: socket.gethostname(), DRIVER_HOST: "127.0.0.1"}
    assert settings(master, {}) == pod
    assert settings(master, {DRIVER_POD: "another"})[DRIVER_POD] == "another"
    assert settings(master, {NAMESPACE: "spark"}) == {DRIVER_HOST: "127.0.0.1"}, "no pod of another one can own them"


def test_without_an_image_nothing_starts(outside: Path, master: str) -> None:
    with raises(ConfigurationError, "image_missing", setting=IMAGES[0], pipeline="orders"):
        require_cluster(master, {}, "orders")
    for name in IMAGES:
        require_cluster(master, {name: "image"})
    (outside / "spark-defaults.conf").write_text(f"{IMAGES[1]} image\n")
    require_cluster(master, {})


def test_a_server_that_is_away_is_named_at_once() -> None:
    port = free_port()
    with raises(StageError, "server_unreachable", servers=[f"127.0.0.1:{port}"]):
        require_cluster(f"k8s://https://127.0.0.1:{port}", IMAGE)


def test_doctor_asks_the_cluster(master: str) -> None:
    def verdict(conf: dict[str, str]) -> Verdict:
        [check] = [each for each in examine_spark(master, (), conf) if each.name == "kubernetes"]
        return check.verdict

    assert (verdict(IMAGE), verdict({})) == (Verdict.OK, Verdict.PROBLEM)


@pytest.mark.parametrize(("server", "own"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
def test_an_ipv6_address_of_the_driver_has_brackets(server: str, own: str) -> None:
    host = f"[{server}]" if ":" in server else server
    try:
        socket.create_server((server, 0), family=socket.AF_INET6 if ":" in server else socket.AF_INET).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    assert settings(f"k8s://https://{host}:6443", {})[DRIVER_HOST] == own
