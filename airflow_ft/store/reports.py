"""Reports of runs for people: failures, warnings, the lag of sources, the size of the state. They decide nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace

from airflow_ft.protocol.failure import Failure, shortened
from airflow_ft.protocol.lag import Lag
from airflow_ft.protocol.model import ParticipantPlan, RunKey, StateSizes
from airflow_ft.protocol.warning import MOST_CHARACTERS, MOST_WARNINGS, PipelineWarning
from airflow_ft.store.database import Database
from airflow_ft.store.events import EventKind, run_detail
from airflow_ft.store.reading import OF_RUN, by_pipeline
from airflow_ft.store.rows import clean_text, json_text, key_of, shown_text, to_failure, to_lag, to_pipeline, to_warning
from airflow_ft.store.writing import PipelineWrite, pipeline_write

_PUT_WARNING = (
    "INSERT INTO pipeline_warning (pipeline, code, subject, message, remedy, at) VALUES (?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (pipeline, code, subject) DO UPDATE SET message = excluded.message, remedy = excluded.remedy,"
    " at = excluded.at"
)
_WARNINGS = "SELECT * FROM pipeline_warning WHERE pipeline IN ({some}) ORDER BY pipeline, code, subject"
_LAGS = "SELECT * FROM source_lag WHERE pipeline IN ({some}) ORDER BY pipeline, source"
_LATER = f"SELECT 1 AS one FROM run WHERE pipeline = ? AND epoch > (SELECT epoch FROM run WHERE {OF_RUN}) LIMIT 1"
_PUT_LAG = (
    "INSERT INTO source_lag (pipeline, source, unit, behind, rate, done, expected, at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)


class ReportOperations:
    """The part of the store that holds failures, warnings, the lag of sources and the sizes of state."""

    _database: Database

    def warnings(self, pipelines: Collection[str]) -> Mapping[str, Sequence[PipelineWarning]]:
        """See `QueryLog.warnings`."""
        return by_pipeline(self._database, _WARNINGS, pipelines, to_warning)

    def record_warning(self, pipeline: str, warning: PipelineWarning) -> None:
        """See `RunLog.record_warning`."""
        code, subject, message, remedy = (
            shortened(shown_text(text), MOST_CHARACTERS)
            for text in (warning.code, warning.subject, warning.message, warning.remedy)
        )
        with pipeline_write(self._database, pipeline) as write:
            sql = "SELECT code, subject, message FROM pipeline_warning WHERE pipeline = ?"
            known = {(row["code"], row["subject"]): row["message"] for row in write.rows(sql, pipeline)}
            if (code, subject) not in known and len(known) >= MOST_WARNINGS:
                return
            write.change(_PUT_WARNING, pipeline, code, subject, message, remedy, write.now)
            if known.get((code, subject)) != message:
                of = f" ({subject})" if subject else ""
                write.event(EventKind.WARNING, f"{code}{of}: {message}", detail={"code": code, "subject": subject})

    def record_failure(
        self,
        pipeline: str,
        run: RunKey,
        failure: Failure,
        *,
        follows: bool = False,
        participants: Sequence[ParticipantPlan] = (),
    ) -> None:
        """See `RunLog.record_failure`."""
        with pipeline_write(self._database, pipeline) as write:
            if write.row["renamed_to"]:  # no run may use this name, so none would ever clear the failure
                return
            turn = to_pipeline(write.row).turn
            # A run that has the turn is the newest, also if it has not begun to stage: then it has no epoch yet.
            if turn != run and (turn is not None or write.rows(_LATER, pipeline, pipeline, *key_of(run))):
                return
            known = to_failure(write.row["failure"])
            if follows and known is not None and _run_of(known) == run:
                return
            stored = replace(failure, dag_id=run.dag_id, run_id=run.run_id, map_index=run.map_index, at=write.now)
            write.set_pipeline(failure=json_text(stored.to_json()), retired=0)
            task = f" in {stored.task_id} (try {stored.try_number})" if stored.task_id else ""
            what = f"{stored.kind} [{stored.code}]" if stored.code else stored.kind
            write.event(
                EventKind.FAILED,
                f"run {run} failed{task}: {what}: {shortened(stored.message)}",
                detail={
                    **run_detail(run),
                    "class": stored.kind,
                    "code": stored.code,
                    "task": stored.task_id,
                    "failure": stored.to_json(),
                    **({"participants": [each.to_json() for each in participants]} if participants else {}),
                },
            )

    def record_problem(self, pipeline: str, epoch: int, number: int, participant: str, problem: Failure) -> None:
        """See `DeliveryLog.record_problem`."""
        with pipeline_write(self._database, pipeline) as write:
            write.require_epoch(epoch)
            write.change(
                "UPDATE vote SET problem = ? WHERE pipeline = ? AND number = ? AND participant = ? AND proof IS NULL",
                json_text(replace(problem, at=write.now).to_json()),
                pipeline,
                number,
                participant,
            )

    def lags(self, pipelines: Collection[str]) -> Mapping[str, Sequence[Lag]]:
        """See `QueryLog.lags`."""
        return by_pipeline(self._database, _LAGS, pipelines, to_lag)

    def record_lags(self, pipeline: str, epoch: int, number: int, lags: Sequence[Lag]) -> None:
        """Replace the lags of the sources, and store them with the checkpoint `number` (0: with none). Writes no
        event.

        Nothing is decided by it, so it may be late or missing.

        Raises:
            FencedError: the epoch is newer.
        """
        with pipeline_write(self._database, pipeline) as write:
            write.require_epoch(epoch)
            write.change("DELETE FROM source_lag WHERE pipeline = ?", pipeline)
            for each in lags:
                write.change(
                    _PUT_LAG,
                    pipeline,
                    clean_text(each.source),
                    str(each.unit),
                    each.behind,
                    each.rate,
                    each.done,
                    each.expected,
                    write.now,
                )
            if number and lags:
                write.change(
                    "UPDATE checkpoint SET lag = ? WHERE pipeline = ? AND number = ?",
                    json_text({each.source: each.behind for each in lags}),
                    pipeline,
                    number,
                )

    def record_state_sizes(self, pipeline: str, epoch: int, number: int, sizes: StateSizes) -> None:
        """Notes with the checkpoint how large the state was after it. No event; otherwise as `record_lags`."""
        with pipeline_write(self._database, pipeline) as write:
            write.require_epoch(epoch)
            write.change(
                "UPDATE checkpoint SET state_sizes = ? WHERE pipeline = ? AND number = ?",
                json_text(asdict(sizes)),
                pipeline,
                number,
            )


def clear_reports(write: PipelineWrite, run: RunKey) -> None:
    """Clears the failure, and deletes warnings that are older than the run's stage: the run is confirmed.

    A run without the turn was cleared after it had ended. The failure of a later run stays then.
    """
    known = to_failure(write.row["failure"])
    if known is not None and run in (to_pipeline(write.row).turn, _run_of(known)):
        write.set_pipeline(failure=None)
    write.change(
        f"DELETE FROM pipeline_warning WHERE pipeline = ? AND at < (SELECT stage_began FROM run WHERE {OF_RUN})",
        write.name,
        write.name,
        *key_of(run),
    )


def _run_of(failure: Failure) -> RunKey:
    return RunKey(failure.dag_id, failure.run_id, failure.map_index)
