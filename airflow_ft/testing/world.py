"""A pipeline without Spark and Airflow, for tests of one participant: segments in a real log, plans, processes."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.model import Fence, ParticipantPlan, Plan, Promise, Segment
from airflow_ft.protocol.participant import Participant
from airflow_ft.protocol.planning import plan_delivery
from airflow_ft.protocol.sink_spec import SinkSpec
from airflow_ft.protocol.votes import Outcome, Proof, Vote
from airflow_ft.sinks import open_participant
from airflow_ft.testing.calls import failing, listening
from airflow_ft.testing.processes import Acting, _StoppingWal, free_port
from airflow_ft.testing.relay import Fate, Proxy
from airflow_ft.testing.tables import Bag, Pairs, Upserts
from airflow_ft.testing.values import Values
from airflow_ft.wal import open_wal
from airflow_ft.wal.writer import SegmentFolder, write_segment, write_table

if TYPE_CHECKING:
    import pyarrow as pa

SINK = "rows"
OWN_PARTICIPANT = "each of its sinks is a participant of its own"
OURS, THEIRS = (f"{digit * 8}-2222-4333-8444-555555555555" for digit in "12")
ROWS = 40
WHY = {"message": "a test of conformance"}
"""The detail of an abort."""
PER_BATCH = 10
_MOST_SHOWN = 5


class Target(ABC):
    """A table (topic, folder) of a real server, which is empty, and has the columns `id` and `text`.

    `sink` is what a DAG author would write for it, and `connection` how the server is reached.
    """

    sink: SinkSpec
    connection: ConnectionInfo
    refused: pa.Table | None = None
    """Rows some of which the server refuses by themselves; the ids of the others are `taken`. None: it takes all."""
    taken: Sequence[int] = ()
    tries_rows: bool = True
    """Whether prepare tries the rows if another participant decides. If False, a decided checkpoint may be refused."""
    adopts: bool = False
    """Whether a commit takes the log's files as they are, and so looks at no row, before which it could be killed."""
    texts: int | None = None
    """How many different texts it takes of a million rows, where each is a place of its own; None: as many."""
    row_files: str = "*"
    """Glob of the names of files with rows. Files of other names may be left after a delivery was refused."""
    at_once: bool = True
    """Whether all rows of a checkpoint become visible at once. Else a process that is killed may leave some of them."""
    calls: str = ""
    """"package.module:function" for a system that is no server on the loopback interface. The process that is to be
    killed calls it with a callback that reports each call of the system's client. Changes of files below the test's
    folder, and statements of Python's `sqlite3`, need no such report.
    """

    flaw: str = ""
    """For tests of the kit: "package.module:function", called first in each process that acts."""

    @abstractmethod
    def ids(self) -> list[int]:
        """The ids of all rows that a reader sees, ascending, read by a client of its own."""

    def plant(self, what: str, id: int) -> int:
        """Change the row as a foreign writer: "loss" deletes it, "double" inserts it again, "change" gives it another
        text. Returns the number of changed rows, or of files for formats with several rows; 0: it is impossible there.
        """
        return 0

    def drop(self) -> bool:
        """Drop the table as a foreign user, and return True. By default False: it cannot be dropped."""
        return False

    def values(self) -> Values | None:
        """A table with all types that the sink takes, and their values. None: none are tried."""
        return None

    @contextmanager
    def losing(self, fate: Fate, skip: int) -> Iterator[tuple[ConnectionInfo, Callable[[], bool]] | None]:
        """A way to the server that loses one request, or its reply, after `skip` others; and a check whether it has
        done so.

        Or held, until the client is gone (`Fate`). By default for servers on the loopback interface whose clients wait
        for each answer. None: there is no way.
        """
        if not self.connection.port:
            yield None
            return
        with Proxy(0, self.connection.port, length=self.request_length) as proxy:
            proxy.arm(fate, skip)
            yield _through(proxy, self.connection), lambda: proxy.struck

    def request_length(self, sent: bytes) -> int:
        """Return the length of the first request in what a client has sent, for `losing` and `watching`.

        If it is larger than that, the rest has not arrived. By default everything is one request. Override it for a
        client that sends requests before earlier ones are answered: a busy machine receives several as one.
        """
        return len(sent)

    def fresh(self) -> Target:
        """One that is empty, and takes another pipeline. By default the same: several pipelines deliver into it."""
        return self

    @contextmanager
    def watching(self, reached: Callable[[], None], below: str) -> Iterator[ConnectionInfo]:
        """A way on which `reached` is called, and may wait, before each request, or else each call of this thread.

        By default as with `losing` and `calls`; `below` is the test's folder.
        """
        if not self.connection.port:
            with listening(reached, below, self.calls):
                yield self.connection
            return
        with Proxy(0, self.connection.port, reached, self.request_length) as proxy:
            yield _through(proxy, self.connection)

    @contextmanager
    def failing(self, at: int, below: str) -> Iterator[tuple[ConnectionInfo, Callable[[], bool]] | None]:
        """A way on which call `at` of this thread's client raises; and whether it has by now.

        By default for changes of files below the test's folder and statements of Python's `sqlite3`. None: there is no
        way. Servers answer with errors of their own, and `losing` has the errors of connections.
        """
        if self.connection.port:
            yield None
            return
        with failing(at, below) as has_failed:
            yield self.connection, has_failed

    def bag(self) -> Bag | None:
        """A table that takes equal rows. None: nothing is tried with equal rows, several files and other columns."""
        return None

    def upserts(self) -> Upserts | None:
        """A table into which rows go by key. None: the sink replaces no rows by key."""
        return None

    def pairs(self) -> Pairs | None:
        """A table whose key has two columns. None: the sink replaces no rows by key, or by one column only."""
        return None

    def mistaken(self) -> Mapping[str, tuple[SinkSpec, ConnectionInfo]]:
        """Return sinks and connections with a mistake, by its name; the doctor and `prepare` must report each."""
        found, connection = {}, self.connection
        if connection.port:
            found["nobody listens there"] = replace(connection, port=free_port())
        if connection.password:
            found["a wrong password"] = replace(connection, password="n0t-the-One")
        return {name: (self.sink, made) for name, made in found.items()}


