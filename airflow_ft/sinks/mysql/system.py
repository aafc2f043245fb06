"""MySQL and MariaDB, as the registry knows them."""

from airflow_ft.sinks.registry import System

SYSTEM = System(
    kind="mysql",
    title="MySQL, MariaDB",
    package=__package__,
    clients=("pymysql",),
    preload=("airflow_ft.sinks.mysql.participant",),
    connection_types={
        "apache-airflow-providers-mysql": {
            "connection-type": "mysql",
            "hook-class-name": "airflow_ft.hooks.servers.MySqlServerHook",
            "hook-name": "MySQL, MariaDB",
            "ui-field-behaviour": {
                "hidden-fields": [],
                "relabeling": {"schema": "Schema (database)"},
                "placeholders": {"port": "3306", "extra": '{"ssl_ca": "/path/ca.pem"}'},
            },
        }
    },
)
