"""Deliver rows by key into Redis.

The memory of a pipeline and a participant is one hash of the server, `airflow_ft:PIPELINE:PARTICIPANT`:

| field | holds |
|---|---|
| `document` | head and markers |
| `version` | a random number, another one after each replacement of the document |
| `epoch`, `attempt` | who may send rows |
| `plan`, `done` | how many rows of which plan are in |

If a process dies among the rows (`upsert`), `done` says how many are in. The successor skips them, so no key goes back.
A sleeper's rows are refused, because epoch or attempt differ. Staged rows (`atomic`) have keys that expire in a day.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import redis

from airflow_ft.protocol.errors import (
    AirflowFtError,
    FencedError,
    SinkUnavailableError,
    StoreBehindSinkError,
    UnfitTargetError,
)
from airflow_ft.protocol.model import Fence, Plan, Promise
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.orphans import PreparedEnding
from airflow_ft.sinks.base import keyed
from airflow_ft.sinks.base.document import DocumentLedger, OvertakenError
from airflow_ft.sinks.base.keyed import Chunk, KeyedParticipant
from airflow_ft.sinks.redis.rows import entries, packed, schema_problems, unfit
from airflow_ft.sinks.redis.scripts import REPLACE, SEND
from airflow_ft.sinks.redis.server import address, check_server, opened, replicated, wanted_replicas
from airflow_ft.sinks.redis.spec import ATOMIC_ROWS, OURS, RedisSink

_IN_FLIGHT = 8  # chunks that are sent before an answer is read
_STAGED_SECONDS = 86_400
_VERSIONS = 1 << 52  # a number of Lua is exact up to here: an earlier release adds 1 to the version


class Documents(keyed.Documents[redis.Redis, bytes | str]):
    """Documents, each in a hash of its pipeline, with the version that its replacement is compared with."""

    def key(self, pipeline: str) -> str:
        """Return the key of the hash."""
        return f"{OURS}{pipeline}:{self.participant}"

    def read(self, pipeline: str, *, create: bool = False) -> tuple[DocumentLedger, bytes | str]:
        key = self.key(pipeline)
        text, version = self.client.hmget(key, ["document", "version"])
        return DocumentLedger(text, f"the key {key!r}"), version or b"0"


@dataclass
class Changes(keyed.Changes[Documents, bytes | str]):
    """With the keys of staged chunks, and the number of rows that were sent."""

    staged: list[str] = field(default_factory=list)
    sent: int = 0

    def __post_init__(self) -> None:
        self.client, self.key = self.documents.client, self.documents.key(self.fence.pipeline)

    @property
    def _number(self) -> int:
        return self.plan.number if self.plan else 0

    def replace(self) -> None:
        """And apply what was staged."""
        head = self.ledger.head()  # its rank is kept: pruning markers must not fence a delivery
        # A count would not do: two primaries of a split network may both have counted up to this number.
        arguments = [
            self.seen,
            self.ledger.text,
            *(head or self.fence).rank,
            self._number,
            secrets.randbelow(_VERSIONS),
        ]
        if self.sent and self.plan is not None:
            arguments += [self.sent, self.plan.digest]
        self._check(self.client.eval(REPLACE, 1 + len(self.staged), self.key, *self.staged, *arguments))

    def stage(self, index: int, chunk: bytes) -> None:
        """Keep a chunk for `replace`."""
        epoch, attempt = self.fence.rank
        self.staged.append(f"{self.key}:{self._number}:{epoch}-{attempt}:{index}")
        self.client.set(self.staged[-1], chunk, ex=_STAGED_SECONDS)

    def send(self, chunks: Iterator[tuple[int, int, bytes]]) -> None:
        """Send chunks, each with its place and its number of rows.

        Some are on their way at once, and each is applied after the one before.
        """
        assert self.plan is not None
        script = self.client.script_load(SEND)
        pipe = self.client.pipeline(transaction=False)
        for first, rows, chunk in chunks:
            self.sent = first + rows
            pipe.evalsha(script, 1, self.key, *self.fence.rank, self._number, first, chunk, self.plan.digest)
            if len(pipe) >= _IN_FLIGHT:
                self._check(*pipe.execute())
        self._check(*pipe.execute())

    def _check(self, *answers: Any) -> None:
        for kind, more in answers:
            if kind != b"OK":
                raise self._refused(kind, more.decode(errors="replace"))

    def _refused(self, kind: bytes, more: str) -> Exception:
        if kind == b"OVERTAKEN":
            return OvertakenError()
        if kind == b"EXPIRED":
            return SinkUnavailableError(
                "staged rows have expired.",
                code="rows_incomplete",
                remedy="Do nothing: the retry stages them again.",
            )
        if kind == b"WRONGTYPE":
            what = f"the key {more!r} has another type than the sink's value, in Redis or in another sink."
            remedy = f"Delete the key {more!r} in Redis, or give the sink another key=."
            return UnfitTargetError(what, code="key_unfit", remedy=remedy, key=more)
        if kind == b"GAP":
            server = address(self.documents.connection)
            what = (
                f"Redis at {server} has {count_text(int(more), 'row')} of checkpoint {self._number} and had"
                " acknowledged more. It was restored from a backup, or failed over to a replica that lagged."
            )
            remedy = "Compare the rows (`airflow ft verify`), then run `airflow ft resume`."
            return StoreBehindSinkError(what, code="ledger_lost", remedy=remedy, server=server, rows=more)
        epoch, attempt = (int(word) if word.isdigit() else 0 for word in more.split())
        if (epoch, attempt) < tuple(self.fence.rank):
            server = address(self.documents.connection)
            has = f"the older epoch {epoch}, attempt {attempt}" if epoch else "no fence of this pipeline"
            return SinkUnavailableError(
                f"Redis at {server} has {has}, but had acknowledged a newer one. It was cleared or restored, or failed"
                " over to a replica that lagged.",
                code="replicas_behind",
                remedy="Do nothing: the retry reads what the server has.",
                server=server,
            )
        return FencedError(
            f"the sink has seen the newer epoch {epoch}, attempt {attempt}.",
            head_epoch=epoch,
            head_attempt=attempt,
            remedy="Do nothing: the newer owner finishes the checkpoint.",
        )


@dataclass
class RedisParticipant(KeyedParticipant[Changes]):
    """One database of a server, and all sinks of a pipeline there. See `protocol.participant.Participant`."""

    spec = RedisSink
    changes = Changes
    sinks: Mapping[str, RedisSink]
    _adopting = False

    def _place(self) -> str:
        return f"Redis at {address(self.connection)}"

    def _preflight(self) -> dict[str, Any]:
        with opened(self.connection, participant=self.name) as client:
            return check_server(client, address(self.connection), self.sinks.values())

    @contextmanager
    def _opened(self, plan: Plan | None) -> Iterator[Documents]:
        wait = plan is not None or self._adopting
        wanted = wanted_replicas(self.sinks.values()) if wait else 0
        with (
            opened(self.connection, **self._where(plan)) as client,
            replicated(client, wanted, address(self.connection)),
        ):
            yield Documents(client, self.connection, self.name)

    def adopt(self, fence: Fence, number: int) -> None:
        """And wait for the replicas: after a failover the former owner could deliver again."""
        self._adopting = True
        super().adopt(fence, number)

    def end_orphans(self, fence: Fence, ending: PreparedEnding | None, *, make_way: bool = False) -> None:
        """And wait for the replicas, as `adopt`."""
        self._adopting = True
        super().end_orphans(fence, ending, make_way=make_way)

    def _prepare(self, plan: Plan, fence: Fence) -> Mapping[str, Any]:
        rows = sum(segment.rows.get(name, 0) for segment in plan.segments for name in self.sinks)
        if self.promise is Promise.ATOMIC and rows > ATOMIC_ROWS:
            raise UnfitTargetError(
                f"the checkpoint has {rows:,} rows, and strategy='atomic' takes at most {ATOMIC_ROWS:,}: Redis would"
                " answer no other client for seconds.",
                code="limit_reached",
                remedy="Choose strategy='upsert'. Or make smaller checkpoints (such as by max_offsets_per_trigger), and"
                f" run `airflow ft rewind {plan.pipeline}`: the next run computes the rows again.",
                rows=rows,
                limit=ATOMIC_ROWS,
            ).located(**self._where(plan))
        return super()._prepare(plan, fence)

    # --- rows --------------------------------------------------------------------------------------------------------

    def _problems(self, sink: str, schema: pa.Schema) -> Iterator[AirflowFtError]:
        return schema_problems(self.sinks[sink], schema, sink)

    def _unfit(self, sink: str, rows: pa.RecordBatch, deletes: npt.NDArray[np.bool_]) -> Mapping[int, str]:
        return unfit(self.sinks[sink], rows, deletes)

    def _send(self, db: Changes, chunks: Iterator[Chunk]) -> None:
        assert db.plan is not None
        number = db.plan.number

        def data(chunk: Chunk) -> bytes:
            sink = self.sinks[chunk.sink]
            return packed(sink, entries(sink, chunk, number))

        if self.promise is Promise.ATOMIC:
            for index, chunk in enumerate(chunks):
                db.stage(index, data(chunk))
        else:
            db.send((chunk.first, chunk.rows.num_rows, data(chunk)) for chunk in chunks)


open_participant = RedisParticipant.of
