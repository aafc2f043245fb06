"""How a driver is submitted: settings, environment, secrets; how its end is told."""

import fcntl
import json
import os
import signal
import stat
import sys
from contextlib import closing
from pathlib import Path

import pytest

from airflow_ft.protocol import errors
from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.doctor import Verdict
from airflow_ft.protocol.errors import (
    AirflowFtError,
    ConfigurationError,
    FencedError,
    StageError,
    StoreUnavailableError,
)
from airflow_ft.protocol.model import RunKey, SparkPosition
from airflow_ft.sources import KafkaSource
from airflow_ft.spark.driver.requests import Requests
from airflow_ft.spark.private import private_folder
from airflow_ft.spark.process import Driver
from airflow_ft.spark.reports import describe_error, rebuild_error
from airflow_ft.spark.request import StageRequest, StageResult, is_local
from airflow_ft.spark.session import session_leases
from airflow_ft.spark.session.submit import (
    LATE_OPTIMISER,
    QUICK_LAUNCHER,
    driver_environment,
    environment,
    prepare,
    properties,
    settings,
)
from airflow_ft.spark.state.location_files import COMMITS, Entry, add_entry
from airflow_ft.spark.state.settings import FORMAT, PROVIDER
from airflow_ft.spark.task.doctor import examine_spark
from airflow_ft.spark.task.launcher import run_stage
from airflow_ft.spark.task.symptoms import Symptoms
from airflow_ft.store import open_store
from tests.raising import raises

SECRET = "s3cr3t-Passw0rd"
UNLOAD = "spark.sql.streaming.stateStore.unloadOnCommit"


