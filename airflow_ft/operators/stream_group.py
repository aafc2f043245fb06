"""`StreamGroupOperator`: several small streams in one task, with one driver."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException

from airflow_ft.operators.base import A_TEST, opened_run
from airflow_ft.operators.emitting import declare_inlets, declare_outlets, emit
from airflow_ft.operators.failing import fail, note_failed_task
from airflow_ft.operators.links import PipelineLink
from airflow_ft.operators.named import NamedArguments
from airflow_ft.operators.place import check_place, check_pulls
from airflow_ft.operators.recover import rewinding
from airflow_ft.operators.reporting import report_lineage
from airflow_ft.operators.stream import KILLED, Paused, StreamingPipelineOperator, check_time_outs
from airflow_ft.pipeline import settings
from airflow_ft.pipeline import steps as pipeline_steps
from airflow_ft.pipeline.connections import task_connections
from airflow_ft.pipeline.decision_log import check_store, open_configured_store
from airflow_ft.pipeline.groups import check_group
from airflow_ft.pipeline.resolved import resolve
from airflow_ft.pipeline.retries import OF_A_STREAM, airflow_arguments, not_given
from airflow_ft.pipeline.runs import first_try, run_of, test_command
from airflow_ft.pipeline.spec import SPEC_FIELDS, PipelineSpec
from airflow_ft.protocol import steps
from airflow_ft.protocol.arguments import check_type
from airflow_ft.protocol.config import check_name
from airflow_ft.protocol.errors import AirflowFtError, FencedError, NotDeliveredError, StageError, TerminalError
from airflow_ft.protocol.restart import RestartStrategy

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ft.pipeline.resolved import ResolvedPipeline
    from airflow_ft.protocol.steps import Confirmation
    from airflow_ft.spark.task.shared import SharedDriver
    from airflow_ft.store.decision_log import DecisionLog

_FIELDS = tuple(name for name in StreamingPipelineOperator.template_fields if name in SPEC_FIELDS)


class StreamGroupOperator(BaseOperator, metaclass=NamedArguments):
    """Run several small streams in one task and one Spark driver. Each is a pipeline of its own.

    Each stream has its own checkpoints, epoch, restart strategy and place on the page. A stream that fails or is
    stopped ends alone, and the others continue. The task ends when all streams have ended: it succeeds if all were
    stopped, and fails if one has failed.

    The streams share a JVM, so they must have the same `spark_master`, `jars`, `packages` and the same settings of
    Spark, except those of `spark.sql.*` that a session can change.

    Args:
        streams: the pipelines, each a `PipelineSpec` with `streaming=True`.
        restart: how often, and after which wait, the driver is restarted when it dies for an unknown reason. Default:
            `ExponentialDelay()`. Such a death does not count as a restart of the streams.

    The other arguments are those of Airflow's operators. By default there are 5,000 retries, 3 seconds apart. A retry
    starts no stream that was stopped or has failed in this run. A new run starts it, and so does clearing the task
    after its end. If you clear the task while it runs, Airflow counts the next try as a retry.

    Result: by pipeline, as that of `ConfirmOperator`.

    Raises:
        ConfigurationError: when the DAG is parsed, for streams that cannot share a driver.
    """

    role = "stage"
    template_fields: Sequence[str] = ("streams",)
    template_fields_renderers = {"streams": "json"}  # noqa: RUF012 - as Airflow declares it
    operator_extra_links = (PipelineLink(),)
    ui_color = "#dff0fa"

    streams: Any
    """The fields of the specifications that Airflow renders."""
    specs: tuple[PipelineSpec, ...]
    pipelines: tuple[str, ...]

    def __init__(
        self, *, streams: Sequence[PipelineSpec], restart: RestartStrategy | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**self.usual_retries(kwargs), **kwargs)
        self.specs = check_group(streams)
        example = "Give a restart strategy, such as FixedDelay(attempts=5, delay=timedelta(seconds=30))."
        check_type("restart", restart, RestartStrategy, example, optional=True)
        self.restart = restart
        self.streams = [{name: spec.plain(name) for name in _FIELDS} for spec in self.specs]
        self.pipelines = tuple(spec.pipeline for spec in self.specs)
        check_time_outs(self, self.pipelines[0])
        self._shared: SharedDriver | None = None
        self._killed = False
        stream: Any
        for stream in self._views():
            check_store(stream.spec.store)
            check_place(self, self.role, stream.pipeline, stream.suffix)
            declare_inlets(stream)
            declare_outlets(stream)
            self.add_inlets([each for each in stream.inlets if each not in self.inlets])
            self.add_outlets([each for each in stream.outlets if each not in self.outlets])
        check_pulls(self)

    @classmethod
    def usual_retries(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the default retries and their delay, where `given` has none."""
        return not_given(airflow_arguments(OF_A_STREAM), given)

    def operator_of(self, pipeline: str) -> StreamingPipelineOperator:
        """Return an operator that runs one of the streams alone, in a copy of the DAG. The commands look at it."""
        from airflow.sdk import DAG

        spec = next(each for each in self.specs if each.pipeline == pipeline)
        dag = DAG(self.dag_id, params=dict(self.dag.params), schedule=None)
        return StreamingPipelineOperator(task_id=self.task_id.rpartition(".")[2], spec=spec, dag=dag)

    def execute(self, context: Context) -> Any:
        """Run the streams until each is stopped or has failed."""
        try:
            streams = [view.rendered_view() for view in self._views()]
            check_group([stream.spec for stream in streams])
            if command := test_command(context):
                self.log.warning(A_TEST, command, settings.SECTION)
            if command or any(stream.spec.is_dry_run for stream in streams):
                return self._rehearse(streams)
            return self._run(streams, context)
        except AirflowFtError as error:
            dag = self.get_dag()
            fail(self.log, error.filled("", "" if dag is None else str(dag.fileloc or "")), context)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return the inputs and outputs of all streams for OpenLineage; its provider calls this."""
        return self._lineage(task_instance, rows=True)

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> Any:
        """Return the facets without row counts, which the next try reports."""
        return self._lineage(task_instance, rows=False)

    def _lineage(self, task_instance: Any, *, rows: bool) -> Any:
        from airflow_ft.operators.openlineage import lineage, together

        streams: list[Any] = [view.rendered_view() for view in self._views()]
        return together([lineage(stream, task_instance, writes=True, rows=rows) for stream in streams])

    def on_kill(self) -> None:
        """End Spark, and restart nothing."""
        self._killed = True
        if self._shared is not None:
            self._shared.kill()

    def _views(self) -> Iterator[_Stream]:
        for spec, fields in zip(self.specs, self.streams, strict=True):
            yield _Stream(self, spec, fields)

    def _rehearse(self, streams: Sequence[_Stream]) -> Any:
        """Run the dry run of each stream. Fail at the end if one of them failed, or a sink would refuse its rows."""
        from airflow_ft.pipeline.actions.examining import require
        from airflow_ft.pipeline.dry_run import rehearse

        self.outlets = []
        results: dict[str, Any] = {}
        errors: dict[str, AirflowFtError] = {}
        for stream in streams:
            try:
                found = rehearse(resolve(stream.spec), task_connections, samples=stream.spec.dry_run_samples)
                for line in found.lines():
                    self.log.info("[%s] %s", stream.pipeline, line)
                require(found.checks, stream.pipeline)
                results[stream.pipeline] = found.to_json()
            except AirflowFtError as error:
                for line in error.filled(stream.pipeline).log_lines:
                    self.log.error("[%s] %s", stream.pipeline, line)
                errors[stream.pipeline] = error
        _raise_failures(errors)
        return results

    def _run(self, streams: Sequence[_Stream], context: Context) -> Any:
        from airflow_ft.spark.task.members import run_together
        from airflow_ft.spark.task.shared import SharedDriver

        resolved = {stream.pipeline: resolve(stream.spec, stream.declared) for stream in streams}
        self._shared = shared = SharedDriver(
            f"{self.dag_id}.{self.task_id}",
            restart=self.restart,
            sources=[source.to_json() for each in resolved.values() for source in each.sources.values()],
            wal_roots=[each.wal_root for each in resolved.values()],
            on_line=pipeline_steps.spark_log.info,
        )
        paused = Paused(self.dag_id)

        def why_stop() -> str:
            if self._killed:
                raise AirflowException(KILLED)
            return paused()

        members = {
            stream.pipeline: _Member(stream, resolved[stream.pipeline], context, shared, why_stop) for stream in streams
        }
        try:
            ends = run_together({name: member.run for name, member in members.items()}, self.on_kill)
        finally:
            if self._killed:
                shared.kill()
            shared.close()
        _raise_failures(ends.errors)  # Airflow sends no events of a task that fails, so the next run counts and sends
        confirmed = {name: members[name].count(ended) for name, ended in ends.results.items()}
        # Airflow updates what is left in `outlets`: what at least one stream has delivered into.
        self.outlets = list(dict.fromkeys(each for name in confirmed for each in members[name].outlets))
        return {name: pipeline_steps.report_confirmed(each) for name, each in confirmed.items()}


def _raise_failures(errors: Mapping[str, BaseException]) -> None:
    """Fail the task for streams that have failed. Airflow retries it only for one that a retry starts again."""
    if not errors:
        return
    failed = {name: error for name, error in errors.items() if isinstance(error, AirflowFtError)}
    for error in errors.values():
        if not isinstance(error, AirflowFtError):
            raise error
    what = "; ".join(f"{name}: {error.headline}" for name, error in failed.items())
    names = sorted(errors)
    is_final = all(isinstance(error, TerminalError) for error in errors.values())
    kind = NotDeliveredError if is_final else StageError
    group = kind(
        f"{len(errors)} of the group's streams failed: {what}",
        code="group_failed",
        remedy=f"Correct {', '.join(names)}. Then clear this task or trigger a run.",
        pipelines=names,
    )
    group.unstored = any(error.unstored for error in failed.values())
    raise group


def _first_try(context: Context, retries: int) -> int | None:
    """Return the first try since the run began or the task was cleared, if this is a retry; None: this is the first."""
    first = first_try(context, retries)
    return first if context["ti"].try_number > first else None


class _Stream:
    """One stream of a group, with what functions for an operator of one pipeline ask of it."""

    def __init__(self, group: StreamGroupOperator, spec: PipelineSpec, fields: Mapping[str, Any]) -> None:
        self._group, self.spec, self._fields = group, spec, fields
        self.declared = spec
        self.pipeline, self.suffix, self.store = fields["pipeline"], fields["suffix"], fields["store"]
        self.task_id = group.task_id
        self.inlets: list[Any] = []
        self.outlets: list[Any] = []

    @property
    def log(self) -> Any:
        return logging.getLogger("airflow_ft.operators.stream_group")

    def add_outlets(self, outlets: Any) -> None:
        """As of an operator; streams of a group may deliver into one table."""
        self.outlets += outlets

    def add_inlets(self, inlets: Any) -> None:
        """As of an operator."""
        self.inlets += inlets

    def rendered(self) -> PipelineSpec:
        """Return the specification with the fields that Airflow has rendered, checked again."""
        return self.spec.rendered(self._fields)

    def rendered_view(self) -> _Stream:
        """Return the same with its complete name."""
        spec = self.rendered()
        check_name("pipeline", spec.pipeline)
        check_store(spec.store)
        found = _Stream(self._group, spec, {**self._fields, "pipeline": spec.pipeline, "suffix": spec.suffix})
        found.declared = self.spec
        declared: Any = _Stream(self._group, self.spec, {name: self.spec.plain(name) for name in _FIELDS})
        declare_outlets(declared)  # by the names that the DAG declares
        found.outlets = declared.outlets
        return found


class _Member:
    """The run of one stream, in its thread."""

    def __init__(
        self,
        stream: Any,
        pipeline: ResolvedPipeline,
        context: Context,
        shared: SharedDriver,
        why_stop: Callable[[], str],
    ) -> None:
        self._stream, self._pipeline, self._context = stream, pipeline, context
        self._shared, self._why_stop = shared, why_stop
        self._group: StreamGroupOperator = stream._group
        self._given_up: NotDeliveredError | None = None

    def run(self) -> Confirmation:
        """Run the stream until it ends."""
        from airflow_ft.spark.task.members import keep_trying

        delay: Any = self._group.retry_delay
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
        why = ""

        def why_not_again() -> str:
            nonlocal why
            why = self._why_stop()
            return why

        try:
            return keep_trying(self._try, self._group.retries or 0, seconds, why_not_again, self._has_successor)
        except AirflowFtError as error:
            error.filled(self._stream.pipeline)
            for line in error.log_lines:
                self._stream.log.error("%s", line)
            if not why:  # else the next try of the task starts it again
                self._note(error)
            raise

    @property
    def outlets(self) -> list[Any]:
        """Return the assets that it has updated, once `count` was called."""
        outlets: list[Any] = self._stream.outlets
        return outlets

    def count(self, ended: Confirmation) -> Confirmation:
        """Count its confirmed numbers, and name them in the assets' events; in the task's own thread."""
        with self._opened() as run:
            run.store.count_run(run.pipeline, run.run)
            confirmation = replace(ended, confirmed=run.store.counted(run.pipeline, run.run))
            emit(self._stream, self._context, run, confirmation.confirmed)
            return confirmation

    def _note(self, error: AirflowFtError) -> None:
        """Show it as FAILED at once, and let another run take it up."""
        if isinstance(error, FencedError) or error is self._given_up:  # a newer owner has it, or it is known
            return
        try:
            with closing(open_configured_store(self._stream.store)) as store:
                note_failed_task(
                    self._stream.log, self._context, error, self._stream.pipeline, self._stream.store, store
                )
                store.leave_turn(self._stream.pipeline, run_of(self._context))
        except AirflowFtError as problem:  # the stream's own error counts
            error.unstored = True
            self._stream.log.warning("the failure could not be stored: %s", problem)

    def _opened(self) -> AbstractContextManager[steps.Context[DecisionLog]]:
        return opened_run(self._group, self._stream.pipeline, self._stream.store, self._context)

    def _has_successor(self) -> bool:
        """Return whether another process has the stream now; for a stream that was fenced."""
        from airflow_ft.spark.task.members import has_successor

        with self._opened() as run:
            return has_successor(run.store, run.pipeline, run.run, run.worker)

    def _try(self, last_try: bool) -> Confirmation:
        """Recover, stream, and deliver what is left; as `StreamingPipelineOperator.step`."""
        from airflow_ft.spark.task.answers import answer_stops
        from airflow_ft.spark.task.members import given_up, was_stopped
        from airflow_ft.spark.task.stream import finish_step, stream_step

        with self._opened() as run:
            pipeline, spec = self._pipeline, self._stream.spec
            assert pipeline.restart is not None  # it is a stream
            first = _first_try(self._context, self._group.retries or 0)
            if (failure := given_up(run.store, run.pipeline, run.run, self._group.task_id, first)) is not None:
                begin = f"{failure.remedy} Then clear" if failure.remedy else "Clear"
                self._given_up = NotDeliveredError(
                    f"the stream failed before in this run: {failure.message}",
                    code=failure.code or "group_failed",
                    remedy=f"{begin} the task when it has ended, or trigger a new run.",
                    pipeline=run.pipeline,
                )
                raise self._given_up
            if (stopped := was_stopped(run, first)) is not None:
                self._stream.log.info("the stream was stopped in this run: a new run starts it again")
                return stopped
            if spec.is_rewind:
                pipeline_steps.rewind(run, rewinding(self._stream, self._context), again=True)
            pipeline_steps.recover(run, pipeline.savepoint, pipeline.sources, pipeline.wal_root, again=True)
            overlap = pipeline_steps.delivering(pipeline, task_connections)
            report_lineage(self._stream, run, self._context["ti"])
            end = stream_step(
                run,
                pipeline_steps.staging(pipeline, run, task_connections, lambda _: None),
                overlap,
                strategy=pipeline.restart,
                why_stop=self._why_stop,
                last_try=last_try,
                shared=self._shared,
            )
            confirmation, outcome = finish_step(run, overlap, end, counts=False)
            answer_stops(run, outcome)
            return confirmation
