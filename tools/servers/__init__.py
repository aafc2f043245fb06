"""Real servers for tests and demonstrations, started unprivileged from the ignored folder `.local`.

`tools/bootstrap.sh` installs them. Each is a context manager; all listen on the loopback interface only::

    with MariaDb(Path("/tmp/somewhere")) as server:
        server.sql("SELECT 1")
        server.kill()  # like a power cut
        server.restart()  # same port, same data

`port=None` takes a free port and keeps it for as long as the object lives. Data stay in the folder after `stop`.
"""

from tools.servers.base import Server, ServerError
from tools.servers.cassandra import Cassandra
from tools.servers.database import Database
from tools.servers.hbase import HBase
from tools.servers.hdfs import Hdfs
from tools.servers.hive import Hive, Hive3
from tools.servers.iceberg import IcebergRest
from tools.servers.kafka import Kafka
from tools.servers.kubernetes import Kubernetes
from tools.servers.mariadb import MariaDb
from tools.servers.mysql import MySql
from tools.servers.pgbouncer import PgBouncer
from tools.servers.postgres import Postgres
from tools.servers.redis import Redis
from tools.servers.s3 import S3
from tools.servers.versitygw import VersityGw
from tools.servers.yarn import Yarn

__all__ = [
    "S3", "Cassandra",
    "Database", "HBase",
    "Hdfs",
    "Hive",
    "Hive3",
    "IcebergRest",
    "Kafka",
    "Kubernetes",
    "MariaDb",
    "MySql",
    "PgBouncer",
    "Postgres",
    "Redis",
    "Server",
    "ServerError",
    "VersityGw",
    "Yarn",
]  # fmt: skip
