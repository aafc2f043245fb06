"""Alignment across pipelines: when a barrier has passed several of them (I9). Shared by sensor, trigger, commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from airflow_ft.pipeline.checkpoints import confirmed_as_of
from airflow_ft.protocol.arguments import check_barrier, check_texts, check_zone, shown, wrong
from airflow_ft.protocol.config import check_name
from airflow_ft.protocol.errors import ConfigurationError, require_not_renamed

if TYPE_CHECKING:
    from airflow_ft.protocol.decision_log import QueryLog
    from airflow_ft.store.decision_log import DecisionLog


class Alignment(StrEnum):
    """When a barrier's gate opens, and which number of each pipeline it names."""

    ALIGNED = "aligned"
    UNALIGNED = "unaligned"
    AT_LEAST_ONCE = "at_least_once"


@dataclass(frozen=True, slots=True)
class GateStatus:
    """Progress of one pipeline.

    Attributes:
        barrier: the barrier's moment in this pipeline, by the store's clock; None: it was not injected.
        covered: everything that was in the sources at that moment is confirmed, in checkpoints up to `number`.
        number: all checkpoints up to it are settled, and those that were not rewound are confirmed; 0: none is. The
            last one of the former name, if a renamed pipeline has confirmed none since.
        delivered_by: the number under which the newest of them was delivered: itself, or a later one that carries it.
        as_of: everything that was in the sources at this time is in checkpoints up to `number`; None: not known.
        known: the decision log has such a pipeline.
    """

    pipeline: str
    barrier: datetime | None
    covered: bool = False
    number: int = 0
    delivered_by: int = 0
    as_of: datetime | None = None
    known: bool = True

    def to_json(self) -> dict[str, Any]:
        """Return what the gate's answer says of the pipeline."""
        return {
            "number": self.number,
            "as_of": self.as_of.isoformat() if self.as_of else None,
            "covered": self.covered,
            "delivered_by": self.delivered_by,
            "barrier": self.barrier.isoformat() if self.barrier else None,
            "known": self.known,
        }

    @classmethod
    def from_json(cls, pipeline: str, data: Mapping[str, Any]) -> GateStatus:
        """The inverse of `to_json`."""
        times = {name: datetime.fromisoformat(data[name]) if data[name] else None for name in ("barrier", "as_of")}
        return cls(pipeline, **{**data, **times})

    def __str__(self) -> str:
        if self.covered:
            return f"{self.pipeline} has confirmed all rows before the barrier, with checkpoint {self.number}"
        if not self.known:
            return f"{self.pipeline} is not known to the decision log: it never ran, or its name is mistyped"
        known = f"it has confirmed checkpoint {self.number}" if self.number else "it has confirmed no checkpoint"
        covers = f", and so all rows up to {self.as_of.isoformat()}" if self.as_of else ""
        if self.barrier is None:
            return f"{self.pipeline} lacks the barrier: it was never injected there; {known}{covers}"
        lag = f" {_seconds(self.barrier - self.as_of)} behind the barrier" if self.as_of else " behind the barrier"
        return f"{self.pipeline} is{lag}: {known}{covers}"


