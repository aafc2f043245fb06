"""The ids of topics, asked of the brokers by the JVM: with the very settings that Spark reads with.

Another client would need the connection's security in other words (Java's own settings, delegation tokens).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.errors import StageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_ft.protocol.connections import ConnectionInfo
    from airflow_ft.sources.kafka import KafkaSource

_SECONDS = 60
_LATEST_SECONDS = 5
_PARTITIONS_SECONDS = 10.0
EARLIEST = -2  # in Spark's words
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"  # of brokers that give topics no ids
_MANY = 20  # topics: from then on one answer about all of a cluster takes less than some of py4j's calls for each
_LISTED = re.compile(r"\(name=([\w.-]+), topicId=([\w-]{22}), internal=")  # as Java's TopicListing prints itself
_END = re.compile(r"([\w.-]+)-(\d+)=\w+\(offset=(\d+),")  # as a map of Java's ListOffsetsResultInfo prints itself
_NOT_THERE = ("UnknownTopicOrPartitionException", "UnknownTopicIdException")


class TopicAdmin:
    """An administration client of one source; it connects when it is first asked. Thread-safe, as py4j is."""

    def __init__(self, spark: SparkSession, name: str, source: KafkaSource, connection: ConnectionInfo) -> None:
        self._jvm: Any = spark._jvm
        self._name, self._source, self._connection = name, source, connection
        self._client: Any = None
        self._unit: Any = None  # kept: to look it up takes five of py4j's calls, and each micro-batch asks twice
        self._is_closed = False
        self._ends: tuple[Sequence[str], float, Any] | None = None  # topics, when they were looked at, what is asked

    def topics(self, recorded: Iterable[str] = ()) -> Mapping[str, str]:
        """Ids by name ("": the brokers give none) of all topics that the source reads now, and of those `recorded`.

        A topic that does not exist is left out. StageError when the brokers do not answer, or refuse.
        """
        if self._source.pattern is None:
            return self.ids({*self._source.topics, *recorded})
        others = self._jvm.java.util.regex.Pattern.compile(self._source.pattern).asMatchPredicate().negate()
        names = self._jvm.java.util.HashSet(
            self._asked(lambda client, unit: client.listTopics().names().get(_SECONDS, unit))
        )
        names.removeIf(others)
        return self.ids({*re.findall(r"[\w.-]+", str(names.toString())), *recorded})

    def ids(self, names: Iterable[str]) -> Mapping[str, str]:
        """The same of these topics alone."""
        found: dict[str, str] = {}
        wanted = sorted(set(names))
        if len(wanted) > _MANY:
            listed = self._asked(lambda client, unit: client.listTopics().listings().get(_SECONDS, unit).toString())
            ids = {name: "" if text == _NO_ID else text for name, text in _LISTED.findall(str(listed))}
            found = {name: ids[name] for name in wanted if name in ids}
            wanted = [name for name in wanted if name not in ids]  # gone, or Kafka's own
        if not wanted:
            return found

        for name, described in self._described(wanted).items():
            if described is not None:
                text = str(described.topicId().toString())
                found[name] = "" if text == _NO_ID else text
        return found

    def group_offsets(self) -> dict[str, dict[int, int]]:
        """Return the group's committed offsets: topic -> partition -> offset; -2 (the earliest) without a committed
        offset.
        """
        group = str(self._source.group_id)
        # Stable ones: a transaction that has committed offsets may not have ended for the group's own log yet.
        options = self._jvm.org.apache.kafka.clients.admin.ListConsumerGroupOffsetsOptions().requireStable(True)
        where = self._asked(
            lambda client, unit: (
                client.listConsumerGroupOffsets(group, options).partitionsToOffsetAndMetadata().get(_SECONDS, unit)
            )
        )
        committed = {}
        for entry in where.entrySet() if where is not None else ():
            if entry.getValue() is not None:
                partition = entry.getKey()
                committed[str(partition.topic()), int(partition.partition())] = int(entry.getValue().offset())
        return {
            topic: {number: committed.get((topic, number), EARLIEST) for number in range(partitions)}
            for topic, partitions in self.partitions().items()
        }

    def partitions(self) -> dict[str, int]:
        """Return how many each of the source's listed topics has; StageError when one does not exist."""
        found: dict[str, int] = {}
        for topic, described in self._described(self._source.topics).items():
            if described is None:
                raise StageError(
                    f"topic {topic!r} of source {self._name!r} does not exist.",
                    code="topic_missing",
                    participant=self._source.conn_id,
                    remedy=f"Create the topic {topic!r}, or remove it from the source.",
                    source=self._name,
                    topic=topic,
                )
            found[topic] = int(described.partitions().size())
        return found

    def latest(self, names: Sequence[str]) -> Mapping[str, Mapping[str, int]]:
        """The end of each partition, as far as the source may read: topic -> partition -> offset.

        With a pattern, of the topics that match it now, too. What has come in the last ten seconds may lack. StageError
        when the brokers do not answer.
        """
        jvm = self._jvm
        if self._ends is None or self._ends[0] != names or time.monotonic() - self._ends[1] > _PARTITIONS_SECONDS:
            asked, end = jvm.java.util.HashMap(), jvm.org.apache.kafka.clients.admin.OffsetSpec.latest()
            there = names if self._source.pattern is None else sorted(self.topics(names))
            for topic, described in self._described(there).items():
                for partition in range(int(described.partitions().size()) if described is not None else 0):
                    asked.put(jvm.org.apache.kafka.common.TopicPartition(topic, partition), end)
            self._ends = names, time.monotonic(), asked
        asked = self._ends[2]
        level = jvm.org.apache.kafka.common.IsolationLevel.valueOf(self._source.isolation_level.upper())
        options = jvm.org.apache.kafka.clients.admin.ListOffsetsOptions(level)
        ends = self._asked(lambda client, unit: client.listOffsets(asked, options).all().get(_LATEST_SECONDS, unit))
        found: dict[str, dict[str, int]] = {}
        for topic, partition, offset in _END.findall("" if ends is None else str(ends.toString())):
            found.setdefault(topic, {})[partition] = int(offset)
        return found

    def _described(self, names: Sequence[str]) -> dict[str, Any]:
        """Java's TopicDescription of each topic; None for one that is not there."""
        collection = self._jvm.java.util.ArrayList(list(names))
        answers = self._asked(lambda client, _: client.describeTopics(collection).topicNameValues())
        return {name: self._asked(lambda _, unit, n=name: answers.get(n).get(_SECONDS, unit)) for name in names}

    def close(self) -> None:
        """Close its connections, which a kept JVM would leave open. Later calls are refused."""
        self._is_closed = True
        if self._client is not None:
            client, self._client = self._client, None
            with suppress(Exception):  # the JVM may be gone, which must not hide why
                client.close(self._jvm.java.time.Duration.ZERO)

    def _asked(self, ask: Any) -> Any:
        """The answer; None for a topic that is not there."""
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

        try:
            if self._client is None:
                if self._is_closed:
                    raise StageError(
                        f"the client of source {self._name!r} is closed: the attempt has ended.",
                        code="stage_failed",
                        source=self._name,
                    )
                self._unit = self._jvm.java.util.concurrent.TimeUnit.SECONDS
                self._client = self._connect()
            return ask(self._client, self._unit)
        except Py4JJavaError as error:
            cause = error.java_exception.getCause() or error.java_exception
            kind = str(cause.getClass().getSimpleName())
            if kind in _NOT_THERE:
                return None
            servers = self._source.reader_options(self._connection)["kafka.bootstrap.servers"]
            raise StageError(
                f"the brokers at {servers} did not describe the topics of source {self._name!r}: {_text(kind, cause)}.",
                code=_code(kind),
                participant=self._source.conn_id,
                remedy="Check that this machine reaches the brokers, and that the source's user may DESCRIBE its topics"
                " (and its group, if the source starts at the offsets of one).",
                source=self._name,
                servers=servers,
                reason=kind,
            ) from error

    def _connect(self) -> Any:
        options = self._source.reader_options(self._connection)
        settings = {
            name[len("kafka.") :]: value
            for name, value in options.items()
            if name.lower().startswith("kafka.") and name.lower() != "kafka.isolation.level"
        }
        # As Spark makes its own: with delegation tokens, where there are any.
        strategy = self._jvm.org.apache.spark.sql.kafka010.SubscribePatternStrategy(".*")
        return strategy.createAdmin(self._jvm.java.util.HashMap(settings))


def _text(kind: str, cause: Any) -> str:
    said = cause.getMessage()
    return kind if said is None else f"{kind}: {said}".rstrip(".")


def _code(kind: str) -> str:
    """The code for an exception of Kafka's Java client."""
    if "Authorization" in kind:
        return "privilege_missing"
    return "login_refused" if "Authentication" in kind else "server_unreachable"


def topic_admins(
    spark: SparkSession, sources: Mapping[int, tuple[str, KafkaSource]], connections: Mapping[str, ConnectionInfo]
) -> dict[int, TopicAdmin]:
    """One for each Kafka source, by its place among the query's sources."""
    return {
        index: TopicAdmin(spark, name, source, connections[source.conn_id]) for index, (name, source) in sources.items()
    }
