"""Act on the participants of a pipeline under one epoch, and halt it if a sink contradicts the decision log."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import NoReturn

from airflow_ft.protocol.delivery_log import DeliveryLog
from airflow_ft.protocol.errors import AirflowFtError, FencedError, HaltError, StoreBehindSinkError
from airflow_ft.protocol.model import Fence, ParticipantPlan, Plan
from airflow_ft.protocol.noting import note_problem
from airflow_ft.protocol.participant import Participant, ParticipantFactory


class Acting:
    """One epoch of a pipeline, and the participants that it has opened.

    A participant whose step went well stays open for the next one, and until `close`.
    """

    def __init__(
        self,
        store: DeliveryLog,
        pipeline: str,
        epoch: int,
        participants: ParticipantFactory,
        *,
        timeout: timedelta | None = None,
        began: datetime | None = None,
        level: int = logging.INFO,
    ) -> None:
        """`timeout`: from TRIGGERED to the decision; a checkpoint that takes longer is ABORTED(EXPIRED), its rows are
        delivered with another. `began`: when the timeout begins for checkpoints that were triggered earlier, since
        no process delivered them before; None: at the first look. `level`: of what is logged of each step that went
        well.
        """
        self._timeout, self._began, self._level = timeout, began, level
        self._store = store
        self._pipeline = pipeline
        self.epoch = epoch
        self._participants = participants
        self._opened: dict[str, tuple[ParticipantPlan, Participant]] = {}
        self._compared: tuple[ParticipantPlan, ...] = ()  # whose places are known to be the pipeline's own
        self._forgotten: dict[str, bool] = {}  # by participant, as read when a decision came late

    def close(self) -> None:
        """Closes the participants."""
        while self._opened:
            self._opened.popitem()[1][1].close()

    def _fence(self, attempt: int) -> Fence:
        return Fence(self._pipeline, self._store.installation, self.epoch, attempt)

    @contextmanager
    def _open(self, plan: Plan, participant: str) -> Iterator[Participant]:
        """An open participant; errors leave with their place filled in, contradictions halt the pipeline."""
        try:
            # Each step takes these two from its plan.
            wanted = replace(plan.participant(participant), predecessor=0, former=None)
            before, sink = self._opened.pop(participant, (None, None))
            if sink is not None and before != wanted:
                sink.close()
                sink = None
            if sink is None:
                sink = self._participants(wanted)
            try:
                yield sink
            except BaseException:
                sink.close()
                raise
            self._opened[participant] = wanted, sink
        except AirflowFtError as error:
            error.located(pipeline=self._pipeline, checkpoint=plan.number, participant=participant)
            note_problem(self._store, self._pipeline, self.epoch, plan.number, participant, error)
            if isinstance(error, HaltError):
                self._halt(error)
            if isinstance(error, FencedError) and error.head_epoch >= self.epoch:
                self._halt_if_store_is_behind(error)
            raise
        except OSError:  # a sink may be out of reach: not a refusal
            raise
        except Exception as error:  # of another package, or of the code of a sink
            note_problem(self._store, self._pipeline, self.epoch, plan.number, participant, error)
            raise

    def _halt_if_store_is_behind(self, error: FencedError) -> None:
        """The head has a rank that this store has not given out yet: the store is the older one.

        A store draws an attempt before a sink hears of it, so it is read after the head and cannot be too early.
        """
        row = self._store.pipeline(self._pipeline)
        if (row.epoch, row.last_attempt) >= (error.head_epoch, error.head_attempt):
            return
        where: Mapping[str, str | int] = {
            "pipeline": error.pipeline,
            "checkpoint": error.checkpoint,
            "participant": error.participant,
        }
        behind = StoreBehindSinkError(
            f"the sink knows epoch {error.head_epoch}, attempt {error.head_attempt}, but the decision log has only"
            f" reached epoch {row.epoch}, attempt {row.last_attempt}. The log was restored from a backup.",
            remedy="Bring back the newer decision log, then run `airflow ft resume`. If it is gone for good, compare"
            " the sinks, then run `airflow ft adopt`.",
        )
        behind.located(**where)
        self._halt(behind)

    def _halt(self, error: HaltError) -> NoReturn:
        # Not shortened, and no value hidden: a person runs the statements in the message.
        self._store.halt(self._pipeline, error.reason, error.headline, code=error.code, remedy=error.remedy)
        raise error
