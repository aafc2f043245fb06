"""`airflow_ft.dry_run`: compute what the next run of a pipeline would deliver, and deliver nothing.

The job runs as usual, from the pipeline's position (a copy of Spark's location, with its state), with its own
temporary decision log and write-ahead log. It takes no epoch and no number of the pipeline, writes no sink and commits
no offset; other runs continue meanwhile. It only reads the pipeline's own decision log, and neither creates nor
migrates it. Then it checks the staged rows against the sinks as `airflow ft doctor` does.
"""

from __future__ import annotations

import logging
import re
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from airflow_ft.clients.buckets import resolve_with
from airflow_ft.pipeline.dry_run_result import DryRun
from airflow_ft.pipeline.output_mode import declared_mode, examine_mode
from airflow_ft.pipeline.resolved import resolve
from airflow_ft.pipeline.run import check_plain_values, ending_with_the_message, spec_of
from airflow_ft.pipeline.script_errors import command_of_script
from airflow_ft.pipeline.spec import PipelineSpec
from airflow_ft.protocol.backpressure import RETAINED_BATCHES, SPARE_BATCHES
from airflow_ft.protocol.doctor import Check, Verdict
from airflow_ft.protocol.errors import AirflowFtError, ConfigurationError, JobError
from airflow_ft.protocol.lease import Worker, new_epoch
from airflow_ft.protocol.model import CheckpointingMode, RunKey
from airflow_ft.protocol.planning import quarantined
from airflow_ft.sinks.proposals import of_missing, shown_below
from airflow_ft.store.url import sqlite_url

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_ft.pipeline.resolved import ResolvedPipeline
    from airflow_ft.protocol.connections import ConnectionResolver
    from airflow_ft.protocol.dead_letters import DeadLetters
    from airflow_ft.protocol.decision_log import QueryLog
    from airflow_ft.protocol.inline_job import InlineJob
    from airflow_ft.protocol.model import ParticipantPlan, Segment
    from airflow_ft.protocol.pipelines import Pipeline
    from airflow_ft.protocol.write_ahead_log import SegmentReader
    from airflow_ft.spark.process import Driver
    from airflow_ft.spark.request import StageRequest, StageResult
    from airflow_ft.store.decision_log import DecisionLog

SAMPLES = 5
_OWN = ("samples", "everything", "columns_only")
_ENOUGH = "the columns are known"
_FORGOTTEN = 86_400.0  # seconds, after which a dry run that left its folder must have died
_NAME = re.compile(r"^\.dry-run-(\d+)-[0-9a-f]{8}$")  # below the root of the log; no pipeline can have this name
_RUN = RunKey("dry-run", "dry-run")

log = logging.getLogger(__name__)
spark_log = logging.getLogger("airflow_ft.spark")


@ending_with_the_message
def dry_run(
    spec: PipelineSpec | None = None,
    *,
    samples: int = SAMPLES,
    everything: bool = False,
    columns_only: bool = False,
    **arguments: Any,
) -> DryRun:
    """Return what the next run of a pipeline would deliver. Delivers nothing, and leaves nothing behind.

    Args:
        spec: the pipeline. A stream is cut once.
        samples: how many rows of each sink are shown.
        everything: read all new input; False: only its first checkpoint (one slice, if the source bounds slices).
        columns_only: compute nothing, and return only the columns and the sinks' objections.
        arguments: instead of `spec` those of `PipelineSpec`, by name. Nothing is rendered: no Jinja.

    Connections are those that the `airflow` command finds.

    Raises JobError for a mistake in the job, and what keeps it from being tried at all; what the sinks would refuse is
    among the `checks`.
    """
    from airflow_ft.pipeline.connections import server_connections

    declared = spec_of(spec, arguments, _OWN)
    check_plain_values(declared)
    found = rehearse(
        resolve(declared), server_connections, samples=samples, everything=everything, columns_only=columns_only
    )
    return replace(found, checks=[replace(each, remedy=command_of_script(each.remedy)) for each in found.checks])


