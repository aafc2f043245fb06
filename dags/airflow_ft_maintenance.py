"""Every act on a pipeline by Airflow's trigger form, or by the page "Checkpoints": what `airflow ft` does in a shell.

Trigger it, name a pipeline, and choose an action. What it does is in the log of its task `action`, and, with who
has asked and why, among the pipeline's events (`airflow ft events`). Whoever may trigger this DAG may do all of it. For
permissions act by act, declare several such DAGs instead, each with some of the acts, and name them in
`[airflow_ft] maintenance_dags`:

    viewers = maintenance_dag("ft_look", ["verify", "doctor"])
    operators = maintenance_dag("ft_operate", ["recover", "resume", "savepoint", "stop", "stop_with_savepoint"])

A pipeline whose own DAG takes `FromSavepoint.from_params()` can be told by its own trigger form where to go on from.
"""

from airflow_ft import maintenance_dag

dag = maintenance_dag(tags=["airflow-ft", "example"], doc_md=__doc__)
