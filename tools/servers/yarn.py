"""YARN: a ResourceManager and NodeManagers, from the jars that tools/bootstrap.sh copies for HDFS and for YARN."""

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from tools.servers import processes
from tools.servers.base import Options, Server, ServerError, installed
from tools.servers.hadoop import java, xml
from tools.servers.hdfs import Hdfs
from tools.servers.processes import free_port

_RESOURCE_MANAGER = "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager"
_NODE_MANAGER = "org.apache.hadoop.yarn.server.nodemanager.NodeManager"
_STORE = "org.apache.hadoop.yarn.server.resourcemanager.recovery.FileSystemRMStateStore"
_OPENED = ("--add-opens=java.base/java.lang=ALL-UNNAMED", "--add-exports=java.base/sun.net.dns=ALL-UNNAMED")
_CALCULATOR = "org.apache.hadoop.yarn.util.resource.DefaultResourceCalculator"
_LOGGING = """log4j.rootLogger=INFO, console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %p %c{1} %m%n
"""
_EXECUTOR, _MASTER = "YarnCoarseGrainedExecutorBackend", "org.apache.spark.deploy.yarn.ExecutorLauncher"
_SERVICES = ("resourcemanager", "resourcemanager.scheduler", "resourcemanager.resource-tracker",
             "resourcemanager.admin", "resourcemanager.webapp")  # fmt: skip
_NODE_SERVICES = ("nodemanager", "nodemanager.localizer", "nodemanager.collector-service", "nodemanager.webapp")


@dataclass(frozen=True)
class Container:
    """A JVM that a NodeManager has started; `node` is the number of that NodeManager."""

    pid: int
    node: int