def dry_run_params() -> dict[str, Any]:
    """A field of Airflow's trigger form: `DAG(params=dry_run_params())`; give the pipeline
    `dry_run="{{ params.dry_run }}"`.
    """
    from airflow.sdk import Param

    about = "Compute what would be delivered, and tell it in the log of the task; deliver nothing."
    return {"dry_run": Param(False, type="boolean", title="Dry run", description=about)}


def rehearse(
    pipeline: ResolvedPipeline,
    connections: ConnectionResolver,
    *,
    samples: int = SAMPLES,
    everything: bool = False,
    columns_only: bool = False,
    on_line: Callable[[str], None] = spark_log.info,
    on_start: Callable[[Driver], None] = lambda _: None,
) -> DryRun:
    """Run `dry_run` with the given connections; `on_line` receives Spark's lines, `on_start` its process."""
    _require_job(pipeline)
    from airflow_ft.pipeline.decision_log import check_store, participant_factory
    from airflow_ft.pipeline.doctor import examine_sinks
    from airflow_ft.pipeline.ready import require_log, require_sources
    from airflow_ft.wal import open_wal

    name, mode, participants = pipeline.pipeline, pipeline.checkpointing.mode, pipeline.plan.participants
    if mode is CheckpointingMode.AT_MOST_ONCE:
        raise ConfigurationError(
            f"a dry run is impossible in mode {mode}, which reads only new records.",
            code="arguments_conflict",
            remedy="Leave out dry_run or mode.",
            pipeline=name,
            arguments=["dry_run", "mode"],
        )
    check_store(pipeline.store)
    resolve_with(connections)
    require_log(name, pipeline.wal_root)
    if (savepoint := pipeline.savepoint) is not None and savepoint.is_given:
        raise ConfigurationError(
            f"a dry run starts at the position of the pipeline, and cannot start at {savepoint.path}.",
            code="arguments_conflict",
            remedy="Leave out dry_run or from_savepoint. Or restore the savepoint under another name (`airflow ft"
            f" savepoint restore {savepoint.path} --pipeline NAME`), and try that pipeline.",
            pipeline=name,
            arguments=["dry_run", "from_savepoint"],
            path=savepoint.path,
        )
    require_sources(name, pipeline.sources, connections, pipeline.spark)
    with (
        _scratch(name, pipeline.wal_root) as (root, url),
        closing(_log_of(pipeline.store, connections, url)) as store,
    ):
        stored, waiting = _stored_pipeline(store, pipeline), _waiting(store, name)
        attempt = _Attempt(_beside(pipeline, root, url), connections, stored, everything, columns_only)
        segments, result, schemas = attempt.stage(on_line, on_start)
        wal = open_wal()
        readers = [wal.open(each) for each in segments]
        checks = examine_sinks(name, participants, readers, connections, participant_factory(connections), store)
        checks += examine_mode(_declared(pipeline.job) if result is None else result.output_mode, participants)
        checks += _too_many_dead_letters(pipeline.dead_letters, segments)
        if not readers and schemas:
            checks += _schema_problems(participants, connections, schemas)
        for reader in readers:
            for sink in reader.sinks():
                if (schema := reader.schema(sink)).names:
                    schemas.setdefault(sink, schema)
        tables = of_missing(checks, participants, connections, schemas)
        return DryRun(
            pipeline=name,
            checkpoints=len(segments),
            rows={} if result is None else result.rows,
            has_more=result is not None and not result.complete,
            columns={sink: _columns(schema) for sink, schema in schemas.items()},
            samples={sink: _sample(readers, sink, samples) for sink in schemas},
            checks=[replace(each, remedy=shown_below(each.remedy)) for each in checks] if tables else checks,
            waiting=waiting,
            tables=tables,
        )


def columns_of(pipeline: ResolvedPipeline, connections: ConnectionResolver) -> Mapping[str, pa.Schema]:
    """Return the columns of each sink without any row; omits sinks whose columns depend on rows.

    Raises what `dry_run` does.
    """
    from airflow_ft.pipeline.ready import require_log

    _require_job(pipeline)
    resolve_with(connections)
    require_log(pipeline.pipeline, pipeline.wal_root)
    with _scratch(pipeline.pipeline, pipeline.wal_root) as (root, url):
        with closing(_log_of(pipeline.store, connections, url)) as store:
            stored = _stored_pipeline(store, pipeline)
        beside = _beside(pipeline, root, url)
        attempt = _Attempt(beside, connections, stored, everything=False, columns_only=True)
        return attempt.stage(spark_log.info, lambda _: None)[2]