@dataclass
class World:
    """A pipeline that delivers into one target. The next plan follows what `deliver` has delivered."""

    target: Target
    folder: Path
    pipeline: str = field(default_factory=lambda: f"conformance-{uuid.uuid4().hex[:8]}")
    commit_point: bool = True
    predecessor: int = 0
    number: int = 0
    segments: int = 0
    attempts: int = 0
    opened: list[Participant] = field(default_factory=list)

    def begin(self) -> None:
        """A new pipeline in an empty target."""
        self.target = self.target.fresh()
        self.pipeline, self.predecessor, self.number = f"conformance-{uuid.uuid4().hex[:8]}", 0, 0

    def table(self, first: int, rows: int = ROWS, texts: int | None = None) -> pa.Table:
        """Return rows with the ids from `first` on, and `texts` different texts (None: each has its own)."""
        import pyarrow as pa

        ids = range(first, first + rows)
        texts_of_rows = (f"row {each if texts is None else each % texts}" for each in ids)
        return pa.table({"id": pa.array(ids, pa.int64()), "text": pa.array(texts_of_rows, pa.string())})

    def segment(self, number: int, table: pa.Table) -> Segment:
        return self.segment_with(number, {SINK: table})

    def segment_with(self, number: int, tables: Mapping[str, pa.Table]) -> Segment:
        """A segment with rows for several sinks."""
        self.segments += 1
        folder = SegmentFolder(str(self.folder / "wal"), self.pipeline, 1, 1, self.segments)
        return write_segment(folder, number, tables)

    def segment_of(self, number: int, *files: pa.Table) -> Segment:
        """A segment whose rows lie in several files, one for each table."""
        self.segments += 1
        folder = SegmentFolder(str(self.folder / "wal"), self.pipeline, 1, 1, self.segments)
        folder.files.make_folder(folder.sink(SINK))
        for index, table in enumerate(files):
            with folder.files.create(folder.files.uri(folder.sink(SINK), f"part-{index:05}.parquet")) as file:
                write_table(table, file)
        return folder.seal(number, {SINK: True}, {})

    def nothing(self, number: int) -> Segment:
        """A segment for which the job has returned nothing at all of the sink, as it may of an optional one."""
        self.segments += 1
        folder = SegmentFolder(str(self.folder / "wal"), self.pipeline, 1, 1, self.segments)
        return folder.seal(number, {SINK: False}, {})

    def participant_plan(self) -> ParticipantPlan:
        [planned] = plan_delivery({SINK: self.target.sink}).participants
        return replace(planned, predecessor=self.predecessor)

    def plan_of(self, number: int, *segments: Segment, installation: str = OURS) -> Plan:
        planned = self.participant_plan()
        carries = self.commit_point and planned.promise is Promise.ATOMIC
        return Plan(self.pipeline, installation, number, segments, (planned,), planned.name if carries else None)

    def plan(self, table: pa.Table | None = None) -> Plan:
        """The next number; by default with ROWS rows that follow those of the number before."""
        self.number += 1
        table = self.table(self.number * ROWS) if table is None else table
        return self.plan_of(self.number, self.segment(self.number, table))

    def plan_into(self, sink: SinkSpec, table: pa.Table) -> Plan:
        """The next number, with these rows, into another sink than the target's own."""
        return self.into(sink, self.plan(table))

    def into(self, sink: SinkSpec, plan: Plan) -> Plan:
        """The same plan into another sink than the target's own."""
        found = self._into({SINK: sink}, plan)
        assert found is not None
        return found

    def with_second(self, name: str, sink: SinkSpec, plan: Plan) -> Plan | None:
        """The same plan with a second sink of the target's participant. None: it is a participant of its own."""
        return self._into({SINK: self.target.sink, name: sink}, plan) if self.target.sink.conn_id else None

    def _into(self, sinks: Mapping[str, SinkSpec], plan: Plan) -> Plan | None:
        planned, *others = plan_delivery(sinks).participants
        if others:
            return None
        planned = replace(planned, predecessor=self.predecessor)
        return replace(plan, participants=(planned,), commit_point=planned.name if plan.commit_point else None)

    def fence(self, epoch: int = 1, attempt: int = 1, installation: str = OURS) -> Fence:
        return Fence(self.pipeline, installation, epoch, attempt)

    def participant(self, plan: Plan, connection: ConnectionInfo | None = None, per_batch: int = 0) -> Participant:
        """A new one; through another connection than the target's, and with `per_batch` rows of the log at once."""
        [planned] = plan.participants
        wal = _StoppingWal(None, 0, per_batch) if per_batch else open_wal()
        self.opened.append(open_participant(planned, lambda _: connection or self.target.connection, wal))
        return self.opened[-1]

    def attempt(self) -> int:
        """A later one than all before."""
        self.attempts += 1
        return self.attempts

    def prepare(
        self,
        plan: Plan,
        attempt: int = 0,
        epoch: int = 1,
        connection: ConnectionInfo | None = None,
        delivered: int = 0,
    ) -> Vote:
        attempt = attempt or self.attempt()
        fence = replace(self.fence(epoch, attempt, plan.installation), delivered=delivered)
        return _vote(plan, attempt, self.participant(plan, connection).prepare(plan, fence))

    def commit(self, plan: Plan, vote: Vote | None, attempt: int = 0, epoch: int = 1, **more: Any) -> Proof:
        attempt = attempt or self.attempt()
        return self.participant(plan).commit(plan, self.fence(epoch, attempt, plan.installation), vote, **more)

    def deliver(self, plan: Plan) -> Proof:
        """Prepares and commits; the next plan follows it."""
        proof = self.commit(plan, self.prepare(plan))
        self.predecessor = plan.number
        return proof

    def abort(self, plan: Plan, epoch: int = 1) -> Proof:
        return self.participant(plan).abort(plan, self.fence(epoch, self.attempt(), plan.installation), WHY)

    def step(self, step: str, plan: Plan, fence: Fence, vote: Vote | None, participant: Participant) -> Vote | Outcome:
        """Prepare, commit or abort, as `step` says."""
        if step == "prepare":
            return _vote(plan, fence.attempt, participant.prepare(plan, fence))
        if step == "commit":
            return participant.commit(plan, fence, vote).outcome
        return participant.abort(plan, fence, WHY).outcome

    def vote_without_prepare(self, plan: Plan) -> Vote:
        """As if it had been decided before the server began to refuse rows."""
        return _vote(plan, self.attempt(), {})

    def ids_of(self, *numbers: int) -> list[int]:
        """Those of the rows that `plan` has made by default."""
        return [each for number in numbers for each in range(number * ROWS, (number + 1) * ROWS)]

    def shows(self, expected: Sequence[int], where: str = "") -> None:
        """Raise AssertionError, which says what is wrong, unless a reader sees exactly the rows with these ids."""
        wanted, seen = Counter(expected), Counter(self.target.ids())
        wrong = {
            "are missing": wanted - seen,
            "came twice or more": Counter({id: n for id, n in (seen - wanted).items() if id in wanted}),
            "should not be visible": Counter({id: n for id, n in (seen - wanted).items() if id not in wanted}),
        }
        problems = [f"{ids.total()} rows {what} (ids {_some(ids)})" for what, ids in wrong.items() if ids]
        assert not problems, f"{where + ': ' if where else ''}{'; '.join(problems)}"

    def process(
        self,
        plan: Plan,
        vote: Vote | None,
        *,
        step: str = "commit",
        stop: str = "",
        at: int = 0,
        per_batch: int = PER_BATCH,
        sink: str = "",
        connection: ConnectionInfo | None = None,
    ) -> Acting:
        """Commit (prepare, abort) in another process, which stops on the way.

        It does `stop` ("kill", "freeze") before it gets row `at`, or is killed ("kill at a call") before its call `at`.
        With `sink`, only rows of this sink count.
        """
        attempt = self.attempt()
        given = {
            "plan": plan.to_json(),
            "connection": asdict(connection or self.target.connection),
            "step": step,
            "attempt": attempt,
            "notes": dict(vote.notes) if vote else {},
            "prepared": vote.prepared if vote else 0,
            "stop": stop,
            "at": at,
            "per_batch": per_batch,
            "sink": sink,
            "below": str(self.folder),
            "calls": self.target.calls,
            "flaw": self.target.flaw,
        }
        return Acting(given, plan.participants[0].kind, self.folder / f"process-{attempt}.log")

    def close(self) -> None:
        for participant in self.opened:
            participant.close()
        self.opened.clear()


def _through(proxy: Proxy, connection: ConnectionInfo) -> ConnectionInfo:
    """Return a connection to the proxy, with the scheme of the host: Iceberg's client uses https without one."""
    scheme, separator, _ = connection.host.rpartition("://")
    return replace(connection, host=f"{scheme}{separator}127.0.0.1", port=proxy.port)


def _vote(plan: Plan, attempt: int, notes: Mapping[str, Any]) -> Vote:
    return Vote(plan.participants[0].name, attempt, attempt, None, dict(notes))


def _some(ids: Collection[int]) -> str:
    """Return the first of these ids, for people."""
    first = ", ".join(map(str, sorted(ids)[:_MOST_SHOWN]))
    return first + (", ..." if len(ids) > _MOST_SHOWN else "")