class Yarn(Server):
    """A ResourceManager, which this object starts, kills and pauses, and NodeManagers beside it.

    The options are those of yarn-site.xml. The queue is `default`. `configuration` is the folder for $HADOOP_CONF_DIR:
    its default file system is `hdfs`. The ResourceManager recovers applications after a restart.

    Args:
        hdfs: a running HDFS; containers run as its user.
        nodes: the number of NodeManagers.
    """

    name = "yarn"
    heap: ClassVar[str] = "256m"
    node_heap: ClassVar[str] = "160m"
    node_megabytes: ClassVar[int] = 2816
    node_cores: ClassVar[int] = 2
    start_seconds: ClassVar[float] = 600
    defaults: ClassVar[Options] = {
        "yarn.resourcemanager.recovery.enabled": "true",
        "yarn.resourcemanager.store.class": _STORE,
        "yarn.resourcemanager.work-preserving-recovery.enabled": "true",
        "yarn.resourcemanager.work-preserving-recovery.scheduling-wait-ms": 1000,
        "yarn.resourcemanager.am.max-attempts": 2,
        "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": 300,
        "yarn.nm.liveness-monitor.expiry-interval-ms": 15_000,
        "yarn.resourcemanager.nm.liveness-monitor.interval-ms": 2000,
        "yarn.am.liveness-monitor.expiry-interval-ms": 120_000,
        "yarn.resourcemanager.connect.retry-interval.ms": 1000,
        "yarn.scheduler.minimum-allocation-mb": 128,
        "yarn.nodemanager.vmem-check-enabled": "false",
        "yarn.nodemanager.pmem-check-enabled": "false",
        "yarn.nodemanager.disk-health-checker.enable": "false",
        "yarn.nodemanager.sleep-delay-before-sigkill.ms": 1000,
        "yarn.dispatcher.exit-on-error": "true",
    }

    def __init__(
        self,
        folder: Path,
        port: int | None = None,
        options: Options | None = None,
        *,
        hdfs: Hdfs,
        nodes: int = 2,
    ) -> None:
        super().__init__(folder, port, options)
        self.hdfs = hdfs
        self._ports = {name: free_port() for name in _SERVICES} | {"resourcemanager": self.port}
        self._node_ports = [{name: free_port() for name in _NODE_SERVICES} for _ in range(nodes)]
        self._nodes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def configuration(self) -> Path:
        """The folder of core-site.xml, hdfs-site.xml and yarn-site.xml."""
        return self.folder / "conf"

    # --- life ---

    def start(self) -> Self:
        """Start the ResourceManager, and each NodeManager that does not run."""
        super().start()
        self.start_nodes()
        return self

    def start_nodes(self) -> None:
        """Start each NodeManager that does not run, and wait until the ResourceManager knows all."""
        for node in range(len(self._node_ports)):
            self.start_node(node)
        deadline = time.monotonic() + self.start_seconds
        while len(self.running_nodes()) < len(self._node_ports):
            if time.monotonic() > deadline or not self.running:
                self.stop_all()
                raise self._error("has not seen all NodeManagers")
            time.sleep(0.1)

    def start_node(self, node: int) -> None:
        """Start a NodeManager where none runs."""
        if node not in self._nodes or self._nodes[node].poll() is not None:
            self._nodes[node] = self._spawn(
                self._java(self.node_heap, self._node_folder(node), _NODE_MANAGER), self.folder / f"node-{node}.log"
            )

    def kill_node(self, node: int, *, containers: bool = True) -> None:
        """Kill a NodeManager, with its containers as a machine that is gone, or without: they continue."""
        process = self._nodes.pop(node)
        if process.poll() is None:
            process.send_signal(signal.SIGSTOP)  # it starts none in their place
        if containers:
            self._end_containers(node)
        process.kill()
        process.wait()

    def stop_all(self) -> None:
        """End all servers and containers; their data stay."""
        for node in list(self._nodes):
            self.kill_node(node)
        self._end_containers()
        self.kill()

    def __exit__(self, *_: object) -> None:
        self.stop_all()

    def _end_containers(self, node: int | None = None) -> None:
        pids = [pid for pid, found in self._in_containers() if node in (None, found)]
        processes.send(pids, signal.SIGKILL)
        if not processes.await_end(pids, 60):
            raise ServerError("containers of YARN did not end after SIGKILL")

    # --- what is there ---

    def running_nodes(self) -> list[str]:
        """Return the NodeManagers that the ResourceManager counts as running."""
        found = self._asked("nodes?states=RUNNING")["nodes"]
        return [node["id"] for node in (found or {}).get("node", [])]

    def applications(self, states: str = "") -> list[dict[str, Any]]:
        """Return the applications, also those that have ended; `states` is a list with commas."""
        found = self._asked(f"apps?states={states}" if states else "apps")["apps"]
        return list((found or {}).get("app", []))

    def executors(self) -> list[Container]:
        """Return the JVMs of Spark's executors, also of those that a NodeManager has left behind."""
        return self._jvms(_EXECUTOR)

    def masters(self) -> list[Container]:
        """Return the JVMs of Spark's application masters."""
        return self._jvms(_MASTER)

    def _jvms(self, main: str) -> list[Container]:
        found = []
        for pid, node in self._in_containers():
            words = processes.command_line(pid).split(" ")
            if words[0].endswith("/java") and any(word.endswith(main) for word in words):
                found.append(Container(pid, node))
        return sorted(found, key=lambda each: each.pid)

    def _in_containers(self) -> list[tuple[int, int]]:
        """Return the processes that work in the folder of a NodeManager, by the number of that one."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                at = (entry / "cwd").readlink() if entry.name.isdigit() else Path()
            except OSError:
                continue
            if at.is_relative_to(self.folder) and len(at.parts) > len(self.folder.parts) + 1:
                name, below = at.parts[len(self.folder.parts) :][:2]
                if name.startswith("node-") and below == "local":
                    found.append((int(entry.name), int(name.removeprefix("node-"))))
        return found

    def _asked(self, what: str) -> dict[str, Any]:
        page = f"http://{self.host}:{self._ports['resourcemanager.webapp']}/ws/v1/cluster/{what}"
        with urllib.request.urlopen(page, timeout=10) as answer:
            return dict(json.load(answer))

    # --- for Server ---

    def _programs(self) -> Path:
        return installed("yarn", Path("jars/yarn"))

    def _environment(self) -> dict[str, str]:
        program = shutil.which("java") or "/usr/bin/java"
        home = os.environ.get("JAVA_HOME") or str(Path(program).resolve().parents[1])
        return {**super()._environment(), "JAVA_HOME": home, "SPARK_LOCAL_IP": self.host}

    def _java(self, heap: str, conf: Path, main: str) -> list[str]:
        classes = f"{conf}:{installed('hdfs', Path('jars/hdfs'))}/*:{self._programs()}/*"
        return java("yarn", heap, classes, *_OPENED, f"-Djava.io.tmpdir={self.folder / 'tmp'}", main)

    def _node_folder(self, node: int) -> Path:
        return self.folder / f"node-{node}"

    def _initialise(self, data: Path) -> None:
        """It makes what it needs."""

    def _before_start(self, data: Path) -> None:
        site: dict[str, str | int] = {
            "yarn.resourcemanager.hostname": self.host,
            "yarn.resourcemanager.fs.state-store.uri": f"file://{data}/state",
            "yarn.nodemanager.resource.memory-mb": self.node_megabytes,
            "yarn.nodemanager.resource.cpu-vcores": self.node_cores,
            **{f"yarn.{name}.address": f"{self.host}:{port}" for name, port in self._ports.items()},
            **self.defaults,
            **self.options,
        }
        self._configure(self.configuration, site)
        for node, ports in enumerate(self._node_ports):
            folder = self._node_folder(node)
            own = {f"yarn.{name}.address": f"{self.host}:{port}" for name, port in ports.items()}
            for name in ("local", "log"):
                self._make(folder / name)
                own[f"yarn.nodemanager.{name}-dirs"] = str(folder / name)
            self._configure(folder, {**site, **own, "yarn.nodemanager.hostname": self.host})

    def _configure(self, folder: Path, site: dict[str, str | int]) -> None:
        self._make(folder)
        root = "yarn.scheduler.capacity.root"
        scheduler: dict[str, str | int] = {
            f"{root}.queues": "default",
            f"{root}.default.capacity": 100,
            "yarn.scheduler.capacity.maximum-am-resource-percent": 1,
            "yarn.scheduler.capacity.resource-calculator": _CALCULATOR,
        }
        hdfs = self.hdfs.configuration
        for name, text in {
            "core-site.xml": (hdfs / "core-site.xml").read_text(),
            "hdfs-site.xml": (hdfs / "hdfs-site.xml").read_text(),
            "yarn-site.xml": xml(site),
            "capacity-scheduler.xml": xml(scheduler),
            "log4j.properties": _LOGGING,
        }.items():
            self._write(folder / name, text).chmod(0o644)
        folder.chmod(0o755)

    def _command(self, data: Path) -> Sequence[str]:
        return self._java(self.heap, self.configuration, _RESOURCE_MANAGER)

    def _answers(self) -> bool:
        """Whether the ResourceManager is active; see `start` for the NodeManagers."""
        try:
            return bool(self._asked("info")["clusterInfo"]["state"] == "STARTED")
        except (OSError, ValueError):
            return False