def _require_job(pipeline: ResolvedPipeline) -> None:
    """Raise ConfigurationError for rows that another program computes."""
    if not pipeline.job:
        raise ConfigurationError(
            "the pipeline has a position and no job, so there are no rows to look at.",
            code="rows_missing",
            remedy="Run `airflow ft doctor PIPELINE --dag FILE`, which examines the sinks.",
            pipeline=pipeline.pipeline,
        )


@dataclass(frozen=True, slots=True)
class _Attempt:
    """The staging of a dry run, in a decision log and a write-ahead log of its own (`_beside`)."""

    resolved: ResolvedPipeline
    connections: ConnectionResolver
    stored: Pipeline | None
    everything: bool
    columns_only: bool

    def stage(
        self, on_line: Callable[[str], None], on_start: Callable[[Driver], None]
    ) -> tuple[list[Segment], StageResult | None, dict[str, pa.Schema]]:
        """Return what was staged; None: nothing was computed; the columns by sink, where known without rows."""
        from airflow_ft.spark.task.launcher import run_stage
        from airflow_ft.store import open_store

        url = self.resolved.store
        assert url is not None
        schemas: dict[str, pa.Schema] = {}
        pipeline = self.resolved.pipeline

        def judge(found: Mapping[str, pa.Schema]) -> Sequence[AirflowFtError]:
            schemas.update(found)
            return [JobError(_ENOUGH)] if self.columns_only else ()  # it ends the driver before anything is computed

        result = None
        with closing(open_store(url)) as store:
            before = store.register(pipeline)
            with new_epoch(store, pipeline, Worker(task="dry-run", try_number=1), "dry run") as (epoch, _):
                attempt = store.begin_stage(pipeline, epoch, _RUN, "dry-run", None)
                try:
                    result = run_stage(
                        self._request(before, epoch, attempt),
                        store,
                        log=on_line,
                        on_start=on_start,
                        judge=judge,
                    )
                except JobError as error:
                    if error.what != _ENOUGH:
                        raise
            newest_first = store.checkpoints(pipeline, RETAINED_BATCHES)
            return [each.segment for each in newest_first if each.segment is not None][::-1], result, schemas

    def _request(self, before: Pipeline, epoch: int, attempt: int) -> StageRequest:
        from airflow_ft.pipeline import steps as pipeline_steps

        if self.stored is not None:
            before = replace(before, base=self.stored.base, base_is_clean=False)
        request = pipeline_steps.request(self.resolved, _RUN, before, epoch, attempt, self.connections)
        config = replace(request.checkpointing, drain=False)
        # As if that many could wait for delivery: a run stops then, and leaves the rest to the next one.
        retained = RETAINED_BATCHES if self.everything else SPARE_BATCHES + 1
        return replace(
            request,
            streaming=False,
            restart=None,
            checkpointing=config,
            retained_batches=retained,
            # Too many dead letters would hide all other rows, so a check reports them.
            dead_letters=dead.without_bounds if (dead := request.dead_letters) else None,
            standby=False,
            keep_session=0.0,  # the pipeline's idle JVM is neither used nor ended, and none is left behind
        )


def _beside(pipeline: ResolvedPipeline, root: str, url: str) -> ResolvedPipeline:
    """The pipeline with a decision log and a write-ahead log of the dry run alone."""
    return replace(pipeline, store=url, wal_root=root)


def _log_of(setting: str | None, connections: ConnectionResolver, url: str) -> DecisionLog:
    """The pipeline's decision log, as it is; where there is none yet, the one at `url`."""
    from airflow_ft.pipeline.decision_log import find_configured_store
    from airflow_ft.store import open_store

    return find_configured_store(setting, connections) or open_store(url)


