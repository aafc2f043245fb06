"""Check before the commit point whether the brokers would accept the rows.

In a correct environment Kafka refuses nothing, and after the decision a refusal could only be retried without limit
(promise REDO). So everything that depends on the rows is checked here, from the statistics of the staging pass. Rows
are read only where statistics are not enough, or to name an offender.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from airflow_ft.clients.kafka.client import KafkaClients
from airflow_ft.clients.kafka.topics import TopicLimits
from airflow_ft.protocol.errors import DeclinedError, UnfitTargetError
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.write_ahead_log import ColumnStatistics, SegmentReader, WalFile
from airflow_ft.sinks.base.json_columns import has_times
from airflow_ft.sinks.kafka.records import RECORD_OVERHEAD, RecordEncoder, Records
from airflow_ft.sinks.kafka.spec import KafkaSink
from airflow_ft.sinks.refused import path_of

log = logging.getLogger(__name__)

_ESCAPED = 6  # bytes that JSON may need for one byte of text (a control character)
_SCALAR_TEXT = 48  # no number, date or time is longer; decimals have up to 76 digits and are counted apart


@dataclass(frozen=True, slots=True)
class SegmentRows:
    """One sink's part of one segment."""

    name: str
    sink: KafkaSink
    reader: SegmentReader

    def declined(self, what: str, column: str, remedy: str, **fields: Any) -> DeclinedError:
        """The error for rows that no topic takes."""
        return DeclinedError(what, code="value_unfit", remedy=remedy, **self._where(column), **fields)

    def unfit(self, what: str, column: str, remedy: str, code: str, **fields: Any) -> UnfitTargetError:
        """The error for rows that this topic does not take as it is, and would with other settings."""
        return UnfitTargetError(what, code=code, remedy=remedy, **self._where(column), **fields)

    def _where(self, column: str) -> dict[str, Any]:
        return {"participant": self.sink.conn_id, "sink": self.name, "column": column, "topic": self.sink.topic}


