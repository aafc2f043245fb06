"""The connection types that come with this package, for the provider's description: plain data, imports nothing."""

from typing import Any

# Connection types that Airflow knows only from a provider of its own, which few need beside this one. That one goes
# first where it is installed: its hooks do more than test. Of two, Airflow would take the one whose name sorts first.
CONNECTION_TYPES: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "apache-airflow-providers-mysql",
        {
            "connection-type": "mysql",
            "hook-class-name": "airflow_ft.hooks.servers.MySqlServerHook",
            "hook-name": "MySQL, MariaDB",
            "ui-field-behaviour": {
                "hidden-fields": [],
                "relabeling": {"schema": "Schema (database)"},
                "placeholders": {"port": "3306", "extra": '{"ssl_ca": "/path/ca.pem"}'},
            },
        },
    ),
    (
        "apache-airflow-providers-sqlite",
        {
            "connection-type": "sqlite",
            "hook-class-name": "airflow_ft.hooks.servers.SqliteFileHook",
            "hook-name": "SQLite",
            "ui-field-behaviour": {
                "hidden-fields": ["schema", "login", "password", "port", "extra"],
                "relabeling": {"host": "File"},
                "placeholders": {"host": "/data/shop.db"},
            },
        },
    ),
    (
        "apache-airflow-providers-postgres",
        {
            "connection-type": "postgres",
            "hook-class-name": "airflow_ft.hooks.servers.PostgresServerHook",
            "hook-name": "PostgreSQL",
            "ui-field-behaviour": {
                "hidden-fields": [],
                "relabeling": {"schema": "Database"},
                "placeholders": {"port": "5432", "extra": '{"sslmode": "verify-full", "sslrootcert": "/path/ca.pem"}'},
            },
        },
    ),
    (
        "apache-airflow-providers-redis",
        {
            "connection-type": "redis",
            "hook-class-name": "airflow_ft.hooks.servers.RedisServerHook",
            "hook-name": "Redis",
            "ui-field-behaviour": {
                "hidden-fields": ["schema"],
                "relabeling": {},
                "placeholders": {"port": "6379", "extra": '{"db": 0, "ssl": true, "ssl_ca_certs": "/path/ca.pem"}'},
            },
        },
    ),
    (
        "apache-airflow-providers-apache-iceberg",
        {
            "connection-type": "iceberg",
            "hook-class-name": "airflow_ft.hooks.servers.IcebergCatalogHook",
            "hook-name": "Iceberg",
            "ui-field-behaviour": {
                "hidden-fields": ["schema"],
                "relabeling": {"host": "Catalog URI", "login": "Client ID", "password": "Client secret"},
                "placeholders": {"host": "https://catalog.example.com", "extra": '{"warehouse": "s3://lake"}'},
            },
        },
    ),
    (
        "apache-airflow-providers-apache-hbase",
        {
            "connection-type": "hbase",
            "hook-class-name": "airflow_ft.hooks.servers.HBaseGatewayHook",
            "hook-name": "HBase",
            "ui-field-behaviour": {
                "hidden-fields": ["login", "password"],
                "relabeling": {"host": "Thrift gateway", "schema": "Namespace"},
                "placeholders": {"port": "9090", "extra": '{"transport": "buffered", "protocol": "binary"}'},
            },
        },
    ),
    (
        "apache-airflow-providers-apache-hive",
        {
            "connection-type": "hive_metastore",
            "hook-class-name": "airflow_ft.hooks.servers.HiveMetastoreHook",
            "hook-name": "Hive metastore",
            "ui-field-behaviour": {
                "hidden-fields": ["schema", "login", "password", "extra"],
                "relabeling": {},
                "placeholders": {"host": "metastore.example.com", "port": "9083"},
            },
        },
    ),
    (
        "apache-airflow-providers-apache-cassandra",
        {
            "connection-type": "cassandra",
            "hook-class-name": "airflow_ft.hooks.servers.CassandraServerHook",
            "hook-name": "Cassandra",
            "ui-field-behaviour": {
                "hidden-fields": [],
                "relabeling": {"host": "Hosts", "schema": "Keyspace"},
                "placeholders": {
                    "host": "node1,node2",
                    "port": "9042",
                    "extra": '{"datacenter": "dc1", "ssl_options": {"ca_certs": "/path/ca.pem"}}',
                },
            },
        },
    ),
    (
        "apache-airflow-providers-apache-spark",
        {
            "connection-type": "spark",
            "hook-class-name": "airflow_ft.hooks.servers.SparkMasterHook",
            "hook-name": "Spark",
            "ui-field-behaviour": {
                "hidden-fields": ["schema", "login", "password"],
                "relabeling": {"host": "Master"},
                "placeholders": {"host": "spark://master, yarn, local[4], k8s://https://host", "port": "7077"},
            },
        },
    ),
)
