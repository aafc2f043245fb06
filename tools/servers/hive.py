"""Hive's standalone metastore, from the jars that tools/bootstrap.sh copies."""

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from tools.servers.base import Options, Server, installed
from tools.servers.hadoop import java, xml
from tools.servers.versitygw import VersityGw

_MAIN = "org.apache.hadoop.hive.metastore.HiveMetaStore"
_OPENED = ("java.lang", "java.net", "java.util")


def s3a(server: VersityGw) -> Options:
    """Return the settings with which Hadoop reaches a store."""
    return {
        "fs.s3a.endpoint": server.url,
        "fs.s3a.endpoint.region": server.region,
        "fs.s3a.path.style.access": "true",
        "fs.s3a.connection.ssl.enabled": "false",
        "fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
        "fs.s3a.access.key": server.login,
        "fs.s3a.secret.key": server.password,
    }


class Hive(Server):
    """A metastore whose tables lie on disk, and whose memory is a Derby; clients speak Thrift at `port`.

    The options are those of metastore-site.xml. With settings of S3A its tables may lie in a bucket, too.
    """

    name = "hive"
    jars: ClassVar[str] = "hive"
    heap: ClassVar[str] = "384m"
    defaults: ClassVar[Options] = {
        "javax.jdo.option.ConnectionDriverName": "org.apache.derby.jdbc.EmbeddedDriver",
        "javax.jdo.option.ConnectionUserName": "APP",
        "javax.jdo.option.ConnectionPassword": "derby",
        "datanucleus.schema.autoCreateAll": "true",
        "hive.metastore.schema.verification": "false",
        "metastore.schema.verification": "false",
        "metastore.task.threads.always": "org.apache.hadoop.hive.metastore.events.EventCleanerTask",
        "metastore.expression.proxy": "org.apache.hadoop.hive.metastore.DefaultPartitionExpressionProxy",
        "metastore.event.db.notification.api.auth": "false",
        "metastore.try.direct.sql": "true",
    }

    @property
    def warehouse(self) -> Path:
        """The folder of its external tables."""
        return self.folder / "warehouse"

    @property
    def managed(self) -> Path:
        """The folder of its managed tables; on Hive 3 of all whose schema names no other."""
        return self.folder / "managed"

    def _initialise(self, data: Path) -> None:
        """It makes what it needs."""

    def _before_start(self, data: Path) -> None:
        settings: dict[str, str | int] = {
            "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={data}/metastore;create=true",
            "metastore.thrift.port": self.port,
            "metastore.thrift.bind.host": self.host,
            "metastore.warehouse.dir": str(self.managed),
            "metastore.warehouse.external.dir": str(self.warehouse),
            "hive.metastore.warehouse.dir": str(self.managed),
            **self.defaults,
            **self.options,
        }
        self._make(self.warehouse)
        self._make(self.managed)
        self._make(self.folder / "conf")
        self._write(self.folder / "conf" / "metastore-site.xml", xml(settings))

    def _command(self, data: Path) -> Sequence[str]:
        newer = installed("hive", Path("jars/hive"))
        own = [*installed(self.jars, Path("jars", self.jars)).glob("*.jar")]
        if any(name.startswith("fs.s3a.") for name in self.options):
            own += installed("s3a-jars", Path("jars/s3a")).glob("*.jar")
            own += newer.glob("slf4j-api-*.jar")  # S3A needs a newer one than Hive 3 has; it sorts before that
        hadoop = newer.glob("hadoop-client-*.jar")
        jars = [*sorted(jar for jar in own if not jar.name.startswith("hadoop-client-")), *sorted(hadoop)]
        classes = ":".join(map(str, [self.folder / "conf", *jars]))
        opens = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
        temporary = f"-Djava.io.tmpdir={self.folder / 'tmp'}"
        derby = f"-Dderby.stream.error.file={self.folder / 'derby.log'}"
        return java(self.jars, self.heap, classes, *opens, temporary, derby, _MAIN, "-p", str(self.port))

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((self.host, self.port)) == 0


class Hive3(Hive):
    """The same of Hive 3, which Spark's own client reads. It ignores conditions on a change of a table."""

    name = "hive3"
    jars: ClassVar[str] = "hive3"
