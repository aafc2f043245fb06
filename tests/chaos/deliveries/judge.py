"""What can be seen from outside after each fault: own SQL, own consumers, nothing of the package under test.

Rows of a pipeline are (id, draw): which ids there must be is known before, the draw is made by the process that stages
them; so all sinks of a pipeline must hold the same multiset (I1, I3), each id once (I2).
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg2
import pymysql
from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.chaos import checks
from tests.chaos.decision_log import DecisionLog
from tests.chaos.deliveries.hot_keys import CHUNK, FIRST, Order, after, states
from tests.chaos.deliveries.servers import DATABASE, Servers
from tests.chaos.deliveries.systems import System
from tests.chaos.deliveries.targets import MYSQL_FAMILY, Target
from tests.chaos.outside import Marker

SOURCE = "rows"
_NO_TIME = datetime(1970, 1, 1, tzinfo=UTC)  # a document says no times of its markers
MARKERS_SECONDS = 60.0  # for which Kafka may still write the markers of a transaction that is decided

Row = tuple[int, int]
Place = tuple[str, str, str, int]
"""Server, participant, branch and number of a marker."""


@dataclass(frozen=True)
class Verdict:
    """What is wrong with a pipeline, by kind: lost, duplicated and foreign rows, and sentences for everything else."""

    lost: int = 0
    duplicated: int = 0
    problems: Sequence[str] = ()

    @property
    def exact(self) -> bool:
        """Nothing is wrong."""
        return not (self.lost or self.duplicated or self.problems)


def compare(expected: Iterable[int], found: Mapping[str, Sequence[Row]]) -> Verdict:
    """`found`: the rows of each sink. Each expected id once in each, with the same draw everywhere."""
    wanted = Counter(expected)
    lost = duplicated = 0
    problems = []
    draws: dict[int, int] = {}
    reached: dict[str, set[int]] = {}
    for sink, rows in found.items():
        ids = Counter(id for id, _ in rows)
        lost += sum((wanted - ids).values())
        duplicated += sum((ids - wanted).values())
        reached[sink] = {id // CHUNK for id in ids}
        if missing := sorted((wanted - ids).elements())[:3]:
            problems.append(f"I2: sink {sink} lacks {sum((wanted - ids).values())} rows, such as {missing}")
        if extra := sorted((ids - wanted).elements())[:3]:
            problems.append(f"I2: sink {sink} has {sum((ids - wanted).values())} rows too many, such as {extra}")
        other = [id for id, draw in rows if draws.setdefault(id, draw) != draw]
        if other:
            problems.append(f"I1: {len(other)} rows of sink {sink} are of another computation, such as {other[:3]}")
    everywhere = set.intersection(*reached.values()) if reached else set()
    if half := sorted(set().union(*reached.values()) - everywhere):
        problems.append(f"I3: chunks {half[:5]} are in some sinks only")
    return Verdict(lost, duplicated, problems)


class _PostgresLog(DecisionLog):
    """The same questions to PostgreSQL, on a new connection each."""

    def __init__(self, settings: Mapping[str, Any], pipeline: str) -> None:
        super().__init__(Path("/nowhere"), pipeline)
        self._settings = settings

    def _rows(self, sql: str, *values: Any, first: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        with closing(psycopg2.connect(**self._settings)) as connection, connection.cursor() as cursor:
            cursor.execute(sql.replace("?", "%s"), (*first, self._pipeline, *values))
            return list(cursor.fetchall())


class Judge:
    """Looks at the servers past their proxies. It remembers what Kafka's topics held; see `judge_everything`."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._readers: tuple[Consumer, Consumer] | None = None
        self._connections: dict[str, Any] = {}
        self._positions: dict[tuple[str, int], int] = {}
        self._records: defaultdict[str, list[tuple[str, Row]]] = defaultdict(list)
        self._heads: dict[tuple[str, str, str], tuple[tuple[int, int], int, int]] = {}
        self._markers: defaultdict[str, dict[Place, Marker]] = defaultdict(dict)

    def judge_everything(self) -> None:
        """Forgets what was read of the topics, so that the next look reads them from the beginning."""
        self._positions.clear()
        self._records.clear()

    def log(self, store: str, pipeline: str) -> DecisionLog:
        """The decision log; close it after use."""
        if store == "sqlite":
            return DecisionLog(self._servers.store_disk.folder / "ft.db", pipeline)
        server = self._servers.postgres
        login = {"user": server.user, "password": server.password, "dbname": DATABASE}
        settings = {"host": server.host, "port": server.port, "options": "-c search_path=airflow_ft", **login}
        return _PostgresLog(settings, pipeline)

    def unfinished(self, store: str, pipeline: str) -> list[tuple[int, str]]:
        """(number, state) of what is unfinished."""
        with closing(self.log(store, pipeline)) as log:
            try:
                return log.unfinished()
            except psycopg2.errors.UndefinedTable:
                return []

    def status(self, store: str, pipeline: str) -> str:
        """'ACTIVE', or why the pipeline stands still."""
        with closing(self.log(store, pipeline)) as log:
            rows = log._rows("SELECT status, halt_message FROM pipeline WHERE name = ?")
        return " ".join(str(part) for part in rows[0]).strip() if rows else "unknown"

    def judge(self, target: Target, store: str, pipeline: str, chunks: Sequence[int]) -> Verdict:
        """Everything about one pipeline whose checkpoints are all said to be confirmed; `chunks`: rows of each."""
        expected = [chunk * CHUNK + row for chunk, count in enumerate(chunks) for row in range(count)]
        found = self.rows(target, pipeline)
        hot = {sink: {id: draw for id, draw in rows if id >= FIRST} for sink, rows in found.items()}
        verdict = compare(expected, {sink: [row for row in rows if row[0] < FIRST] for sink, rows in found.items()})
        problems = list(verdict.problems)
        for sink, (server, _) in target.sinks.items():
            keyed = server in self._servers.systems and not self._servers.systems[server].appends
            there = {id: draw for id, draw in after(len(chunks) if keyed else 0).items() if draw is not None}
            if hot[sink] != there:
                problems.append(f"I2: the keys that change are {hot[sink]} in sink {sink}, and should be {there}")
        with closing(self.log(store, pipeline)) as log:
            checkpoints, events = log.checkpoints(), log.events()
            if left := log.unfinished():
                problems.append(f"I9: the run has succeeded, and {left} are unfinished")
        problems += checks.event_problems(events)
        problems += checks.log_problems(checkpoints, SOURCE)
        completed = {c.number: checks.plan_digest(c.segments) for c in checkpoints if c.state == "COMPLETED"}
        problems += self._head_problems(target, pipeline)
        problems += self._marker_problems(target, pipeline, completed)
        if (status := self.status(store, pipeline)) != "ACTIVE":
            problems.append(f"I7: the pipeline stands still: {status}")
        return Verdict(verdict.lost, verdict.duplicated, problems)

    # --- rows ---

    def rows(self, target: Target, pipeline: str) -> dict[str, list[Row]]:
        """What everybody can see of a pipeline's rows, by sink."""
        found: dict[str, list[Row]] = {}
        for sink, (server, _) in target.sinks.items():
            if server in self._servers.systems:
                found[sink] = self._servers.systems[server].rows(pipeline)
                continue
            if server not in MYSQL_FAMILY:
                topic = target.topic(sink)
                self._read(topic)
                found[sink] = [row for name, row in self._records[topic] if name == pipeline]
                continue
            statement = f"SELECT id, draw FROM {target.table(sink, pipeline)} WHERE pipeline = %s"
            found[sink] = [(int(id), int(draw)) for id, draw in self.sql(server, statement, pipeline)]
        return found

    def watched(self, target: Target, pipeline: str) -> dict[Hashable, object]:
        """What a watch sees in the newest systems at this moment, by sink."""
        found: dict[Hashable, object] = {}
        for sink, system in self._watchable(target).items():
            seen = system.watched(pipeline)
            found |= {sink: seen} if target.at_once(sink) else {(sink, thing): seen[thing] for thing in seen}
        return found

    def order(self, target: Target, chunks: Sequence[int], begun: int) -> Order:
        """The order of what `watched` may return while the chunks from `begun` on are delivered."""
        found: dict[Hashable, Sequence[object]] = {}
        for sink, system in self._watchable(target).items():
            if target.at_once(sink):
                found[sink] = system.wholes(chunks, begun)
            else:
                found |= {(sink, id): draws for id, draws in states(range(begun, len(chunks)), after(begun)).items()}
        return Order(found)

    def _watchable(self, target: Target) -> dict[str, System]:
        systems = self._servers.systems
        return {sink: systems[server] for sink, (server, _) in target.sinks.items() if server in systems}

    def _read(self, topic: str) -> None:
        """Reads what is new in a topic, as read_committed; TimeoutError when an open transaction is in the way."""
        for last in (False, True):
            try:
                self._follow(topic, *self._consumers())
                return
            except KafkaException:  # consumers that were there before a restart of the broker
                self._close_consumers()
                if last:
                    raise

    def _follow(self, topic: str, anyone: Consumer, reader: Consumer) -> None:
        parts = sorted(anyone.list_topics(topic, timeout=30).topics[topic].partitions)
        ends = {p: anyone.get_watermark_offsets(TopicPartition(topic, p), timeout=30)[1] for p in parts}
        new = {p: end for p, end in ends.items() if self._positions.get((topic, p), 0) < end}
        reader.assign([TopicPartition(topic, p, self._positions.get((topic, p), 0)) for p in new])
        deadline = time.monotonic() + MARKERS_SECONDS
        at = dict.fromkeys(new, 0)
        found: list[tuple[str, Row]] = []
        while any(at[p] < end for p, end in new.items()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic}: read_committed readers stand at {at}, the ends are {new}")
            message = reader.poll(0.02)
            while message is not None:
                if message.error() is not None:
                    raise KafkaException(message.error())
                if (message.offset() or 0) < new[message.partition() or 0]:  # what is newer is read the next time
                    data = json.loads(message.value() or b"")
                    found.append((data["pipeline"], (data["id"], data["draw"])))
                message = reader.poll(0)
            at = {p.partition: max(p.offset, 0) for p in reader.position([TopicPartition(topic, p) for p in new])}
        reader.unassign()
        self._records[topic] += found
        self._positions |= {(topic, p): end for p, end in new.items()}

    def _consumers(self) -> tuple[Consumer, Consumer]:
        """One that sees everything, and one that is read_committed; kept, since they reconnect by themselves."""
        if self._readers is None:
            bootstrap = self._servers.connections()["kafka"]["bootstrap.servers"]
            plain = {"bootstrap.servers": bootstrap, "group.id": "judge", "enable.auto.commit": False, "log_level": 0}
            reader = Consumer({**plain, "isolation.level": "read_committed", "fetch.wait.max.ms": 10})
            self._readers = Consumer({**plain, "isolation.level": "read_uncommitted"}), reader
        return self._readers

    def _close_consumers(self) -> None:
        for consumer in self._readers or ():
            consumer.close()
        self._readers = None

    def close(self) -> None:
        """Closes consumers and connections."""
        self._close_consumers()
        for connection in self._connections.values():
            connection._force_close()  # whatever state it is in
        self._connections.clear()

    def sql(self, server: str, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Past the proxy, by a connection of its own, which is opened again after a restart of the server."""
        for last in (False, True):
            connection = self._connections.get(server)
            if connection is None:
                connection = self._connections[server] = pymysql.connect(**self._servers.mysql_of(server))
            try:
                with connection.cursor() as cursor:
                    cursor.execute(statement, values or None)
                    return list(cursor.fetchall())
            except (pymysql.err.OperationalError, pymysql.err.InterfaceError):
                del self._connections[server]
                if last:
                    raise
        raise AssertionError

    # --- what else a sink holds ---

    def prepared(self) -> list[str]:
        """XA branches that are prepared on any server."""
        return [f"{server}: {row[3]!r}" for server in self._servers.databases for row in self.sql(server, "XA RECOVER")]

    def _head_problems(self, target: Target, pipeline: str) -> list[str]:
        """I5: what a head remembers never goes back."""
        problems = []
        for server, name, epoch, attempt, delivered, floor in self.heads(target, pipeline):
            now = (epoch, attempt), delivered, floor
            before = self._heads.get((pipeline, server, name), now)
            if any(new < old for new, old in zip(now, before, strict=True)):
                problems.append(f"I5: the head of {name} on {server} went from {before} back to {now}")
            self._heads[pipeline, server, name] = now
        return problems

    def heads(self, target: Target, pipeline: str) -> list[tuple[Any, ...]]:
        """What the heads remember: (server, participant, epoch, attempt, last delivered number, floor)."""
        return [
            (server, *row)
            for server in sorted(target.servers & set(MYSQL_FAMILY))
            for row in self.sql(
                server,
                "SELECT participant, epoch, attempt, last_delivered, floor FROM airflow_ft_head"
                " WHERE pipeline = %s ORDER BY participant",
                pipeline,
            )
        ] + [
            (server, name, head["epoch"], head["attempt"], head["last_delivered"], head["floor"])
            for server, name, document in self._documents(target, pipeline)
            if (head := document["head"])
        ]

    def _documents(self, target: Target, pipeline: str) -> Iterator[tuple[str, str, Any]]:
        """(server, participant, its memory), of the newest systems."""
        for sink, system in self._watchable(target).items():
            server, strategy = target.sinks[sink]
            name = f"{server}-{strategy}"
            if (text := system.document(pipeline, name)) is not None:
                yield server, name, json.loads(text)

    def _marker_problems(self, target: Target, pipeline: str, completed: Mapping[int, str]) -> list[str]:
        """I2, I4, I5, I6: by participant and branch. A COMPLETED number has its marker, with the plan's digest."""
        problems = []
        seen = self._markers[pipeline]
        floors = {(server, name): floor for server, name, _, _, _, floor in self.heads(target, pipeline)}
        for server, now in self._markers_now(target, pipeline):
            for key, before in seen.items():
                if key[0] != server:
                    continue
                found, floor = now.get(key), floors.get((server, key[1]), 0)
                if found is None and key[3] > floor:
                    problems.append(f"I6: the marker {key} has vanished, the floor is {floor}")
                if found is not None and found != before:
                    problems.append(f"I6: the marker {key} has changed from {before} to {found}")
            seen |= now
        by_branch: defaultdict[tuple[str, str, str], list[Marker]] = defaultdict(list)
        for (server, participant, branch, _), marker in seen.items():
            by_branch[server, participant, branch].append(marker)
        for (server, participant, branch), markers in by_branch.items():
            problems += [f"{participant} {branch}: {p}" for p in checks.marker_problems(markers)]
            for marker in markers:
                digest = completed.get(marker.number)
                if marker.kind == "committed" and digest != marker.digest:
                    problems.append(
                        f"I6: {participant} on {server} holds a marker of {marker.number} with digest {marker.digest},"
                        f" the log says {digest}"
                    )
        return problems

    def _markers_now(self, target: Target, pipeline: str) -> Iterator[tuple[str, dict[Place, Marker]]]:
        """Which markers there are, by server."""
        for server in sorted(target.servers & set(MYSQL_FAMILY)):
            rows = self.sql(
                server,
                "SELECT participant, branch, number, kind, epoch, attempt, digest, counts, at FROM airflow_ft_ledger"
                " WHERE pipeline = %s",
                pipeline,
            )
            yield server, {(server, row[0], row[1], int(row[2])): _marker(row[2:]) for row in rows}
        for server, name, document in self._documents(target, pipeline):
            found = {}
            for number, made in document["markers"].items():
                facts = made["epoch"], made["attempt"], made["digest"], sum(made["counts"].values()), _NO_TIME
                found[server, name, "", int(number)] = Marker(int(number), made["outcome"], *facts)
            yield server, found


def _marker(row: Sequence[Any]) -> Marker:
    number, kind, epoch, attempt, digest, counts, at = row
    return Marker(int(number), kind, epoch, attempt, digest, sum(json.loads(counts).values()), at)
