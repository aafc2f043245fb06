"""`announce` and `load`: the branches of a large checkpoint, loaded by mapped tasks before its participant votes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_ft.operators.base import CheckpointOperator
from airflow_ft.operators.prepare import NOTHING, PrepareOperator
from airflow_ft.pipeline import steps as pipeline_steps
from airflow_ft.pipeline.resolved import delivery_context
from airflow_ft.protocol import steps
from airflow_ft.protocol.announced import Announcement

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ft.pipeline.spec import PipelineSpec
    from airflow_ft.store.decision_log import DecisionLog


log = logging.getLogger(__name__)


class AnnounceOperator(PrepareOperator):
    """Begins an attempt at the largest staged checkpoint, whose branches `LoadBranchOperator` loads.

    Plans, and prepares earlier checkpoints. Judges the rows, as `PrepareOperator` does, and raises what that raises.

    The arguments are those of `PrepareOperator`. Result: a list with an item for each branch, without secrets. It has
    one item without a branch if no checkpoint has several. Give it to `LoadBranchOperator` with `expand`, and to
    `PrepareOperator`.
    """

    def step(self, spec: PipelineSpec, run: steps.Context[DecisionLog], context: Context) -> Any:
        """Announces; nothing is loaded."""
        delivery = delivery_context(spec)
        plan = delivery.plan(spec.sinks, spec.commit_point)
        found = pipeline_steps.announce(run, delivery, plan, self.participant)
        if found is None:  # one task that does nothing: Airflow would skip an empty map, and then `prepare`
            return [NOTHING]
        return [{**found.to_json(), "branch": branch} for branch in found.branches]


class LoadBranchOperator(CheckpointOperator):
    """Loads one branch of an announced checkpoint, durable and invisible. On any worker, beside other branches.

    It changes no checkpoint in the decision log. If it fails for good, `PrepareOperator` loads the branch. If
    the announcement no longer holds, it loads nothing and succeeds.

    Args:
        announced: an item of the result of `AnnounceOperator`.

    The other arguments are those of `CheckpointOperator`. Result: {"number", "branch"}, or {"branch": ""} if nothing
    was loaded.
    """

    template_fields: Sequence[str] = (*CheckpointOperator.template_fields, "announced")
    is_of_run = False

    def __init__(self, *, announced: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.announced = announced

    def step(self, spec: PipelineSpec, run: steps.Context[DecisionLog], context: Context) -> Any:
        """Loads the branch, or finds it prepared."""
        branch = str(self.announced["branch"])
        if not branch:
            log.info("no checkpoint has several branches to load")
            return NOTHING
        # The map index is that of the branch: the pipeline's run has none.
        whole = replace(run, run=replace(run.run, map_index=-1))
        found = Announcement.from_json(self.announced)
        if not steps.load_step(whole, found, branch):  # not skipped: Airflow would skip `prepare`, too
            log.warning("attempt %d at checkpoint %d no longer holds; nothing is loaded", found.attempt, found.number)
            return NOTHING
        return {"number": found.number, "branch": branch}
