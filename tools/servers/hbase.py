"""HBase: master, region server and ZooKeeper in one process, and the Thrift gateway, from Maven Central."""

import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Self

from tools.servers.base import Options, Server, installed
from tools.servers.hadoop import java, xml
from tools.servers.processes import free_port

_MASTER = "org.apache.hadoop.hbase.master.HMaster"
_GATEWAY = "org.apache.hadoop.hbase.thrift.ThriftServer"
_OPENED = (
    "java.lang", "java.lang.reflect", "java.io", "java.nio", "java.net", "java.util", "java.util.concurrent",
    "java.util.concurrent.atomic", "sun.nio.ch", "jdk.internal.ref", "jdk.internal.misc",
)  # fmt: skip
_LOGGING = """log4j.rootLogger=WARN, console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d %p %c{2} %m%n
"""


class HBase(Server):
    """HBase, which this object starts and kills, and its gateway beside it; clients ask the gateway, at `port`.

    The options are those of hbase-site.xml. What was acknowledged survives a kill.
    """

    name = "hbase"
    heap: ClassVar[str] = "256m"
    gateway_heap: ClassVar[str] = "64m"
    defaults: ClassVar[Options] = {
        "hbase.cluster.distributed": "false",
        "hbase.unsafe.stream.capability.enforce": "false",
        "hbase.wal.provider": "filesystem",
        "hbase.wal.hsync": "true",
        "hbase.regionserver.handler.count": 8,
        "hbase.master.info.port": -1,
        "hbase.regionserver.info.port": -1,
        "hbase.thrift.info.port": -1,
        "hbase.client.retries.number": 3,
        "hbase.rpc.timeout": 20_000,
        "hbase.client.operation.timeout": 30_000,
        "hbase.master.start.timeout.localHBaseCluster": 120_000,
        "zookeeper.session.timeout": 30_000,
    }

    def __init__(self, folder: Path, port: int | None = None, options: Options | None = None) -> None:
        super().__init__(folder, port, options)
        names = ("hbase.zookeeper.property.clientPort", "hbase.master.port", "hbase.regionserver.port")
        self._ports = {name: free_port() for name in names}
        self.gateway: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        super().start()
        self.restart_gateway()
        return self

    def restart_gateway(self) -> None:
        """Start the gateway where none runs, and wait until it serves tables."""
        if self.gateway is None or self.gateway.poll() is not None:
            self.gateway = self._spawn(self._java(self.gateway_heap, _GATEWAY, "start"), self.folder / "gateway.log")
        deadline = time.monotonic() + self.start_seconds
        while not self._serves():
            if time.monotonic() > deadline or not self.running:
                self.kill()
                raise self._error("served no tables")
            time.sleep(0.1)

    @contextmanager
    def another_gateway(self, *options: str) -> Iterator[int]:
        """Run one more gateway with these options for the block, and yield its port once it listens."""
        port = free_port()
        command = self._java(self.gateway_heap, _GATEWAY, "start", "-p", str(port), *options)
        gateway = self._spawn(command, self.folder / "another.log")
        try:
            deadline = time.monotonic() + self.start_seconds
            while self._refuses(port):
                if time.monotonic() > deadline or gateway.poll() is not None:
                    raise self._error("has no other gateway")
                time.sleep(0.1)
            yield port
        finally:
            gateway.kill()
            gateway.wait()

    def kill_gateway(self) -> None:
        """Kill the gateway; `restart_gateway` brings it back."""
        if self.gateway is not None:
            self.gateway.kill()
            self.gateway.wait()
            self.gateway = None

    def stop(self) -> None:
        self.kill()

    def kill(self) -> None:
        self.kill_gateway()
        super().kill()

    def _programs(self) -> Path:
        return installed("hbase", Path("jars/hbase"))

    def _java(self, heap: str, *arguments: str) -> list[str]:
        conf = self.folder / "conf"
        opens = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
        temporary = f"-Djava.io.tmpdir={self.folder / 'tmp'}"
        return java("hbase", heap, f"{conf}:{self._programs()}/*", *opens, temporary, *arguments)

    def _initialise(self, data: Path) -> None:
        """It makes what it needs."""

    def _before_start(self, data: Path) -> None:
        hosts = ("hbase.master.ipc.address", "hbase.regionserver.ipc.address", "hbase.master.hostname")
        settings: dict[str, str | int] = {
            "hbase.rootdir": f"file://{data}/hbase",
            "hbase.zookeeper.property.dataDir": str(data / "zookeeper"),
            "hbase.tmp.dir": str(self.folder / "tmp"),
            "hbase.zookeeper.quorum": self.host,
            "hbase.regionserver.hostname": self.host,
            "hbase.regionserver.thrift.port": self.port,
            "hbase.regionserver.thrift.ipaddress": self.host,
            **dict.fromkeys(hosts, self.host),
            **self._ports,
            **self.defaults,
            **self.options,
        }
        conf = self.folder / "conf"
        self._make(conf)
        self._write(conf / "hbase-site.xml", xml(settings))
        self._write(conf / "log4j.properties", _LOGGING)

    def _command(self, data: Path) -> Sequence[str]:
        return self._java(self.heap, _MASTER, "start")

    def _answers(self) -> bool:
        """The region server alone; see `start` for the gateway."""
        return not self._refuses(int(self._ports["hbase.regionserver.port"]))

    def _refuses(self, port: int) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((self.host, port)) != 0

    def _serves(self) -> bool:
        """Return whether the gateway describes and reads each table: the master and all regions are there."""
        import happybase

        try:
            connection = happybase.Connection(self.host, self.port, timeout=30_000)
            try:
                if b"airflow_ft" not in connection.tables():
                    connection.create_table("airflow_ft", {"f": {"max_versions": 1}})
                for table in map(connection.table, connection.tables()):
                    if connection.is_table_enabled(table.name):
                        table.families()
                        table.row(b"none")
                return True
            finally:
                connection.close()
        except Exception:
            return False
