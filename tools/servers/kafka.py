"""Apache Kafka: one broker, which is its own controller, from the jars that tools/bootstrap.sh copies."""

import os
import shutil
import socket
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tools.servers.base import Options, Server, ServerError, installed
from tools.servers.processes import free_port


class Kafka(Server):
    """A broker on which topics exist only when they were created; `bootstrap` is what clients connect to.

    The options are broker properties. Further options of its JVM stand in $KAFKA_OPTS. `restart` keeps topics, groups
    and transactions.

    **A broker that is killed and started again at once can lose the end of a committed transaction** (seen with 4.3.1):
    it resumes as coordinator from the metadata of its former life, is fenced while it registers anew, finds no leader
    for the partitions ("these partitions are likely deleted already and hence can be skipped"), and declares the
    transaction complete without having written its markers. Its records then stay invisible, and so does whatever
    follows them. A cluster with replicas has another leader by then. `restart` keeps out of this by fencing the former
    life first; with `fence=False` it starts the broker as a service manager would. A pause of more than
    `broker.session.timeout.ms` opens the same window when it ends.
    """

    name = "kafka"
    heap: ClassVar[str] = "384m"
    defaults: ClassVar[Options] = {
        "num.partitions": 4,
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 4,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 4,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
        # One that stands still for longer is fenced, which loses markers (above): on a busy machine 4 s may pass.
        "broker.session.timeout.ms": 18_000,
        # An idle broker takes half as much of a core with these two (4 of them idle for most of a run of the tests).
        "broker.heartbeat.interval.ms": 2_000,
        "metadata.max.idle.interval.ms": 5_000,
        "log.cleaner.dedupe.buffer.size": 16_777_216,
    }

    def __init__(
        self, folder: Path, port: int | None = None, options: Options | None = None, *, fence: bool = True
    ) -> None:
        super().__init__(folder, port, options)
        self.fence = fence
        self._controller_port = free_port()

    @property
    def bootstrap(self) -> str:
        """The value of `bootstrap.servers`."""
        return f"{self.host}:{self.port}"

    def admin(self) -> AdminClient:
        """A new administration client."""
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def create_topic(self, name: str, partitions: int = 4, config: Mapping[str, str] | None = None) -> None:
        """Create a topic and wait until clients can use it; an existing one is an error."""
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
        admin = self.admin()  # kept in a variable: its requests end with it
        admin.create_topics([topic], operation_timeout=30)[name].result(60)
        deadline = time.monotonic() + 60
        while not self._has_leaders(
            admin, name
        ):  # the answer comes from the controller, a moment before the broker knows
            if time.monotonic() > deadline:
                raise self._error(f"the topic {name} has no leaders 60 s after it was created")
            time.sleep(0.01)

    def add_partitions(self, topic: str, total: int) -> None:
        """Gives a topic more partitions, so that it has `total`, and waits until clients can use them."""
        admin = self.admin()
        admin.create_partitions([NewPartitions(topic, total)], operation_timeout=30)[topic].result(60)
        deadline = time.monotonic() + 60
        while len(admin.list_topics(topic, timeout=10).topics[topic].partitions) < total or not self._has_leaders(
            admin, topic
        ):
            if time.monotonic() > deadline:
                raise self._error(f"the topic {topic} has not got {total} partitions in 60 s")
            time.sleep(0.01)

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        admin = self.admin()
        admin.delete_topics([name], operation_timeout=30)[name].result(60)

    def _programs(self) -> Path:
        return installed("kafka", Path("jars/kafka"))

    def _java(self, *arguments: str, level: str = "WARN") -> list[str]:
        java = shutil.which("java")
        if java is None:
            raise ServerError("there is no java: run tools/bootstrap.sh kafka")
        return [
            java,
            f"-Xmx{self.heap}",
            "-XX:+UseSerialGC",
            *os.environ.get("KAFKA_OPTS", "").split(),
            "-Djava.net.preferIPv4Stack=true",
            f"-Dlog4j2.level={level}",
            "-cp",
            f"{self._programs()}/*",
            *arguments,
        ]

    def _properties(self, data: Path) -> dict[str, str | int]:
        listener, controller = f"PLAINTEXT://{self.bootstrap}", f"{self.host}:{self._controller_port}"
        return {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"{listener},CONTROLLER://{controller}",
            "advertised.listeners": listener,
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(data),
            **self.defaults,
            **self.options,
        }

    def _controller_properties(self, data: Path) -> dict[str, str | int]:
        properties = self._properties(data)
        del properties["advertised.listeners"]
        return properties | {
            "process.roles": "controller",
            "listeners": f"CONTROLLER://{self.host}:{self._controller_port}",
            "broker.session.timeout.ms": 250,
        }

    def _write_properties(self, name: str, properties: Mapping[str, str | int]) -> str:
        text = "".join(f"{key}={value}\n" for key, value in properties.items())
        return str(self._write(self.folder / f"{name}.properties", text))

    def _before_start(self, data: Path) -> None:
        """After an unclean end, run the controller alone until it has fenced the broker's former life."""
        metadata = data / "__cluster_metadata-0"
        if not self.fence or (data / ".kafka_cleanshutdown").exists() or not metadata.exists():
            return
        log = self.folder / "fence.log"
        log.unlink(missing_ok=True)
        properties = self._write_properties("fence", self._controller_properties(data))
        controller = self._spawn(self._java("kafka.Kafka", properties, level="INFO"), log)
        try:
            active: float | None = None
            deadline = time.monotonic() + self.start_seconds
            while "Fencing broker 1 " not in (text := log.read_text(errors="replace")):
                now = time.monotonic()
                if controller.poll() is not None or now > deadline:
                    raise self._error(f"its controller did not fence the killed broker, see {log}")
                if active is None and "Becoming the active controller" in text:
                    active = now
                if active is not None and now - active > 30:
                    break  # it is fenced already: killed before it was let in
                time.sleep(0.02)
            controller.terminate()  # cleanly: the record of the fencing may not be written yet
            controller.wait(self.start_seconds)
        finally:
            controller.kill()
            controller.wait()

    def _initialise(self, data: Path) -> None:
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        properties = self._write_properties("format", self._properties(data))
        self._run(self._java("kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", properties))

    def _command(self, data: Path) -> Sequence[str]:
        return self._java("kafka.Kafka", self._write_properties("server", self._properties(data)))

    def _answers(self) -> bool:
        with socket.socket() as probe:  # the client would complain aloud of a broker that is not there yet
            if probe.connect_ex((self.host, self.port)) != 0:
                return False
        try:
            return self._has_leaders(self.admin())
        except KafkaException:
            return False

    def _has_leaders(self, admin: AdminClient, topic: str | None = None) -> bool:
        """Whether the broker serves all partitions of the topic, or of all topics."""
        metadata: Any = admin.list_topics(topic, timeout=10) if topic else admin.list_topics(timeout=10)
        if not metadata.brokers or any(found.error or not found.partitions for found in metadata.topics.values()):
            return False
        return all(part.leader == 1 for found in metadata.topics.values() for part in found.partitions.values())
