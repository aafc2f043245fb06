"""Taking a pipeline over from another installation, on a person's word (`airflow ft adopt`).

After a decision log was lost, the sinks still remember the old installation and refuse the new one (FOREIGN_OWNER), so
that nothing is doubled in silence. Adoption accepts what the sinks hold as delivered and goes on above it. It may be
repeated: dying between any two steps leaves the pipeline HALTED, and the next call begins again.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

from airflow_ft.core.errors import ConfigurationError
from airflow_ft.core.model import Fence, ParticipantPlan, SinkHead
from airflow_ft.core.ports import ParticipantFactory, Store


@dataclass(frozen=True, slots=True)
class Adoption:
    """What the sinks remembered (None: nothing), and the epoch that owns them now."""

    heads: Mapping[str, SinkHead | None]
    epoch: int

    @property
    def uneven(self) -> bool:
        """The sinks stood at different numbers: the lost log had a checkpoint under way, which some sinks lack."""
        return len({head.number if head else 0 for head in self.heads.values()}) > 1


def participants_of(store: Store, pipeline: str) -> Mapping[str, ParticipantPlan]:
    """The participants that the newest planned checkpoint names: those that the halted pipeline delivers into."""
    for checkpoint in store.checkpoints(pipeline):
        if checkpoint.plan is not None:
            return {participant.name: participant for participant in checkpoint.plan.participants}
    raise ConfigurationError(
        "no checkpoint of it was planned yet, so its sinks are not known.",
        remedy="run the DAG once: it stops at the foreign sink and halts the pipeline; then adopt.",
        pipeline=pipeline,
    )


def heads(store: Store, pipeline: str, participants: ParticipantFactory) -> Mapping[str, SinkHead | None]:
    """What each sink remembers of the pipeline."""
    found = {}
    for name, plan in participants_of(store, pipeline).items():
        with closing(participants(plan)) as sink:
            found[name] = sink.head(pipeline)
    return found


def adopt(store: Store, pipeline: str, participants: ParticipantFactory, who: str) -> Adoption:
    """Takes every sink of the pipeline over and resumes it; what is staged is delivered under new numbers."""
    plans = participants_of(store, pipeline)
    found = heads(store, pipeline, participants)
    delivered = {name: head.number if head else 0 for name, head in found.items()}
    newest = max((head.epoch for head in found.values() if head), default=0)
    epoch = store.adopt(pipeline, newest, delivered, who)
    fence = Fence(pipeline, store.installation, epoch, 0)
    for name, plan in plans.items():
        with closing(participants(plan)) as sink:
            if found[name] is not None:  # a sink that remembers nothing begins like a new one
                sink.seed(fence, delivered[name], foreign=True)
    store.resume(pipeline, who)
    return Adoption(found, epoch)
