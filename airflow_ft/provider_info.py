"""Information for Airflow about this provider, before anything else is imported: plain data, no import of Airflow."""

from importlib import metadata
from typing import Any

from airflow_ft.clients.connection_types import CONNECTION_TYPES


def _connection_types() -> list[dict[str, Any]]:
    return [described for provider, described in CONNECTION_TYPES if not _is_installed(provider)]


def _is_installed(distribution: str) -> bool:
    try:
        metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _option(
    description: str, default: str, example: str | None = None, kind: str = "string", *, sensitive: bool = False
) -> dict[str, Any]:
    """Describe an option. Airflow masks a `sensitive` one, and reads it also from `<option>_cmd` and `_secret`."""
    described = {
        "description": description,
        "version_added": "0.1.0",
        "type": kind,
        "example": example,
        "default": default,
    }
    return described | ({"sensitive": True} if sensitive else {})


def get_provider_info() -> dict[str, Any]:
    """Describe the provider; `package-name` must equal the name of the distribution."""
    return {
        "package-name": "airflow-ft",
        "name": "Fault tolerance",
        "description": "Exactly-once delivery of PySpark pipelines: a write-ahead log and two-phase commit.",
        "integrations": [{"integration-name": "Fault tolerance", "tags": ["software"]}],
        "operators": [
            {
                "integration-name": "Fault tolerance",
                "python-modules": [
                    "airflow_ft.operators.pipeline",
                    "airflow_ft.operators.recover",
                    "airflow_ft.operators.stage",
                    "airflow_ft.operators.branches",
                    "airflow_ft.operators.prepare",
                    "airflow_ft.operators.commit",
                    "airflow_ft.operators.confirm",
                    "airflow_ft.operators.doctor",
                    "airflow_ft.operators.sweep",
                    "airflow_ft.operators.barrier",
                    "airflow_ft.operators.savepoint",
                    "airflow_ft.operators.maintenance",
                ],
            }
        ],
        "sensors": [
            {
                "integration-name": "Fault tolerance",
                "python-modules": ["airflow_ft.sensors.checkpoint", "airflow_ft.sensors.barrier"],
            }
        ],
        "hooks": [
            {
                "integration-name": "Fault tolerance",
                "python-modules": ["airflow_ft.hooks.servers", "airflow_ft.hooks.store"],
            }
        ],
        "connection-types": _connection_types(),
        "triggers": [
            {
                "integration-name": "Fault tolerance",
                "python-modules": [
                    "airflow_ft.triggers.checkpoint",
                    "airflow_ft.triggers.confirmed",
                    "airflow_ft.triggers.barrier",
                    "airflow_ft.triggers.turn",
                ],
            }
        ],
        "asset-uris": [{"schemes": ["airflow-ft"], "handler": "airflow_ft.pipeline.assets.sanitize_uri"}],
        "notifications": ["airflow_ft.notifications.problem.ProblemNotifier"],
        "extra-links": ["airflow_ft.operators.links.PipelineLink"],
        "cli": ["airflow_ft.admin.cli.get_ft_cli_commands"],
        "config": {
            "airflow_ft": {
                "description": "Exactly-once delivery of PySpark pipelines (provider airflow-ft).",
                "options": {
                    "store": _option(
                        "The decision log: `sqlite:////absolute/path/ft.db` (a local disk of the one machine that"
                        " runs tasks and triggers), or `conn:<connection id>` of a PostgreSQL connection of Airflow"
                        " (without `conn:` Airflow masks the id everywhere). Empty: SQLite in"
                        " $AIRFLOW_HOME/airflow_ft/ft.db.",
                        "",
                        "conn:airflow_ft_store",
                        sensitive=True,
                    ),
                    "wal_root": _option(
                        "Folder of the write-ahead log, reached by all workers and by Spark under the same path,"
                        " on HDFS: `hdfs://namenode:8020/wal`, or in a bucket: `s3://connection@bucket/wal`."
                        " Empty: $AIRFLOW_HOME/airflow_ft/wal.",
                        "",
                        "/mnt/shared/airflow_ft/wal",
                    ),
                    "savepoint_dir": _option(
                        "Folder of savepoints, where `airflow ft savepoint trigger` names no other. It should outlive"
                        " `wal_root`. Empty: $AIRFLOW_HOME/airflow_ft/savepoints.",
                        "",
                        "/mnt/backup/airflow_ft/savepoints",
                    ),
                    "maintenance_dags": _option(
                        "The DAGs by which the page acts on pipelines, separated by commas. For each act it starts a"
                        " run, as the user who asks, of the first of them that has this act and that the user may"
                        " trigger. `airflow_ft.maintenance_dag` makes them.",
                        "airflow_ft_maintenance",
                        "ft_operate,ft_settle",
                    ),
                    "lease_seconds": _option(
                        "How long, in seconds, a process that gives no sign of life keeps others from taking over its"
                        " pipeline.",
                        "30",
                        kind="float",
                    ),
                    "checkpointing": _option(
                        "Settings of `CheckpointConfig` as a JSON object (times in seconds, `never` where None is"
                        " allowed), for pipelines that do not say them.",
                        "",
                        '{"timeout": 1800, "num_retained": 5, "quarantine_after": "never"}',
                    ),
                    "spark_master": _option(
                        "Master for spark-submit, or conn:<id> of a Spark connection. Empty: local[*], in the worker.",
                        "",
                        "spark://master:7077",
                    ),
                    "spark_conf": _option(
                        "Settings for every Spark driver, as a JSON object; those of a pipeline go before them.",
                        "",
                        '{"spark.driver.memory": "2g"}',
                        sensitive=True,
                    ),
                    "spark_jars": _option(
                        "Jar files, or folders of them, for Spark's class path, separated by commas: the"
                        " connector of a source, for example. Without it, the one that fits the Spark that is here is"
                        " fetched once, into $AIRFLOW_HOME/airflow_ft/connectors.",
                        "",
                        "/opt/spark-jars",
                    ),
                    "keep_session": _option(
                        "For how long, in seconds, the Spark session of a pipeline waits for its next run on the same"
                        " machine, which then needs no start of a JVM. It holds the driver's memory meanwhile. 0: it"
                        " ends with its run.",
                        "0",
                        "900",
                        "float",
                    ),
                    "spark_history_url": _option(
                        "Where the page links to Spark from a checkpoint: Spark's history server, or what shows the"
                        " logs and the UI of drivers. {application_id} (Spark's own), {pipeline}, {dag_id}, {run_id},"
                        " {task_id} and {number} are filled in. Empty: there is no link.",
                        "",
                        "https://spark-history.example.com/history/{application_id}",
                    ),
                    "preload": _option(
                        "Whether what loads Airflow's plugins imports the clients and PyArrow at once. LocalExecutor"
                        " forks tasks from one of them, the scheduler, and they need not import them then. It costs"
                        " those processes about 70 MB. Celery's worker loads no plugins: see clusters.md.",
                        "False",
                        "True",
                        "boolean",
                    ),
                    "allow_test_runs": _option(
                        "Whether `airflow tasks test` and `airflow dags test` really run a pipeline's tasks. They act"
                        " on the checkpoints of other runs, so this is for an installation whose decision log and sinks"
                        " are there for tests; else they are dry runs.",
                        "False",
                        "True",
                        "boolean",
                    ),
                },
            }
        },
    }
