"""`CheckpointedPipeline`: a whole pipeline as a task group, from recover to confirmed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from inspect import signature
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, TaskGroup, TriggerRule
from airflow.sdk.exceptions import DuplicateTaskIdFound

from airflow_ft.operators.branches import AnnounceOperator, LoadBranchOperator
from airflow_ft.operators.commit import CommitOperator
from airflow_ft.operators.confirm import ConfirmOperator
from airflow_ft.operators.external import ExternalFolderOperator, ExternalStageOperator
from airflow_ft.operators.form import by_params, check_form
from airflow_ft.operators.place import is_mapped
from airflow_ft.operators.prepare import PrepareOperator
from airflow_ft.operators.recover import RecoverOperator
from airflow_ft.operators.stage import StageOperator
from airflow_ft.operators.stream import StreamingPipelineOperator
from airflow_ft.pipeline.assets import declared_asset
from airflow_ft.pipeline.resolved import checkpointing_of
from airflow_ft.pipeline.retries import restart_arguments, usual_arguments
from airflow_ft.pipeline.spec import PipelineSpec, take_spec
from airflow_ft.pipeline.spec_checks import check_interval, check_order_of_runs, check_varying_position
from airflow_ft.pipeline.templates import declared, without_jinja
from airflow_ft.protocol.argument_names import raising_at_the_caller, unnamed_arguments
from airflow_ft.protocol.arguments import check_text, check_type, is_template, refuse_object, shown
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.planning import participant_name, plan_delivery
from airflow_ft.sinks.registry import system

if TYPE_CHECKING:
    from airflow.sdk import Asset, AssetAlias

    from airflow_ft.protocol.planning import Delivery

_OF_THE_GROUP = tuple(signature(TaskGroup).parameters)
# Arguments of a single task, or arguments that the group passes to its tasks.
_OF_ONE_TASK = (
    *("self", "kwargs", "task_id", "task_group", "task_display_name", "trigger_rule", "params", "sla"),
    *("inlets", "outlets", "do_xcom_push", "multiple_outputs", "map_index_template", "pre_execute", "post_execute"),
    *("doc", "doc_json", "doc_yaml", "doc_rst", "allow_nested_operators", "render_template_as_native_obj"),
)
_OF_ALL_TASKS = tuple(
    name for name in signature(BaseOperator.__init__).parameters if name not in (*_OF_ONE_TASK, *_OF_THE_GROUP)
)
_OF_RESTART = ("retries", "retry_delay", "retry_exponential_backoff", "max_retry_delay")


class CheckpointedPipeline(TaskGroup):
    """Runs a PySpark job and delivers its rows exactly once into every sink, all sinks or none.

    The tasks are `recover`, `stage`, `prepare.<connection>`, `commit.<connection>` and `confirmed`; tasks behind the
    group in the DAG start when `confirmed` has succeeded, so only on proven data. With a `position` instead of a job, a
    task of yours computes the rows, between the tasks `folder` and `stage` (docs/external.md). With `streaming=True`
    there is one task, `stream` (`StreamingPipelineOperator`), which runs until it is stopped.

    Args:
        spec: the pipeline; or, instead of it, the arguments of `PipelineSpec` by name.
        delivery: "tasks": one task prepares a checkpoint for each connection. "mapped": mapped tasks load the branches
            of a large checkpoint side by side, on any worker, before `prepare` votes. For `MySqlSink(strategy="xa")`
            and `PostgresSink(strategy="prepared")`, with `branches` of at least 2, and for `KafkaSink(strategy="held")`
            with at least 2 `slots`.
        from_params: use the fields of `pipeline_params` in a run's trigger form, which are the DAG's params.
        group_id: of the task group; None: the pipeline's name, without what is Jinja in it.
        default_args: for the tasks; they go before the specification's `restart`, which goes before those of the DAG
            and of groups around this one. By default there are 3 retries, 15 seconds apart; a stream has
            5,000, 3 seconds apart.

    The other arguments are those of Airflow's TaskGroup, and what Airflow's operators have in common: `retries`,
    `retry_delay`, `pool`, `queue`, `execution_timeout`, `priority_weight`, callbacks and the like. These are given to
    each task, as if they were in `default_args`.

    Raises:
        ConfigurationError: when the DAG is parsed, for settings that cannot work.
    """

    spec: PipelineSpec
    pipeline: str
    commit_order: tuple[str, ...]
    """Participants (connection ids, or names of sinks without one) in the order in which they commit."""
    confirmed: ConfirmOperator | StreamingPipelineOperator
    """The last task; of a stream the only one, which succeeds when the stream was stopped."""
    output: Any
    """Its result, for later tasks: {"numbers": [...], "count", "first", "last", "latest": number, "rows": count,
        "recovered": numbers, "recovered_rows": count, "set_aside": rows by sink}. See `ConfirmOperator`."""
    stage: StageOperator | ExternalStageOperator | None = None
    """The task that publishes rows; None: a stream."""
    folder: Any = None
    """With a `position`: the folder into which your task writes its rows before `stage`."""
    asset: Asset | AssetAlias
    """What other DAGs can be scheduled by: an alias of several assets when the name is known only by rendering."""

    @raising_at_the_caller
    def __init__(
        self,
        spec: PipelineSpec | None = None,
        *unnamed: Any,
        delivery: str = "tasks",
        from_params: bool = False,
        group_id: str | None = None,
        default_args: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> None:
        if unnamed:
            raise unnamed_arguments("CheckpointedPipeline", ["pipeline", "job"])
        if alone := [name for name in arguments if name in _OF_ONE_TASK]:
            raise ConfigurationError(
                f"{alone[0]} is an argument of a single task, and CheckpointedPipeline has several.",
                code="argument_unknown",
                remedy=f"Remove {alone[0]}. Or build the pipeline from single operators (docs/operators.md).",
                argument=alone[0],
            )
        if spec is None:
            spec, arguments = take_spec(arguments, (*_OF_THE_GROUP, *_OF_ALL_TASKS))
        check_type("spec", spec, PipelineSpec, 'Give PipelineSpec(pipeline="orders", ...).')
        if besides := sorted(set(arguments) - {*_OF_THE_GROUP, *_OF_ALL_TASKS}):
            raise ConfigurationError(
                f"CheckpointedPipeline does not take {', '.join(besides)} together with a PipelineSpec.",
                code="arguments_conflict",
                remedy=f"Write {', '.join(besides)} into PipelineSpec(...).",
                argument=besides[0],
            )
        check_type("from_params", from_params, bool, "Give True or False.")
        check_varying_position(spec.position, spec.pipeline)
        if from_params:
            spec = by_params(spec)
        if spec.is_rendered:
            spec.check_holding(checkpointing_of(spec))
        check_text("group_id", group_id, optional=True)
        check_type("default_args", default_args, Mapping, 'Give {"retries": 5}, for example.', optional=True)
        for name, sink in spec.sinks.items():
            _check_participant(name, participant_name(sink))
        planned = plan_delivery(declared(spec.sinks), spec.commit_point)
        shared = _shared(spec, delivery, planned)
        restart = restart_arguments(spec)
        of_tasks = {name: arguments.pop(name) for name in _OF_ALL_TASKS if name in arguments}
        for name, value in of_tasks.items():
            refuse_object(name, value if isinstance(value, str) else "")
        if restart and (twice := [name for name in _OF_RESTART if name in of_tasks]):
            raise ConfigurationError(
                f"restart and {', '.join(twice)} both set how often Airflow retries a task.",
                code="arguments_conflict",
                remedy=f"Remove restart, or remove {', '.join(twice)}.",
                pipeline=spec.pipeline,
                argument="restart",
                other=twice[0],
            )
        own: Any = {**(default_args or {}), **of_tasks}
        group_id = group_id or _group_id(spec.pipeline)
        try:
            super().__init__(group_id=group_id, default_args=own, **arguments)
        except DuplicateTaskIdFound as error:
            raise _taken(spec, group_id, arguments) from error
        except RuntimeError as error:
            if "inside a dag" not in str(error):
                raise
            raise ConfigurationError(
                "a CheckpointedPipeline belongs to a DAG.",
                code="dag_missing",
                remedy='Indent it below `with DAG("orders"):`, or give dag=. Without Airflow use airflow_ft.run.',
                pipeline=spec.pipeline,
            ) from error
        # TaskGroup has merged what its parents say; Airflow merges the DAG's own in each task, so ours go below those.
        of_dag = dict(self.dag.default_args or {})
        self.default_args = {**usual_arguments(spec), **of_dag, **self.default_args, **restart, **own}
        _check_unchained(self, spec)
        self.spec = spec
        check_form(spec, self.dag.params, used=from_params)
        check_interval(spec.position, self.dag.timetable, spec.pipeline)
        check_order_of_runs(spec.position, self.dag.max_active_runs, spec.pipeline, spec.suffix)
        with self:
            if spec.streaming:
                self.confirmed = StreamingPipelineOperator(task_id="stream", spec=spec)
            else:
                if shared and is_mapped(self):
                    raise ConfigurationError(
                        'delivery="mapped" does not work in a mapped group, because Airflow does not map a task twice.',
                        code="arguments_conflict",
                        remedy='Leave out delivery="mapped", or make a group for each pipeline in a loop.',
                        pipeline=spec.pipeline,
                        argument="delivery",
                    )
                if self.dag.fail_fast:
                    raise ConfigurationError(
                        "a DAG with fail_fast=True cannot hold a pipeline: decided rows must be delivered even if other"
                        " tasks fail.",
                        code="arguments_conflict",
                        remedy="Remove fail_fast from the DAG, or put the pipeline into a DAG of its own.",
                        pipeline=spec.pipeline,
                        argument="fail_fast",
                    )
                self.stage, self.confirmed = _tasks(spec, shared)
                self.folder = getattr(self.stage, "folder", None)
        self.pipeline = spec.pipeline
        self.commit_order = planned.names
        self.output = self.confirmed.output
        self.asset = declared_asset(spec.pipeline, spec.suffix)


def _check_unchained(group: TaskGroup, spec: PipelineSpec) -> None:
    """Refuse arguments with which a task waits for a task of another run, or of another map index.

    The other task may wait for the turn of this run, so none of them would continue: Airflow counts deferred tasks.
    """
    pause = "To pause the DAG after a failed run, give it max_active_runs=1 and max_consecutive_failed_dag_runs=1."
    limit = "To limit how many tasks run at once, use a pool."
    chaining = [
        ("depends_on_past", False, pause),
        ("wait_for_downstream", False, pause),
        ("max_active_tis_per_dag", None, limit),
        *([("max_active_tis_per_dagrun", None, limit)] if is_mapped(group) else ()),
    ]
    for name, off, instead in chaining:
        if group.default_args.get(name):
            raise ConfigurationError(
                f"{name} lets a task wait for another run or map index, which may itself wait for this run. Then none"
                " of them continues.",
                code="argument_invalid",
                remedy=f"Remove {name}, or give the group {name}={off}. Runs of a pipeline follow one another without"
                f" it. {instead}",
                pipeline=spec.pipeline,
                argument=name,
            )


def _taken(spec: PipelineSpec, group_id: str, arguments: Mapping[str, Any]) -> ConfigurationError:
    """Return the error for a DAG that has a group (or task) of that id."""
    from airflow.sdk.definitions._internal.contextmanager import DagContext

    parent = arguments.get("parent_group")
    dag = arguments.get("dag") or (parent.dag if parent is not None else DagContext.get_current_dag())
    of = f" of the DAG {dag.dag_id}" if dag is not None else ""
    groups = dag.task_group.get_task_group_dict().values() if dag is not None else ()
    others = [each.spec for each in groups if isinstance(each, CheckpointedPipeline)]
    if any((each.pipeline, each.suffix) == (spec.pipeline, spec.suffix) for each in others):
        return ConfigurationError(
            f"two task groups{of} have the same pipeline. The second would find nothing left to read.",
            code="pipeline_duplicated",
            remedy="Give each group its own pipeline= or suffix=.",
            pipeline=spec.pipeline,
        )
    return ConfigurationError(
        f"a task or group{of} already has the id {group_id!r}.",
        code="arguments_conflict",
        remedy=f"Give this pipeline its own group_id, such as group_id={f'{group_id}_2'!r}.",
        pipeline=spec.pipeline,
        group_id=group_id,
    )


def _shared(spec: PipelineSpec, delivery: str, planned: Delivery) -> frozenset[str]:
    """Return the participants whose branches mapped tasks load; ConfigurationError where they cannot."""
    if delivery == "tasks":
        return frozenset()
    if delivery != "mapped":
        raise ConfigurationError(
            f"delivery is {shown(delivery)}.",
            code="argument_invalid",
            remedy='Give delivery="tasks" or delivery="mapped".',
            pipeline=spec.pipeline,
            argument="delivery",
        )
    for name, value in (("streaming", spec.streaming), ("overlap", spec.overlap)):
        if value:
            raise ConfigurationError(
                f'delivery="mapped" is for tasks after the stage, but with {name} the stage delivers.',
                code="arguments_conflict",
                remedy=f'Leave out {name}, or leave out delivery="mapped".',
                pipeline=spec.pipeline,
                arguments=["delivery", name],
            )
    shared = frozenset(
        each.name
        for each in planned.participants
        if system(each.kind).strategies[each.strategy].has_branches
        and max(getattr(spec.sinks[name], "branches", 2) for name in each.sinks) > 1
    )
    if not shared:
        raise ConfigurationError(
            'no sink has several branches, which delivery="mapped" needs.',
            code="arguments_conflict",
            remedy='Use MySqlSink(strategy="xa", branches=4), PostgresSink(strategy="prepared", branches=4) or'
            ' KafkaSink(strategy="held", slots=4). Or leave out delivery="mapped".',
            pipeline=spec.pipeline,
            arguments=["delivery", "sinks"],
        )
    return shared


def _prepared(spec: PipelineSpec, name: str, stage: BaseOperator, *, is_shared: bool) -> BaseOperator:
    """The task in which a participant votes, and those before it."""
    if not is_shared:
        task = PrepareOperator(task_id=name, participant=name, spec=spec, trigger_rule=TriggerRule.ALL_SUCCESS)
        stage >> task
        return task
    announce = AnnounceOperator(
        task_id=f"{name}-announce", participant=name, spec=spec, trigger_rule=TriggerRule.ALL_SUCCESS
    )
    loads = LoadBranchOperator.partial(task_id=f"{name}-load", spec=spec, trigger_rule=TriggerRule.ALL_SUCCESS).expand(
        announced=announce.output
    )
    # `prepare` loads what failed loads have left. It does not run if `announce` failed.
    rule = TriggerRule.ALL_DONE_MIN_ONE_SUCCESS
    task = PrepareOperator(task_id=name, participant=name, spec=spec, announced=announce.output, trigger_rule=rule)
    stage >> announce >> loads >> task
    return task


def _tasks(
    spec: PipelineSpec, shared: Collection[str]
) -> tuple[StageOperator | ExternalStageOperator, ConfirmOperator]:
    """The tasks of a scheduled pipeline; returns the stage and the last one.

    Mapped tasks load the branches of `shared` participants.
    """
    names = plan_delivery(declared(spec.sinks), spec.commit_point).names
    recover = RecoverOperator(task_id="recover", spec=spec)
    # A trigger rule of the DAG's default_args concerns tasks before the group, so it applies to `recover` only.
    after = TriggerRule.ALL_SUCCESS
    stage: StageOperator | ExternalStageOperator
    if spec.is_external:
        folder = ExternalFolderOperator(task_id="folder", spec=spec, trigger_rule=after)
        stage = ExternalStageOperator(task_id="stage", spec=spec, folder=folder.output, trigger_rule=after)
        recover >> folder
    else:
        stage = StageOperator(task_id="stage", spec=spec, trigger_rule=after)
        recover >> stage
    with TaskGroup(group_id="prepare"):
        prepared = [_prepared(spec, name, stage, is_shared=name in shared) for name in names]
    # A commit task runs beside failed siblings too: what is decided is delivered (I3, I7).
    with TaskGroup(group_id="commit"):
        commits = [
            CommitOperator(task_id=name, participant=name, spec=spec, trigger_rule=TriggerRule.ALL_DONE)
            for name in names
        ]
    confirmed = ConfirmOperator(task_id="confirmed", spec=spec, trigger_rule=TriggerRule.ALL_DONE)
    for task in prepared:
        task >> commits[0]
    for first, second in pairwise(commits):
        first >> second
    commits >> confirmed  # not the last one alone: "Clear only failed tasks" may clear any of them
    return stage, confirmed


def _group_id(pipeline: str) -> str:
    return without_jinja(pipeline, "").strip("-_") or "pipeline"


def _check_participant(sink: str, conn_id: str) -> None:
    if is_template(conn_id):
        raise ConfigurationError(
            f"the connection id {conn_id!r} contains Jinja, but the tasks are named after it.",
            code="value_known_too_late",
            remedy="Write the id itself. If it must vary, use the single operators (RecoverOperator, StageOperator,"
            " ...) instead of CheckpointedPipeline.",
            sink=sink,
            argument="conn_id",
            value=conn_id,
        )
    if not conn_id or not all(c.isalnum() or c in "_-." for c in conn_id) or not conn_id.isascii():
        raise ConfigurationError(
            f"the connection id {conn_id!r} cannot be part of a task's id.",
            code="name_invalid",
            remedy="Use a connection whose id has only letters, digits, '_', '-' and '.'.",
            sink=sink,
            argument="conn_id",
            value=conn_id,
        )
