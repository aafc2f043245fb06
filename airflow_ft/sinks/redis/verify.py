"""Compare keys with the log: the last change of each key against what the server has."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import redis

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.verify import Delivered, SinkReport, by_target, sample
from airflow_ft.protocol.write_ahead_log import SegmentReader, WalReader
from airflow_ft.sinks.base.document import DocumentLedger
from airflow_ft.sinks.base.keyed import Chunk, kinds_of, pieces
from airflow_ft.sinks.base.keyed_verify import Change, Found, compare_keys
from airflow_ft.sinks.redis.participant import memory_key
from airflow_ft.sinks.redis.rows import entries
from airflow_ft.sinks.redis.server import opened
from airflow_ft.sinks.redis.spec import RedisSink
from airflow_ft.sinks.set_aside import DeliveredLog


def verify(
    delivered: Sequence[Delivered],
    plan: ParticipantPlan,
    connection: ConnectionInfo,
    wal: WalReader,
    *,
    full: bool = False,
) -> list[SinkReport]:
    """Return one report for each key template, over all sinks with that template. Other keys are not counted.

    SinkUnavailableError, SinkAccessError, WalCorruptError: nothing could be compared.
    """
    log = DeliveredLog.of(wal, delivered)
    reports = []
    with opened(connection, participant=plan.name) as client:
        for target, sent in by_target(delivered, plan.name, lambda settings: str(settings["key"])).items():
            into = list({each.plan.number: each for each, _ in sent}.values())
            begun = SinkReport.begun(plan.name, (name for _, name in sent), target, into)
            newest, newest_name = sent[-1]
            sink = RedisSink.all_of(newest.plan.participant(plan.name))[newest_name]
            if sink.ttl_seconds:
                reports.append(replace(begun, error="its keys expire, so missing ones prove nothing"))
                continue
            readers = [each for each in log.readers(sent) if each[2].schema(each[1]).names]
            columns = _common(sink, [reader.schema(name).names for _, name, reader in readers])
            changes = [(number, _changes(sink, name, number, reader, columns)) for number, name, reader in readers]
            document = client.hget(memory_key(newest.plan.pipeline, plan.name), "document")
            head = DocumentLedger(document, "its document").head()
            last = head.last_delivered if head else None
            reports.append(compare_keys(begun, into, last, changes, partial(_look, client, sink, columns)))
    return reports


def _common(sink: RedisSink, schemas: Sequence[Sequence[str]]) -> list[str]:
    """Return the fields of a hash that all compared rows have."""
    names = schemas[-1] if schemas else []
    return [name for name in names if name != sink.change_column and all(name in each for each in schemas)]


def _changes(
    sink: RedisSink, name: str, number: int, reader: SegmentReader, columns: Sequence[str]
) -> Iterator[Change]:
    for _, _, rows in pieces(reader, name):
        deletes, _ = kinds_of(rows, sink.change_column)
        found = entries(sink, Chunk(0, name, rows, deletes, {}), number)
        for row, key in enumerate(found.keys):
            values = found.values(row)
            if sink.value == "hash":
                values = {column: values[column] for column in columns if column in values}
            shown = sample((key, *(value.decode(errors="replace") for value in values.values())))
            digest = _digest(values.values(), values if sink.value == "hash" else ())
            yield Change(key, None if deletes[row] else digest, shown)


def _look(client: redis.Redis, sink: RedisSink, columns: Sequence[str], keys: Sequence[str]) -> Mapping[str, Found]:
    pipe = client.pipeline(transaction=False)
    for key in keys:
        if sink.value == "hash":
            pipe.hmget(key, [sink.version_field, *columns])
        else:
            pipe.get(key)
    found = {}
    for key, value in zip(keys, pipe.execute(raise_on_error=False), strict=True):
        if isinstance(value, redis.ResponseError):  # a key of another type
            found[key] = Found(b"")
        elif isinstance(value, list):
            if any(each is not None for each in value):
                there = {name: each for name, each in zip(columns, value[1:], strict=True) if each is not None}
                found[key] = Found(_digest(there.values(), there), _number(value[0]))
        elif value is not None:
            found[key] = Found(_digest([value]), _json_number(sink, value))
    return found


def _digest(values: Iterable[bytes], names: Iterable[str] = ()) -> bytes:
    parts = [*(name.encode() for name in names), *values]
    return hashlib.blake2b(repr(parts).encode(), digest_size=20).digest()


def _json_number(sink: RedisSink, text: bytes) -> int | None:
    """Return the number in a JSON value; 0 where it is none of the sink's, None where a value has none."""
    if sink.value != "json":
        return None
    try:
        return _number(str(json.loads(text)[sink.version_field]).encode())
    except (ValueError, KeyError, TypeError):
        return 0


def _number(text: bytes | None) -> int:
    return int(text) if text is not None and text.isdigit() else 0