def _request(**more: object) -> StageRequest:
    values: dict[str, object] = {
        "pipeline": "orders",
        "run": RunKey("d", "r"),
        "epoch": 3,
        "attempt": 7,
        "store_url": f"postgresql://u:{SECRET}@host/db",
        "wal_root": "/wal",
        "job": "jobs.orders",
        "sinks": ("orders",),
        "base": SparkPosition("file:///x", 4),
    }
    return StageRequest(**{**values, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize("more", [{"master": "yarn"}, {"conf": {"spark.master": "spark://host:7077"}}])
def test_a_standby_on_a_cluster_is_refused(more: dict[str, object]) -> None:
    with raises(ConfigurationError, "arguments_conflict", arguments=["standby", "spark_master"]):
        _request(streaming=True, standby=True, **more)
    _request(streaming=True, standby=True, master="local[2]")


def test_a_session_kept_on_kubernetes_is_refused() -> None:
    """A Spark connection may name the master, which no DAG parse sees."""
    with raises(ConfigurationError, "arguments_conflict", arguments=["keep_session", "spark_master"]):
        _request(keep_session=60.0, master="k8s://https://host")
    _request(keep_session=60.0, master="yarn")


KAFKA = {
    "sources": {"orders": KafkaSource(topics=["orders"]).to_json()},
    "connections": {
        "kafka_default": ConnectionInfo(
            "kafka_default", "kafka", password="other-secret", extra={"sasl.password": "third-secret"}
        )
    },
}


def test_what_only_a_ui_shows_is_kept_where_there_is_one(tmp_path: Path) -> None:
    """Of a stream that goes on for days it would fill the heap."""
    retained = "spark.sql.ui.retainedExecutions"
    assert settings(_request(), tmp_path)[retained] == "20"
    for shown in ("true", "TRUE"):
        assert retained not in settings(_request(conf={"spark.ui.enabled": shown}), tmp_path)
    assert settings(_request(conf={retained: "7"}), tmp_path)[retained] == "7"


def test_a_request_survives_being_plain_data() -> None:
    request = _request(**KAFKA)
    assert StageRequest.from_json(json.loads(json.dumps(request.to_json()))) == request
    result = StageResult((1, 2), {"orders": 3}, SparkPosition("file:///x", 4))
    assert StageResult.from_json(json.loads(json.dumps(result.to_json()))) == result


def test_secrets_are_shown_nowhere_and_known_to_the_redactor() -> None:
    request = _request(**KAFKA, conf={"spark.hadoop.fs.s3a.secret.key": "fourth-secret"})
    assert "secret" not in repr(request)
    assert {SECRET, "other-secret", "third-secret", "fourth-secret"} <= set(request.secrets())


def test_the_decision_logs_url_hides_each_password() -> None:
    url = "postgresql://ada:planted%2D1@db:5432/ft?sslmode=require&sslpassword=planted-2&a=b&password=planted-3"
    hide = _request(store_url=url).redactor()
    assert (
        hide("planted-1, planted%2D1, planted-2, planted-3, sslmode=require b")
        == "***, ***, ***, ***, sslmode=require b"
    )
    hide = _request(store_url="postgresql://db:5432/ft?sslpassword=planted-2").redactor()
    assert hide("postgresql://db:5432/ft?sslpassword=planted-2") == "postgresql://db:5432/ft?sslpassword=***"


def test_a_drivers_line_is_logged_without_secrets_in_any_form() -> None:
    login = ConnectionInfo(
        "kafka", "kafka", password='planted"3\\4', extra={"token": None, "dsn": "redis://:planted-5@h"}
    )
    conf = {
        "spark.jars.repositories": "https://ada:planted-1@repo.example/maven",
        "spark.driver.extraJavaOptions": "-Djavax.net.ssl.keyStorePassword=planted-2",
        "spark.security.credentials.hive.enabled": "false",
    }
    hide = _request(connections={"kafka": login}, conf=conf).redactor()
    assert hide('planted-1 planted-2 planted"3\\4 planted\\"3\\\\4 planted-5') == "*** *** *** *** ***"
    for line in ("https://bob:planted@repo/maven added as a remote repository", "password='planted' refused"):
        assert "planted" not in hide(line)
    harmless = "26/11/29 WARN Group: key=5 of hdfs://node:8020/wal, token 7, None is false"
    assert hide(harmless) == harmless


@pytest.mark.parametrize("job", ["", "jobs/orders.py", "jobs.orders:", "jobs.orders:A-B", "os;rm"])
def test_what_names_no_job_is_refused(job: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        _request(job=job)
    assert "package.module" in caught.value.remedy


def test_settings_that_break_the_protocol_are_refused() -> None:
    for name, value in (
        ("spark.speculation", "true"),
        ("spark.sql.parquet.outputTimestampType", "INT96"),
        ("spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version", "2"),
        ("spark.sql.shuffle.orderIndependentChecksum.enabled", "false"),
        ("spark.sql.streaming.offsetLog.formatVersion", "2"),
        ("spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch", "false"),
    ):
        with raises(ConfigurationError, "spark_setting_unsafe", setting=name, value=value) as caught:
            _request(conf={name: value})
        assert caught.error and name in caught.error.remedy


def test_a_pipeline_needs_a_sink_that_is_not_optional() -> None:
    with raises(ConfigurationError, "argument_missing", argument="sinks"):
        _request(sinks=(), optional_sinks=("orders",))


def test_a_users_settings_go_before_the_defaults(tmp_path: Path) -> None:
    conf = settings(_request(conf={"spark.driver.memory": "3g", "x": "1"}, master="local[1]"), tmp_path)
    assert conf["spark.driver.memory"] == "3g" and conf["x"] == "1" and conf["spark.master"] == "local[1]"
    assert "spark.jars.packages" not in conf
    more = settings(_request(conf={"spark.sql.streaming.minBatchesToRetain": "5000"}), tmp_path)
    assert more["spark.sql.streaming.minBatchesToRetain"] == "5000"
    assert settings(_request(conf={"spark.master": "spark://m:7077"}), tmp_path)["spark.master"] == "spark://m:7077"


@pytest.mark.parametrize(
    "more, found",
    [
        ({}, "true"),
        ({"master": "local"}, "true"),
        ({"conf": {"spark.master": "local[2]"}}, "true"),
        ({"conf": {"spark.authenticate": "false"}}, "false"),
        ({"master": "spark://m:7077"}, None),
        ({"conf": {"spark.master": "yarn"}}, None),
    ],
)
def test_a_local_driver_answers_no_other_user(tmp_path: Path, more: dict[str, object], found: str | None) -> None:
    assert settings(_request(**more), tmp_path).get("spark.authenticate") == found


def test_state_has_few_partitions_with_changes_and_snapshots(tmp_path: Path) -> None:
    conf = settings(_request(), tmp_path)
    assert conf["spark.sql.shuffle.partitions"] == "4"
    kept = {name.removeprefix("spark.sql.streaming.stateStore."): value for name, value in conf.items()}
    assert kept["rocksdb.changelogCheckpointing.enabled"] == "true"
    assert (kept["minDeltasForSnapshot"], kept["maintenanceInterval"]) == ("10", "60s")


@pytest.mark.parametrize(
    "more, found",
    [
        ({"master": "spark://m:7077"}, "true"),
        ({"master": "spark://m:7077", "streaming": True}, None),
        ({"master": "spark://m:7077", "conf": {UNLOAD: "false"}}, "false"),
        ({"master": "local[2]"}, None),
    ],
)
def test_executors_make_their_snapshots_before_a_short_run_ends(
    tmp_path: Path, more: dict[str, object], found: str | None
) -> None:
    assert settings(_request(**more), tmp_path).get(UNLOAD) == found


def test_local_cluster_has_executors_of_its_own(tmp_path: Path) -> None:
    request = _request(master="local-cluster[2,1,1024]", python_path=("/jobs",))
    conf = settings(request, tmp_path)
    assert "spark.driver.host" not in conf and conf["spark.executorEnv.PYTHONPATH"] == "/jobs" and UNLOAD in conf
    assert [is_local(each) for each in ("local", "local[*]", "local[2,3]")] == [True] * 3
    assert not any(is_local(each) for each in ("local-cluster[2,1,1024]", "spark://localhost:1", "yarn", ""))


def test_new_pipelines_on_clusters_use_unique_state_file_names(tmp_path: Path) -> None:
    def format_of(**more: object) -> str | None:
        return settings(_request(**{"base": None, "master": "spark://m:7077", **more}), tmp_path).get(FORMAT)

    assert format_of() == "2" and format_of(base=SparkPosition("file:///x", -1)) == "2"
    assert format_of(master="local[2]") is None and format_of(conf={FORMAT: "1"}) == "1"
    assert format_of(conf={PROVIDER: "a.HDFSBackedStateStoreProvider"}) is None
    for version, expected in (("1", None), ("2", "2")):
        base = SparkPosition((tmp_path / version).as_uri(), 3)
        add_entry(base.location, COMMITS, 3, Entry(f"v{version}", {"nextBatchWatermarkMs": 0}))
        assert format_of(base=base) == expected
        assert format_of(base=base, master="local[2]") == expected, "it keeps what it was born with"
    assert format_of(base=SparkPosition("file:///gone", 3)) is None


def test_a_run_does_not_wait_long_for_a_maintenance_of_its_state(tmp_path: Path) -> None:
    """Spark's own six minutes were seen at the ends of runs on a kept JVM."""
    names = [f"spark.sql.streaming.stateStore.maintenance{which}Timeout" for which in ("Shutdown", "ForceShutdown")]
    conf = settings(_request(), tmp_path)
    assert [conf[name] for name in names] == ["5s", "1s"]


def test_spark_keeps_batches_of_waiting_and_retained_checkpoints(tmp_path: Path) -> None:
    request = _request(retained_batches=100, checkpointing=CheckpointConfig(num_retained=50))
    assert settings(request, tmp_path)["spark.sql.streaming.minBatchesToRetain"] == "149"


def test_a_jar_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with raises(ConfigurationError, "jar_missing", path="/nowhere"):
        settings(_request(jars=("/nowhere",)), tmp_path)


def test_the_environment_has_nothing_of_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AIRFLOW_CONN_A", "AIRFLOW_VAR_B", "AIRFLOW__CORE__FERNET_KEY", "PYSPARK_SUBMIT_ARGS"):
        monkeypatch.setenv(name, SECRET)
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    found = environment(_request(python_path=("/dags",)))
    assert SECRET not in f"{found}" and found["HADOOP_CONF_DIR"] == "/etc/hadoop"
    assert found["PYSPARK_PYTHON"] == found["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert found["PYTHONPATH"].split(os.pathsep)[0] == "/dags"


@pytest.mark.parametrize(
    ("host", "master", "found"),
    [
        ("nowhere.invalid", "", "127.0.0.1"),
        ("nowhere.invalid", "spark://m:7077", None),
        ("localhost", "", None),
        ("a" * 64, "", "127.0.0.1"),
        ("a..b", "", "127.0.0.1"),
    ],
)
def test_a_host_without_an_address_runs_spark_locally(
    monkeypatch: pytest.MonkeyPatch, host: str, master: str, found: str | None
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: host)
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    assert environment(_request(master=master)).get("SPARK_LOCAL_IP") == found
    monkeypatch.setenv("SPARK_LOCAL_IP", "10.0.0.5")
    assert environment(_request(master=master))["SPARK_LOCAL_IP"] == "10.0.0.5"


def test_settings_do_not_change_when_the_name_server_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "worker-7.invalid")
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    monkeypatch.setattr("socket.getaddrinfo", lambda *_: ["an address"])
    before = environment(_request())
    monkeypatch.setattr("socket.getaddrinfo", lambda *_: [])
    assert "SPARK_LOCAL_IP" not in before and environment(_request()) == before
    without = {**before, "SPARK_LOCAL_IP": "127.0.0.1"}  # as another process finds it meanwhile
    assert session_leases._key(_request(), without) == session_leases._key(_request(), before)


def test_a_kept_sessions_driver_has_the_pyspark_of_spark_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An installed airflow-ft lies beside pip's pyspark, which may be of another version."""
    (tmp_path / "python/pyspark").mkdir(parents=True)
    (tmp_path / "python/pyspark/__init__.py").touch()
    (tmp_path / "python/lib").mkdir()
    (tmp_path / "python/lib/py4j-1-src.zip").touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    found = driver_environment(_request(python_path=("/dags",)))["PYTHONPATH"].split(os.pathsep)
    assert found[:3] == [f"{tmp_path}/python", f"{tmp_path}/python/lib/py4j-1-src.zip", "/dags"]


@pytest.mark.parametrize(
    ("given", "handed_on"), [("C", "C.UTF-8"), ("POSIX", "C.UTF-8"), ("de_DE.UTF-8", "de_DE.UTF-8")]
)
def test_the_jvm_can_name_every_file(monkeypatch: pytest.MonkeyPatch, given: str, handed_on: str) -> None:
    monkeypatch.setenv("LC_ALL", given)
    assert environment(_request())["LC_ALL"] == handed_on


def test_what_the_user_says_to_the_jvm_overrides_our_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):
        monkeypatch.delenv(name, raising=False)
    found = environment(_request())
    assert (found["SPARK_SUBMIT_OPTS"], found["SPARK_LAUNCHER_OPTS"]) == (LATE_OPTIMISER, QUICK_LAUNCHER)
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Xss8m")
    monkeypatch.setenv("SPARK_LAUNCHER_OPTS", "-Xint")
    found = environment(_request())
    assert found["SPARK_SUBMIT_OPTS"] == f"{LATE_OPTIMISER} -Xss8m", "of two equal options the JVM takes the last"
    assert found["SPARK_LAUNCHER_OPTS"] == "-Xint"


def test_properties_are_escaped() -> None:
    assert properties({"a b": " x\\y\n", "k": "v=1:#é"}) == "a\\ b=\\ x\\\\y\\n\nk=v=1:#é\n"


def test_secrets_lie_in_private_files_only() -> None:
    with private_folder() as folder:
        command = prepare(folder, _request(conf={"spark.hadoop.fs.s3a.secret.key": SECRET}))
        assert SECRET not in " ".join(command)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        holders = [path for path in folder.iterdir() if SECRET in path.read_text()]
        assert sorted(path.name for path in holders) == ["request.json", "spark.properties"]
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in holders)
    assert not folder.exists()


def test_only_the_private_folders_of_dead_processes_are_removed() -> None:
    with private_folder() as living:
        dead = living.with_name("airflow-ft-stage-dead")
        dead.mkdir()
        (dead / "request.json").write_text(SECRET)
        with private_folder():
            assert living.exists() and not dead.exists()


def test_a_lost_folder_is_no_request_to_end(tmp_path: Path) -> None:
    """A scheduled run would drain input that it has only read in part, and open gates."""
    folder = tmp_path / "driver"
    folder.mkdir()
    requests = Requests(folder)
    assert not requests.is_to_end()
    folder.rmdir()
    for _ in range(2):
        with raises(StageError, "driver_ended", path=str(folder)):
            requests.is_to_end()
        folder.mkdir(exist_ok=True)  # as Spark does for its own files


def test_cleaners_of_temporary_files_see_that_a_folder_is_used() -> None:
    """systemd-tmpfiles leaves a folder alone that has a lock of BSD."""
    with private_folder() as folder:
        other = os.open(folder, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(other)


def test_arguments_that_json_cannot_say_are_refused() -> None:
    with private_folder() as folder, raises(ConfigurationError, "argument_invalid", argument="job_args"):
        prepare(folder, _request(job_arguments={"x": object()}))


def test_every_error_comes_through_another_process_as_itself() -> None:
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, AirflowFtError)]
    assert len(kinds) > 15
    for kind in kinds:
        error = kind.__new__(kind)
        fields = {"topics": ("a", "b"), "path": Path("/in"), "records": 3}
        AirflowFtError.__init__(error, "what", code="own", remedy="do", pipeline="p", checkpoint=3, sink="s", **fields)
        found = rebuild_error(json.loads(json.dumps(describe_error(error))))
        assert type(found) is kind and f"{found}" == f"{error}"
        assert (found.code, found.remedy) == ("own", "do")
        assert found.fields == {"topics": ["a", "b"], "path": "/in", "records": 3}
    lost = rebuild_error(describe_error(StoreUnavailableError("gone", unanswered=True)))
    assert isinstance(lost, StoreUnavailableError) and lost.unanswered
    fenced = rebuild_error(json.loads(json.dumps(describe_error(FencedError("taken", head_epoch=4)))))
    assert isinstance(fenced, FencedError) and fenced.head_epoch == 4 and fenced.code == "fenced"
    assert type(rebuild_error({"type": "Unheard", "what": "x"})) is StageError


