"""Compare keys with the log: the last change of each key against what the server has."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
    plans = [other for each in delivered for other in (each.plan.participant(plan.name), *each.others)]
    has_strings = any(given.get("value") == "string" for each in plans for given in each.sinks.values())
    with opened(connection, participant=plan.name) as client:

        def keys_of(target: Target, readers: Readers) -> _Keys:
            columns = common([reader.schema(name).names for _, name, reader in readers])
            sink, sinks = RedisSink.all_of(target.plan)[target.name], sinks_of(target, RedisSink.all_of)
            documents, pipeline = Documents(client, connection, plan.name), delivered[-1].plan.pipeline
            return _Keys(sink, sinks, documents, pipeline, columns, has_strings)

        return compare_targets(delivered, plan, wal, lambda settings: str(settings["key"]), keys_of)


@dataclass
class _Keys:
    """Keys of one template. `columns` are the fields of a hash that all compared rows have.

    `sink` is the newest one, `sinks` are those that delivered, by number and name. `has_strings`: these, or ones that
    are not compared, may have written strings without a number.
    """

    sink: RedisSink
    sinks: Mapping[tuple[int, str], RedisSink]
    documents: Documents
    pipeline: str
    columns: Sequence[str]
    has_strings: bool

    @property
    def error(self) -> str:
        expire = any(sink.ttl_seconds for sink in self.sinks.values())
        return "its keys expire, so missing ones prove nothing" if expire else ""

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
        """Return what is there of some keys. Each may be of any type that a delivery has written."""
        pipe, version = self.documents.client.pipeline(transaction=False), self.sink.version_field
        types = {sink.value == "hash" for sink in self.sinks.values()}
        for key in keys:
            for is_hash in types:
                if is_hash:
                    pipe.hmget(key, [version, *self.columns])
                else:
                    pipe.get(key)
        answers, found = iter(pipe.execute(raise_on_error=False)), dict[str, Found]()
        for key in keys:
            readable = [value for _ in types if not _is_of_another_type(value := next(answers))]
            if not readable:
                found[key] = Found(b"", None)
            for value in readable:
                if isinstance(value, list):
                    if any(each is not None for each in value):
                        there = dict(zip(self.columns, value[1:], strict=True))
                        there = {name: each for name, each in there.items() if each is not None}
                        found[key] = Found(digest(there), _number(value[0]))
                elif value is not None:
                    found[key] = Found(digest([value]), self._json_number(value))
        return found

    def _json_number(self, text: bytes) -> int | None:
        """Return the number in a JSON value; 0: it is none of the sink's. None: it may be a string of the sink."""
        if self.sink.value == "string":  # which may itself be JSON
            return None
        try:
            return _number(str(json.loads(text)[self.sink.version_field]).encode())
        except (ValueError, KeyError, TypeError):
            return None if self.has_strings else 0


def _is_of_another_type(answer: Any) -> bool:
    """Return whether a key has another type than the command reads. RedisError: the server refuses it for a reason."""
    if isinstance(answer, redis.ResponseError) and f"{answer}".startswith("WRONGTYPE"):
        return True
    if isinstance(answer, Exception):
        raise answer
    return False


def _number(text: bytes | None) -> int:
    return int(text) if text is not None and text.isdigit() else 0
