"""DAGs that never run: what tabs are opened on, and the one that the page acts by."""

from airflow.sdk import DAG, TaskGroup, task
from airflow_ft.example_dags.airflow_ft_maintenance import dag as maintenance

assert maintenance.dag_id == "airflow_ft_maintenance"

for name in ("dag", "alone", "fresh", "flights"):
    with DAG(name, schedule=None) as one:

        @task
        def nothing() -> None:
            """Is never run."""

        nothing()
        if name == "dag":
            with TaskGroup("orders"):
                for part in ("recover", "stage", "confirmed"):
                    nothing.override(task_id=part)()
                for phase in ("prepare", "commit"):
                    with TaskGroup(phase):
                        nothing.override(task_id="db")()
    globals()[name] = one
