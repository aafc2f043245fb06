"""HDFS: a NameNode and a DataNode, from the jars that tools/bootstrap.sh copies."""

import json
import os
import pwd
import socket
import subprocess
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Self

from tools.servers import processes
from tools.servers.base import Options, Server, installed
from tools.servers.hadoop import java, xml
from tools.servers.processes import free_port

_NAMENODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
_DATANODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
_ADMIN = "org.apache.hadoop.hdfs.tools.DFSAdmin"
_CLASSES = Path("jars/hdfs")


class Hdfs(Server):
    """A NameNode, which this object starts, kills and pauses, and a DataNode beside it; `url` is what clients get.

    The options are those of hdfs-site.xml. The superuser is who runs the servers; `configuration` is the folder for
    $HADOOP_CONF_DIR. Files have one replica, and small blocks, so that a quota can be small.
    """

    name = "hdfs"
    heap: ClassVar[str] = "160m"
    defaults: ClassVar[Options] = {
        "dfs.replication": 1,
        "dfs.blocksize": 1 << 20,
        "dfs.namenode.fs-limits.min-block-size": 1 << 20,
        "dfs.datanode.synconclose": "true",
        "dfs.permissions.enabled": "true",
        "fs.permissions.umask-mode": "000",
        "dfs.namenode.safemode.extension": 0,
        "dfs.heartbeat.interval": 1,
        "dfs.namenode.handler.count": 4,
        "ipc.client.connect.max.retries": 3,
    }

    def __init__(self, folder: Path, port: int | None = None, options: Options | None = None) -> None:
        super().__init__(folder, port, options)
        self._ports = {name: free_port() for name in ("http", "datanode", "datanode.http", "datanode.ipc")}
        self.data_node: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """`hdfs://host:port`."""
        return f"hdfs://{self.host}:{self.port}"

    @property
    def user(self) -> str:
        """The superuser: what $HADOOP_USER_NAME has to be."""
        ids = processes.unprivileged_ids()
        return pwd.getpwuid(os.geteuid() if ids is None else ids[0]).pw_name

    @property
    def configuration(self) -> Path:
        """The folder of core-site.xml and hdfs-site.xml."""
        return self.folder / "conf"

    def admin(self, *arguments: str) -> None:
        """`hdfs dfsadmin` as the superuser: `admin("-setSpaceQuota", "8m", "/wal")`."""
        self._run(self._java(_ADMIN, *arguments))

    def start(self) -> Self:
        super().start()
        self.start_data_node()
        deadline = time.monotonic() + self.start_seconds
        while not self._takes_files():
            if time.monotonic() > deadline or not self.running:
                self.stop_all()
                raise self._error("took no files")
            time.sleep(0.05)
        return self

    def stop_data_node(self) -> None:
        """Kills the DataNode; `start_data_node` brings it back."""
        if self.data_node is not None:
            self.data_node.kill()
            self.data_node.wait()
            self.data_node = None

    def start_data_node(self) -> None:
        """Starts one where none runs."""
        if self.data_node is None or self.data_node.poll() is not None:
            self.data_node = self._spawn(self._java(_DATANODE), self.folder / "datanode.log")

    def stop_all(self) -> None:
        """Ends both; their data stay."""
        self.stop_data_node()
        self.kill()

    def __exit__(self, *_: object) -> None:
        self.stop_all()

    def _programs(self) -> Path:
        return installed("hdfs", _CLASSES)

    def _java(self, *arguments: str) -> list[str]:
        return java("hdfs", self.heap, f"{self.configuration}:{self._programs()}/*", *arguments)

    def _site(self, data: Path) -> dict[str, str | int]:
        return {
            "dfs.namenode.name.dir": str(data / "name"),
            "dfs.datanode.data.dir": str(data / "blocks"),
            "dfs.namenode.rpc-bind-host": self.host,
            "dfs.namenode.http-address": f"{self.host}:{self._ports['http']}",
            "dfs.datanode.address": f"{self.host}:{self._ports['datanode']}",
            "dfs.datanode.http.address": f"{self.host}:{self._ports['datanode.http']}",
            "dfs.datanode.ipc.address": f"{self.host}:{self._ports['datanode.ipc']}",
            **self.defaults,
            **self.options,
        }

    def _configure(self, data: Path) -> None:
        self._make(self.configuration)
        sites: dict[str, dict[str, str | int]] = {"core": {"fs.defaultFS": self.url}, "hdfs": self._site(data)}
        for name, values in sites.items():
            self._write(self.configuration / f"{name}-site.xml", xml(values)).chmod(0o644)
        self.configuration.chmod(0o755)

    def _initialise(self, data: Path) -> None:
        self._configure(data)
        self._run(self._java(_NAMENODE, "-format", "-nonInteractive"))

    def _before_start(self, data: Path) -> None:
        self._configure(data)

    def _command(self, data: Path) -> Sequence[str]:
        return self._java(_NAMENODE)

    def _answers(self) -> bool:
        """The NameNode alone; see `start` for the other one."""
        with socket.socket() as probe:
            return probe.connect_ex((self.host, self.port)) == 0

    def _takes_files(self) -> bool:
        """Whether the NameNode knows of the DataNode and of its files."""
        page = f"http://{self.host}:{self._ports['http']}/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
        try:
            with urllib.request.urlopen(page, timeout=10) as answer:
                [state] = json.load(answer)["beans"]
        except (OSError, ValueError):
            return False
        return bool(state["NumLiveDataNodes"] and state["FSState"] == "Operational")
