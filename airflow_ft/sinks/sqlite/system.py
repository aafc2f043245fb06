"""SQLite, as the registry knows it. It comes with Python."""

from airflow_ft.sinks.registry import System

SYSTEM = System(
    kind="sqlite",
    title="SQLite",
    package=__package__,
    preload=("airflow_ft.sinks.sqlite.participant",),
    connection_types={
        "apache-airflow-providers-sqlite": {
            "connection-type": "sqlite",
            "hook-class-name": "airflow_ft.hooks.servers.SqliteFileHook",
            "hook-name": "SQLite",
            "ui-field-behaviour": {
                "hidden-fields": ["schema", "login", "password", "port", "extra"],
                "relabeling": {"host": "File"},
                "placeholders": {"host": "/data/shop.db"},
            },
        }
    },
)
