"""Recovery of all pipelines every five minutes, with gauges, and an alert when somebody has to act.

Each pipeline recovers by itself at the start of its next run. This DAG does not wait for that: what a killed run left
in doubt is settled soon. It leaves alone what is at work, what is younger than `orphan_age`, and everything while the
decision log cannot be reached.

It sends gauges of each pipeline where Airflow's own metrics go (docs/observability.md). The task fails when a pipeline
is HALTED, a checkpoint QUARANTINED, one not delivered for an hour, or a pipeline late. Then `ProblemNotifier` writes
into the log what to do; give it a notifier of your own, such as `SmtpNotifier` or `SlackNotifier` of their providers:
`ProblemNotifier(SlackNotifier(text="{{ problem.text }}"), patience=PATIENCE)`.
"""

from datetime import timedelta

from airflow.sdk import DAG

from airflow_ft.notifications.problem import ProblemNotifier
from airflow_ft.operators.sweep import RecoverAllOperator

PATIENCE = timedelta(hours=1)

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
        patience=PATIENCE,
        on_failure_callback=[ProblemNotifier(patience=PATIENCE)],
    )
