"""Kafka as a source: topics, where to start, and how an Airflow connection becomes options of Spark's reader."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_ft.protocol.argument_names import by_name
from airflow_ft.protocol.arguments import (
    bound,
    check_options,
    check_text,
    check_texts,
    check_type,
    is_template,
    refuse_object,
    shown,
    standard_time,
)
from airflow_ft.protocol.connections import connection_of_type
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.sources.kafka_options import kafka_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_ft.protocol.connections import ConnectionInfo, ConnectionResolver

GROUP_OFFSETS = "group_offsets"
FORM_START = "{{ params.get('starting_offsets') or "
"""Beginning of the Jinja that uses the field of `pipeline_params`."""
_STARTS = 'Give "earliest", "latest", "group_offsets", {topic: {partition: offset}} or a datetime with a zone.'
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WAITING = {"minoffsetspertrigger", "maxtriggerdelay"}  # with these Spark leaves records unread
StartingOffsets = str | Mapping[str, Mapping[int, int]] | datetime
# Set by the fields below, or by the protocol; Spark itself refuses some of them.
_RESERVED = {
    *_WAITING,
    "subscribe",
    "subscribepattern",
    "assign",
    "startingoffsets",
    "startingtimestamp",
    "startingoffsetsbytimestamp",
    "endingoffsets",
    "maxoffsetspertrigger",
    "failondataloss",
    "includeheaders",
    "kafka.isolation.level",
    "kafka.bootstrap.servers",
    "kafka.group.id",
}


@by_name
@dataclass(frozen=True, kw_only=True)
class KafkaSource:
    """Topics of one Kafka cluster; rows have Spark's columns: key, value, topic, partition, offset, timestamp,
    timestampType, headers.

    Args:
        topics: names of topics; or, instead, `pattern`.
        pattern: a Java regular expression that the names of topics match as a whole.
        conn_id: the Airflow connection of type `kafka`.
        starting_offsets: used only until the first publication: later runs continue from the checkpoint. One of

            - "earliest" or "latest",
            - `{topic: {partition: offset}}` (-2: earliest, -1: latest); a partition that is not named starts at its
              earliest,
            - a datetime with a zone: the first record at or after it; a partition without one starts at its end,
            - "group_offsets": the committed offsets of the group `group_id`, or the earliest offset of a partition
              without one, so that a pipeline continues after another consumer,
            - Jinja that becomes one of these words. It may not become a time: a failed run would move the start.
              The form of `pipeline_params` may give a time.

        isolation_level: "read_committed", or "read_uncommitted": also what open and aborted transactions wrote.
        max_offsets_per_trigger: bounds a checkpoint, in offsets over all partitions. None: no bound. It may be Jinja.
        fail_on_data_loss: fail a run when unread records are gone, when a topic was deleted and recreated, and when a
            full refresh would skip unread records (DataLossError). If False, such a topic is read from its beginning,
            and such records are skipped.
        group_id: consumer group that receives the confirmed offsets, so that lag monitors see this pipeline. The
            pipeline does not read with it, and no consumer may use it.
        commit_offsets: if False, none are committed.
        options: for Spark's reader, as they are.

    Raises:
        ConfigurationError: for combinations that cannot work.
    """

    needs_connector: ClassVar[bool] = True  # Spark reads it by a jar that does not come with it

    topics: Sequence[str] = ()
    pattern: str | None = None
    conn_id: str = "kafka_default"
    starting_offsets: StartingOffsets = "earliest"
    isolation_level: str = "read_committed"
    max_offsets_per_trigger: int | str | None = None
    fail_on_data_loss: bool = True
    group_id: str | None = None
    commit_offsets: bool = True
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.topics, str):
            refuse_object("topics", self.topics, of="KafkaSource")
            raise _invalid("topics", "topics of KafkaSource is a text, not a list.", f'Write ["{self.topics}"].')
        self._check_types()
        if bool(self.topics) == bool(self.pattern):
            raise ConfigurationError(
                "KafkaSource has both topics and pattern." if self.topics else "KafkaSource needs topics or pattern.",
                code="arguments_conflict" if self.topics else "argument_missing",
                remedy='Give topics=["orders"], or pattern="orders-.*", which also finds later topics.',
                argument="topics",
            )
        if any(not topic or "," in topic for topic in self.topics if not is_template(topic)):
            what = f"topics of KafkaSource has an invalid name: {list(self.topics)}."
            raise _invalid("topics", what, 'Give each topic as its own text: ["orders", "returns"].')
        object.__setattr__(self, "topics", tuple(self.topics))
        if isinstance(self.conn_id, str) and not self.conn_id.strip():
            raise ConfigurationError(
                "KafkaSource needs the id of an Airflow connection.",
                code="argument_missing",
                remedy="Set conn_id.",
                argument="conn_id",
            )
        if self.isolation_level not in ("read_committed", "read_uncommitted"):
            raise _invalid(
                "isolation_level",
                f"isolation_level of KafkaSource is {self.isolation_level!r}, not read_committed or read_uncommitted.",
                "Remove it: the default read_committed reads what transactions have committed.",
            )
        if self.group_id is not None and not self.group_id:
            raise _invalid("group_id", "group_id of KafkaSource is empty.", "Remove it, or name a group.")
        self._check_start()
        for name in self.options:
            if name.lower() in _RESERVED:
                remedy = "Use the argument of KafkaSource, or the Airflow connection, instead."
                if name.lower() in _WAITING:
                    remedy = (
                        "Remove it: a run reads all there is. CheckpointConfig.interval says how often a stream reads."
                    )
                what = f"option {name!r} of KafkaSource is reserved for airflow-ft."
                raise ConfigurationError(what, code="option_reserved", remedy=remedy, option=name)

    def _check_types(self) -> None:
        of = "KafkaSource"
        check_texts("topics", self.topics, of=of)
        for name in ("pattern", "group_id"):
            check_text(name, getattr(self, name), optional=True, of=of)
        for name in ("conn_id", "isolation_level"):
            check_text(name, getattr(self, name), of=of)
        for name in ("fail_on_data_loss", "commit_offsets"):
            check_type(name, getattr(self, name), bool, "Give True or False.", of=of)
        most = bound("max_offsets_per_trigger", self.max_offsets_per_trigger, of, "offsets")
        object.__setattr__(self, "max_offsets_per_trigger", most)
        if not is_template(self.starting_offsets):
            check_type("starting_offsets", self.starting_offsets, (str, Mapping, datetime), _STARTS, of=of)
        if isinstance(self.starting_offsets, Mapping):
            for topic, offsets in self.starting_offsets.items():
                check_type(f"starting_offsets[{topic!r}]", offsets, Mapping, "Give {partition: offset}.", of=of)
                for partition, offset in offsets.items():
                    remedy = "To name a partition, give its number."
                    check_type(f"a partition of {topic!r} in starting_offsets", partition, int, remedy, of=of)
                    check_type(f"starting_offsets[{topic!r}][{partition}]", offset, int, "Give an offset.", of=of)
                    if partition < 0 or offset < -2:
                        raise _invalid(
                            "starting_offsets",
                            f"starting_offsets[{topic!r}][{partition}] of {of} is {offset}.",
                            "Count partitions and offsets from 0. Use -2 for the earliest offset, -1 for the latest.",
                        )
        check_options(self.options, of)

    def _check_start(self) -> None:
        start = standard_time(self.starting_offsets)
        object.__setattr__(self, "starting_offsets", start)
        if is_template(start):
            return
        if isinstance(start, str) and start not in ("earliest", "latest", GROUP_OFFSETS):
            with suppress(ValueError):  # a time in ISO 8601
                start = datetime.fromisoformat(start)
                object.__setattr__(self, "starting_offsets", start)
        if isinstance(start, str):
            if start not in ("earliest", "latest", GROUP_OFFSETS):
                raise _invalid("starting_offsets", f"KafkaSource: starting_offsets is {shown(start)}.", _STARTS)
            if start == GROUP_OFFSETS and not self.group_id:
                raise ConfigurationError(
                    'starting_offsets="group_offsets" of KafkaSource needs group_id.',
                    code="argument_missing",
                    remedy="Set group_id to name the group.",
                    argument="group_id",
                )
            if start == GROUP_OFFSETS and self.pattern:
                raise ConfigurationError(
                    'starting_offsets="group_offsets" of KafkaSource needs topics, not a pattern.',
                    code="arguments_conflict",
                    remedy="List the topics for the first run. A pattern may replace them later.",
                    argument="pattern",
                )
        elif isinstance(start, datetime):
            if start.tzinfo is None:
                raise _invalid(
                    "starting_offsets",
                    f"starting_offsets of KafkaSource is a time without a zone: {start.isoformat()}.",
                    "Give datetime(2026, 1, 2, tzinfo=UTC), or text such as 2026-01-02T00:00:00+00:00.",
                )
        elif self.pattern or set(start) != set(self.topics) or not all(start.values()):
            raise _invalid(
                "starting_offsets",
                "starting_offsets of KafkaSource must name every topic, and offsets of its partitions"
                f"{self._differing(start)}.",
                "Use -2 for the earliest offset of a partition (as for those that you do not name), -1 for the latest.",
            )

    def _differing(self, start: Mapping[str, Mapping[int, int]]) -> str:
        """Return the difference between the topics and the starting offsets."""
        if self.pattern:
            return ", which a pattern cannot know"
        lacking = [topic for topic in self.topics if not start.get(topic)]
        besides = [topic for topic in start if topic not in self.topics]
        found = [f"it lacks {', '.join(lacking)}"] if lacking else []
        found += [f"{', '.join(besides)} is none of the topics"] if besides else []
        return f": {'; '.join(found)}"

    def check_rendered(self, declared: KafkaSource) -> None:
        """Raise ConfigurationError if a run has rendered the start as a time: the next run would render another one.

        A time of `pipeline_params` is allowed, because a person gives it.
        """
        template = declared.starting_offsets
        if is_template(template) and not _is_of_form(template) and isinstance(self.starting_offsets, datetime):
            raise _invalid(
                "starting_offsets",
                f"starting_offsets of KafkaSource is a time that this run has rendered: {self.starting_offsets}.",
                "Write the datetime itself, which counts only for the first run. To give it for one run, use the field"
                " of pipeline_params.",
            )

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> KafkaSource:
        """The inverse of `to_json`."""
        start = data["starting_offsets"]
        if isinstance(start, dict):
            if "timestamp" in start:
                start = datetime.fromisoformat(start["timestamp"])
            else:
                start = {t: {int(p): o for p, o in offsets.items()} for t, offsets in start["offsets"].items()}
        rest = {name: data[name] for name in _PLAIN_FIELDS}
        return cls(starting_offsets=start, **rest)

    def to_json(self) -> dict[str, Any]:
        """Plain data without secrets."""
        start: Any = self.starting_offsets
        if isinstance(start, datetime):
            start = {"timestamp": start.isoformat()}
        elif not isinstance(start, str):
            start = {"offsets": {t: {str(p): o for p, o in offsets.items()} for t, offsets in start.items()}}
        return {
            "kind": "kafka",
            "starting_offsets": start,
            **{name: getattr(self, name) for name in _PLAIN_FIELDS},
            "topics": list(self.topics),
            "options": dict(self.options),
        }

    def connection(self, connections: ConnectionResolver) -> ConnectionInfo:
        """Return its Airflow connection; raises as `connections` does."""
        return connection_of_type("kafka", self.conn_id, connections)

    def reader_options(self, connection: ConnectionInfo) -> dict[str, str]:
        """All options of Spark's Kafka reader; they contain the connection's secrets."""
        options, of_connection = dict(self.options), kafka_options(connection)
        given = {name.lower(): value for name, value in self.options.items()}
        if others := sorted(n for n, value in of_connection.items() if given.get(n.lower(), value) != value):
            raise ConfigurationError(
                f"options of KafkaSource and its connection differ in {', '.join(others)}.",
                code="arguments_conflict",
                participant=self.conn_id,
                remedy="Set it in only one of them.",
                settings=others,
            )
        options |= of_connection
        if self.pattern:  # Spark looks for it within the names (`findFirstIn`)
            options["subscribePattern"] = f"^(?:{self.pattern})$"
        else:
            options["subscribe"] = ",".join(self.topics)
        start = self.starting_offsets
        if isinstance(start, datetime):
            options["startingTimestamp"] = str(to_milliseconds(start))
            options["startingOffsetsByTimestampStrategy"] = "latest"
        elif isinstance(start, str):  # `starting_at` looks up a group's offsets before the first run
            options["startingOffsets"] = "earliest" if start == GROUP_OFFSETS else start
        else:
            options["startingOffsets"] = json.dumps({t: {str(p): o for p, o in v.items()} for t, v in start.items()})
        options["kafka.isolation.level"] = self.isolation_level
        options["failOnDataLoss"] = str(self.fail_on_data_loss).lower()
        options["includeHeaders"] = "true"
        if self.max_offsets_per_trigger is not None:
            options["maxOffsetsPerTrigger"] = str(self.max_offsets_per_trigger)
        return options

    def read(
        self,
        spark: SparkSession,
        connection: ConnectionInfo | None,
        *,
        streaming: bool = True,
        tags: Mapping[str, str] | None = None,
    ) -> DataFrame:
        """A streaming DataFrame of the topics, or a static one of what is there now (from `starting_offsets` on)."""
        if connection is None:
            raise ConfigurationError(
                f"the Spark driver did not get the connection {self.conn_id!r}.",
                code="argument_missing",
                remedy="Read the source as sources[...] in the job. Do not call read() yourself.",
                argument="connection",
            )
        options = self.reader_options(connection)
        if not streaming:
            options.pop("maxOffsetsPerTrigger", None)
            if self.starting_offsets in ("latest", GROUP_OFFSETS):
                raise ConfigurationError(
                    f'starting_offsets="{self.starting_offsets}" makes no sense for a static read of a topic.',
                    code="static_read_refused",
                    remedy='Give "earliest", offsets or a time. Or declare another source, and read that as a stream.',
                    argument="starting_offsets",
                )
        reader = spark.readStream if streaming else spark.read
        return reader.format("kafka").options(**options, **(tags or {})).load()


_PLAIN_FIELDS = (
    "topics",
    "pattern",
    "conn_id",
    "isolation_level",
    "max_offsets_per_trigger",
    "fail_on_data_loss",
    "group_id",
    "commit_offsets",
    "options",
)


def _invalid(argument: str, what: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(what, code="argument_invalid", remedy=remedy, argument=argument)


def to_milliseconds(time: datetime) -> int:
    """Return milliseconds since 1970, rounded up."""
    return -((_EPOCH - time) // timedelta(milliseconds=1))


def _is_of_form(template: object) -> bool:
    """Return whether the Jinja can become a time only by a person's entry in the form of `pipeline_params`."""
    if not (isinstance(template, str) and template.startswith(FORM_START)):
        return False
    with suppress(ValueError, SyntaxError):
        ast.literal_eval(template.removeprefix(FORM_START).removesuffix("}}").strip())
        return True
    return False