def _driver(code: str) -> Driver:
    return Driver([sys.executable, "-c", code], dict(os.environ))


@pytest.mark.parametrize(
    ("line", "code", "expected"),
    [
        (
            "[unresolved dependency: org.apache.spark#spark-sql-kafka;4.2.0: not found]",
            "dependency_unreachable",
            "spark-sql-kafka:4.2.0",
        ),
        ("JAVA_HOME is not set", "java_unfit", ""),
        ("/opt/bin/spark-class: line 71: /opt/jdk/bin/java: No such file or directory", "java_unfit", ""),
        ("java.lang.OutOfMemoryError: Java heap space", "out_of_memory", ""),
        ("Invalid maximum heap size: -Xmx2 gigs", "java_unfit", "-Xmx2 gigs"),
        ("Unrecognized VM option 'UseNoGC'", "java_unfit", "Unrecognized VM option 'UseNoGC'"),
        ("whatever", "", ""),
    ],
)
def test_what_ended_a_driver_too_early_is_told_by_its_lines(line: str, code: str, expected: str) -> None:
    symptoms = Symptoms()
    for each in ("Spark starts", line, "Exception in thread main"):
        symptoms.look(each)
    assert symptoms.code == code and expected in symptoms.what and bool(symptoms.remedy) is bool(code)