def _stored_pipeline(store: QueryLog, pipeline: ResolvedPipeline) -> Pipeline | None:
    """The pipeline as the decision log knows it; None: it never ran."""
    from airflow_ft.spark.state.draining import drain_of, refuse

    try:
        found = store.pipeline(pipeline.pipeline)
    except KeyError:
        return None
    if not pipeline.checkpointing.resume_drained and (drain := drain_of(store, pipeline.pipeline)):
        if not drain.is_confirmed:
            raise ConfigurationError(
                "the next run computes nothing: it only delivers this checkpoint, which has drained the pipeline.",
                code="pipeline_drained",
                remedy="Trigger a run, which delivers it. Then repeat the dry run.",
                pipeline=pipeline.pipeline,
                checkpoint=drain.number,
            )
        raise refuse(drain)
    return found


def _waiting(store: QueryLog, pipeline: str) -> dict[int, dict[str, int]]:
    """Rows by sink of what earlier runs have published, and the next one delivers."""
    try:
        opened = store.open_checkpoints(pipeline)
    except KeyError:
        return {}
    kept = {checkpoint.number for checkpoint in quarantined(opened)}  # for a person
    return {c.number: dict(c.segment.rows) for c in opened if c.is_undelivered and c.segment and c.number not in kept}


@contextmanager
def _scratch(pipeline: str, wal_root: str) -> Iterator[tuple[str, str]]:
    """Root of a write-ahead log and URL of a decision log, which are gone afterwards.

    In that log is only what the pipeline's own has of where sources begin: "latest" is the moment it was for the run.
    """
    from airflow_ft.spark.state.beginnings import copy_frozen
    from airflow_ft.wal.filesystem import filesystem

    files = filesystem(wal_root)
    root = files.uri(wal_root, f".dry-run-{int(time.time())}-{uuid.uuid4().hex[:8]}")
    with suppress(OSError):
        for name in files.names(wal_root) if files.exists(wal_root) else ():
            if (match := _NAME.match(name)) and time.time() - int(match[1]) > _FORGOTTEN:
                log.info("deleted the files of a dry run that died: %s", files.uri(wal_root, name))
                files.remove_tree(files.uri(wal_root, name))
    with TemporaryDirectory(prefix="airflow-ft-dry-run-") as folder:
        try:
            copy_frozen(wal_root, pipeline, root, pipeline)
            yield root, sqlite_url(Path(folder) / "ft.db")
        finally:
            if files.exists(root):
                files.remove_tree(root)


def _schema_problems(
    participants: Sequence[ParticipantPlan], connections: ConnectionResolver, schemas: Mapping[str, pa.Schema]
) -> list[Check]:
    """Return the checks of columns alone, without rows."""
    from airflow_ft.sinks.fitting import schema_problems

    return [
        Check(f"sink {error.sink}", "columns", Verdict.PROBLEM, error.what, error.remedy, error.code)
        for error in schema_problems(participants, connections, schemas)
    ]


def _declared(job: str | InlineJob) -> str:
    """Return the output mode that the source of the job assigns, for a driver that ended before it computed."""
    from airflow_ft.pipeline.doctor import module_of, module_origin

    module = module_of(job).partition(":")[0]
    return declared_mode(job, module_origin(module, sys.path) if module else "")


def _too_many_dead_letters(dead: DeadLetters | None, segments: Sequence[Segment]) -> list[Check]:
    """The first checkpoint that has more than are allowed: with it a run would fail."""
    if dead is None:
        return []
    for place, segment in enumerate(segments, 1):
        if exceeded := dead.exceeded(segment.rows.get(dead.sink, 0), segment.total_rows):
            which = f"of checkpoint {place} of {len(segments)}, " if len(segments) > 1 else ""
            remedy = "Correct the source or the job, or allow more."
            return [Check(f"sink {dead.sink}", "dead letters", Verdict.PROBLEM, f"{which}{exceeded}", remedy)]
    return []


def _columns(schema: pa.Schema) -> dict[str, str]:
    return {each.name: str(each.type) for each in schema}


def _sample(readers: Sequence[SegmentReader], sink: str, count: int) -> list[dict[str, Any]]:
    """The first rows of a sink."""
    batches = (
        batch
        for reader in readers
        if sink in reader.sinks()
        for file in reader.files(sink)
        for batch in reader.batches(sink, file)
    )
    return list(islice((row for batch in batches for row in batch.slice(0, count).to_pylist()), count))