@dataclass(frozen=True, slots=True)
class BarrierGate:
    """Open when the barrier has passed all pipelines: `barrier` is its id, or `at` its moment.

    ALIGNED: each pipeline has confirmed everything that was in its sources at the barrier. Its number is the first one
        that is known to cover that.
    AT_LEAST_ONCE: opens at the same moment; the number is the newest one up to which all is confirmed.
    UNALIGNED: as ALIGNED until `opens_at` (by the store's clock); then it opens anyway. Uncovered pipelines are
    marked, with the newest number up to which all is confirmed.
    """

    pipelines: tuple[str, ...]
    barrier: str | None = None
    at: datetime | None = None
    alignment: Alignment = Alignment.ALIGNED
    opens_at: datetime | None = None

    def __post_init__(self) -> None:
        check_pipelines(self.pipelines)
        if (self.barrier is None) is (self.at is None):
            raise ConfigurationError(
                "a barrier needs an id or a time, and not both.",
                code="arguments_conflict" if self.at is not None else "argument_missing",
                remedy="Give barrier or at.",
                arguments=["barrier", "at"],
            )
        if self.barrier is not None:
            check_barrier(self.barrier)
        if (self.opens_at is not None) is not (self.alignment is Alignment.UNALIGNED):
            raise ConfigurationError(
                f"alignment {self.alignment} {'takes no' if self.opens_at else 'needs a'} time at which to open.",
                code="arguments_conflict" if self.opens_at else "argument_missing",
                remedy="Give opens_at with alignment 'unaligned', and with no other.",
                arguments=["alignment", "opens_at"],
            )
        check_zone("at", self.at)
        check_zone("opens_at", self.opens_at)

    def statuses(self, store: DecisionLog) -> list[GateStatus]:
        """Return where each pipeline is now, in their order."""
        moments: Mapping[str, datetime] = dict.fromkeys(self.pipelines, self.at) if self.at else {}
        if self.barrier is not None:
            moments = {each.pipeline: each.injected_at for each in store.barrier(self.barrier)}
        newest = self.alignment is Alignment.AT_LEAST_ONCE
        return [gate_status(store, name, moments.get(name), newest=newest) for name in self.pipelines]

    def opened(self, store: QueryLog, statuses: Sequence[GateStatus]) -> dict[str, dict[str, Any]] | None:
        """{pipeline: `GateStatus.to_json()`} when these standings, or the time, open it; else None.

        PipelineHaltedError if a pipeline was renamed before it covered the barrier: it never will.
        """
        late = [each for each in statuses if not each.covered]
        if late and (self.opens_at is None or store.now() < self.opens_at):
            for each in late:
                if each.known:
                    require_not_renamed(store.pipeline(each.pipeline), "Wait for the pipeline of the new name.")
            return None
        return {each.pipeline: each.to_json() for each in statuses}

    def is_open(self, store: DecisionLog) -> dict[str, dict[str, Any]] | None:
        """One look."""
        return self.opened(store, self.statuses(store))

    def to_json(self) -> dict[str, Any]:
        """Plain data for a trigger's arguments."""
        return {
            "pipelines": list(self.pipelines),
            "barrier": self.barrier,
            "at": self.at.isoformat() if self.at else None,
            "alignment": self.alignment.value,
            "opens_at": self.opens_at.isoformat() if self.opens_at else None,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> BarrierGate:
        """The inverse of `to_json`."""
        return cls(
            pipelines=tuple(data["pipelines"]),
            barrier=data["barrier"],
            at=datetime.fromisoformat(data["at"]) if data["at"] else None,
            alignment=Alignment(data["alignment"]),
            opens_at=datetime.fromisoformat(data["opens_at"]) if data["opens_at"] else None,
        )

    def __str__(self) -> str:
        what = f"barrier {self.barrier}" if self.at is None else f"the barrier of {self.at.isoformat()}"
        until = f", or until {self.opens_at.isoformat()}" if self.opens_at else ""
        return f"{what} to have passed {', '.join(self.pipelines)}{until}"


def check_pipelines(pipelines: object) -> None:
    """ConfigurationError unless these are names of pipelines: at least one, and none of them twice."""
    if isinstance(pipelines, str) or not isinstance(pipelines, Sequence) or not pipelines:
        raise wrong(
            "pipelines",
            shown(pipelines),
            'Give a list of names, such as pipelines=["orders", "payments"].',
            why=", which is not a list of names, or is empty",
        )
    check_texts("pipelines", pipelines)
    for name in pipelines:
        check_name("pipeline", name)
    if twice := sorted({name for name in pipelines if pipelines.count(name) > 1}):
        names = ", ".join(twice)
        raise wrong("pipelines", names, "Give each name once.", what=f"pipelines has {names} twice.")


def gate_status(store: DecisionLog, pipeline: str, barrier: datetime | None, *, newest: bool = False) -> GateStatus:
    """Return how far the pipeline is, seen from a barrier of that moment (None: it has none).

    The number is the first one that covers the barrier; where none does, and with `newest`, the newest one.
    """
    try:
        through = None if barrier is None else confirmed_as_of(store, pipeline, barrier)
        number = through
        if through is None or newest:
            number = max(_confirmed_through(store, pipeline), through or 0)
        assert number is not None  # one of the two
        as_of = store.read_as_of(pipeline, number)
        if through is not None and barrier is not None:
            as_of = max(as_of or barrier, barrier)  # the run may have read further by now
        delivered_by = store.delivered_with(pipeline, number)
        former = None if number else store.pipeline(pipeline).former
        if former is not None:  # it has confirmed nothing itself since it was renamed
            number, delivered_by = former.number, store.delivered_with(former.pipeline, former.number)
        return GateStatus(pipeline, barrier, through is not None, number, delivered_by, as_of)
    except KeyError:
        return GateStatus(pipeline, barrier, known=False)


def _confirmed_through(store: QueryLog, pipeline: str) -> int:
    """The newest number that is confirmed and before which all is settled; 0: there is none."""
    # In this order: what is published later cannot be taken for settled.
    published = store.pipeline(pipeline).last_published
    unsettled = (c.number - 1 for c in store.open_checkpoints(pipeline) if not c.is_settled)
    latest = store.latest_confirmed(pipeline)
    return min(published, latest.number if latest else 0, *unsettled)


def _seconds(lag: timedelta) -> str:
    return f"{max(0.0, lag.total_seconds()):,.0f} s"
