"""`airflow ft doctor`, `dry-run` and `verify`: find what would stop a pipeline, or what its sinks lack."""

from __future__ import annotations

import re
import sys
from argparse import Namespace
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, cast

from airflow_ft.admin.commands.common import actor, command, open_store, participants, print_table, say
from airflow_ft.admin.commands.rendering import rendered
from airflow_ft.operators.external import ExternalStageOperator
from airflow_ft.operators.stage import StageOperator
from airflow_ft.operators.stream_group import StreamGroupOperator
from airflow_ft.pipeline.actions import verifying
from airflow_ft.pipeline.actions.examining import configured, lines
from airflow_ft.pipeline.connections import server_connections
from airflow_ft.pipeline.decision_log import open_configured_store
from airflow_ft.pipeline.doctor import Patient, examine, module_of
from airflow_ft.pipeline.output_mode import declared_mode
from airflow_ft.pipeline.resolved import delivery_context, resolve, spark_settings
from airflow_ft.pipeline.templates import rebuild
from airflow_ft.protocol.doctor import Check, Examination, Verdict, worst
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.planning import participant_name

if TYPE_CHECKING:
    from airflow_ft.operators.base import CheckpointOperator
    from airflow_ft.pipeline.spec import PipelineSpec

_STAGES = (StageOperator, ExternalStageOperator)


@command
def dry_run(args: Namespace) -> None:
    """`airflow ft dry-run PIPELINE --dag FILE`; ends with status 1 when a sink would refuse what it found."""
    from airflow_ft.pipeline.dry_run import rehearse

    if args.dag is None:
        raise ConfigurationError(
            "a dry run needs the DAG file of the pipeline.",
            code="argument_missing",
            remedy="Add --dag FILE. In a script, call `airflow_ft.dry_run` with the arguments of `airflow_ft.run`."
            " Rows of `airflow_ft.deliver` have no dry run.",
            argument="--dag",
        )
    spec = spec_from_dag(args.pipeline, args.dag)
    if args.store is not None:
        spec = replace(spec, store=args.store)
    found = rehearse(resolve(spec), server_connections, samples=args.samples, everything=args.all)
    if args.output != "table":
        print_table([found.to_json()], args.output)
    else:
        for line in found.lines():
            say(line)
    if found.would_be_refused:
        raise SystemExit(1)


@command
def doctor(args: Namespace) -> None:
    """`airflow ft doctor PIPELINE [--dag FILE]`; ends with status 1 when there is a problem."""
    patient = from_dag(args.pipeline, args.dag) if args.dag else configured(args.pipeline)
    checks = examine(
        patient,
        lambda: open_configured_store(args.store or patient.store, server_connections),
        server_connections,
        participants(),
    )
    if args.output != "table":
        print_table([check.to_json() for check in checks], args.output)
    else:
        for line in lines(checks):
            say(line)
    if worst(checks) is Verdict.PROBLEM:
        raise SystemExit(1)


@command
def verify(args: Namespace) -> None:
    """`airflow ft verify PIPELINE [NUMBER ...]`; ends with status 1 if rows are missing, duplicated or not compared."""
    with open_store(args) as store:
        reports = verifying.verify(actor(args, "verify"), store, args.pipeline, args.numbers)
    if args.output != "table":
        print_table([report.to_json() for report in reports], args.output)
    else:
        for line in verifying.lines(reports):
            say(line)
    if not verifying.are_as_they_should(reports, allow_repeated=args.allow_repeated):
        raise SystemExit(1)


def from_dag(pipeline: str, file: str) -> Patient:
    """Return what the tasks of the pipeline in a DAG file say, with the defaults of its params; see `rendered`."""
    left_out: dict[str, str] = {}
    task = _task(pipeline, file)
    values = rendered(task, left_out)
    sinks = rebuild(task.spec.sinks, values.pop("sinks"))
    sources = rebuild(task.spec.sources, values.pop("sources", {}), kind="source")
    carrier = values.pop("commit_point")
    if carrier not in map(participant_name, sinks.values()):  # it is left out, or only a run renders it
        carrier = None
    spec = task.spec.rendered(values)
    delivery, spark = delivery_context(spec), spark_settings(spec)
    plan = delivery.plan(sinks, carrier) if sinks else None
    return Patient.of(
        spec.pipeline,
        delivery.wal_root,
        spark,
        plan,
        sources,
        left_out=left_out,
        job=module_of(spec.job),
        output_mode=declared_mode(spec.job),
        store=spec.store,
        computes=not spec.is_external,
        dag_file=file,
        structure=_structure(task),
    )


def _structure(task: CheckpointOperator) -> list[Check]:
    """Check the DAG of this task as a whole, which no task of it can do when the DAG is parsed."""
    exam = Examination("DAG")
    _examine_pools(exam, task)
    if isinstance(task, ExternalStageOperator) and task.reads_handed_out:
        exam.attempt("writer", task.require_writer)
    return exam.checks


