"""A result that changes, on its way into a sink that appends."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

import airflow_ft as ft
from airflow_ft.admin.commands.doctor import from_dag
from airflow_ft.operators.doctor import DoctorOperator
from airflow_ft.pipeline.doctor import Patient, _job
from airflow_ft.pipeline.output_mode import declared_mode, examine_mode
from airflow_ft.protocol.doctor import Verdict
from airflow_ft.protocol.inline_job import declared_job
from airflow_ft.protocol.planning import plan_delivery
from tests.operators.declared import spec

pytestmark = pytest.mark.airflow

APPENDING: list[Any] = [
    ft.SqliteSink(table="t", conn_id="c"),
    ft.MySqlSink(table="d.t", conn_id="c"),
    ft.PostgresSink(table="t", conn_id="c", strategy="prepared"),
    ft.KafkaSink(topic="t"),
    ft.FilesSink(folder="/data/out"),
    ft.PaimonSink(table="/data/d.db/t"),
    ft.DeltaSink(table="/data/t"),
]
REPLACING: list[Any] = [
    ft.MySqlSink(table="d.t", conn_id="c", strategy="upsert", key_columns=["word"], version_column="v"),
    ft.PostgresSink(table="t", conn_id="c", strategy="upsert", key_columns=["word"], version_column="v"),
    ft.KafkaSink(topic="t", key="word"),
    ft.PaimonSink(table="/data/d.db/t", primary_key=["word"]),
    ft.RedisSink(key="{word}", conn_id="c"),
    ft.CassandraSink(table="k.t", conn_id="c"),
]


def found(mode: str, sink: Any) -> list[Any]:
    return examine_mode(mode, plan_delivery({"totals": sink}).participants)


@pytest.mark.parametrize("sink", APPENDING, ids=lambda sink: sink.kind)
def test_a_sink_that_appends_gets_many_rows_of_a_key(sink: Any) -> None:
    for mode, what in (("update", "the changed rows again"), ("complete", "the whole result again")):
        [check] = found(mode, sink)
        assert (check.subject, check.verdict) == ("sink totals", Verdict.WARNING)
        assert mode in check.text and f"If the job aggregates, each checkpoint appends {what}" in check.text
        assert "watermark" in check.remedy and check.remedy.endswith("Ignore this if each row is an event.")
    assert not found("append", sink) and not found("", sink)


@pytest.mark.parametrize("sink", REPLACING, ids=lambda sink: sink.kind)
def test_a_sink_with_a_key_keeps_one_row_of_it(sink: Any) -> None:
    assert not found("update", sink) and not found("complete", sink)


def test_the_remedy_names_what_the_sink_has() -> None:
    [mysql], [kafka], [files] = (found("update", APPENDING[at]) for at in (1, 3, 4))
    assert 'strategy="upsert"' in mysql.remedy and "key=" in kafka.remedy and "docs/sinks.md" in files.remedy
    page, section = re.findall(r'\((docs/\S+), "(.+)"\)', mysql.remedy)[0]
    _, _, shown = Path(page).read_text(encoding="utf-8").partition(f"### {section}\n")
    assert "key_columns=" in shown.partition("\n### ")[0] and "version_column=" in shown.partition("\n### ")[0]


@ft.job
class Totals:
    output_mode = "update"

    def transform(self, spark: Any, sources: Any) -> Any:
        return sources["orders"].groupBy("word").count()


@ft.job
class Plain:
    def transform(self, spark: Any, sources: Any) -> Any:
        output_mode = "update"
        return sources["orders"].where(output_mode)


def test_the_source_of_a_job_shows_its_mode(tmp_path: Path) -> None:
    assert declared_mode(declared_job(Totals)) == "update" and declared_mode(declared_job(Plain)) == ""
    file = tmp_path / "words.py"
    file.write_text('output_mode = "complete"\n\nclass Job:\n    output_mode: str = "update"\n\nclass Other: ...\n')
    for job, mode in (("words", "complete"), ("words:Job", "update"), ("words:Other", ""), ("words:Gone", "")):
        assert declared_mode(job, str(file)) == mode
    file.write_text("def broken(:\n")
    assert declared_mode("words", str(file)) == "" == declared_mode("words", str(tmp_path / "none.py"))
    assert declared_mode(None) == ""


@pytest.mark.filterwarnings("error")
def test_the_import_of_a_dag_does_not_warn() -> None:
    """Each task parses the DAG, and `python -W error` would fail there."""
    files = {"orders": ft.FileSource(path="/data/in", schema="word string")}
    with DAG("d", schedule=None):
        ft.CheckpointedPipeline(pipeline="words", job=Totals, sources=files, sinks={"totals": APPENDING[0]})


def test_the_commands_and_tasks_of_the_doctor_know_the_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a_dag.py"
    file.write_text(
        "import airflow_ft as ft\nfrom airflow.sdk import DAG\n\n@ft.job\nclass Totals:\n    output_mode = 'update'\n"
        "    def transform(self, spark, sources):\n        return sources['files']\n\n"
        "with DAG('d', schedule=None):\n    ft.CheckpointedPipeline(pipeline='words', job=Totals,\n"
        f"        sources={{'files': ft.FileSource(path='{tmp_path}', schema='id bigint')}},\n"
        f"        sinks={{'totals': ft.SqliteSink(table='t', conn_id='c')}}, wal_root='{tmp_path}')\n"
    )
    assert from_dag("words", str(file)).output_mode == "update"
    examined: list[Patient] = []
    monkeypatch.setattr("airflow_ft.pipeline.doctor.examine", lambda patient, *_: examined.append(patient) or [])
    DoctorOperator(
        task_id="doctor",
        spec=spec(
            job=Totals,
            sources={"orders": ft.FileSource(path=str(tmp_path), schema="word string")},
            wal_root=str(tmp_path),
        ),
    ).execute({})  # type: ignore[arg-type]
    assert [patient.output_mode for patient in examined] == ["update"]


def test_the_doctor_warns_of_it_before_the_first_run(tmp_path: Path) -> None:
    participants = plan_delivery({"totals": APPENDING[0]}).participants
    inline = Patient("p", "/wal", output_mode=declared_mode(declared_job(Totals)))
    (tmp_path / "words.py").write_text('output_mode = "update"\n')
    module = Patient("p", "/wal", job="words", dag_file=str(tmp_path / "dag.py"))
    for patient in (inline, module):
        [warned] = [check for check in _job(patient, participants) if check.verdict is not Verdict.OK]
        assert (warned.subject, warned.name) == ("sink totals", "output mode")
