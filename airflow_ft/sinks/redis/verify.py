"""Compare keys with the log: the last change of each key against what the server has."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import redis

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.verify import Delivered, SinkReport, Target, sample
from airflow_ft.protocol.write_ahead_log import SegmentReader, WalReader
from airflow_ft.sinks.base.document import DocumentLedger
from airflow_ft.sinks.base.keyed import Chunk, kinds_of, pieces
from airflow_ft.sinks.base.keyed_verify import Change, Found, Readers, common, compare_targets, digest, sinks_of
from airflow_ft.sinks.redis.participant import Documents
from airflow_ft.sinks.redis.rows import entries
from airflow_ft.sinks.redis.server import opened
from airflow_ft.sinks.redis.spec import RedisSink


def verify(
    delivered: Sequence[Delivered], plan: ParticipantPlan, connection: ConnectionInfo, wal: WalReader
) -> list[SinkReport]:
    """Return one report for each key template; see `airflow_ft.sinks.base.keyed_verify.compare_targets`."""
    with opened(connection, participant=plan.name) as client:

        def keys_of(target: Target, readers: Readers) -> _Keys:
            columns = common([reader.schema(name).names for _, name, reader in readers])
            sink, sinks = RedisSink.all_of(target.plan)[target.name], sinks_of(target, RedisSink.all_of)
            return _Keys(sink, sinks, Documents(client, connection, plan.name), delivered[-1].plan.pipeline, columns)

        return compare_targets(delivered, plan, wal, lambda settings: str(settings["key"]), keys_of)


@dataclass
class _Keys:
    """Keys of one template. `columns` are the fields of a hash that all compared rows have.

    `sink` is the newest one, `sinks` are those that delivered, by number and name.
    """

    sink: RedisSink
    sinks: Mapping[tuple[int, str], RedisSink]
    documents: Documents
    pipeline: str
    columns: Sequence[str]

    @property
    def error(self) -> str:
        return "its keys expire, so missing ones prove nothing" if self.sink.ttl_seconds else ""

    def ledger(self) -> DocumentLedger:
        return self.documents.read(self.pipeline)[0]

    def changes(self, number: int, name: str, reader: SegmentReader) -> Iterator[Change]:
        sink = self.sinks[number, name]
        in_hash = sink.value == "hash"
        for _, _, rows in pieces(reader, name):
            deletes, _ = kinds_of(rows, sink.change_column)
            found = entries(sink, Chunk(0, name, rows, deletes, {}), number)
            for row, key in enumerate(found.keys):
                values = found.values(row)
                if in_hash:
                    values = {column: values[column] for column in self.columns if column in values}
                shown = sample((key, *(value.decode(errors="replace") for value in values.values())))
                there = digest(values if in_hash else [*values.values()])
                yield Change(key, None if deletes[row] else there, shown, sum(map(len, values.values())))

    def look_up(self, keys: Sequence[str]) -> Mapping[str, Found]:
        pipe, version = self.documents.client.pipeline(transaction=False), self.sink.version_field
        for key in keys:
            if self.sink.value == "hash":
                pipe.hmget(key, [version, *self.columns])
            else:
                pipe.get(key)
        found = {}
        for key, value in zip(keys, pipe.execute(raise_on_error=False), strict=True):
            if isinstance(value, redis.ResponseError):  # a key of another type
                found[key] = Found(b"")
            elif isinstance(value, list):
                if any(each is not None for each in value):
                    there = dict(zip(self.columns, value[1:], strict=True))
                    there = {name: each for name, each in there.items() if each is not None}
                    found[key] = Found(digest(there), _number(value[0]))
            elif value is not None:
                found[key] = Found(digest([value]), _json_number(self.sink, value))
        return found


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
