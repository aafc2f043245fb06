"""Recovery of all pipelines every five minutes, with gauges, and an alert when somebody has to act.

Each pipeline recovers by itself at the start of its next run. This DAG does not wait for that: what a killed run left
in doubt is settled soon. It leaves alone what is at work, what is younger than `orphan_age`, and everything while the
decision log cannot be reached.

The gauges `airflow_ft.undecided_age`, `undelivered_age`, `since_confirmed` (seconds), `in_doubt` and `needs_attention`,
each with the pipeline's name behind it, go where Airflow's own metrics go. The task fails when a pipeline is HALTED, a
checkpoint QUARANTINED, or one not delivered for an hour: put your notifier into `on_failure_callback`, for example
`SmtpNotifier` or `SlackNotifier` of their providers.
"""

import logging
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, BaseNotifier

from airflow_ft.operators.sweep import RecoverAllOperator

log = logging.getLogger(__name__)


class LogNotifier(BaseNotifier):
    """Stands in for a notifier that wakes somebody up."""

    def notify(self, context: Any) -> None:
        """Called when the task has failed; the exception says which pipeline needs what."""
        log.error("airflow-ft: %s", context.get("exception"))


with DAG(
    "airflow_ft_recovery",
    schedule=timedelta(minutes=5),
    catchup=False,
    max_active_runs=1,
    tags=["airflow-ft", "example"],
    doc_md=__doc__,
):
    RecoverAllOperator(
        task_id="recover",
        orphan_age=timedelta(minutes=10),
        patience=timedelta(hours=1),
        on_failure_callback=[LogNotifier()],
    )
