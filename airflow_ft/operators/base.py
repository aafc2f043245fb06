"""What all operators share: their part of the pipeline's specification, the run as the core sees it, and errors as
Airflow understands them.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from airflow.sdk import BaseOperator
from airflow.sdk.bases.skipmixin import SkipMixin
from airflow.sdk.exceptions import AirflowRescheduleException, AirflowSkipException, AirflowTaskTimeout

from airflow_ft.operators.failing import fail, note_failed_task
from airflow_ft.operators.form import refuse_misspelled
from airflow_ft.operators.links import PipelineLink
from airflow_ft.operators.named import NamedArguments
from airflow_ft.operators.place import check_place, check_pulls, names_of, own_stage, tasks_beside
from airflow_ft.pipeline import settings
from airflow_ft.pipeline.decision_log import check_store, open_configured_store, participant_factory, rendered_store
from airflow_ft.pipeline.retries import USUAL, task_retries
from airflow_ft.pipeline.runs import (
    is_process_of,
    run_is_idle,
    run_of,
    stage_was_skipped,
    standard_utc,
    task_of,
    task_states,
    test_command,
    were_skipped,
)
from airflow_ft.pipeline.spec import SPEC_FIELDS, PipelineSpec
from airflow_ft.pipeline.templates import declared_name
from airflow_ft.protocol import steps
from airflow_ft.protocol.arguments import check_type, is_template
from airflow_ft.protocol.config import check_name
from airflow_ft.protocol.errors import (
    AirflowFtError,
    ConfigurationError,
    FoundProblemsError,
    LeaseHeldError,
    TurnHeldError,
)
from airflow_ft.protocol.lease import Abandoned, LeaseWatch, Worker
from airflow_ft.protocol.restart import RestartStrategy

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ft.protocol.decision_log import QueryLog
    from airflow_ft.protocol.model import RunKey
    from airflow_ft.store.decision_log import DecisionLog


A_TEST = (
    "`%s` would act on the checkpoints of other runs. So this is a dry run: it delivers nothing and does not change the"
    " decision log. If it stops early, mark its DAG run as failed: a scheduler would continue it as a real run. For a"
    " real run, trigger a DAG run. If decision log, write-ahead log and sinks are only for tests,"
    " set [%s] allow_test_runs = True."
)
_LOOK = "Look for the failed task in the run's grid."


class CheckpointOperator(BaseOperator, metaclass=NamedArguments):
    """Base of the pipeline's tasks.

    A `TerminalError` fails the task at once, a `TransientError` lets Airflow try again; both keep their message.
    Fields of the specification that are among `template_fields` are attributes of the operator, too, and rendered.

    Args:
        spec: the pipeline; the same for all of its tasks.
    """

    template_fields: Sequence[str] = ("pipeline", "suffix", "store", "dry_run")
    template_fields_renderers = dict.fromkeys(  # of more than an operator's own template fields
        ("announced", "checkpointing", "from_savepoint", "job_args", "restart", "sinks", "sources", "spark_conf"),
        "json",
    )
    operator_extra_links = (PipelineLink(),)
    ui_color = "#e8f4ea"
    role: ClassVar[str] = ""
    """What it does for its pipeline, where one task of a DAG can do that; "": any number of them."""
    is_of_run: bool = True
    """Whether the page shows this task's failure as that of its pipeline's run."""
    usual: ClassVar[RestartStrategy | None] = USUAL
    """The default of its `retries` and `retry_delay`; None: Airflow's."""
    unchecked: ClassVar[Sequence[str]] = ()
    """Fields that are rendered, but not checked: a wrong one is an error of another task (I3)."""

    pipeline: str
    suffix: Any
    store: str | None

    def __init__(self, *, spec: PipelineSpec, **kwargs: Any) -> None:
        check_type("spec", spec, PipelineSpec, 'Give PipelineSpec(pipeline="orders", ...).')
        super().__init__(**self.usual_retries({"spec": spec, **kwargs}), **kwargs)
        check_store(spec.store)
        self.spec = spec
        for name in self.carried():
            setattr(self, name, spec.plain(name))
        check_place(self, self.role, self.pipeline, self.suffix)
        check_pulls(self)

    @classmethod
    def usual_retries(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return its retries if `given`, its arguments and those of `default_args`, has none."""
        spec = given.get("spec")
        return {} if cls.usual is None or not isinstance(spec, PipelineSpec) else task_retries(spec, cls.usual, given)

    def carried(self) -> Iterator[str]:
        """The fields of the specification that this operator carries."""
        return (name for name in self.template_fields if name in SPEC_FIELDS)

    def execute(self, context: Context) -> Any:
        """Does the step; it may be repeated for ever (each step reads the state first)."""
        try:
            spec = self._noting_rendered(context)
            if spec.is_dry_run:
                return self.rehearse(spec, context)
            if command := test_command(context):
                self.log.warning(A_TEST, command, settings.SECTION)
                return self.rehearse(spec, context)
            with ExitStack() as stack:
                opened = None
                try:
                    run = stack.enter_context(self.run_context(context))
                    opened = run.store
                    return self.step(spec, run, context)
                except (AirflowSkipException, AirflowRescheduleException):
                    raise
                except (Exception, AirflowTaskTimeout) as error:
                    if self.is_of_run:
                        note_failed_task(self.log, context, error, self.pipeline, self.store, opened)
                    raise
        except AirflowFtError as error:
            if isinstance(error, TurnHeldError | LeaseHeldError) and error.pipeline == self.pipeline:
                self.wait_for_turn(error, run_of(context))
            fail(self.log, error.filled(self.pipeline, self.dag_file), context)

    def wait_for_turn(
        self, error: AirflowFtError, run: RunKey, poll_interval: float = 5.0, timeout: timedelta | None = None
    ) -> NoReturn:
        """Defer the task while another run or process works on the pipeline. Then it continues in `resume`."""
        from airflow_ft.triggers.turn import TurnTrigger  # parsing a DAG needs no triggers

        self.log.info("%s", error)
        trigger = TurnTrigger(
            pipeline=self.pipeline,
            dag_id=run.dag_id,
            run_id=run.run_id,
            map_index=run.map_index,
            store=self.store,
            lease_seconds=settings.lease_seconds(),
            poll_interval=poll_interval,
        )
        self.defer(trigger=trigger, method_name="resume", timeout=timeout)

    def resume(self, context: Context, event: dict[str, Any] | None = None) -> Any:
        """Continue after the trigger. Checks everything again, since a trigger proves nothing."""
        return self.execute(context)

    @property
    def dag_file(self) -> str:
        """The file of its DAG; "": it has none."""
        dag = self.get_dag()
        return "" if dag is None else str(dag.fileloc or "")

    def _noting_rendered(self, context: Context) -> PipelineSpec:
        """`rendered`; the page shows what it raises, unless this is a dry run or a test."""
        try:
            dag, run = self.get_dag(), context.get("dag_run")
            refuse_misspelled(dag.params if dag is not None else (), getattr(run, "conf", None) or (), self.pipeline)
            return self.rendered()
        except AirflowFtError as error:
            rehearses = str(self.dry_run).lower() not in ("", "none", "false") or test_command(context)
            has_log = self.store is not None or self.spec.store is None
            if self.is_of_run and has_log and not rehearses and (name := self._whole_name()):
                note_failed_task(self.log, context, error, name, self.store)
            raise

    def _whole_name(self) -> str:
        """The pipeline's name with its suffix, as rendered; "": rendering gave none."""
        if self.spec.suffix is not None and self.suffix is None:  # the name without one is another pipeline's
            return ""
        try:
            name, left = declared_name(self.pipeline, self.suffix)
        except ConfigurationError:
            return ""
        return name if left is None and not is_template(name) else ""

    def rendered(self) -> PipelineSpec:
        """Return the specification with its rendered fields, checked again; then `pipeline` is complete.

        Raises:
            ConfigurationError: a field is invalid.
        """
        given = {name: getattr(self, name) for name in self.carried() if name not in self.unchecked}
        spec = self.spec.rendered(given)
        self.pipeline, self.suffix = spec.pipeline, spec.suffix
        check_name("pipeline", self.pipeline)
        rendered_store(self.spec.store, self.store)
        return spec

    def step(self, spec: PipelineSpec, run: steps.Context[DecisionLog], context: Context) -> Any:
        """The task's own work; the result goes to XCom."""
        raise NotImplementedError

    def skip_if_skipped(self, run: steps.Context[DecisionLog]) -> None:
        """AirflowSkipException if Airflow skipped `recover` and `stage` of this run, or `stage` alone.

        A branch before `recover` does the first, and a task between them the second.

        For tasks whose trigger rule is all_done: these run anyway.
        """
        with suppress(KeyError):  # no run of the pipeline was ever registered
            row = run.store.run(run.pipeline, run.run)
            if row is not None and (row.staged or row.stage_began is not None):
                return
        begins = self._begins()
        skipped = " and ".join(begins) if were_skipped(run.run, begins) else self._skipped_stage(run.run, begins)
        if skipped:
            with suppress(KeyError):
                run.store.leave_turn(run.pipeline, run.run)
            raise AirflowSkipException(f"in this run, Airflow skipped {skipped}")

    def _skipped_stage(self, run: RunKey, begins: Collection[str]) -> str:
        """Return the stage and the author's tasks that made Airflow skip it; "": they did not."""
        beside = tasks_beside(self)
        found = {task.role: task for task in beside if task.task_id in begins}
        if not {"recover", "stage"} <= set(found):
            return ""
        recover, stage = found["recover"], found["stage"]
        authors = {task.task_id: task for task in beside if not isinstance(task, CheckpointOperator)}
        last = {each: isinstance(task, SkipMixin) for each, task in authors.items() if each in stage.upstream_task_ids}
        between = stage.get_flat_relative_ids(upstream=True) & recover.get_flat_relative_ids(upstream=False)
        own = {recover.task_id, *between} - authors.keys()
        if between.isdisjoint(last) or not stage_was_skipped(run, stage.task_id, own, between - own, last):
            return ""
        return f"{stage.task_id} because of {', '.join(sorted(last))}"

    def rehearse(self, spec: PipelineSpec, context: Context) -> Any:
        """Run the task's part of a dry run or a test run. A task without one is skipped, and so are tasks behind the
        pipeline.

        Raises:
            FoundProblemsError: the dry run failed in an earlier task, and the trigger rule ignores that. A skipped last
                task would end the DAG run as successful.
        """
        states = self._begin_states(context)
        failed = [each for each, state in states.items() if state == "failed"]
        blocked = [each for each, state in states.items() if state == "upstream_failed"]
        if failed or blocked:
            self.on_failure_callback, self.email_on_failure = [], False  # the failed task has called its own
            what, remedy = f"the dry run did not begin: a task before {(failed or blocked)[0]} failed.", _LOOK
            if failed:
                what = f"the dry run failed in {', '.join(failed)}."
                remedy = f"Read the last lines in the log of {failed[0]}. They say why, and what to do."
            raise FoundProblemsError(what, remedy=remedy, pipeline=spec.pipeline, tasks=failed or blocked)
        raise AirflowSkipException(f"{spec.pipeline}: a dry run delivers nothing")

    def _begin_states(self, context: Context) -> dict[str, str]:
        """Return the states of `recover` and `stage`; {}: Airflow does not execute the task, as in a unit test."""
        begins = self._begins()
        return task_states(run_of(context), begins) if begins and is_process_of(context) else {}

    def _begins(self) -> list[str]:
        """Return the tasks `recover` and `stage` of its pipeline that are before it in the DAG."""
        before = self.get_flat_relative_ids(upstream=True) if self.get_dag() is not None else ()
        return [
            task.task_id
            for task in tasks_beside(self)
            if getattr(task, "role", "") in ("recover", "stage")
            and task.task_id in before
            and (self.spec.pipeline, self.spec.suffix) in names_of(task)
        ]

    def run_context(self, context: Context) -> AbstractContextManager[steps.Context[DecisionLog]]:
        """This task's run, with the decision log open for the duration of the block."""
        return opened_run(self, self.pipeline, self.store, context)


@contextmanager
def opened_run(
    operator: Any, pipeline: str, store: str | None, context: Context
) -> Iterator[steps.Context[DecisionLog]]:
    """The run of a pipeline in a task, with its decision log open for the duration of the block."""
    task = task_of(context)
    with closing(open_configured_store(store)) as opened:
        yield steps.Context(
            store=opened,
            pipeline=pipeline,
            run=run_of(context),
            participants=participant_factory(),
            worker=Worker(task=task, try_number=context["ti"].try_number),
            interval_end=standard_utc(context.get("data_interval_end")),
            lease_seconds=settings.lease_seconds(),
            run_is_over=lambda holder: _is_over(holder, opened, pipeline),
            is_own_stage=own_stage(operator, operator.role, task),
        )


def _is_over(holder: RunKey, store: QueryLog, pipeline: str) -> bool:
    """Return whether no task of the run works. Airflow knows nothing of a program (`airflow_ft.run`): it renews a lease
    while it works, so its run is over if no lease moves for `lease_seconds`.
    """
    if not holder.is_plain:
        return run_is_idle(holder)
    seconds = settings.lease_seconds()
    abandoned = Abandoned(store, pipeline, seconds, LeaseWatch())
    while not (is_over := abandoned(holder)) and not abandoned.has_moved:
        time.sleep(min(1.0, seconds / 10))
    return is_over