def _examine_pools(exam: Examination, task: CheckpointOperator) -> None:
    from airflow.models.pool import Pool
    from sqlalchemy.exc import SQLAlchemyError

    using: dict[str, list[str]] = {}
    for each in task.dag.tasks:
        if each.pool != Pool.DEFAULT_POOL_NAME:
            using.setdefault(each.pool, []).append(each.task_id)
    try:
        pools = {name: Pool.get_pool(name) for name in using}
    except SQLAlchemyError as error:
        exam.warn(
            "pool",
            f"cannot check pool {', '.join(using)}: Airflow's database cannot be read ({type(error).__name__})",
            "Run this check where `airflow pools list` works.",
        )
        return
    for pool, tasks in using.items():
        if (found := pools[pool]) is not None:
            if found.include_deferred and task.pool == pool:
                exam.warn(
                    "pool",
                    f"the pool {pool!r} includes deferred tasks: a run that waits keeps a slot that another one needs",
                    f"Run `airflow pools set {pool} SLOTS DESCRIPTION`, without --include-deferred.",
                )
            continue
        some = ", ".join(tasks[:3]) + (f" and {len(tasks) - 3} more" if len(tasks) > 3 else "")
        exam.problem(
            "pool",
            f"the pool {pool!r} does not exist, so Airflow never starts these tasks: {some}",
            f"Create it with `airflow pools set {pool} SLOTS DESCRIPTION`, or correct pool= in the DAG.",
            "pool_missing",
        )


def spec_from_dag(pipeline: str, file: str) -> PipelineSpec:
    """The pipeline's specification in a DAG file, rendered with the defaults of its params; see `rendered`."""
    left_out: dict[str, str] = {}
    task = _task(pipeline, file)
    spec = task.spec.rendered(rendered(task, left_out))
    if left_out:
        problems = "; ".join(f"{part} ({why})" for part, why in left_out.items())
        raise ConfigurationError(
            f"only a run knows the value of {problems}.",
            code="template_unresolved",
            remedy="Give the params of the DAG default values.",
            pipeline=pipeline,
            parts=sorted(left_out),
        )
    if (folder := str(Path(file).absolute().parent)) not in sys.path:  # where a job beside the DAG is found
        sys.path.append(folder)
    return spec


def _task(pipeline: str, file: str) -> CheckpointOperator:
    from airflow.dag_processing.dagbag import DagBag

    if not Path(file).is_file():
        what = f"{file} is a folder." if Path(file).is_dir() else f"the DAG file {file} does not exist."
        raise ConfigurationError(
            what, code="dag_file_invalid", remedy="Name the Python file that declares the pipeline.", path=file
        )
    with redirect_stdout(sys.stderr):  # what the DAG file prints, and Airflow's log, are no part of the answer
        bag: Any = DagBag(dag_folder=file, safe_mode=False, load_op_links=False)
    for path, error in bag.import_errors.items():
        problem, remedy = _problem_of(error, path)
        whole = f"Correct the DAG file. `python {quote(path)}` shows the whole traceback."
        raise ConfigurationError(
            f"the DAG file {path} cannot be imported: {problem}",
            code="dag_file_invalid",
            remedy=remedy or whole,
            path=path,
            error=problem,
        )
    declared = [task for dag in bag.dags.values() for task in dag.tasks]
    tasks: list[Any] = [task for task in declared if isinstance(task, _STAGES)]
    groups = [task for task in declared if isinstance(task, StreamGroupOperator)]
    tasks += [group.operator_of(name) for group in groups for name in group.pipelines]
    for task in tasks:
        if task.pipeline == pipeline:
            return cast("CheckpointOperator", task)
    others = ", ".join(dict.fromkeys(task.pipeline for task in tasks))
    raise ConfigurationError(
        f"no DAG in {file} has the pipeline {pipeline!r}{f', only {others}' if others else ''}.",
        code="pipeline_not_declared",
        remedy=f"Name one of {others}." if others else "Name the file that declares it.",
        path=file,
        known=list(dict.fromkeys(task.pipeline for task in tasks)),
    )


def _problem_of(error: str, path: str) -> tuple[str, str]:
    """The end of a traceback with the line of the DAG file, as far as Airflow shows it, and the remedy ("": none):
    "ValueError: ... (line 7)".
    """
    lines = [line.strip() for line in error.strip().splitlines()]
    remedy = lines.pop().removeprefix("Fix: ") if len(lines) > 1 and lines[-1].startswith("Fix: ") else ""
    at = re.findall(rf'File "[^"]*{re.escape(Path(path).name)}", line (\d+)', error)
    return f"{lines[-1]}{f' (line {at[-1]})' if at else ''}", remedy