def client_limits(clients: KafkaClients, topics: Mapping[str, TopicLimits]) -> dict[str, Any]:
    """Producer settings that follow from the topics: a batch must fit every topic, a record its own."""
    sizes = [limits.max_message_bytes for limits in topics.values()]
    message = min(max(1_000_000, *sizes), 1_000_000_000)
    batch = min(1_000_000, *(max(1, size - RECORD_OVERHEAD) for size in sizes))
    message = int(clients.settings.common.get("message.max.bytes", message))
    return {
        "message.max.bytes": message,
        "batch.size": batch,
        "queue.buffering.max.kbytes": max(65_536, 2 * message // 1024),
    }


def check_rows(rows: SegmentRows, limits: TopicLimits, message_max_bytes: int) -> None:
    """Check that every row of a segment can be sent to its topic.

    Raises:
        DeclinedError: one cannot; names sink, column and, where rows were read, the row.
        UnfitTargetError: the same, where a change of the topic would do.
        WalCorruptError: rows had to be read, and do not match their checksum.
    """
    schema = rows.reader.schema(rows.name)
    if not schema.names:
        return  # no rows, and Spark wrote no schema either
    encoder = RecordEncoder(rows.sink, schema)
    statistics = rows.reader.statistics(rows.name)
    _check_partition(rows, statistics, limits)
    _check_timestamp(rows, statistics, limits)
    _check_key(rows, statistics, limits)
    if rows.sink.value is None:
        _check_finite(rows, schema, statistics)
    largest = min(limits.max_message_bytes, message_max_bytes)
    if _must_read(schema, statistics) or _bound(rows.sink, schema, statistics) > largest:
        _read(rows, encoder, largest)


def _check_partition(rows: SegmentRows, statistics: Mapping[str, ColumnStatistics], limits: TopicLimits) -> None:
    column = rows.sink.partition
    if column is None or (found := statistics[column]).minimum is None or found.maximum is None:
        return
    for value in (int(found.minimum), int(found.maximum)):
        if not 0 <= value < limits.partitions:
            there = count_text(limits.partitions, "partition")
            what = f"the rows ask for partition {value}; topic {limits.name!r} has {there}."
            if value < 0:
                raise rows.declined(what, column, "Compute it modulo the number of partitions in the job.", value=value)
            remedy = "Add partitions to the topic, or compute the column modulo their number in the job."
            raise rows.unfit(what, column, remedy, "partition_missing", value=value, partitions=limits.partitions)


def check_times(sink: KafkaSink, limits: TopicLimits, name: str = "") -> None:
    """UnfitTargetError when the brokers would replace the timestamps that a sink maps from a column.

    `name`: of the sink. See `message.timestamp.type` in Kafka's topic configurations.
    """
    if sink.timestamp is not None and limits.log_append_time:
        raise replaced_times(sink, name)


def replaced_times(sink: KafkaSink, name: str) -> UnfitTargetError:
    """Return the error for a topic whose brokers replace timestamps. `name`: of the sink."""
    return UnfitTargetError(
        f"topic {sink.topic!r} has message.timestamp.type=LogAppendTime: its brokers would replace the timestamps of"
        f" column {sink.timestamp!r} by their own time.",
        code="topic_setting_unfit",
        remedy="Run kafka-configs.sh --bootstrap-server <broker:9092> --alter --topic"
        f" {sink.topic} --add-config message.timestamp.type=CreateTime. Or remove timestamp= of the sink, if you want"
        " the brokers' time.",
        participant=sink.conn_id,
        sink=name,
        column=sink.timestamp or "",
        topic=sink.topic,
        setting="message.timestamp.type",
    )


def keyless(sink: KafkaSink, name: str = "") -> UnfitTargetError:
    """Return the error for records without a key in a compacted topic. `name`: of the sink."""
    return UnfitTargetError(
        f"topic {sink.topic!r} is compacted and takes no record without a key.",
        code="key_required",
        remedy=f"Name a key column without nulls (key=), or set cleanup.policy of topic {sink.topic} to delete.",
        participant=sink.conn_id,
        sink=name,
        column=sink.key or "",
        topic=sink.topic,
    )


def _check_timestamp(rows: SegmentRows, statistics: Mapping[str, ColumnStatistics], limits: TopicLimits) -> None:
    column = rows.sink.timestamp
    if column is None or (found := statistics[column]).minimum is None or found.maximum is None:
        return
    first, last = _milliseconds(found.minimum), _milliseconds(found.maximum)
    now = int(datetime.now(UTC).timestamp() * 1000)
    if first is None or first <= 0 or last is None:
        raise rows.declined(
            f"timestamps go from {found.minimum} to {found.maximum}, but Kafka holds those from 1970 to 9999.",
            column,
            "Replace them in the job. Null takes the time of delivery.",
        )
    check_times(rows.sink, limits, rows.name)
    if last > now + limits.after_max_ms or first < now - limits.before_max_ms:
        raise rows.unfit(
            f"timestamps go from {found.minimum} to {found.maximum}; topic {limits.name!r} accepts"
            f" {limits.before_max_ms} ms before to {limits.after_max_ms} ms after now.",
            column,
            "Raise message.timestamp.before.max.ms or message.timestamp.after.max.ms of the topic, or correct the"
            " timestamps in the job.",
            "value_unfit",
        )


def short_lived(rows: SegmentRows, limits: TopicLimits) -> dict[str, str]:
    """Return a note, and log it, when a topic keeps rows for a shorter time than their timestamps are old.

    Brokers delete a segment by the newest timestamp in it, not by the time of its delivery (`retention.ms`).
    """
    column = rows.sink.timestamp
    if column is None or limits.retention_ms is None or limits.log_append_time:
        return {}
    found = rows.reader.statistics(rows.name).get(column)
    if found is None or found.minimum is None:
        return {}
    first = _milliseconds(found.minimum)
    if first is None or first >= datetime.now(UTC).timestamp() * 1000 - limits.retention_ms:
        return {}
    what = (
        f"timestamps of column {column!r} begin at {found.minimum}, and the topic deletes records"
        f" {limits.retention_ms} ms after their timestamp (retention.ms): these may vanish soon after delivery"
    )
    log.warning("topic %s: %s", limits.name, what)
    return {f"{limits.name}.retention": what}


def _check_key(rows: SegmentRows, statistics: Mapping[str, ColumnStatistics], limits: TopicLimits) -> None:
    column = rows.sink.key
    if limits.compacted and (column is None or statistics[column].nulls):
        raise keyless(rows.sink, rows.name)


def _check_finite(rows: SegmentRows, schema: pa.Schema, statistics: Mapping[str, ColumnStatistics]) -> None:
    for name in schema.names:
        if name not in rows.sink.roles.values() and statistics[name].nans + statistics[name].infinities:
            raise rows.declined(
                f"{statistics[name].nans} values are NaN and {statistics[name].infinities} are infinite. JSON cannot"
                " hold them.",
                name,
                "Replace them by null in the job.",
            )


def _must_read(schema: pa.Schema, statistics: Mapping[str, ColumnStatistics]) -> bool:
    """Return whether rows must be read: statistics do not cover lists, structs and maps, and dates and times may have
    values without a text form.
    """
    return any(
        pa.types.is_nested(field.type) or (has_times(field.type) and not _have_years(statistics[field.name]))
        for field in schema
    )


def _have_years(found: ColumnStatistics) -> bool:
    """Return whether these are dates or times of the years 1 to 9999."""
    ends = (found.minimum, found.maximum)
    return all(re.match(r"(?!0000)\d{4}-", each) for each in ends if each is not None)


def _bound(sink: KafkaSink, schema: pa.Schema, statistics: Mapping[str, ColumnStatistics]) -> int:
    """No record is larger than this many bytes, by the largest value of every column."""
    bound = RECORD_OVERHEAD + 2
    for field in schema:
        found = statistics[field.name]
        size = found.max_bytes if found.max_bytes is not None else _SCALAR_TEXT
        if field.name in (sink.partition, sink.timestamp):
            continue
        if field.name in (sink.key, sink.value):
            bound += size
            continue
        if pa.types.is_decimal(field.type):
            size = 80
        elif found.max_characters is not None:
            size *= _ESCAPED
        elif found.max_bytes is not None:
            size = 4 * (size // 3 + 1)
        bound += size + len(field.name.encode()) * _ESCAPED + 6
    return bound


def refused_rows(
    rows: SegmentRows, file: WalFile, limits: TopicLimits, message_max_bytes: int
) -> Iterator[tuple[int, pa.RecordBatch, str]]:
    """The rows of a file that `check_rows` would refuse: index in the file (from 0), the row, the reason."""
    encoder = RecordEncoder(rows.sink, rows.reader.schema(rows.name))
    largest = min(limits.max_message_bytes, message_max_bytes)
    first = 0
    for batch in rows.reader.batches(rows.name, file):
        found = encoder.unfit(batch)
        said = [index for index in range(batch.num_rows) if index not in found]
        within = 0
        for records in encoder.encode(batch.take(pa.array(said, pa.int64())) if found else batch):
            for index, size in enumerate(records.sizes()):
                if reason := _why_refused(records, index, size, limits, largest):
                    found[said[within + index]] = reason
            within += len(records.values)
        for index, reason in sorted(found.items()):
            yield first + index, batch.slice(index, 1), reason
        first += batch.num_rows


def _why_refused(records: Records, index: int, size: int, limits: TopicLimits, largest: int) -> str:
    """Why the topic would not take a record; "" when it would."""
    if size > largest:
        return f"its record would have up to {size} bytes; the topic takes {largest}."
    if limits.compacted and (records.keys is None or records.keys[index] is None):
        return f"topic {limits.name!r} is compacted and takes no record without a key."
    if records.partitions is not None and records.partitions[index] >= limits.partitions:
        there = count_text(limits.partitions, "partition")
        return f"the row asks for partition {records.partitions[index]}; the topic has {there}."
    at = records.timestamps[index] if records.timestamps is not None and not limits.log_append_time else 0
    now = int(datetime.now(UTC).timestamp() * 1000)
    if at and not now - limits.before_max_ms <= at <= now + limits.after_max_ms:
        return f"its timestamp {at} is outside the limits of topic {limits.name!r}."
    return ""


def _read(rows: SegmentRows, encoder: RecordEncoder, largest: int) -> None:
    for file in rows.reader.files(rows.name):
        row = 0
        for batch in rows.reader.batches(rows.name, file):
            for records in encoder.encode(batch):
                sizes = records.sizes()
                worst = max(range(len(sizes)), key=sizes.__getitem__)
                if sizes[worst] > largest:
                    raise rows.unfit(
                        f"its record would have up to {sizes[worst]} bytes (uncompressed, with its batch); the topic"
                        f" takes {largest}.",
                        "",
                        f"Raise max.message.bytes of topic {rows.sink.topic!r} (and message.max.bytes of the"
                        " connection, if set), or make the row smaller.",
                        "record_too_large",
                        row=f"{row + worst} of {path_of(rows.reader.segment, file)}",
                        bytes=sizes[worst],
                        limit=largest,
                    )
                row += len(sizes)


def _milliseconds(text: str) -> int | None:
    """Return the Kafka time (floor) of a timestamp's or an integer's statistics; None when it has no such time."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return int((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000 // 1)
