"""DAGs that never run: what tabs are opened on, and what the page acts by, with the parameters that the page gives."""

from airflow.sdk import DAG, Param, task

ACTIONS = ["recover", "resume", "rewind", "verify", "commit", "abort", "savepoint", "restore", "dispose"]
OF_ACTS = {
    "pipeline": Param("", type="string"),
    "action": Param("verify", enum=ACTIONS),
    "checkpoint": Param(None, type=["integer", "null"]),
    "rewind": Param(False, type="boolean"),
    "reason": Param("", type="string"),
}

for name, params in (("dag", {}), ("alone", {}), ("fresh", {}), ("airflow_ft_maintenance", OF_ACTS)):
    with DAG(name, schedule=None, params=params) as one:

        @task
        def nothing() -> None:
            """Is never run."""

        nothing()
    globals()[name] = one
