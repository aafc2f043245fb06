"""`RecoverAllOperator`: recovery of every pipeline from time to time, its gauges, and the alert."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowTaskTimeout

from airflow_ft.operators.failing import fail
from airflow_ft.operators.named import NamedArguments
from airflow_ft.pipeline import metrics, settings
from airflow_ft.pipeline.decision_log import check_store, open_configured_store, participant_factory, rendered_store
from airflow_ft.pipeline.runs import judged, refuse_test_run
from airflow_ft.pipeline.templates import require_value
from airflow_ft.protocol.arguments import check_length_of_time, check_texts, check_type, is_late_anywhere, shown, wrong
from airflow_ft.protocol.errors import (
    AirflowFtError,
    FoundProblemsError,
    NewerReleaseError,
    StoreCorruptError,
    TransientError,
)
from airflow_ft.protocol.failure import listed
from airflow_ft.protocol.lease import Worker
from airflow_ft.protocol.lookup import known_text
from airflow_ft.protocol.noting import mark_unstored
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.overview import Overview
from airflow_ft.protocol.sweep import ORPHAN_AGE, Swept, health, recover_all

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ft.protocol.decision_log import QueryLog


class RecoverAllOperator(BaseOperator, metaclass=NamedArguments):
    """Settle checkpoints that have been in doubt for `orphan_age` in all pipelines of a decision log, and report their
    health.

    Runs beside the pipelines' own DAGs: it skips running pipelines and STAGED checkpoints. While the decision log is
    unavailable it does nothing. It fails at the end if a pipeline needs a person or is late, so that an
    `on_failure_callback` (`ProblemNotifier`) is the alert. An error of another package, such as a ConnectionError of a
    client, also counts as one for a person: the task fails without a retry.

    Args:
        pipelines: only these; None: all that the decision log knows. The task's log warns of names that it lacks.
        store: as of `CheckpointOperator`.
        orphan_age: how long something must have been in doubt.
        patience: an older undelivered checkpoint needs a person; None: no limit.
        threads: how many pipelines are settled side by side.

    Result: {pipeline: {"settled": {number: state}, "undelivered_age": seconds, "left_alone": why, "error": what}}.
    """

    template_fields: Sequence[str] = ("store", "pipelines")
    ui_color = "#e8f4ea"

    def __init__(
        self,
        *,
        pipelines: Sequence[str] | None = None,
        store: str | None = None,
        orphan_age: timedelta = ORPHAN_AGE,
        patience: timedelta | None = timedelta(hours=1),
        threads: int = 8,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not is_late_anywhere(pipelines):
            _check_pipelines(pipelines)
        check_type("orphan_age", orphan_age, timedelta, "Give timedelta(minutes=10), for example.")
        check_type("patience", patience, timedelta, "Give timedelta(hours=1), for example.", optional=True)
        check_length_of_time("orphan_age", orphan_age)
        check_length_of_time("patience", patience)
        a_number = "Give a number of threads, from 1."
        check_type("threads", threads, int, a_number)
        if threads < 1:
            raise wrong("threads", shown(threads), a_number)
        self.pipelines = self._written = pipelines
        self.store = self._written_store = check_store(store)
        self.orphan_age = orphan_age
        self.patience = patience
        self.threads = threads

    def execute(self, context: Context) -> Any:
        """Recover, send gauges, and fail if a person has to act."""
        try:
            refuse_test_run(context)
            return self._sweep(context)
        except (Exception, AirflowTaskTimeout) as error:
            if not isinstance(error, FoundProblemsError):  # of no pipeline, so only the notifier can report it
                mark_unstored(error)
            if isinstance(error, AirflowFtError):
                fail(self.log, error, context)
            raise

    def _sweep(self, context: Context) -> dict[str, Any]:
        from airflow_ft.wal import owners

        require_value("pipelines", self._written, self.pipelines)
        rendered_store(self._written_store, self.store)
        _check_pipelines(self.pipelines)
        ti = context.get("ti")
        task = f"{ti.dag_id}/{ti.run_id}/{ti.task_id}" if ti is not None else "recovery"
        worker = Worker(task=task, try_number=ti.try_number if ti is not None else 1)
        result: dict[str, Any] = {}
        needs: dict[str, str] = {}
        with closing(open_configured_store(self.store)) as store:
            swept = recover_all(
                store,
                participant_factory(),
                worker,
                pipelines=self.pipelines,
                orphan_age=self.orphan_age,
                lease_seconds=settings.lease_seconds(),
                threads=self.threads,
                look=partial(owners.require_newest_files, store),
            )
            self._warn_of_unknown(store, {each.pipeline for each in swept})
            for each in swept:
                self._log(each)
                entry: dict[str, Any] = {
                    "settled": {str(number): state.value for number, state in each.recovery.settled},
                    "left_alone": each.left_alone,
                    "error": str(each.error) if each.error else "",
                }
                result[each.pipeline] = entry
                try:
                    found = health(store, each.pipeline, self.patience, _judged)
                except (NewerReleaseError, StoreCorruptError) as error:  # report the other pipelines anyway
                    entry["undelivered_age"], entry["error"] = 0.0, str(error)
                    needs[each.pipeline] = str(error)
                    continue
                is_final = each.error is not None and not isinstance(each.error, TransientError)
                if is_final and not found.needs and not found.retired:
                    found = replace(found, needs=str(each.error))
                metrics.emit(found)
                entry["undelivered_age"] = found.undelivered.total_seconds()
                if found.needs:
                    needs[each.pipeline] = found.needs
        if needs:
            list_of_all = listed(f"{name}: {why}" for name, why in needs.items())
            raise FoundProblemsError(
                f"{count_text(len(needs), 'pipeline needs', 'pipelines need')} a person:{list_of_all}",
                remedy="Run `airflow ft pipelines`. It shows what each pipeline waits for, and its last error. For"
                " checkpoints in doubt, run `airflow ft in-doubt`. It shows what each sink holds.",
                pipelines=list(needs),
            )
        return result

    def _warn_of_unknown(self, store: QueryLog, known: Collection[str]) -> None:
        """Log names that the decision log lacks. It is no error: a new pipeline may not have run yet."""
        for name in self.pipelines or ():
            if name not in known:
                hint = known_text([row.name for row in store.pipelines()], name)
                self.log.warning("%s: skipped: the decision log has no such pipeline. %s", name, hint)

    def _log(self, swept: Swept) -> None:
        for number, state in swept.recovery.settled:
            self.log.info("%s: recovered checkpoint %d, which is now %s", swept.pipeline, number, state)
        if swept.left_alone:
            self.log.info("%s: skipped: %s", swept.pipeline, swept.left_alone)
        if swept.error is not None:
            self.log.warning("%s: recovery failed: %s", swept.pipeline, swept.error)


def _check_pipelines(pipelines: object) -> None:
    """Raise ConfigurationError for text, of which each character would count as a name, and for no names."""
    if pipelines is not None:
        check_texts("pipelines", pipelines)
        if not pipelines:
            raise wrong("pipelines", shown(pipelines), "Name a pipeline, or leave pipelines out for all.")


def _judged(found: Sequence[Overview]) -> list[Overview]:
    return judged(found, settings.lease_seconds())
