"""`airflow ft doctor`: every preflight in words."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Any

from airflow_ft import settings
from airflow_ft.commands.common import command, participants, print_table, say
from airflow_ft.commands.rendering import rendered
from airflow_ft.core.doctor import Verdict, worst
from airflow_ft.core.errors import ConfigurationError
from airflow_ft.core.planning import plan_delivery
from airflow_ft.doctor import Patient, examine
from airflow_ft.hooks.connections import server_connections
from airflow_ft.hooks.spark import spark_master
from airflow_ft.hooks.store import open_configured_store
from airflow_ft.operators.prepare import PrepareOperator
from airflow_ft.operators.stage import StageOperator
from airflow_ft.spark.request import listed
from airflow_ft.templates import rebuild

if TYPE_CHECKING:
    from airflow_ft.core.model import ParticipantPlan
    from airflow_ft.sources import Source


@command
def doctor(args: Namespace) -> None:
    """`airflow ft doctor PIPELINE [--dag FILE]`; ends with status 1 when there is a problem."""
    patient = from_dag(args.pipeline, args.dag) if args.dag else _configured(args.pipeline)
    checks = examine(
        patient,
        lambda: open_configured_store(args.store, server_connections),
        server_connections,
        participants(),
    )
    if args.output != "table":
        print_table([check.to_json() for check in checks], args.output)
    else:
        subject = ""
        for check in checks:
            if check.subject != subject:
                subject = check.subject
                say(subject)
            mark = {Verdict.OK: "ok     ", Verdict.WARNING: "WARNING", Verdict.PROBLEM: "PROBLEM"}[check.verdict]
            say(f"  {mark} {check.name}: {check.text}")
            if check.remedy:
                say(f"          -> {check.remedy}")
    if worst(checks) is Verdict.PROBLEM:
        raise SystemExit(1)


def _configured(pipeline: str) -> Patient:
    return Patient(
        pipeline=pipeline,
        wal_root=settings.wal_root(),
        spark_master=spark_master(settings.spark_master(), server_connections),
        jars=listed(settings.spark_jars()),
        spark_conf=settings.spark_conf(),
    )


def from_dag(pipeline: str, file: str) -> Patient:
    """What the tasks of the pipeline in a DAG file say, with the defaults of its params; see `rendered`."""
    left_out: dict[str, str] = {}
    declared = _tasks(pipeline, file)
    stage, prepare = rendered(declared[0], left_out), rendered(declared[1], left_out)
    participants: dict[str, ParticipantPlan] = {}
    sources: dict[str, Source] = {}
    patient = _configured(pipeline)
    if prepare is not None and prepare.sinks:
        sinks = rebuild(prepare._sink_classes, prepare.sinks)
        carrier = prepare.commit_point if prepare.commit_point in {sink.conn_id for sink in sinks.values()} else None
        delivery = plan_delivery(sinks, carrier)
        participants = {participant.name: participant for participant in delivery.participants}
    if stage is not None:
        sources = dict(rebuild(stage._source_classes, stage.sources))
        patient = Patient(
            pipeline=pipeline,
            wal_root=stage.wal_root or settings.wal_root(),
            spark_master=spark_master(stage.spark_master or settings.spark_master(), server_connections),
            jars=listed(stage.jars if stage.jars is not None else settings.spark_jars()),
            spark_conf=_spark_conf(stage),
        )
    return Patient(
        pipeline=pipeline,
        wal_root=patient.wal_root,
        participants=participants,
        sources=sources,
        spark_master=patient.spark_master,
        jars=patient.jars,
        spark_conf=patient.spark_conf,
        left_out=left_out,
    )


def _spark_conf(stage: StageOperator) -> dict[str, str]:
    conf = {**settings.spark_conf(), **stage.spark_conf}
    packages = [*listed(conf.get("spark.jars.packages", "")), *stage.packages]
    return {**conf, "spark.jars.packages": ",".join(packages)}


def _tasks(pipeline: str, file: str) -> tuple[StageOperator | None, PrepareOperator | None]:
    from airflow.dag_processing.dagbag import DagBag

    bag: Any = DagBag(dag_folder=file, safe_mode=False, load_op_links=False)
    for path, error in bag.import_errors.items():
        raise ConfigurationError(f"{path} cannot be imported: {error}", remedy="mend the DAG.")
    tasks = [task for dag in bag.dags.values() for task in dag.tasks if getattr(task, "pipeline", None) == pipeline]
    stage = next((task for task in tasks if isinstance(task, StageOperator)), None)
    prepare = next((task for task in tasks if isinstance(task, PrepareOperator)), None)
    if stage is None and prepare is None:
        raise ConfigurationError(
            f"no DAG of {file} has the pipeline {pipeline!r}.", remedy="name the file that declares it."
        )
    return stage, prepare
