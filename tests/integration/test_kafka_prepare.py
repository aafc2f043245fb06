"""What prepare refuses before the decision, without sending a row; and connections that cannot work."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.doctor import Verdict
from airflow_ft.protocol.errors import (
    AirflowFtError,
    ConfigurationError,
    DeclinedError,
    SinkAccessError,
    UnfitTargetError,
)
from airflow_ft.protocol.model import CheckpointingMode
from airflow_ft.sinks.kafka import KafkaSink
from airflow_ft.sinks.kafka.doctor import examine
from airflow_ft.sinks.kafka.participant import open_participant
from airflow_ft.wal import open_wal
from tests.conftest import TopicFactory
from tests.integration.kafka_world import World, expected_ids, ids, read, read_ids, token_numbers, value
from tests.raising import raises
from tools.servers import Kafka

Make = Callable[..., World]
NOW = datetime.now(UTC)
MOON = datetime(1969, 7, 20)
TWICE = pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int8()))
NESTED_KEYS = pa.map_(pa.list_(pa.int8()), pa.int8())
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture
def make(kafka: Kafka, topic: str, tmp_path: Path) -> Make:
    def world(**settings: Any) -> World:
        return World(tmp_path, kafka.bootstrap, {"alerts": KafkaSink(**{"topic": topic, **settings})})

    return world


def column(name: str, values: list[Any], kind: pa.DataType | None = None) -> pa.Table:
    return pa.table({name: pa.array(values, kind), "id": pa.array(range(len(values)), pa.int64())})


@pytest.mark.parametrize(
    ("settings", "table", "kind", "code", "fields"),
    [
        ({"key": "k"}, column("x", ["a"]), DeclinedError, "job_column_missing", {"column": "k", "role": "key"}),
        ({"key": "k"}, column("k", [1.5]), DeclinedError, "column_unfit", {"role": "key", "type": "double"}),
        ({"value": "v"}, column("v", ["a"]), DeclinedError, "column_unused", {"columns": ["id"]}),
        ({"value": "v"}, pa.table({"v": [1]}), DeclinedError, "column_unfit", {"role": "value", "type": "int64"}),
        ({"headers": "h"}, column("h", ["a"]), DeclinedError, "column_unfit", {"role": "headers"}),
        ({"headers": "h"}, column("h", [[(None, b"x")]], HEADERS), DeclinedError, "null_refused", {"column": "h"}),
        ({"headers": "h"}, column("h", [[None]], HEADERS), DeclinedError, "null_refused", {"column": "h"}),
        ({"partition": "p"}, column("p", ["a"]), DeclinedError, "column_unfit", {"role": "partition"}),
        ({"partition": "p"}, column("p", [0, 4], pa.int32()), UnfitTargetError, "partition_missing", {"value": 4}),
        ({"partition": "p"}, column("p", [-1, 2], pa.int64()), DeclinedError, "value_unfit", {"value": -1}),
        ({"timestamp": "t"}, column("t", ["2020-01-01"]), DeclinedError, "column_unfit", {"role": "timestamp"}),
        ({"timestamp": "t"}, column("t", [-5], pa.int64()), DeclinedError, "value_unfit", {"column": "t"}),
        ({"timestamp": "t"}, column("t", [MOON], pa.timestamp("us")), DeclinedError, "value_unfit", {"column": "t"}),
        ({"timestamp": "t"}, column("t", [NOW + timedelta(hours=3)]), UnfitTargetError, "value_unfit", {"column": "t"}),
        ({}, column("x", [1.0, math.nan, math.inf]), DeclinedError, "value_unfit", {"column": "x"}),
        ({}, column("x", [[([1], 1)]], NESTED_KEYS), DeclinedError, "type_unsupported", {"column": "x"}),
        ({}, column("x", ["a" * 1_100_000]), UnfitTargetError, "record_too_large", {}),
        ({"key": "k"}, column("k", ["a", "a" * 1_100_000]), UnfitTargetError, "record_too_large", {}),
        ({}, column("x", [[b"a"] * 300_000]), UnfitTargetError, "record_too_large", {}),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_sent_are_refused_by_prepare(
    settings: dict[str, Any],
    table: pa.Table,
    kind: type[AirflowFtError],
    code: str,
    fields: dict[str, Any],
    make: Make,
    kafka: Kafka,
    topic: str,
) -> None:
    world = make(**settings)
    plan = world.plan(1, world.segment(1, {"alerts": table}))
    with raises(kind, code, sink="alerts", participant="kafka_default", **fields) as caught:
        world.prepare(plan)
    assert caught.error is not None and bool(caught.error.row) == (code == "record_too_large")
    if caught.error.row and "key" in settings:
        assert Path(caught.error.row.removeprefix("1 of ")).is_file()
    assert read(kafka.bootstrap, topic, "read_uncommitted") == []


@pytest.mark.parametrize("values", [[[1.0, math.nan]], [{"a": {"b": math.inf}}], TWICE], ids=["list", "struct", "map"])
def test_nested_values_that_json_cannot_hold_are_declined(values: list[Any], make: Make) -> None:
    world = make()
    with pytest.raises(DeclinedError) as caught:
        world.prepare(world.plan(1, world.segment(1, {"alerts": column("x", values)})))
    assert (caught.value.sink, caught.value.column) == ("alerts", "x")


def test_the_largest_record_that_is_accepted_can_be_sent(make: Make, kafka: Kafka, topic_factory: TopicFactory) -> None:
    topic = topic_factory(partitions=1, config={"max.message.bytes": "100000"})
    world = make(topic=topic, key="k", headers="h", value="v")
    world.extra["compression.type"] = "none"

    def table(size: int) -> pa.Table:
        headers = pa.array([[(f"key{i}", b"v" * 10) for i in range(20)]], HEADERS)
        return pa.table({"k": pa.array(["k" * 100]), "h": headers, "v": pa.array([b"x" * size], pa.binary())})

    accepted, refused = 90_000, 100_001
    while refused - accepted > 1:
        size = (accepted + refused) // 2
        try:
            world.prepare(world.plan(1, world.segment(size, {"alerts": table(size)})))
            accepted = size
        except UnfitTargetError:
            refused = size
    assert accepted > 99_000, "the bound is not wasteful"
    plan = world.plan(1, world.segment(1, {"alerts": table(accepted)}))
    world.prepare(plan)
    world.commit(plan)
    assert [len(m.value() or b"") for m in read(kafka.bootstrap, topic)] == [accepted]


def test_each_topic_takes_records_up_to_its_own_size_limit(
    make: Make, kafka: Kafka, topic_factory: TopicFactory
) -> None:
    large = topic_factory(partitions=1, config={"max.message.bytes": "6000000"})
    small = topic_factory(partitions=1, config={"max.message.bytes": "20000"})
    world = make()
    world.sinks = {"large": KafkaSink(topic=large), "small": KafkaSink(topic=small)}
    big = pa.table({"id": pa.array([1, 2], pa.int64()), "x": ["a" * 5_000_000, "b" * 10]})
    plan = world.plan(1, world.segment(1, {"large": big, "small": ids(1, 20_000)}))
    world.prepare(plan)
    world.commit(plan)
    assert [len(value(m)["x"]) for m in read(kafka.bootstrap, large)] == [5_000_000, 10]
    assert read_ids(kafka.bootstrap, small) == expected_ids((1, 20_000))


def test_a_compacted_topic_wants_keys(make: Make, topic_factory: TopicFactory) -> None:
    topic = topic_factory(partitions=1, config={"cleanup.policy": "compact"})
    world = make(topic=topic)
    with raises(UnfitTargetError, "key_required", topic=topic):
        world.prepare(world.checkpoint(1, 1))
    world = make(topic=topic, key="k")
    with raises(UnfitTargetError, "key_required", topic=topic):
        world.prepare(world.plan(1, world.segment(1, {"alerts": column("k", ["a", None])})))
    good = world.plan(1, world.segment(2, {"alerts": column("k", ["a", "b"])}))
    world.prepare(good)
    assert world.commit(good).counts == {"alerts": 2}


def test_declined_rows_do_not_stand_in_the_way_of_the_next(make: Make, kafka: Kafka, topic: str) -> None:
    world = make()
    bad = world.plan(1, world.segment(1, {"alerts": column("x", [math.nan])}))
    with pytest.raises(DeclinedError):
        world.prepare(bad)
    good = world.checkpoint(2, 5, predecessor=0)
    world.prepare(good)
    world.commit(good)
    assert read_ids(kafka.bootstrap, topic) == expected_ids((2, 5))


def test_people_are_told_of_weak_durability(make: Make) -> None:
    world = make()
    notes = world.prepare(world.checkpoint(1, 1))
    assert any("can be lost with one broker" in note for note in notes.values())


def test_prepare_finds_a_time_out_that_the_broker_refuses(make: Make) -> None:
    world = make()
    world.extra["transaction.timeout.ms"] = 1_000_000
    with raises(SinkAccessError, "limit_reached", error="INVALID_TRANSACTION_TIMEOUT") as caught:
        world.prepare(world.checkpoint(1, 1))
    assert caught.error is not None and "transaction.max.timeout.ms" in caught.error.remedy


def test_the_doctor_warns_of_a_short_transaction_time_out(make: Make) -> None:
    world = make()
    plan = world.checkpoint(1, 1)

    def warned() -> list[str]:
        checks = examine(world.pipeline, plan.participants[0], world.connection, [open_wal().open(plan.segments[0])])
        return [check.text for check in checks if check.verdict is Verdict.WARNING and "time-out" in check.name]

    assert warned() == []
    world.extra["transaction.timeout.ms"] = 5_000
    [warnings] = warned()
    assert "5 s (transaction.timeout.ms) is less than the 60 s" in warnings


def test_a_topic_limit_lowered_after_the_vote_delays_the_commit(make: Make, kafka: Kafka, topic: str) -> None:
    world = make()
    world.extra["compression.type"] = "none"
    plan = world.plan(1, world.segment(1, {"alerts": column("x", ["a" * 50_000])}))
    world.prepare(plan)
    set_config(kafka, topic, "max.message.bytes", "10000")
    with raises(SinkAccessError, "record_too_large") as caught:
        world.commit(plan)
    assert caught.error is not None and "max.message.bytes" in caught.error.remedy
    set_config(kafka, topic, "max.message.bytes", "1000000")
    assert world.commit(plan).counts == {"alerts": 1}
    assert len(read(kafka.bootstrap, topic)) == 1


@pytest.mark.parametrize("mode", [CheckpointingMode.EXACTLY_ONCE, CheckpointingMode.AT_LEAST_ONCE])
def test_a_topic_altered_after_the_vote_replaces_no_timestamps(
    make: Make, kafka: Kafka, topic: str, mode: CheckpointingMode
) -> None:
    world = make(timestamp="at")
    world.mode = mode
    at = int(NOW.timestamp() * 1000) - 60_000
    plan = world.plan(1, world.segment(1, {"alerts": column("at", [at, at + 1])}))
    world.prepare(plan)
    set_config(kafka, topic, "message.timestamp.type", "LogAppendTime")
    with raises(UnfitTargetError, "topic_setting_unfit", sink="alerts", column="at", checkpoint=1):
        world.commit(plan)
    set_config(kafka, topic, "message.timestamp.type", "CreateTime")
    assert world.commit(plan).counts == {"alerts": 2}
    found = [message.timestamp()[1] for message in read(kafka.bootstrap, topic)]
    assert {at, at + 1} <= set(found) and len(found) == (2 if mode is CheckpointingMode.EXACTLY_ONCE else 4)


def set_config(kafka: Kafka, topic: str, name: str, setting: str) -> None:
    entry = ConfigEntry(name, setting, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = kafka.admin()  # kept in a variable: its requests end with it
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(60)


@pytest.mark.parametrize(
    ("extra", "fields"),
    [
        ({"bootstrap.servers": ""}, {"setting": "bootstrap.servers"}),
        ({"airflow_ft_tokens": "x"}, {"setting": "airflow_ft_tokens"}),
        ({"airflow_ft_timeout": "soon"}, {"setting": "airflow_ft_timeout"}),
        ({"airflow_ft_timeout": 0}, {"setting": "airflow_ft_timeout"}),
        ({"oauth_cb": "mod.func"}, {"setting": "oauth_cb"}),
        ({"no.such.setting": "hunter2"}, {"settings": ["no.such.setting"]}),
        ({"linger.ms": "hunter2"}, {}),
        ({"max.in.flight": 100}, {}),
    ],
)
def test_invalid_settings_are_named_without_their_values(
    extra: dict[str, Any], fields: dict[str, Any], make: Make
) -> None:
    world = make()
    world.extra = {**extra, "sasl.password": "hunter2"}
    with raises(SinkAccessError, "connection_invalid", participant="kafka_default", **fields) as caught:
        world.prepare(world.checkpoint(1, 1))
    assert caught.error is not None and "hunter2" not in f"{caught.error.fields}"
    error: BaseException | None = caught.error
    while error is not None:
        assert "hunter2" not in f"{error!r} {error}"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def test_settings_for_other_code_on_a_connection_are_ignored(make: Make, kafka: Kafka, topic: str) -> None:
    world = make()
    world.extra = {
        "group.id": "others", "auto.offset.reset": "earliest", "enable.auto.commit": True, "error_cb": "a.b",
        "isolation.level": "read_uncommitted", "acks": "1", "enable.idempotence": False, "transactional.id": "x",
        "linger.ms": 0, "client.id": "ours",
    }  # fmt: skip
    world.deliver(1, 5)
    assert read_ids(kafka.bootstrap, topic) == expected_ids((1, 5))


def test_a_host_stands_in_for_bootstrap_servers(make: Make, kafka: Kafka) -> None:
    plan = make().checkpoint(1, 1)
    connection = ConnectionInfo("kafka_default", "kafka", host=kafka.host, port=kafka.port)
    part = open_participant(plan.participants[0], connection, open_wal())
    assert token_numbers(part, plan.pipeline) == [None]
    part.close()


def test_too_many_sinks_for_one_token_are_refused(make: Make, topic: str) -> None:
    world = make()
    world.sinks = {f"sink-{i}-{'x' * 50}": KafkaSink(topic=topic) for i in range(60)}
    with raises(ConfigurationError, "too_many_sinks", sinks=60):
        world.prepare(world.plan(1, world.segment(1, {})))


# --- with users and privileges -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secured(servers_folder: Path) -> Any:
    """A broker that knows passwords and privileges; `admin` may do everything."""
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    users = 'user_admin="admin-secret" user_writer="writer-secret"'
    options = {
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT",
        "inter.broker.listener.name": "SASL",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.sasl.plain.sasl.jaas.config": f'{module} username="admin" password="admin-secret" {users};',
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin;User:ANONYMOUS",
    }
    server = SecuredKafka(servers_folder / "kafka-secured", options=options)
    with server:
        server.create_topic("alerts", 2)
        yield server


class SecuredKafka(Kafka):
    credentials = {  # noqa: RUF012
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "admin",
        "sasl.password": "admin-secret",
    }

    def _properties(self, data: Path) -> dict[str, str | int]:
        properties = super()._properties(data)
        for name in ("listeners", "advertised.listeners"):
            properties[name] = str(properties[name]).replace("PLAINTEXT://", "SASL://")
        return properties

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0, **self.credentials})


def as_user(server: SecuredKafka, name: str, password: str) -> dict[str, Any]:
    return {**server.credentials, "sasl.username": name, "sasl.password": password}


def allow(server: SecuredKafka, *grants: tuple[str, str, str]) -> None:
    bindings = [
        AclBinding(
            ResourceType[kind],
            name,
            ResourcePatternType.PREFIXED,
            "User:writer",
            "*",
            AclOperation[operation],
            AclPermissionType.ALLOW,
        )
        for kind, name, operation in grants
    ]
    admin = server.admin()
    for future in admin.create_acls(bindings).values():
        future.result(60)


def test_a_wrong_password_is_named_as_such_without_it(secured: SecuredKafka, tmp_path: Path) -> None:
    extra = {**as_user(secured, "admin", "hunter2"), "airflow_ft_timeout": 15}
    world = World(tmp_path, secured.bootstrap, {"alerts": KafkaSink(topic="alerts")}, extra=extra)
    with raises(SinkAccessError, "login_refused") as caught:
        world.prepare(world.checkpoint(1, 1))
    assert caught.error is not None and "hunter2" not in f"{caught.error} {caught.error.fields}"


def test_each_missing_privilege_is_named_until_all_are_granted(
    secured: SecuredKafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(
        tmp_path,
        secured.bootstrap,
        {"alerts": KafkaSink(topic="alerts")},
        extra=as_user(secured, "writer", "writer-secret"),
    )
    plan = world.checkpoint(1, 5)

    def refused() -> AirflowFtError:
        began = monotonic()
        with pytest.raises(AirflowFtError) as caught:
            world.prepare(plan)
        assert monotonic() - began < 50, "a refusal is not waited for until the time-out of 60 s"
        assert isinstance(caught.value, SinkAccessError), caught.value
        return caught.value

    assert "'airflow_ft.tokens'" in refused().headline
    secured.create_topic("airflow_ft.tokens", 1)
    allow(secured, ("TOPIC", "airflow_ft.", "READ"))
    assert "'alerts'" in refused().headline
    allow(secured, ("TOPIC", "alerts", "DESCRIBE"))
    assert refused().fields["error"] == "GROUP_AUTHORIZATION_FAILED"
    allow(secured, ("GROUP", "airflow_ft.", "READ"))
    assert refused().fields["error"] == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
    allow(secured, ("TRANSACTIONAL_ID", "airflow_ft.", "WRITE"))
    error = refused()
    assert (error.code, error.fields["topic"]) == ("privilege_missing", "alerts")
    assert "kafka-acls.sh" in error.remedy
    allow(secured, ("TOPIC", "alerts", "WRITE"))
    notes = world.prepare(plan)
    assert any("DESCRIBE_CONFIGS" in note for note in notes.values())
    assert world.commit(plan).counts == {"alerts": 5}
    assert "writer-secret" not in caplog.text


def test_holding_a_transaction_needs_no_further_privileges(
    secured: SecuredKafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No log contains the password, even with debug messages."""
    caplog.set_level(logging.DEBUG)
    allow(
        secured,
        ("TOPIC", "airflow_ft.", "READ"),
        ("GROUP", "airflow_ft.", "READ"),
        ("TRANSACTIONAL_ID", "airflow_ft.", "WRITE"),
        ("TOPIC", "held", "DESCRIBE"),
        ("TOPIC", "held", "WRITE"),
    )
    secured.create_topic("held", 2)
    if "airflow_ft.tokens" not in secured.admin().list_topics(timeout=30).topics:
        secured.create_topic("airflow_ft.tokens", 1)
    world = World(
        tmp_path,
        secured.bootstrap,
        {"alerts": KafkaSink(topic="held", strategy="held")},
        extra=as_user(secured, "writer", "writer-secret"),
    )
    plan = world.checkpoint(1, 5)
    ((_, held),) = world.prepare(plan)["held"].items()
    assert held["timeout_ms"] == 900_000, "the brokers' settings may not be read: Kafka's default is assumed"
    assert world.commit(plan).detail["attempt"] == world.votes[1].prepared
    assert "kafka.net" in caplog.text, "the second client does write to the log"
    assert "writer-secret" not in caplog.text
