"""Delivery into a real broker: what readers see, and what is proven."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_ft.protocol.errors import SinkAccessError
from airflow_ft.protocol.votes import Outcome
from airflow_ft.sinks.kafka import KafkaSink
from tests.conftest import TopicFactory
from tests.integration.kafka_world import World, expected_ids, ids, read, read_ids, token_numbers, value
from tests.raising import raises
from tools.servers import Kafka


@pytest.fixture
def world(kafka: Kafka, topic: str, tmp_path: Path) -> World:
    return World(tmp_path, kafka.bootstrap, {"alerts": KafkaSink(topic=topic)})


def test_rows_are_visible_once_and_proven(world: World, kafka: Kafka, topic: str) -> None:
    plan = world.checkpoint(1, 1000)
    world.prepare(plan)
    assert read_ids(kafka.bootstrap, topic) == [], "nothing is visible before the decision (I2)"
    proof = world.commit(plan)
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, 1000))
    assert proof.outcome is Outcome.COMMITTED
    assert (proof.number, proof.digest, proof.counts) == (1, plan.digest, {"alerts": 1000})
    by_partition = proof.detail["partitions"][topic]
    assert sum(place["records"] for place in by_partition.values()) == 1000
    json.dumps(proof.detail)


def test_a_commit_that_is_repeated_has_no_second_effect(world: World, kafka: Kafka, topic: str) -> None:
    plan = world.checkpoint(1, 100)
    world.prepare(plan)
    proofs = [world.commit(plan) for _ in range(3)]
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, 100))
    assert proofs[0] == proofs[1] == proofs[2]
    participant = world.open(plan)
    assert participant.proof(plan) == proofs[0]
    participant.close()


def test_a_prepare_that_is_repeated_sends_nothing(world: World, kafka: Kafka, topic: str) -> None:
    plan = world.checkpoint(1, 10)
    for _ in range(3):
        world.prepare(plan)
    participant = world.open(plan)
    assert participant.proof(plan) is None
    assert token_numbers(participant, world.pipeline) == [0]
    participant.close()
    assert read(kafka.bootstrap, topic, "read_uncommitted") == []


def test_checkpoints_follow_each_other_and_carry_segments(world: World, kafka: Kafka, topic: str) -> None:
    world.deliver(1, 10)
    carried, own = world.segment(2, {"alerts": ids(2, 5)}), world.segment(3, {"alerts": ids(3, 7)})
    plan = world.plan(3, carried, own, predecessor=1)
    world.prepare(plan)
    assert world.commit(plan).counts == {"alerts": 12}
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, 10), (2, 5), (3, 7))


@pytest.mark.parametrize("strategy", ["transaction", "held"])
def test_checkpoints_of_one_record_lose_none(kafka: Kafka, topic: str, tmp_path: Path, strategy: str) -> None:
    """A transaction ends right after its first record, which its commit must not overtake (apache/seatunnel#11534)."""
    world = World(tmp_path, kafka.bootstrap, {"alerts": KafkaSink(topic=topic, strategy=strategy)})
    for number in range(1, 21):
        plan = world.checkpoint(number, 1)
        world.prepare(plan)
        assert world.commit(plan).counts == {"alerts": 1}
    assert read_ids(kafka.bootstrap, topic) == expected_ids(*((number, 1) for number in range(1, 21)))


def test_a_checkpoint_without_rows_still_moves_the_token(world: World, kafka: Kafka, topic: str) -> None:
    world.deliver(1, 3)
    for empty in (world.checkpoint(2, 0), world.plan(3, world.segment(3, {}))):
        world.prepare(empty)
        assert world.commit(empty).counts == {"alerts": 0}
        assert token_numbers(world.open(empty), world.pipeline) == [empty.number]
    world.deliver(4, 2)
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, 3), (4, 2))


def test_several_checkpoints_may_be_prepared_before_any_commit(world: World, kafka: Kafka, topic: str) -> None:
    plans = [world.checkpoint(number, 4) for number in (1, 2, 3)]
    for plan in plans:
        world.prepare(plan)
    for plan in plans:
        world.commit(plan)
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, 4), (2, 4), (3, 4))


def test_the_order_of_the_log_is_the_order_in_the_topic(
    kafka: Kafka, topic_factory: TopicFactory, tmp_path: Path
) -> None:
    topic = topic_factory(partitions=1)
    world = World(tmp_path, kafka.bootstrap, {"alerts": KafkaSink(topic=topic)})
    world.deliver(1, 5000)
    world.deliver(2, 5000)
    assert [value(m)["id"] for m in read(kafka.bootstrap, topic)] == expected_ids((1, 5000), (2, 5000))


