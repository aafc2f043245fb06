"""`ProblemNotifier`: reports which pipelines are HALTED, QUARANTINED, FAILED, NOT RUNNING or late, and why."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from datetime import timedelta
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseNotifier
from asgiref.sync import sync_to_async

from airflow_ft.operators.place import names_of
from airflow_ft.pipeline import settings
from airflow_ft.pipeline.decision_log import check_store, open_configured_store
from airflow_ft.pipeline.runs import is_process_of, judged
from airflow_ft.pipeline.templates import declared_name
from airflow_ft.protocol.argument_names import arguments_by_name
from airflow_ft.protocol.arguments import (
    check_length_of_time,
    check_texts,
    check_type,
    is_late_anywhere,
    is_template,
    shown,
    standard_time,
    wrong,
)
from airflow_ft.protocol.errors import AirflowFtError, ConfigurationError, FoundProblemsError
from airflow_ft.protocol.judging import judge
from airflow_ft.protocol.lookup import known_text
from airflow_ft.protocol.overview import Condition, Overview
from airflow_ft.protocol.problems import URGENT, Problem, problems

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ft.store.overviews import OverviewOperations

log = logging.getLogger(__name__)


@arguments_by_name
class ProblemNotifier(BaseNotifier):
    """Look for problems in the decision log, and pass each one on; without problems send nothing.

    As the `on_failure_callback` of a pipeline's tasks it reports that pipeline, as that of `RecoverAllOperator` all
    pipelines that it recovers. Any notifier of Airflow's providers can send messages; its templates know `problem`::

        ProblemNotifier(SmtpNotifier(to="ops@example.com", subject="{{ problem.headline }}", html_content="..."))

    `problem` has `pipeline`, `condition`, `cause`, `remedy`, `headline` and `text`. Each further call, by the next run
    of the recovery, reports remaining problems again.

    In a `DeadlineAlert` all arguments are plain data: `to` is the path of a notifier's class, or of a function, and
    `arguments` are those of the class.

    Args:
        to: a notifier; or a function that takes a `Problem`; or the path of either as text. None: the log, as an
            error.
        arguments: with a class's path, its arguments.
        pipelines: to report; None: the task's own pipelines, or all if it has none. If a name is not rendered, as when
            a worker dies: those of its DAG.
        conditions: of "HALTED", "QUARANTINED", "FAILED", "NOT_RUNNING", "LATE"; None: all.
        late_after: time (or seconds) without a confirmation after which a pipeline without its own `late_after` is
            late.
        patience: time (or seconds) after which undelivered, published rows are a problem; None: never.
        store: as in `CheckpointedPipeline`.
        context: given by Airflow, where it awaits a notifier.
    """

    def __init__(
        self,
        to: BaseNotifier | Callable[[Problem], Any] | str | None = None,
        *,
        arguments: Mapping[str, Any] | None = None,
        pipelines: Collection[str] | None = None,
        conditions: Collection[str] | None = None,
        late_after: timedelta | float | None = None,
        patience: timedelta | float | None = None,
        store: str | None = None,
        context: Context | None = None,
    ) -> None:
        super().__init__(context)
        if to is not None and not isinstance(to, str) and not callable(to):
            raise wrong("to", shown(to), "Give a notifier, a function, or the path of one as text.")
        check_type(
            "arguments", arguments, Mapping, 'Give a dictionary, such as {"to": "ops@example.com"}.', optional=True
        )
        for name, names in (("pipelines", pipelines), ("conditions", conditions)):
            if names is not None:
                check_texts(name, names if isinstance(names, str) or not isinstance(names, Collection) else [*names])
        if pipelines is not None and not pipelines:  # it would report nothing, as below
            remedy = "Name a pipeline, or leave pipelines out for all."
            raise wrong("pipelines", shown(pipelines), remedy, what="pipelines is empty.")
        for name, given in (("pipelines", [*(pipelines or ())]), ("store", store)):
            if is_late_anywhere(given):
                remedy = f"Give {name} without Jinja: a notifier does not render it."
                raise wrong(name, shown(given), remedy, what=f"{name} has Jinja.")
        for name, value in (("late_after", late_after), ("patience", patience)):
            check_length_of_time(name, value)
        wanted = [str(each).upper() for each in conditions or URGENT]
        if unknown := set(wanted) - set(URGENT):
            bad = ", ".join(sorted(unknown))
            raise wrong("conditions", bad, f"Give some of {', '.join(URGENT)}.", what=f"conditions has {bad}.")
        self.to, self.arguments, self.pipelines = to, dict(arguments or {}), pipelines
        self.conditions = tuple(Condition(each) for each in wanted)
        self.late_after, self.patience = _time(late_after), _time(patience)
        self.store = check_store(store)

    def notify(self, context: Context) -> None:
        """Report each problem; if one report fails, send the others, and then raise that error.

        If the decision log does not answer, report that, and then raise the error.
        """
        failures: list[Exception] = []
        try:
            found = self._problems(context)
            found += self._unexplained(context, found)
        except AirflowFtError as error:
            found = [_of_error(error)]
            failures.append(error)
        for problem in found:
            try:
                self._notify(problem, context)
            except Exception as error:  # of a foreign notifier
                log.exception("%s. The notification failed", problem.headline)
                failures.append(error)
        if failures:
            raise failures[0]

    def _problems(self, context: Context) -> list[Problem]:
        with closing(open_configured_store(self.store)) as store:
            self._warn_of_unknown(store)
            return list(
                problems(
                    store,
                    self._pipelines(context, store),
                    self.conditions,
                    self.late_after,
                    self.patience,
                    lambda found: [_as_failed(each, context) for each in _judged(found, context)],
                )
            )

    def _warn_of_unknown(self, store: OverviewOperations) -> None:
        """Log names that the decision log lacks. It is no error: a new pipeline may not have run yet."""
        if self.pipelines is not None:
            known = [each.name for each in store.overviews()]
            for name in {*self.pipelines} - {*known}:
                log.warning("%s: not watched: the decision log has no such pipeline. %s", name, known_text(known, name))

    def _unexplained(self, context: Context, found: Collection[Problem]) -> list[Problem]:
        """Return the task's own error, as far as the decision log does not know it.

        - The decision log did not get the failure (`mark_unstored`): it has none, or that of an earlier run. It never
          gets the failure of a recovery itself.
        - A recovery names pipelines without a problem in `found`: a package is missing, a file is lost, or its own
          `patience` is over. Not if this notifier reports only some pipelines or conditions.
        """
        raised: Any = context.get("exception")
        behind = getattr(raised, "__context__", None)
        is_ours = isinstance(behind, AirflowFtError) and not getattr(raised, "unstored", False)
        error: Any = behind if is_ours else raised  # ours is behind Airflow's
        if getattr(error, "unstored", False):
            names = getattr(error, "fields", {}).get("pipelines") or _rendered_names(context.get("task"))
            is_other = self.pipelines is not None and names and not {*names} & {*self.pipelines}
            return [] if is_other or Condition.FAILED not in self.conditions else [_unstored(error, names, context)]
        if (
            self.pipelines is not None
            or set(self.conditions) != set(URGENT)
            or not isinstance(error, FoundProblemsError)
        ):
            return []
        others = set(error.fields.get("pipelines", ())) - {each.pipeline for each in found}
        return [_of_error(error)] if others else []

    async def async_notify(self, context: Context) -> None:
        """The same, in a thread: the triggerer calls this."""
        await sync_to_async(self.notify, thread_sensitive=False)(context)

    def _pipelines(self, context: Context, store: OverviewOperations) -> Collection[str] | None:
        if self.pipelines is not None:
            return self.pipelines
        task: Any = context.get("task")
        if (names := _rendered_names(task)) is None:
            # If a worker dies, Airflow's DAG processor calls this with the task as declared, before any rendering.
            return [each.name for each in store.overviews(task.dag_id)]
        return names or None

    def _notify(self, problem: Problem, context: Context) -> None:
        to = resolve_name(self.to) if isinstance(self.to, str) else self.to
        if isinstance(to, type):
            to = to(**self.arguments)
        if to is None:
            log.error("%s", problem.text)
        elif isinstance(to, BaseNotifier):
            # A copy, since what it renders stays rendered; with the problem among what its templates know.
            copy.copy(to)({**context, "problem": problem})
        else:
            to(problem)


def _judged(found: Sequence[Overview], context: Context) -> list[Overview]:
    """Add what Airflow knows of the runs, if this process may ask it. Otherwise only leases show that a run is dead."""
    if is_process_of(context):
        return judged(found, settings.lease_seconds())
    return judge(found, settings.lease_seconds(), lambda _: (), lambda _: ())


def _as_failed(overview: Overview, context: Context) -> Overview:
    """Count the run of a task whose callback this is as failed, although it still has the turn."""
    failure, turn = overview.failure, overview.turn
    if failure is None or turn is None or turn.run_id != getattr(context.get("ti"), "run_id", None):
        return overview
    has_failed = (failure.dag_id, failure.run_id) == (turn.dag_id, turn.run_id)
    return overview._replace(turn=None) if has_failed else overview


def _of_error(error: AirflowFtError) -> Problem:
    return Problem("", None, error.headline, error.remedy)


def _rendered_names(task: Any) -> list[str] | None:
    """Return the pipelines that the task names, [] if it has none; None: a name is not rendered yet."""
    own = [each for each in names_of(task) if isinstance(each[0], str)]
    if not own and (several := getattr(task, "pipelines", None)):  # of a barrier, or of a recovery
        return None if is_late_anywhere(several) else [*several]
    try:
        # A sensor that returns from the triggerer has name and suffix apart.
        whole = [declared_name(name, suffix) for name, suffix in own]
    except ConfigurationError:
        return None
    if any(left is not None or is_template(name) for name, left in whole):
        return None
    return [name for name, _ in whole]


def _unstored(error: BaseException, names: Sequence[str] | None, context: Context) -> Problem:
    """Return the failure of the callback's task, which names its pipeline if it is a single one."""
    task: Any = context.get("task")
    name, condition = (names[0], Condition.FAILED) if names and len(names) == 1 else ("", None)
    if not isinstance(error, AirflowFtError):  # its message may hold a secret
        cause = f"the task {task.task_id} failed with a {type(error).__name__}."
        return Problem(name, condition, cause, "Read the log of the task.")
    if not name:
        return _of_error(error)
    return Problem(name, condition, f"the task {task.task_id} failed: {error.what}", error.remedy)


def _time(value: timedelta | float | None) -> timedelta | None:
    return timedelta(seconds=value) if isinstance(value, int | float) else standard_time(value)
