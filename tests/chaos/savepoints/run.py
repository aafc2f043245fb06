"""The stage `savepoints`: a stream that is killed while savepoints are taken of it, and that goes on from them.

A row is delivered as often as the stream has been put before it. So what is in the topic is judged piece by piece,
from one restore to the next: each piece begins where its savepoint stands (or anew), has every number once, and goes on
with its state. A restore that goes on behind what was delivered (`--later continue`) begins no piece: nothing comes
again, and the state is the one that it would have been.

Half of the savepoints that are restored are changed before: their state is put into another number of partitions, or
into another state backend.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pymysql

from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.protocol.from_savepoint import BEGINNING, Later
from airflow_ft.protocol.pipelines import RequestKind
from airflow_ft.spark.savepoints.converting import Backend
from airflow_ft.spark.savepoints.metadata import Savepoint, dispose, listing, read_metadata, verify
from airflow_ft.spark.savepoints.stopping import SAVEPOINT
from airflow_ft.spark.state.settings import PARTITIONS as PARTITIONS_OF_STATE
from airflow_ft.spark.state.settings import PROVIDER
from tests.chaos.savepoints.action_process import ActionProcess
from tests.chaos.streams.run import FAULTS, Fault, Streams
from tests.chaos.streams.world import PARTITIONS, PIPELINE, Servers, Task, await_delivery
from tests.integration.kafka_world import read, value

TABLE = "CREATE TABLE {} (n BIGINT PRIMARY KEY, k BIGINT, place BIGINT, random DOUBLE, version BIGINT) ENGINE=InnoDB"
COPY = "chaos_copy"
KEYS = 7
KEPT = 6  # savepoints, the newest ones
TRIES = 20
RETAINED = 1_000  # micro-batches, so that it can be gone on behind what was delivered
MOST_PARTITIONS = 4
PATIENCE = 900.0  # many processes begin at once here
Row = tuple[Any, ...]


@dataclass(frozen=True)
class Start:
    """Where a piece begins, by partition; and what was in the topic then."""

    offsets: tuple[int, ...]
    before: Counter[Row]

    def holds(self, number: int) -> bool:
        """Whether a number is before it."""
        return number // PARTITIONS < self.offsets[number % PARTITIONS]


class Savepoints(Streams):
    """See the module."""

    patience = PATIENCE

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.report.meaning = (
            "from each savepoint on each number once in both sinks, with exactly the state that was in the savepoint"
        )
        self.savepoints = self.servers.savepoints
        self._processes: list[ActionProcess] = []
        self._runs = self.restores = self.continued = self.fresh = self.taken = 0
        self.changed: Counter[str] = Counter()
        self._state: dict[str, str] = {}  # the settings of Spark that go with the state
        self.piece_begins_behind = 0  # the number that was the newest when the newest piece began
        self._start = Start((0,) * PARTITIONS, Counter())
        self._newest: dict[int, Row] = {}  # what the table has to show

    def faults(self) -> Mapping[str, Fault]:
        """Those of streams, beside which savepoints are taken; and restores."""
        return SAVEPOINT_FAULTS

    def make_servers(self) -> Servers:
        """With a table in which rows replace each other."""
        return Servers(self.folder, TABLE.format("totals"), self.store, wal=self.wal)

    def make_task(self, number: int) -> Task:
        """A try of the newest run."""
        stream = self.servers.stream(
            keys={"totals": ["n"]}, run=f"run-{self._runs}", conf=self._state, retained_batches=RETAINED
        )
        return Task(self.folder, stream, number)

    def close(self) -> None:
        """Also what has changed a savepoint."""
        for process in self._processes:
            process.close()
        super().close()

    # --- what is done ---------------------------------------------------------------------------------------------

    def run_action(self, pipeline: str = PIPELINE, **what: str | int) -> ActionProcess:
        """Takes, changes or restores one beside whatever goes on."""
        stream = self.servers.stream(pipeline=pipeline, keys={"totals": ["n"]})
        self._processes.append(ActionProcess(stream, self.folder / f"act-{len(self._processes) + 1}.log", **what))
        return self._processes[-1]

    def take_beside(self, fault: Fault) -> None:
        """Two at once, of which one may be killed; the fault strikes meanwhile."""
        processes = [self.run_action(folder=self.savepoints) for _ in range(2)]
        time.sleep(self.random.uniform(0.0, 2.5))
        if self.random.random() < 0.5:
            processes[0].process.kill()
        fault.strike(self)
        for process in processes:
            answer = process.answer()
            if answer.get("error") not in (None, "TransientError", "StoreUnavailableError"):
                self.report.violations.append(f"no savepoint could be taken: {answer}")
            self.taken += "uri" in answer
        self.whole()

    def whole(self) -> list[tuple[str, Savepoint]]:
        """All that call themselves whole, and are; older ones are deleted."""
        found = [(uri, expected) for uri, expected in listing(self.savepoints) if expected is not None]
        for uri, expected in found:
            try:
                verify(uri, expected)
            except AirflowFtError as error:
                self.report.violations.append(f"{uri} calls itself whole: {error}")
        for uri, _ in found[KEPT:]:
            dispose(uri)
        return [(uri, expected) for uri, expected in found[:KEPT] if expected.operators]  # others have read nothing

    def restore_savepoint(self, uri: str, savepoint: Savepoint, later: Later) -> None:
        """Restores it, or what is made of it, while nothing is at work; sometimes two at once, or one that is killed.

        A further try of the stream begins.
        """
        if self.random.random() < 0.5:
            uri, savepoint = self.change(uri, savepoint)
        if not self._is_restored(uri, later):
            return
        if later is Later.CONTINUE:
            self.continued += 1
        else:
            self._begin_piece(offsets_of(savepoint))
        self.restores += 1
        self._state = state_of(savepoint)
        self.begin()

    def start_from_scratch(self) -> None:
        """As `restore_savepoint`, from the beginning: everything is read, and comes once more."""
        if self._is_restored(BEGINNING, Later.WRITE_AGAIN):
            self._begin_piece((0,) * PARTITIONS)
            self.fresh += 1
            self.begin()

    def _is_restored(self, uri: str, later: Later) -> bool:
        how = self.random.choice(("one", "two at once", "one is killed"))
        processes = [self.run_action(uri=uri, later=later) for _ in range(2 if how == "two at once" else 1)]
        if how == "one is killed":
            time.sleep(self.random.uniform(0.5, 3.0))
            processes[0].process.kill()
        answers = [process.answer() for process in processes]
        for _ in range(TRIES):
            if any("restored" in answer for answer in answers):
                return True
            answers = [self.run_action(uri=uri, later=later).answer()]
        self.report.violations.append(f"{uri} could not be restored: {answers}")
        return False

    def change(self, uri: str, savepoint: Savepoint) -> tuple[str, Savepoint]:
        """Another savepoint made of it; sometimes what makes it is killed, and tried again."""
        operator = savepoint.operators[0]
        backend = Backend.HDFS if savepoint.backend == Backend.ROCKSDB.short else Backend.ROCKSDB
        what: dict[str, str | int] = {"uri": uri, "folder": self.savepoints}
        if backend is Backend.HDFS and self.random.random() < 0.7:  # only what is in RocksDB can be rescaled
            what["partitions"] = self.random.choice(sorted({*range(1, MOST_PARTITIONS + 1)} - {operator.partitions}))
        else:
            what["backend"] = backend.value
        process = self.run_action(**what)
        if self.random.random() < 0.3:
            time.sleep(self.random.uniform(1.0, 12.0))
            process.process.kill()
        answer = process.answer() or self.run_action(**what).answer()
        if "uri" not in answer:
            self.report.violations.append(f"{uri} could not be changed, {what}: {answer}")
            return uri, savepoint
        self.changed["rescaled" if "partitions" in what else "converted"] += 1
        changed = read_metadata(answer["uri"])
        verify(answer["uri"], changed)
        return answer["uri"], changed

    def stop(self) -> tuple[str, Savepoint]:
        """Stops the stream with a savepoint, which covers all."""
        outcome = self.stopped({SAVEPOINT: self.savepoints})
        self._runs += 1
        uri = next(words.rpartition(": ")[2] for words in outcome.split("; ") if words.startswith("savepoint of"))
        return uri, dict(self.whole())[uri]

    # --- the judge ------------------------------------------------------------------------------------------------

    def _records(self, topic: str = "totals") -> Counter[Row]:
        columns = ("n", "k", "place", "random")
        return Counter(tuple(value(each)[c] for c in columns) for each in read(self.servers.kafka.bootstrap, topic))

    def _begin_piece(self, offsets: tuple[int, ...]) -> None:
        """Nothing is at work: ends a piece; the next one begins there."""
        self._start = Start(offsets, self._end_piece())
        with closing(self.servers.open_store()) as store:
            self.piece_begins_behind = store.pipeline(PIPELINE).last_published

    def _end_piece(self) -> Counter[Row]:
        """Judges what came since the newest restore; all that is in the topic."""
        records = self._records()
        rows = list((records - self._start.before).elements())
        self.report.violations += judge_piece(self._start, rows, f"piece {self.restores + self.fresh}")
        self._newest |= {row[0]: row for row in rows}
        return records

    def judge(self, sent: int) -> list[str]:
        """The last piece, the table, and a copy of the pipeline from one of the savepoints."""
        self._end_piece()
        problems = []
        reached = {row[0] for row in (self._records() - self._start.before)}
        if lost := [n for n in range(sent) if n not in reached and not self._start.holds(n)]:
            problems.append(f"Kafka: {len(lost)} are lost behind the newest restore")
        table = self._table("totals")
        if sorted(self._newest) != list(range(sent)) or table != set(self._newest.values()):
            problems.append(f"MariaDB: {len(table ^ set(self._newest.values()))} rows are not the newest of the topic")
        changed = ", ".join(f"{count} {how}" for how, count in sorted(self.changed.items())) or "none changed"
        self._console.plain(
            f"  {self.taken} savepoints taken, {changed}, {self.restores} restored,"
            f" {self.continued} of them behind what was delivered, and {self.fresh} times all was read anew"
        )
        return problems + self._judge_copy(sent)

    def _judge_copy(self, sent: int) -> list[str]:
        uri, savepoint = self.random.choice(self.whole())
        self.servers.mariadb.sql(TABLE.format("copied"), "chaos")
        self.servers.kafka.create_topic("copied", partitions=PARTITIONS)
        answer = self.run_action(COPY, uri=uri, later=Later.REFUSE).answer()
        if "restored" not in answer:
            return [f"{uri} could not be restored under another name: {answer}"]
        places = {"topics": {"copies": "copied"}, "tables": {"totals": "copied"}, "keys": {"totals": ["n"]}}
        stream = self.servers.stream(pipeline=COPY, conf=state_of(savepoint), **places)
        task = Task(self.folder, stream, 10_000)
        self._old.append(task)
        await_delivery(self.servers, sent, task, PATIENCE, COPY)
        with closing(self.servers.open_store()) as store:
            store.ask(COPY, RequestKind.STOP, {}, "make chaos")
            task.process.wait(PATIENCE)
        start = Start(offsets_of(savepoint), Counter())
        copied = list(self._records("copied").elements())
        problems = judge_piece(start, copied, "the copy")
        if {row[0] for row in copied} != {n for n in range(sent) if not start.holds(n)}:
            problems.append(f"the copy has {len(copied)} rows behind {start.offsets}, and {sent} were sent")
        return problems if self._table("copied") == set(copied) else [*problems, "the copy's table is not its topic"]

    def _table(self, name: str) -> set[Row]:
        server = self.servers.mariadb
        given = {"host": server.host, "port": server.port, "user": server.user, "password": server.password}
        with closing(pymysql.connect(**given, database="chaos")) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT n, k, place, random FROM {name}")
            return set(cursor.fetchall())


def offsets_of(savepoint: Savepoint) -> tuple[int, ...]:
    """Where its source stands."""
    partitions = savepoint.positions["numbers"]["numbers"]
    return tuple(partitions.get(str(partition), 0) for partition in range(PARTITIONS))


def state_of(savepoint: Savepoint) -> dict[str, str]:
    """The settings of Spark that go with its state."""
    backend = next(each for each in Backend if each.short == savepoint.backend)
    return {PARTITIONS_OF_STATE: str(savepoint.operators[0].partitions), PROVIDER: backend.provider}


def judge_piece(start: Start, rows: list[Row], name: str) -> list[str]:
    """What is wrong in a piece: each number once, none left out from its start on, places that go on with the state."""
    problems = []
    counts = Counter(row[0] for row in rows)
    if duplicated := [n for n, count in counts.items() if count > 1]:
        problems.append(f"{name}: {len(duplicated)} are duplicated, {duplicated[:3]} above all")
    for partition, offset in enumerate(start.offsets):
        found = sorted(n // PARTITIONS for n in counts if n % PARTITIONS == partition)
        if found != list(range(offset, offset + len(found))):
            problems.append(f"{name}: partition {partition} does not go on at {offset}: {found[:3]} to {found[-1:]}")
    before = Counter(
        n % KEYS
        for partition, offset in enumerate(start.offsets)
        for n in range(partition, offset * PARTITIONS, PARTITIONS)
    )
    places: dict[int, list[int]] = defaultdict(list)
    for _, key, place, _ in rows:
        places[key].append(place)
    for key, found in places.items():
        if sorted(found) != list(range(before[key] + 1, before[key] + 1 + len(found))):
            problems.append(f"{name}: the places of key {key} do not go on at {before[key]}: state is not exact")
    return problems


def _beside(fault: Fault) -> Fault:
    return Fault(f"two savepoints beside: {fault.name}", lambda streams: _of(streams).take_beside(fault))


def _of(streams: Streams) -> Savepoints:
    assert isinstance(streams, Savepoints)
    return streams


def _restore_stopped(streams: Streams) -> None:
    """It was stopped with a savepoint: so nothing comes again."""
    these = _of(streams)
    these.restore_savepoint(*these.stop(), Later.REFUSE)


def _begin_killed(streams: Streams) -> None:
    """The task was killed, and everything is read anew."""
    these = _of(streams)
    assert these.task is not None
    these.task.process.kill()
    these.task.process.wait()
    these.start_from_scratch()


def _restore_killed(streams: Streams) -> None:
    """The task was killed; any savepoint will do. What is later is written again, or gone on behind."""
    these = _of(streams)
    assert these.task is not None
    if not these.whole():
        these.run_action(folder=these.savepoints).answer()
    these.task.process.kill()
    these.task.process.wait()
    uri, savepoint = these.random.choice(these.whole())
    later = Later.WRITE_AGAIN
    if savepoint.number > these.piece_begins_behind and these.random.random() < 0.5:
        later = Later.CONTINUE  # one that was taken before has its numbers at other places
    these.restore_savepoint(uri, savepoint, later)


SAVEPOINT_FAULTS: Mapping[str, Fault] = {
    fault.name: fault
    for fault in [
        *map(_beside, FAULTS.values()),
        Fault("stopped with a savepoint, restored", _restore_stopped),
        Fault("kill -9 of the task, a savepoint restored", _restore_killed),
        Fault("kill -9 of the task, another one restored", _restore_killed),
        Fault("kill -9 of the task, all is read anew", _begin_killed),
    ]
}
