"""`BarrierSensor`: opens when a barrier has passed several pipelines, so one step reads one consistent cut (I9)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_ft.pipeline.barriers import Alignment, BarrierGate, GateStatus, check_pipelines
from airflow_ft.pipeline.obstacles import Obstacles
from airflow_ft.pipeline.runs import interval_end, standard_utc
from airflow_ft.pipeline.templates import require_filled
from airflow_ft.protocol.arguments import check_barrier, check_type, is_late_anywhere, is_template, shown, wrong
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.sensors.base import GateSensor, given_time
from airflow_ft.triggers.barrier import BarrierTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ft.protocol.decision_log import QueryLog
    from airflow_ft.store.decision_log import DecisionLog


class BarrierSensor(GateSensor):
    """Wait until several pipelines have confirmed everything that their sources held at one moment, the barrier.

    It only reads: a pipeline into which the barrier was not injected keeps it closed, and its log names that pipeline.

    Args:
        pipelines: the names of the pipelines, all in one decision log.
        barrier: a time (datetime with a zone, or ISO text), or the id of a barrier that was injected
            (`InjectBarrierOperator`, `airflow ft inject-barrier`). Its moment is that of its injection into each
            pipeline. None: the end of the data interval of its own DAG run. A run without one (triggered by hand, by
            an asset ...) uses the earliest time at which it could begin (`dag_run.run_after`).
        alignment: when it opens, and which numbers it names:

            - "aligned": when each pipeline has confirmed what was before the barrier. `number` is the first checkpoint
              that is known to cover it. A reader of each pipeline up to its number reads one consistent cut.
            - "unaligned": as "aligned", but at the latest after `patience`. Then it opens anyway. The log and the
              result say which pipelines lag ("covered": False), and how far each of them is.
            - "at_least_once": when "aligned" opens. `number` is the newest checkpoint up to which all is confirmed.
              Nothing from before the barrier is missing, and some rows from after it are included.

        patience: with "unaligned" alone, and necessary there: how long it waits from its first look, over retries too.
        store: as in `CheckpointedPipeline`.
        deferrable: wait in the triggerer, without a worker's slot, after one look.
        poke_interval, timeout, mode, soft_fail ...: as in every sensor; seconds between looks, and in all.

    Result: {pipeline: {"number", "as_of", "covered", "delivered_by", "barrier", "known"}}:

        - number: all checkpoints up to it are confirmed (0: there is none).
        - as_of: a time (ISO text) of which everything that was in the sources is in these checkpoints; None: not
          known.
        - covered: whether that is all that was before the barrier.
        - delivered_by: the number under which `number` was delivered: it may have travelled with a later one. This is
          what `MySqlSink(version_column=...)` writes into a row.
        - barrier: the barrier's moment in this pipeline; None: it was not injected there.
        - known: whether the decision log has such a pipeline.
    """

    template_fields: Sequence[str] = ("pipelines", "barrier", "alignment", "store")

    def __init__(
        self,
        *,
        pipelines: Sequence[str],
        barrier: str | datetime | None = None,
        alignment: str = Alignment.ALIGNED.value,
        patience: timedelta | None = None,
        store: str | None = None,
        deferrable: bool | None = None,
        poke_interval: timedelta | float = 10.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(store=store, deferrable=deferrable, poke_interval=poke_interval, **kwargs)
        self.pipelines = pipelines
        self.barrier = barrier
        self.alignment = alignment
        self.patience = patience
        self._written = barrier
        self._gate: BarrierGate | None = None
        self._obstacles = Obstacles()
        check_type("patience", patience, timedelta, "Give a timedelta.", optional=True, of="BarrierSensor")
        if patience is not None and patience < timedelta(0):
            raise wrong("patience", str(patience), "Give a timedelta that is not negative.")
        if not is_late_anywhere(pipelines):
            check_pipelines(pipelines)
        if not is_template(barrier):
            _barrier(barrier)
        if not is_template(alignment):
            _alignment(alignment, patience)

    def gate(self, context: Context, store: QueryLog) -> BarrierGate:
        """The condition, after rendering. ConfigurationError for what is none."""
        check_pipelines(self.pipelines)
        alignment = _alignment(self.alignment, self.patience)
        require_filled("barrier", self._written, self.barrier)
        barrier = _barrier(self.barrier)
        if barrier is None:
            dag_run: Any = context["dag_run"]
            barrier = interval_end(dag_run) or standard_utc(dag_run.run_after)
        opens_at = None
        if self.patience is not None:
            looked = self.fixed(context, lambda: {"looked": store.now().isoformat()})["looked"]
            opens_at = datetime.fromisoformat(looked) + self.patience
        given = {"barrier": barrier} if isinstance(barrier, str) else {"at": barrier}
        return BarrierGate(tuple(self.pipelines), alignment=alignment, opens_at=opens_at, **given)

    def look(self, context: Context, store: DecisionLog) -> dict[str, Any] | None:
        """Return the answer of the gate. The first look logs which pipelines keep it closed.

        Each look logs what a person must do to open it.
        """
        first = self._gate is None
        if self._gate is None:
            self._gate = self.gate(context, store)
            self.log.info("waiting for %s", self._gate)
        statuses = self._gate.statuses(store)
        opened = self._gate.opened(store, statuses)
        if opened is not None:
            self.log_opened(opened)
            return opened
        closed = [each for each in statuses if not each.covered]
        for each in closed if first else ():
            self.log.info("%s", each)
        for text in self._obstacles.new(store, [each.pipeline for each in closed]):
            self.log.warning("%s", text)
        return opened

    def trigger(self) -> BarrierTrigger:
        """Asks what the sensor asks."""
        assert self._gate is not None  # by the first look
        return BarrierTrigger(gate=self._gate.to_json(), store=self.store, poll_interval=self.poke_interval)

    def log_opened(self, opened: dict[str, Any]) -> None:
        """Log the result; covered pipelines are final, others lagged at that time."""
        for pipeline, found in opened.items():
            each = GateStatus.from_json(pipeline, found)
            if each.covered:
                self.log.info("open: %s", each)
            else:
                self.log.warning("open after %s, although %s", self.patience, each)


def _alignment(text: object, patience: timedelta | None) -> Alignment:
    try:
        alignment = Alignment(str(text))
    except ValueError:
        raise wrong("alignment", shown(text), f"Give one of {', '.join(Alignment)}.") from None
    if (alignment is Alignment.UNALIGNED) is (patience is None):
        what = "needs a patience" if patience is None else "waits without a time limit, so patience has no effect"
        raise ConfigurationError(
            f"alignment {text!s} {what}.",
            code="argument_missing" if patience is None else "arguments_conflict",
            remedy="Give patience=timedelta(...)." if patience is None else "Remove patience, or give 'unaligned'.",
            argument="patience",
            alignment=alignment.value,
        )
    return alignment


def _barrier(barrier: object) -> str | datetime | None:
    """A barrier's time, or its id; None: the run's own. ConfigurationError for what is neither."""
    if barrier is None:
        return None
    if isinstance(barrier, datetime) or (isinstance(barrier, str) and _is_time(barrier)):
        return given_time("barrier", barrier)
    return check_barrier(barrier)


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
