"""DAGs that never run: what tabs are opened on, and the one that the page acts by."""

from airflow.sdk import DAG, task
from airflow_ft.example_dags.airflow_ft_maintenance import dag as maintenance

assert maintenance.dag_id == "airflow_ft_maintenance"

for name in ("dag", "alone", "fresh", "flights"):
    with DAG(name, schedule=None) as one:

        @task
        def nothing() -> None:
            """Is never run."""

        nothing()
    globals()[name] = one
