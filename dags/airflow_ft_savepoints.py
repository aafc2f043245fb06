"""Savepoints by Airflow's trigger form, or by the page "Checkpoints": take one, restore one, stop a stream with one,
delete one.

Trigger it, name a pipeline, and choose what is to be done. What it does is in the log of its task, and among the
pipeline's events (`airflow ft show`). A pipeline whose own DAG takes `FromSavepoint.from_params()` can be told by its
own trigger form where to go on from.
"""

from airflow.sdk import DAG, Param, task

from airflow_ft import (
    DisposeSavepointOperator,
    FromSavepoint,
    RestoreSavepointOperator,
    StopStreamOperator,
    TriggerSavepointOperator,
    savepoint_params,
)

ACTIONS = ["savepoint", "stop", "stop_with_savepoint", "drain", "drain_with_savepoint", "restore", "dispose"]
PIPELINE = "{{ params.pipeline }}"
FOLDER = "{{ params.folder or '' }}"

with DAG(
    "airflow_ft_savepoints",
    schedule=None,
    catchup=False,
    params={
        "pipeline": Param("", type="string", minLength=1, title="Pipeline"),
        "action": Param("savepoint", enum=ACTIONS, title="What to do"),
        "folder": Param(
            "",
            type=["string", "null"],
            title="Folder for the savepoint",
            description="Of savepoint and stop; empty: [airflow_ft] savepoint_dir.",
        ),
        "checkpoint": Param(
            None,
            type=["integer", "null"],
            minimum=1,
            title="Checkpoint",
            description="Of savepoint; empty: the newest that is confirmed.",
        ),
        **savepoint_params(),
    },
    tags=["airflow-ft", "example"],
    doc_md=__doc__,
) as dag:

    @task.branch
    def choose(params: dict[str, str] | None = None) -> str:
        """The task that does it."""
        return (params or {})["action"]

    choose() >> [
        TriggerSavepointOperator(
            task_id="savepoint", pipeline=PIPELINE, savepoint_dir=FOLDER, checkpoint="{{ params.checkpoint }}"
        ),
        StopStreamOperator(task_id="stop", pipeline=PIPELINE),
        StopStreamOperator(task_id="stop_with_savepoint", pipeline=PIPELINE, savepoint=True, savepoint_dir=FOLDER),
        StopStreamOperator(task_id="drain", pipeline=PIPELINE, drain=True),
        StopStreamOperator(
            task_id="drain_with_savepoint", pipeline=PIPELINE, drain=True, savepoint=True, savepoint_dir=FOLDER
        ),
        RestoreSavepointOperator(task_id="restore", pipeline=PIPELINE, savepoint=FromSavepoint.from_params()),
        DisposeSavepointOperator(task_id="dispose", pipeline=PIPELINE, path="{{ params.savepoint }}"),
    ]
