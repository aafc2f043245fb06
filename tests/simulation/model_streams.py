"""What the model of the decision log knows of streams (see `model_store`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from airflow_ft.protocol.errors import StateConflictError
from airflow_ft.protocol.model import AfterAbort, Checkpoint, CheckpointState, RunKey
from airflow_ft.protocol.pipelines import Pipeline, Request, RequestKind, Run
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.store.errors import UnknownPipelineError
from tests.simulation.model_reading import ModelReading

S = CheckpointState


class ModelStreams(ModelReading):
    """Attempts of a stream that begins again, how far it has read, and what people ask of it."""

    version: int
    now: Callable[[], datetime]
    _runs: dict[RunKey, Run]
    _as_of: dict[int, datetime]  # all that was there then is in this number, or in one before it
    _read: dict[RunKey, tuple[datetime, int]]  # all that was there then is in what was published up to that number
    _requests: dict[int, Request]
    _needs_stage: bool
    _require_epoch: Callable[[str, int], Pipeline]
    _require_active: Callable[[str], None]
    _abort_unpublished: Callable[[str, Callable[[Checkpoint], AbortReason]], None]
    _draw: Callable[[], int]
    _set: Callable[..., None]
    _note: Callable[..., None]

    def begin_again(self, pipeline: str, epoch: int, run: RunKey) -> int:
        self._require_epoch(pipeline, epoch)
        self._require_active(pipeline)
        row = self._runs.get(run)
        if row is None or row.epoch != epoch:
            raise StateConflictError(f"the stage of {run} was not begun by epoch {epoch}.")
        attempt = self._draw()
        self._runs[run] = replace(row, stage_began=self.now(), staged=False, complete=False)
        self._abort_unpublished(f"not published before attempt {attempt} began", lambda _: AbortReason.ATTEMPT_ENDED)
        self._set(base_is_clean=False)
        self._needs_stage = False
        self.version += 1
        return attempt

    def give_up(self, pipeline: str, epoch: int, reason: AbortReason, message: str) -> None:
        self._require_epoch(pipeline, epoch)
        self._abort_unpublished(message, lambda _: reason)
        self.version += 1

    def read_all(self, pipeline: str, epoch: int, run: RunKey, as_of: datetime) -> None:
        known = self._require_epoch(pipeline, epoch)
        self.version += 1
        row = self._runs.get(run)
        if not self._needs_stage and row is not None and row.epoch == epoch:
            self._read[run] = (as_of, known.last_published)

    # --- how far it has read --------------------------------------------------------------------------------------

    def runs(self, pipeline: str, dag_id: str, run_id: str) -> Sequence[Run]:
        self._known(pipeline)
        return [run for key, run in self._runs.items() if (key.dag_id, key.run_id) == (dag_id, run_id)]

    def read_through(self, pipeline: str, at: datetime) -> int | None:
        self._known(pipeline)
        stages = [
            (run.stage_began, run.through)
            for run in self._runs.values()
            if run.complete and run.stage_began is not None and run.stage_began >= at
        ]
        covering = [(as_of, number) for number, as_of in self._covering() if as_of >= at]
        idle = [(as_of, through) for as_of, through in self._read.values() if as_of >= at]
        known = [min(found)[1] for found in (stages, covering, idle) if found]
        return min(known, default=None)

    def complete_around(self, pipeline: str, number: int) -> tuple[int, int | None]:
        self._known(pipeline)
        known = [run.through for run in self._runs.values() if run.complete]
        known += [covering for covering, _ in self._covering()]
        below = max((through for through in known if through <= number), default=0)
        return below, min((through for through in known if through >= number), default=None)

    def _covering(self) -> list[tuple[int, datetime]]:
        return [
            (number, as_of)
            for number, as_of in self._as_of.items()
            if self._row(number).after_abort is not AfterAbort.REWOUND
        ]

    def is_rewound(self, pipeline: str, after: int, through: int) -> bool:
        self._known(pipeline)
        return any(
            after < row.number <= through and row.after_abort is AfterAbort.REWOUND for row in self._rows.values()
        )

    def failed_in_a_row(self, pipeline: str) -> int:
        completed = [row.number for row in self._rows.values() if row.state is S.COMPLETED]
        newest = max(completed, default=0)
        return sum(row.number > newest and row.reason is not None and row.reason.counts for row in self._rows.values())

    # --- requests -------------------------------------------------------------------------------------------------

    def ask(self, pipeline: str, kind: RequestKind, arguments: Mapping[str, Any], by: str) -> int:
        self._known(pipeline)
        number = len(self._requests) + 1
        self._requests[number] = Request(pipeline, number, kind, dict(arguments), by, self.now(), None, "")
        self._note("REQUESTED", 0, {"id": number})
        self.version += 1
        return number

    def requests_by(self, pipeline: str, by: str) -> Sequence[Request]:
        return [request for request in reversed(self._requests.values()) if request.asked_by == by]

    def open_requests(self, pipeline: str) -> Sequence[Request]:
        return [request for request in self._requests.values() if not request.outcome]

    def request(self, pipeline: str, id: int) -> Request:
        if id not in self._requests:
            raise UnknownPipelineError(pipeline)
        return self._requests[id]

    def answer(
        self, pipeline: str, id: int, outcome: str, *, missing: Sequence[str] = (), epoch: int | None = None
    ) -> None:
        self._known(pipeline)
        if epoch is not None:
            self._require_epoch(pipeline, epoch)
        request = self._requests.get(id)
        if request is not None and not request.outcome:
            self._requests[id] = replace(request, outcome=outcome, missing=tuple(missing), answered_at=self.now())
            self._note("ANSWERED", 0, {"id": id})
        self.version += 1