def test_a_cause_that_a_driver_survived_is_not_blamed() -> None:
    symptoms = Symptoms()
    symptoms.look("java.lang.OutOfMemoryError: Java heap space")
    symptoms.survived()
    assert (symptoms.code, symptoms.what, symptoms.remedy) == ("", "", "")
    symptoms.look("JAVA_HOME is not set")
    assert symptoms.code == "java_unfit"


def test_a_user_without_a_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "user" not in {check.name for check in examine_spark("local[*]", ())}
    monkeypatch.setattr(os, "getuid", lambda: 1_234_567_890)
    assert {check.name: check.verdict for check in examine_spark("local[*]", ())}["user"] is Verdict.PROBLEM
    with closing(open_store(f"sqlite:///{tmp_path}/ft.db")) as store:
        store.register("orders")
        with raises(ConfigurationError, "user_unknown", user=1_234_567_890):
            run_stage(_request(wal_root=str(tmp_path / "wal")), store, log=lambda _: None)


def test_a_machine_without_java_is_named(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/ft.db")
    store.register("orders")
    with pytest.MonkeyPatch.context() as patch, raises(StageError, "java_unfit", pipeline="orders"):
        patch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
        run_stage(_request(wal_root=str(tmp_path / "wal")), store, log=lambda _: None)
    store.close()


def test_each_line_arrives_even_if_unfinished_or_not_valid_text(tmp_path: Path) -> None:
    lines: list[str] = []
    driver = _driver("import sys; sys.stdout.buffer.write(b'a\\r\\nb\\xff\\n\\nlast'); sys.exit(7)")
    assert driver.wait(lines.append, tmp_path / "result") == 7
    assert lines == ["a", "b\ufffd", "", "last"]


def test_a_child_that_holds_the_pipe_does_not_hold_up_the_task(tmp_path: Path) -> None:
    child = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], process_group=0)"
    lines: list[str] = []
    driver = _driver(f"import subprocess, sys; print({child}.pid, flush=True)")
    assert driver.wait(lines.append, tmp_path / "result") == 0
    os.kill(int(lines[0]), signal.SIGKILL)  # it is still there: nobody has waited for its end


def test_an_error_while_logging_ends_the_driver(tmp_path: Path) -> None:
    driver = _driver("import time; print('x', flush=True); time.sleep(600)")

    def fail(line: str) -> None:
        raise RuntimeError(line)

    with pytest.raises(RuntimeError):
        driver.wait(fail, tmp_path / "result")
    with pytest.raises(ProcessLookupError):
        os.kill(driver.pid, 0)


def test_a_driver_that_ignores_sigterm_is_killed() -> None:
    driver = _driver("import signal, time; signal.signal(15, signal.SIG_IGN); print('x', flush=True); time.sleep(600)")
    lines: list[str] = []

    def log(line: str) -> None:
        lines.append(line)
        driver.kill(0.2)

    assert driver.wait(log, Path("/nowhere")) == -9 and driver.killed
