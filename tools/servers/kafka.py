"""Apache Kafka: one broker, which is its own controller, from the jars that tools/bootstrap.sh copies."""

import shutil
import socket
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tools.servers.base import Options, Server, ServerError, installed
from tools.servers.processes import free_port


class Kafka(Server):
    """A broker on which topics exist only when they were created; `bootstrap` is what clients connect to.

    The options are broker properties. `restart` keeps topics, groups and transactions.
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
        # A killed broker is let in again only when its old session has expired.
        "broker.session.timeout.ms": 1_500,
        "broker.heartbeat.interval.ms": 250,
        "log.cleaner.dedupe.buffer.size": 16_777_216,
    }

    def __init__(self, folder: Path, port: int | None = None, options: Options | None = None) -> None:
        super().__init__(folder, port, options)
        self._controller_port = free_port()

    @property
    def bootstrap(self) -> str:
        """The value of `bootstrap.servers`."""
        return f"{self.host}:{self.port}"

    def admin(self) -> AdminClient:
        """A new administration client."""
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def create_topic(self, name: str, partitions: int = 4, config: Mapping[str, str] | None = None) -> None:
        """Create a topic and wait until the broker knows it; an existing one is an error."""
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
        admin = self.admin()
        admin.create_topics([topic], operation_timeout=30)[name].result(60)

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        self.admin().delete_topics([name], operation_timeout=30)[name].result(60)

    def _programs(self) -> Path:
        return installed("kafka", Path("jars/kafka"))

    def _java(self, *arguments: str) -> list[str]:
        java = shutil.which("java")
        if java is None:
            raise ServerError("there is no java: run tools/bootstrap.sh kafka")
        return [java, f"-Xmx{self.heap}", "-XX:+UseSerialGC", "-Dlog4j2.level=WARN", "-cp", f"{self._programs()}/*", *arguments]

    def _properties(self, data: Path) -> str:
        listener, controller = f"PLAINTEXT://{self.bootstrap}", f"{self.host}:{self._controller_port}"
        properties: dict[str, str | int] = {
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
        return "".join(f"{key}={value}\n" for key, value in properties.items())

    def _initialise(self, data: Path) -> None:
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        properties = self._write(self.folder / "format.properties", self._properties(data))
        self._run(self._java("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(properties)))

    def _command(self, data: Path) -> Sequence[str]:
        properties = self._write(self.folder / "server.properties", self._properties(data))
        return self._java("kafka.Kafka", str(properties))

    def _answers(self) -> bool:
        with socket.socket() as probe:  # the client would complain aloud of a broker that is not there yet
            if probe.connect_ex((self.host, self.port)) != 0:
                return False
        try:
            metadata: Any = self.admin().list_topics(timeout=5)
        except KafkaException:
            return False
        return bool(metadata.brokers)