def test_all_sinks_of_a_cluster_are_delivered_together(
    kafka: Kafka, topic_factory: TopicFactory, tmp_path: Path
) -> None:
    first, second = topic_factory(), topic_factory(2)
    sinks = {"a": KafkaSink(topic=first), "b": KafkaSink(topic=second), "c": KafkaSink(topic=second)}
    world = World(tmp_path, kafka.bootstrap, sinks)
    plan = world.plan(1, world.segment(1, {"a": ids(1, 30), "b": ids(2, 40), "c": ids(3, 50)}))
    world.prepare(plan)
    proof = world.commit(plan)
    assert proof.counts == {"a": 30, "b": 40, "c": 50}
    assert sum(place["records"] for place in proof.detail["partitions"][second].values()) == 90
    assert read_ids(kafka.bootstrap, first) == expected_ids((1, 30))
    assert read_ids(kafka.bootstrap, second) == expected_ids((2, 40), (3, 50))


@pytest.mark.parametrize("slots", [2, 3])
def test_parallel_slots_divide_the_files_and_prove_together(
    slots: int, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    world = World(tmp_path, kafka.bootstrap, {"alerts": KafkaSink(topic=topic, slots=slots)})
    for number in (1, 2):
        base = 10 * number
        segments = [world.segment(base + i, {"alerts": ids(base + i, 100 + i)}) for i in range(5)]
        plan = world.plan(number, *segments)
        world.prepare(plan)
        proof = world.commit(plan)
        assert proof.counts == {"alerts": 510}
        assert proof.detail["slots"] == slots
        participant = world.open(plan)
        assert token_numbers(participant, world.pipeline) == [number] * slots
        participant.close()
    wanted = [(10 * n + i, 100 + i) for n in (1, 2) for i in range(5)]
    assert read_ids(kafka.bootstrap, topic) == expected_ids(*wanted)


def test_slots_may_be_added_and_taken_away(kafka: Kafka, topic: str, tmp_path: Path) -> None:
    world = World(tmp_path, kafka.bootstrap, {})
    for number, slots in enumerate((1, 3, 2, 1, 3), start=1):
        world.sinks = {"alerts": KafkaSink(topic=topic, slots=slots)}
        segments = [world.segment(10 * number + i, {"alerts": ids(10 * number + i, 20)}) for i in range(4)]
        plan = world.plan(number, *segments)
        world.prepare(plan)
        assert world.commit(plan).counts == {"alerts": 80}
    assert read_ids(kafka.bootstrap, topic) == expected_ids(*((10 * n + i, 20) for n in range(1, 6) for i in range(4)))


def test_every_value_arrives_exactly(kafka: Kafka, topic_factory: TopicFactory, tmp_path: Path) -> None:
    topic = topic_factory(partitions=3)
    sink = KafkaSink(topic=topic, key="k", headers="h", partition="p", timestamp="t")
    world = World(tmp_path, kafka.bootstrap, {"alerts": sink})
    now = int(datetime.now(UTC).timestamp() * 1_000_000)
    header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    table = pa.table(
        {
            "k": pa.array([b"\x00\xff", b"", None, "ключ".encode()], pa.binary()),
            "h": pa.array(
                [[("a", b"\xff"), ("a", None), ("ü", b"")], [], None, [("x", b"y")]], header
            ),
            "p": pa.array([0, 1, 2, 2], pa.int32()),
            "t": pa.array([now, 1000, None, 1_700_000_000_123_999], pa.timestamp("us", "UTC")),
            "text": ['"\\\n\x01\u2028🎉', "", None, "a,b:{}[]"],
            "big": pa.array([2**63 - 1, -(2**63), None, 0], pa.int64()),
            "price": pa.array([Decimal("0"), Decimal("-0.000000000000000001"), None, Decimal("12345678901234567890.5")],
                              pa.decimal128(38, 18)),
            "real": pa.array([0.1, -1e300, None, 5e-324], pa.float64()),
            "raw": pa.array([b"\x00\x01\xff", b"", None, b"abc"], pa.binary()),
        }
    )  # fmt: skip
    plan = world.plan(1, world.segment(1, {"alerts": table}))
    world.prepare(plan)
    world.commit(plan)
    by_text = {value(m)["text"]: m for m in read(kafka.bootstrap, topic)}
    records = [by_text[text] for text in table["text"].to_pylist()]
    assert [m.key() for m in records] == [b"\x00\xff", b"", None, "ключ".encode()]
    assert [m.partition() for m in records] == [0, 1, 2, 2]
    assert [m.headers() for m in records] == [
        [("a", b"\xff"), ("a", None), ("ü", b"")], None, None, [("x", b"y")]
    ]  # fmt: skip
    stamps = [m.timestamp()[1] for m in records]
    assert (stamps[0], stamps[1], stamps[3]) == (now // 1000, 1, 1_700_000_000_123)
    assert abs(stamps[2] - now // 1000) < 60_000, "null is the time of delivery"
    values = [value(m) for m in records]
    assert list(values[0]) == ["text", "big", "price", "real", "raw"]
    assert [v["big"] for v in values] == [2**63 - 1, -(2**63), None, 0]
    assert [v["price"] for v in values] == [
        "0.000000000000000000", "-0.000000000000000001", None, "12345678901234567890.500000000000000000"
    ]  # fmt: skip
    assert [v["real"] for v in values] == [0.1, -1e300, None, 5e-324]
    assert [v["raw"] for v in values] == ["AAH/", "", None, "YWJj"]


def test_raw_values_are_sent_unchanged_and_null_is_a_tombstone(
    kafka: Kafka, topic_factory: TopicFactory, tmp_path: Path
) -> None:
    topic = topic_factory(partitions=1)
    world = World(tmp_path, kafka.bootstrap, {"alerts": KafkaSink(topic=topic, key="k", value="v")})
    table = pa.table({"k": pa.array([1, 2, 3], pa.int64()), "v": pa.array([b"\xff\x00", b"", None], pa.binary())})
    plan = world.plan(1, world.segment(1, {"alerts": table}))
    world.prepare(plan)
    world.commit(plan)
    assert [(m.key(), m.value()) for m in read(kafka.bootstrap, topic)] == [
        (b"1", b"\xff\x00"), (b"2", b""), (b"3", None)
    ]  # fmt: skip


def test_keys_go_to_the_partition_that_java_would_choose(
    kafka: Kafka, topic_factory: TopicFactory, tmp_path: Path
) -> None:
    topic = topic_factory(partitions=8)
    world = World(tmp_path, kafka.bootstrap, {"alerts": KafkaSink(topic=topic, key="k")})
    keys = [f"key-{i}" for i in range(500)]
    table = pa.table({"k": keys, "id": pa.array(range(500), pa.int64())})
    plan = world.plan(1, world.segment(1, {"alerts": table}))
    world.prepare(plan)
    world.commit(plan)
    for message in read(kafka.bootstrap, topic):
        assert message.partition() == (murmur2(message.key() or b"") & 0x7FFFFFFF) % 8


def murmur2(data: bytes) -> int:
    """org.apache.kafka.common.utils.Utils.murmur2, transcribed."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = (0x9747B28C ^ len(data)) & mask
    whole = len(data) // 4 * 4
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    rest = data[whole:]
    if rest:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


def test_every_record_is_visible_when_the_commit_returns(world: World, kafka: Kafka, topic: str) -> None:
    for number in range(1, 11):
        world.deliver(number, 50)
        assert len(read(kafka.bootstrap, topic)) == 50 * number, "visible when commit returns"


def test_a_token_topic_of_another_name_is_used(world: World, kafka: Kafka, topic_factory: TopicFactory) -> None:
    world.extra["airflow_ft_token_topic"] = name = topic_factory(partitions=1)
    world.deliver(1, 1)
    kafka.delete_topic(name)
    kafka.create_topic(name, 1)
    plan = world.checkpoint(2, 1)
    participant = world.open(plan)
    assert token_numbers(participant, world.pipeline) == [None], "tokens vanish with their topic"
    participant.close()


@pytest.mark.sampled(among="servers of their own")
def test_group_offsets_do_not_need_a_member(world: World, kafka: Kafka, own_server: Callable[..., Any]) -> None:
    server = own_server(Kafka)
    server.create_topic("alerts", 2)
    world.bootstrap, world.sinks = server.bootstrap, {"alerts": KafkaSink(topic="alerts")}
    world.deliver(1, 10)
    assert "airflow_ft.tokens" in server.admin().list_topics(timeout=30).topics, "made by the first prepare"
    assert read_ids(server.bootstrap, "alerts") == expected_ids((1, 10))


def test_a_missing_topic_is_named_with_the_command_that_makes_it(world: World) -> None:
    world.sinks = {"alerts": KafkaSink(topic="not-there")}
    with raises(SinkAccessError, "topic_missing", topic="not-there", participant="kafka_default") as caught:
        world.prepare(world.checkpoint(1, 1))
    assert caught.error is not None and "--create --topic not-there" in caught.error.remedy
