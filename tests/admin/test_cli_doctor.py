"""`airflow ft doctor` and `airflow ft setup`, and how both read a DAG file."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.errors import (
    ConfigurationError,
)
from airflow_ft.protocol.pipelines import HaltReason
from airflow_ft.sinks import open_participant
from airflow_ft.wal import open_wal
from tests.protocol.world import PIPELINE, World
from tests.raising import raises

pytestmark = pytest.mark.airflow


@pytest.mark.disk  # memory is a finding of the doctor, too
def test_doctor_examines_the_systems_of_the_newest_plan(world: World, ft: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__WAL_ROOT", str(world.folder))
    world.stage(1)
    world.steps(world.context())
    before = world.store.events(PIPELINE, limit=1000)
    checks = json.loads(ft("doctor", PIPELINE, "-o", "json"))
    assert {check["subject"] for check in checks} >= {
        f"pipeline {PIPELINE}",
        "connection db",
        "connection log",
        "spark",
    }
    assert {check["verdict"] for check in checks} == {"ok", "warning"}, "sinks of tests have no examination"
    assert "checkpoint 1 was confirmed last" in ft("doctor", PIPELINE)
    world.store.halt(PIPELINE, HaltReason.TOKEN_LOST, "it is gone.")
    with pytest.raises(SystemExit) as ended:
        ft("doctor", PIPELINE)
    assert ended.value.code == 1
    assert world.store.events(PIPELINE, limit=1000)[1:] == before


def test_doctor_reads_a_dag_that_never_ran(
    world: World, ft: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dag = tmp_path / "a_dag.py"
    dag.write_text(
        "from airflow.sdk import DAG\n"
        "from airflow_ft import CheckpointedPipeline, FileSource, MySqlSink\n"
        "with DAG('d', schedule=None):\n"
        "    CheckpointedPipeline(pipeline='new', job='jobs.x',\n"
        f"        sources={{'files': FileSource(path='{tmp_path}', schema='id bigint')}},\n"
        "        sinks={'rows': MySqlSink(table='t', conn_id='no_such_connection')})\n"
        "print('a DAG file may print')\n"
    )
    with pytest.raises(SystemExit):
        ft("doctor", "new", "--dag", str(dag), "-o", "json")
    captured = capsys.readouterr()
    assert json.loads(captured.out) and "a DAG file may print" in captured.err
    with pytest.raises(SystemExit):
        ft("doctor", "new", "--dag", str(dag))
    text = capsys.readouterr().out
    missing = "the Airflow connection 'no_such_connection' is not defined"
    for words in ("never ran", f"{tmp_path} exists", missing, "connections add no_such_connection --conn-type mysql"):
        assert words in text, text
    with raises(SystemExit, "pipeline_not_declared", path=str(dag), known=["new"]):
        ft("doctor", "other", "--dag", str(dag))


def test_doctor_examines_sinks_whose_rows_another_task_computes(
    world: World, ft: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dag = tmp_path / "a_dag.py"
    dag.write_text(
        "from airflow.sdk import DAG\n"
        "from airflow_ft import CheckpointedPipeline, MySqlSink\n"
        "with DAG('d', schedule=None, max_active_runs=1):\n"
        "    CheckpointedPipeline(pipeline='new', position={'start': '{{ ds }}', 'end': '{{ ds }}'},\n"
        "        sinks={'rows': MySqlSink(table='t', conn_id='no_such_connection')})\n"
    )
    with pytest.raises(SystemExit):
        ft("doctor", "new", "--dag", str(dag))
    assert "connection no_such_connection" in capsys.readouterr().out
    for command in (["dry-run", "new"], ["setup", "new", "--print", "--tables"]):
        with raises(SystemExit, "rows_missing", pipeline="new"):
            ft(*command, "--dag", str(dag))


def test_doctor_looks_for_pools_and_for_the_writer_of_rows(
    world: World,
    ft: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from airflow import settings
    from airflow.models.pool import Pool

    dag = tmp_path / "a_dag.py"
    text = (
        "from airflow.sdk import DAG, task\n"
        "from airflow_ft import CheckpointedPipeline, MySqlSink\n"
        "@task(pool='no_such_pool')\n"
        "def compute(folder): pass\n"
        "with DAG('d', schedule=None):\n"
        "    new = CheckpointedPipeline(pipeline='new', position='{{ ds }}',\n"
        "        sinks={'rows': MySqlSink(table='t', conn_id='no_such_connection')})\n"
        "    compute(new.folder)"
    )

    def found() -> dict[str, str]:
        with contextlib.suppress(SystemExit):
            ft("doctor", "new", "--dag", str(dag), "-o", "json")
        checks = json.loads(capsys.readouterr().out)
        assert "spark" not in {check["subject"] for check in checks}, "no job"
        return {check["code"]: check["text"] for check in checks if check["subject"] == "DAG"}

    dag.write_text(text)
    assert set(found()) == {"", "writer_missing"}, "without Airflow's database the pool is unknown"
    Pool.__table__.create(settings.engine)
    request.addfinalizer(lambda: Pool.__table__.drop(settings.engine))
    assert set(problems := found()) == {"pool_missing", "writer_missing"}
    assert "'no_such_pool'" in problems["pool_missing"] and "compute" in problems["pool_missing"]
    text = f"{text.replace('no_such_pool', 'default_pool')} >> new.stage\n"
    dag.write_text(text)
    assert not found()
    dag.write_text(text.replace("position=", "pool='spark', position="))
    for is_included in (False, True):
        pool = Pool(pool="spark", slots=1, include_deferred=is_included)
        monkeypatch.setattr(Pool, "get_pool", {"spark": pool}.get)
        assert any("includes deferred tasks" in each for each in found().values()) is is_included


@pytest.mark.parametrize(
    ("text", "code", "begins", "ends"),
    [
        (None, "dag_file_invalid", "", ""),
        (
            "import airflow_ft as ft\n\nft.KafkaSource(topics='a')\n",
            "dag_file_invalid",
            "ConfigurationError: ",
            "] (line 3)",
        ),
        ("\n1 + '2'\n", "dag_file_invalid", "TypeError: ", " (line 2)"),
        ("x = 1\nwith DAG\n", "dag_file_invalid", "SyntaxError: ", " (line 2)"),
        ("import airflow_ft as ft\n", "pipeline_not_declared", "", ""),
    ],
)
def test_a_dag_that_cannot_be_read_is_told_in_a_line(
    world: World, ft: Any, tmp_path: Path, text: str | None, code: str, begins: str, ends: str
) -> None:
    dag = tmp_path / "a_dag.py"
    if text is not None:
        dag.write_text(text)
    with raises(SystemExit, code, path=str(dag)) as ended:
        ft("dry-run", "new", "--dag", str(dag))
    assert ended.error is not None and "\n" not in ended.error.headline and ended.error.remedy
    found = ended.error.fields.get("error", "")
    assert begins in found and found.endswith(ends) and "Fix: " not in ended.error.remedy


def test_doctor_renders_what_it_can_and_says_what_it_left_out(
    world: World, ft: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dag = tmp_path / "a_dag.py"
    (tmp_path / "there").mkdir()
    dag.write_text(
        "from airflow.sdk import DAG, Param\n"
        "from airflow_ft import CheckpointedPipeline, FileSource, MySqlSink\n"
        f"with DAG('d', schedule=None, params={{'folder': Param('{tmp_path}/there', type='string'), 'table': 't'}}):\n"
        "    CheckpointedPipeline(pipeline='new', job='jobs.x', job_args={'day': '{{ ds }}'},\n"
        "        sources={'files': FileSource(path='{{ params.folder }}', schema='id bigint'),\n"
        "                 'daily': FileSource(path='/data/{{ ds }}', schema='id bigint')},\n"
        "        sinks={'rows': MySqlSink(table='{{ params.table }}', conn_id='no_such_connection'),\n"
        "               'days': MySqlSink(table='t_{{ ds_nodash }}', conn_id='no_such_connection')})\n"
    )
    with pytest.raises(SystemExit):
        ft("doctor", "new", "--dag", str(dag))
    text = capsys.readouterr().out
    for words in (
        f"{tmp_path}/there exists",
        "connection no_such_connection",
        "source 'daily': not examined, because only a run can render it: /data/{{ ds }}",
        "sink 'days': not examined, because only a run can render it: t_{{ ds_nodash }}",
        "job_args: not examined",
    ):
        assert words in text, text
    with raises(SystemExit, "template_unresolved") as refused:
        ft("setup", "new", "--dag", str(dag), "--print")
    assert refused.error is not None and "sink 'days'" in refused.error.fields["parts"][0]


def test_doctor_examines_our_own_example(world: World, ft: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):  # there is neither folder nor connection
        ft("doctor", "files-to-mysql", "--dag", str(Path(__file__).parents[2] / "dags" / "files_to_mysql.py"))
    text = capsys.readouterr().out
    assert "/data/orders" in text and "connection mysql_default" in text and "not examined" not in text


def test_doctor_and_setup_handle_a_sink_without_a_connection(
    world: World, ft: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = lambda plan: open_participant(plan, pytest.fail, open_wal())  # noqa: E731
    monkeypatch.setattr("airflow_ft.admin.commands.doctor.participants", lambda: real)
    example = Path(__file__).parents[2] / "dags" / "files_to_files.py"
    dag = tmp_path / "a_dag.py"
    dag.write_text(example.read_text().replace("/data/lake", str(tmp_path / "lake")))
    with pytest.raises(SystemExit):  # there are no files to read
        ft("doctor", "files-to-files", "--dag", str(dag))
    output = capsys.readouterr().out
    assert "sink orders" in output and f"ok      folder: {tmp_path}/lake/orders, parquet" in output, output
    text = ft("setup", "files-to-files", "--dag", str(dag), "--print")
    assert "-- sink rejected: nothing to do" in text
    assert "sink orders: nothing to do" in ft("setup", "files-to-files", "--dag", str(dag))
    monkeypatch.setattr("airflow_ft.admin.commands.setup.columns_of", lambda *_: pytest.fail("Spark is started"))
    assert "-- --tables: no sink" in ft("setup", "files-to-files", "--dag", str(dag), "--print", "--tables")


def test_setup_prints_what_a_dag_that_never_ran_needs(ft: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dag = tmp_path / "a_dag.py"
    dag.write_text(
        "from airflow.sdk import DAG\n"
        "from airflow_ft import CheckpointedPipeline, FileSource, KafkaSink, MySqlSink\n"
        "with DAG('d', schedule=None):\n"
        "    CheckpointedPipeline(pipeline='new', job='jobs.x',\n"
        f"        sources={{'files': FileSource(path='{tmp_path}', schema='id bigint')}},\n"
        "        sinks={'rows': MySqlSink(table='t', conn_id='shop'), 'copies': KafkaSink(topic='c', conn_id='bus')})\n"
    )
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", "mysql://ada:planted-Secret-4@nowhere.invalid/sales")
    monkeypatch.setenv("AIRFLOW_CONN_BUS", json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": "x:1"}}))
    text = ft("setup", "new", "--dag", str(dag), "--print")
    for words in (
        "CREATE TABLE IF NOT EXISTS `sales`.`airflow_ft_head`",
        "GRANT INSERT ON `sales`.`t` TO 'ada'@'%';",
        "--transactional-id airflow_ft.new.bus.",
    ):
        assert words in text, text
    assert "planted" not in text
    with raises(SystemExit, "pipeline_not_declared", known=["new"]):
        ft("setup", "other", "--dag", str(dag), "--print")
    with raises(SystemExit) as refused:
        ft("setup", "new", "--print")
    assert isinstance(refused.error, ConfigurationError)


def test_setup_says_of_which_sinks_it_has_nothing_to_make(world: World, ft: Any) -> None:
    world.stage(1)
    world.steps(world.context())
    made = "nothing to do: the first prepare creates what it needs"
    assert ft("setup", PIPELINE) == f"connection db: {made}\nconnection log: {made}\n"
