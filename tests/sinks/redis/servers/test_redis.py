"""A real Redis: what is required of it, what is refused, and what `verify` finds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import redis

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import (
    AirflowFtError,
    FencedError,
    SinkAccessError,
    SinkUnavailableError,
    StoreBehindSinkError,
    UnfitTargetError,
)
from airflow_ft.protocol.verify import Delivered
from airflow_ft.sinks import doctor
from airflow_ft.sinks.base.document import OvertakenError
from airflow_ft.sinks.base.keyed import Chunk
from airflow_ft.sinks.base.requirements import lacks
from airflow_ft.sinks.redis import requirements, setup
from airflow_ft.sinks.redis.participant import Changes
from airflow_ft.sinks.redis.rows import entries, packed
from airflow_ft.sinks.redis.spec import OURS, RedisSink
from airflow_ft.sinks.redis.verify import verify
from airflow_ft.testing.world import SINK, World
from airflow_ft.wal import open_wal
from tests.conformance.test_redis import Keys
from tests.raising import raises
from tests.sinks.keyed import check_last_rows, check_verify
from tools.servers import Redis

pytestmark = pytest.mark.server


@pytest.fixture
def world(redis_server: Redis, tmp_path: Path) -> Iterator[World]:
    with closing(World(Keys(redis_server, "hash", "upsert"), tmp_path)) as found:
        yield found


def lacking(world: World, connection: ConnectionInfo) -> list[AirflowFtError]:
    plan = world.plan()
    return lacks(requirements.required(plan.pipeline, plan.participants[0], connection))


@pytest.mark.parametrize(
    ("name", "value", "back"),
    [
        ("appendfsync", "everysec", "always"),
        ("appendonly", "no", "yes"),
        ("no-appendfsync-on-rewrite", "yes", "no"),
        ("maxmemory-policy", "allkeys-lru", "noeviction"),
        ("maxmemory-policy", "volatile-ttl", "noeviction"),
    ],
)
def test_a_server_that_may_forget_is_refused(world: World, name: str, value: str, back: str) -> None:
    db: redis.Redis = world.target.db  # type: ignore[attr-defined]
    world.target.sink = replace(world.target.sink, ttl_seconds=3600)  # type: ignore[type-var]
    plan, connection = world.plan(), world.target.connection
    db.config_set("maxmemory", "1gb")
    db.config_set(name, value)
    try:
        [problem] = lacking(world, connection)
        assert (problem.code, problem.fields["settings"]) == ("server_setting_unsafe", {name: value})
        assert problem.remedy.startswith(f"Set {name} {back}, also in redis.conf")
        with raises(UnfitTargetError, "server_setting_unsafe"):
            world.prepare(plan)
        found = doctor.examine(plan.pipeline, plan.participants[0], connection, [])
        assert [each.verdict.name for each in found] == ["PROBLEM"]
        allowed = replace(world.target.sink, allow_unsafe_durability=True)  # type: ignore[type-var]
        world.target.sink = allowed
        assert not lacking(world, connection)
    finally:
        db.config_set(name, back)
        db.config_set("maxmemory", "0")


def test_rows_that_never_expire_are_safe_beside_evicted_ones(world: World) -> None:
    db: redis.Redis = world.target.db  # type: ignore[attr-defined]
    db.config_set("maxmemory", "1gb")
    db.config_set("maxmemory-policy", "volatile-lru")
    try:
        assert not lacking(world, world.target.connection)
    finally:
        db.config_set("maxmemory-policy", "noeviction")
        db.config_set("maxmemory", "0")


def test_settings_that_cannot_be_read_are_not_taken_for_safe(world: World) -> None:
    target: Any = world.target
    target.db.execute_command("ACL", "SETUSER", "blind", "on", ">only-F0r-tests", "~*", "+@all", "-config")
    connection = replace(target.connection, login="blind", password="only-F0r-tests")
    try:
        [problem] = lacking(world, connection)
        assert (problem.code, problem.fields["settings"]) == ("server_setting_unsafe", {"appendfsync": "unknown"})
    finally:
        target.db.execute_command("ACL", "DELUSER", "blind")


def test_two_sinks_that_give_one_key_two_types_show_nothing(redis_server: Redis, tmp_path: Path) -> None:
    with closing(World(Keys(redis_server, "hash", "atomic"), tmp_path)) as world:
        target: Any = world.target
        plan = world.plan()
        world.prepare(plan)
        participant: Any = world.participant(plan)
        rows = pa.record_batch({"id": [1], "text": ["a"]})
        chunk = Chunk(0, SINK, rows, np.zeros(1, np.bool_), {})
        sinks = (target.sink, replace(target.sink, value="string"))
        with (
            raises(UnfitTargetError, "key_unfit", key="orders:1"),
            participant._writing(world.fence(1, world.attempt()), plan) as (changes, ledger),
        ):
            participant._raised(ledger, changes.fence)
            for index, sink in enumerate(sinks):
                changes.stage(index, packed(sink, entries(sink, chunk, 1)))
        assert target.ids() == []


def test_too_few_replicas_are_told_with_what_helps(world: World) -> None:
    target: Any = world.target
    plan = world.plan()
    vote = world.prepare(plan)
    target.db.config_set("min-replicas-to-write", "1")
    try:
        with raises(SinkUnavailableError, "sink_unavailable") as caught:
            world.commit(plan, vote)
        assert caught.error and "min-replicas-to-write" in caught.error.remedy
    finally:
        target.db.config_set("min-replicas-to-write", "0")
    world.commit(plan, vote)
    world.shows(world.ids_of(1))


def test_a_replica_is_refused(world: World) -> None:
    db: redis.Redis = world.target.db  # type: ignore[attr-defined]
    db.replicaof("127.0.0.1", 1)
    try:
        with raises(SinkUnavailableError, "server_read_only"):
            world.prepare(world.plan())
    finally:
        db.replicaof("NO", "ONE")


@pytest.mark.parametrize(
    ("change", "kind", "code"),
    [
        ({"password": "planted-Secret-4"}, SinkAccessError, "login_refused"),
        ({"login": "unknown"}, SinkAccessError, "login_refused"),
        ({"port": 1}, SinkUnavailableError, "server_unreachable"),
        ({"extra": {"db": "none"}}, SinkAccessError, "connection_invalid"),
        ({"extra": {"db": 99}}, SinkAccessError, "connection_invalid"),
        ({"conn_type": "mysql"}, SinkAccessError, "connection_invalid"),
        ({"extra": {"ssl_ca_certs": "/nowhere.pem"}}, SinkAccessError, "connection_invalid"),
    ],
    ids=str,
)
def test_a_wrong_connection_is_told_and_shows_no_secret(
    world: World, change: dict[str, Any], kind: type[Exception], code: str
) -> None:
    [problem] = lacking(world, replace(world.target.connection, **change))
    assert type(problem) is kind and problem.code == code
    assert "planted" not in f"{problem} {vars(problem)}" and problem.remedy


def test_the_printed_rules_suffice(world: World) -> None:
    """A user with these rights alone delivers, verifies, and may not touch other keys."""
    target: Any = world.target
    connection = replace(target.connection, login="loader", password="only-F0r-tests")
    [rule] = [line for line in setup.describe("p", world.participant_plan(), connection) if line.startswith("ACL")]
    target.db.execute_command(*rule.split(), "on", ">only-F0r-tests")
    try:
        target.connection = connection
        plan = world.plan()
        proof = world.deliver(plan)
        [report] = verify([Delivered(plan, proof, None)], plan.participants[0], connection, open_wal())
        assert report.is_exact and report.expected == 40
        other = redis.Redis(port=connection.port, username="loader", password="only-F0r-tests")
        with closing(other), pytest.raises(redis.exceptions.NoPermissionError):
            other.set("other", "x")
        target.db.execute_command("ACL", "SETUSER", "loader", "-hset")
        with raises(SinkAccessError, "privilege_missing"):
            world.deliver(world.plan())
        target.db.execute_command("ACL", "SETUSER", "loader", "+hset", "resetkeys", "~airflow_ft:*")
        [problem] = lacking(world, connection)
        assert problem.code == "privilege_missing", "before Spark starts"
        with raises(SinkAccessError, "privilege_missing") as caught:
            world.prepare(world.plan())
        assert "EVALSHA" not in f"{caught.error}", "a command may have values of rows"
    finally:
        target.db.execute_command("ACL", "DELUSER", "loader")


@pytest.mark.parametrize("strategy", ["upsert", "atomic"])
@pytest.mark.parametrize(
    ("denied", "value", "seconds"),
    [("HDEL", "hash", 0), ("PERSIST", "hash", 0), ("HSET", "hash", 9), ("EXPIRE", "json", 9), ("SET", "string", 0)],
)
def test_a_command_that_is_denied_shows_no_row(
    redis_server: Redis, tmp_path: Path, strategy: str, denied: str, value: str, seconds: int
) -> None:
    """Scripts do not roll back: one that fails among the rows would leave some without a marker."""
    with closing(World(Keys(redis_server, value, strategy), tmp_path)) as world:
        target: Any = world.target
        target.sink = replace(target.sink, ttl_seconds=seconds)
        user = ["ACL", "SETUSER", "poor", "on", ">only-F0r-tests", f"~{OURS}*", "+@all"]
        target.db.execute_command(*user, f"(~orders:* +@all -{denied.lower()})")
        target.connection = replace(target.connection, login="poor", password="only-F0r-tests")
        try:
            [problem] = lacking(world, target.connection)
            assert problem.code == "privilege_missing" and denied in problem.what
            with raises(SinkAccessError, "privilege_missing"):
                world.prepare(world.plan())
            target.db.execute_command("ACL", "SETUSER", "poor", "clearselectors", "~orders:*")
            world.deliver(world.plan())
        finally:
            target.db.execute_command("ACL", "DELUSER", "poor")


def test_no_row_waits_for_a_full_batch(world: World) -> None:
    check_last_rows(world)


def test_verify_counts_keys_and_knows_what_it_cannot_know(world: World) -> None:
    target: Any = world.target
    target.sink = RedisSink(key="keyed:{id}", conn_id="cache", change_column="op")

    def disturb() -> None:
        target.db.hset("keyed:3", "text", "changed")
        target.db.delete("keyed:4")
        target.db.hset("keyed:2", mapping={"id": 2, "text": "back", "_version": 1})

    check_verify(world, verify, disturb)


def test_verify_reads_each_delivery_with_its_own_settings(redis_server: Redis, tmp_path: Path) -> None:
    with closing(World(Keys(redis_server, "json", "upsert"), tmp_path)) as world:
        target: Any = world.target
        delivered: list[Delivered] = []
        for number, field in enumerate(("_version", "checkpoint"), 1):
            target.sink = replace(target.sink, version_field=field)
            plan = world.plan_of(number, world.segment_of(number, world.table(number, 1)))
            delivered.append(Delivered(plan, world.deliver(plan), delivered[-1].proof if delivered else None))
        [report] = verify(delivered, delivered[-1].plan.participants[0], target.connection, open_wal())
        assert report.is_exact and report.expected == 2


def test_verify_reads_each_key_as_it_was_written(world: World) -> None:
    """Keys that no delivery has written since `value` or `ttl_seconds` changed keep their old form."""
    target: Any = world.target
    delivered: list[Delivered] = []
    for number, (value, id) in enumerate((("hash", 1), ("hash", 2), ("json", 3), ("string", 4), ("string", 3)), 1):
        target.sink = replace(target.sink, value=value)
        plan = world.plan_of(number, world.segment_of(number, pa.table({"id": [id], "text": [f"of {number}"]})))
        delivered.append(Delivered(plan, world.deliver(plan), delivered[-1].proof if delivered else None))

    def report(given: list[Delivered]) -> Any:
        [found] = verify(given, given[-1].plan.participants[0], target.connection, open_wal())
        return found

    found = report(delivered)
    assert found.is_exact and found.expected == 4
    target.db.hset("orders:1", "text", "changed")
    target.db.delete("orders:2", "orders:4")
    target.db.rpush("orders:4", "a list")
    assert report(delivered).missing == 3
    plans = tuple(each.plan.participants[0] for each in delivered[2:])
    last = report([replace(delivered[2], others=plans)])  # the key was written since, as a string
    assert last.is_exact and any("1 key not judged" in note for note in last.notes)
    target.db.execute_command("ACL", "SETUSER", "default", "-hmget")
    try:
        with raises(SinkAccessError, "privilege_missing"):
            report(delivered)
    finally:
        target.db.execute_command("ACL", "SETUSER", "default", "+hmget")


def test_verify_compares_no_keys_of_which_some_expire(world: World) -> None:
    target: Any = world.target
    delivered: list[Delivered] = []
    for number, seconds in enumerate((1_000, 0), 1):
        target.sink = replace(target.sink, ttl_seconds=seconds)
        plan = world.plan_of(number, world.segment_of(number, world.table(number, 1)))
        delivered.append(Delivered(plan, world.deliver(plan), delivered[-1].proof if delivered else None))
    [report] = verify(delivered, delivered[-1].plan.participants[0], target.connection, open_wal())
    assert report.error


def test_verify_misses_all_keys_of_an_emptied_server(world: World) -> None:
    """Also the ledger is gone, and the decision log alone knows that no later number was delivered."""
    target: Any = world.target
    plan = world.plan()
    delivered = [Delivered(plan, world.deliver(plan), None, newest=plan.number)]
    target.db.flushall()
    [report] = verify(delivered, plan.participants[0], target.connection, open_wal())
    assert (report.expected, report.missing) == (40, 40) and not report.is_complete


def test_a_key_of_another_type_stops_the_delivery_and_names_it(world: World) -> None:
    target: Any = world.target
    target.db.rpush("orders:45", "a list")
    world.deliver(world.plan(pa.table({"id": [1], "text": ["a"]})))
    plan = world.plan(pa.table({"id": [44, 45], "text": ["b", "c"]}))
    vote = world.prepare(plan)
    with raises(UnfitTargetError, "key_unfit", key="orders:45"):
        world.commit(plan, vote)
    assert not target.db.exists("orders:44")
    target.db.delete("orders:45")
    world.commit(plan, vote)
    assert target.ids() == [1, 44, 45]


def test_a_killed_server_has_what_it_acknowledged(world: World) -> None:
    target: Any = world.target
    world.deliver(world.plan())
    target.server.kill()
    plan = world.plan()
    with raises(SinkUnavailableError, "server_unreachable"):
        world.prepare(plan)
    target.server.start()
    world.deliver(plan)
    world.shows(world.ids_of(1, 2))


@pytest.mark.parametrize("strategy", ["upsert", "atomic"])
def test_a_full_server_takes_no_row_and_says_so(redis_server: Redis, tmp_path: Path, strategy: str) -> None:
    """Full before the head is raised; and full among the rows, where scripts do not roll back."""
    with closing(World(Keys(redis_server, "hash", strategy), tmp_path)) as world:
        target: Any = world.target
        world.deliver(world.plan())
        plan = world.plan()
        vote = world.prepare(plan)
        process = world.process(plan, vote, stop="freeze", at=20)
        try:
            process.wait_until_frozen()
            target.db.config_set("maxmemory", target.db.info("memory")["used_memory"] // 2)
            process.resume()
            assert "SinkUnavailableError" in process.wait()
            world.shows(world.ids_of(1))
            with raises(SinkUnavailableError, "limit_reached"):
                world.commit(plan, vote)
            world.shows(world.ids_of(1))
        finally:
            target.db.config_set("maxmemory", "0")
            process.kill()
        world.commit(plan, vote)
        world.shows(world.ids_of(1, 2))


def test_a_server_that_forgot_rows_halts_the_pipeline(world: World) -> None:
    """As after a failover to a replica that lagged: the count of rows goes back in the middle of a checkpoint."""
    world.deliver(world.plan())
    plan = world.plan()
    vote = world.prepare(plan)
    assert world.process(plan, vote, stop="kill", at=39).wait() == "", "it was killed"
    participant: Any = world.participant(plan)
    with participant._writing(world.fence(1, world.attempt()), plan) as (changes, ledger):
        participant._raised(ledger, changes.fence)
    with participant._writing(changes.fence, plan) as (changes, _), pytest.raises(StoreBehindSinkError):
        changes.send(iter([(1_000, 1, b"\x80")]))


@pytest.mark.parametrize("lost", ["its last rows", "all rows"])
def test_rows_lost_before_the_marker_halt_the_pipeline(
    world: World, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server fails over between the last rows and the marker. The replica has the raised head."""
    world.deliver(world.plan())
    plan = world.plan()
    vote = world.prepare(plan)
    target: Any = world.target
    key, replace_document, db = f"{OURS}{plan.pipeline}:{plan.participants[0].name}", Changes.replace, target.db

    def fail_over(changes: Changes) -> None:
        if changes.sent:
            assert db.hget(key, "done") == str(changes.sent)
            db.hset(key, "done", changes.sent - 1) if lost == "its last rows" else db.hset(key, "plan", "another")
            db.delete(f"orders:{world.ids_of(2)[-1]}")
        replace_document(changes)

    monkeypatch.setattr(Changes, "replace", fail_over)
    with raises(StoreBehindSinkError, "ledger_lost"):
        world.commit(plan, vote)
    monkeypatch.undo()
    world.commit(plan, vote)
    world.shows(world.ids_of(1, 2))


def test_rows_expire(world: World) -> None:
    target: Any = world.target
    target.sink = replace(target.sink, ttl_seconds=1_000)
    plan = world.plan(pa.table({"id": [1], "text": ["a"]}))
    proof = world.deliver(plan)
    assert 900 < target.db.ttl("orders:1") <= 1_000
    [report] = verify([Delivered(plan, proof, None)], plan.participants[0], target.connection, open_wal())
    assert report.error and SINK in report.sink


def test_keys_stop_expiring_when_the_sink_says_so(world: World) -> None:
    target: Any = world.target
    for seconds, left in ((1_000, range(900, 1_001)), (0, range(-1, 0))):
        target.sink = replace(target.sink, ttl_seconds=seconds)
        world.deliver(world.plan(pa.table({"id": [1], "text": ["a"]})))
        assert target.db.ttl("orders:1") in left


def test_of_two_pipelines_the_later_write_counts(redis_server: Redis, tmp_path: Path) -> None:
    with closing(World(Keys(redis_server, "hash", "upsert"), tmp_path)) as world:
        for text in ("a", "b", "c"):
            world.deliver(world.plan(pa.table({"id": [1], "text": [text]})))
        target: Any = world.target
        other = World(target, tmp_path / "other")
        (tmp_path / "other").mkdir()
        other.deliver(other.plan(pa.table({"id": [1], "text": ["of another pipeline"]})))
        assert target.db.hgetall("orders:1")["text"] == "of another pipeline"


@pytest.mark.parametrize(
    ("attempt", "kind"), [(0, SinkUnavailableError), (None, SinkUnavailableError), (10**9, FencedError)]
)
def test_only_a_newer_fence_ends_the_process(
    world: World, attempt: int | None, kind: type[AirflowFtError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older or missing one is that of a replica that lagged, to which the server failed over."""
    plan = world.plan()
    vote = world.prepare(plan)
    target: Any = world.target
    send = Changes.send

    def fail_over(changes: Changes, chunks: Any) -> None:
        if attempt is None:
            target.db.hdel(changes.key, "epoch", "attempt")
        else:
            target.db.hset(changes.key, "attempt", attempt)
        send(changes, chunks)

    monkeypatch.setattr(Changes, "send", fail_over)
    with raises(kind, "fenced" if kind is FencedError else "replicas_behind"):
        world.commit(plan, vote)
    monkeypatch.undo()
    if kind is SinkUnavailableError:
        world.commit(plan, vote)
        world.shows(world.ids_of(1))


def test_a_document_of_another_primary_is_not_replaced(world: World) -> None:
    """After a failover, a process that read from the old primary connects to the new one, where a successor works."""
    world.deliver(world.plan())
    plan = world.plan()
    world.prepare(plan)
    participant: Any = world.participant(plan)
    key, db = f"{OURS}{plan.pipeline}:{plan.participants[0].name}", world.target.raw  # type: ignore[attr-defined]
    replica = db.hgetall(key)
    older, newer = world.fence(1, world.attempt()), world.fence(1, world.attempt())
    with participant._writing(older, plan) as (_, ledger):
        participant._raised(ledger, older)
    with pytest.raises(OvertakenError), participant._writing(older, plan) as (_, ledger):
        ledger.raise_floor(1)
        db.hset(key, mapping=replica)
        with participant._writing(newer, plan) as (_, there):
            participant._raised(there, newer)
    assert int(db.hget(key, "attempt")) == newer.attempt


def test_pruning_does_not_end_a_running_delivery(world: World) -> None:
    world.deliver(world.plan())
    plan = world.plan()
    world.prepare(plan)
    participant: Any = world.participant(plan)
    sink: Any = world.target.sink
    chunk = packed(sink, entries(sink, Chunk(0, SINK, world.table(0, 1).to_batches()[0], np.zeros(1, np.bool_), {}), 2))
    with participant._writing(world.fence(1, world.attempt()), plan) as (changes, ledger):
        participant._raised(ledger, changes.fence)
    world.participant(plan).forget(world.fence(1, 0), 1)
    changes.client = world.target.raw  # type: ignore[attr-defined]
    changes.send(iter([(0, 1, chunk)]))


@pytest.mark.parametrize("value", ["hash", "json"])
def test_rows_with_a_key_alone_are_written(world: World, value: str) -> None:
    target: Any = world.target
    target.sink = replace(target.sink, value=value)
    world.deliver(world.plan(pa.table({"id": [1, 2]})))
    assert target.ids() == [1, 2] and [target._read(f"orders:{id}")["id"] for id in target.ids()] in (
        ["1", "2"],
        [1, 2],
    )


def test_a_row_may_have_thousands_of_columns(world: World) -> None:
    target: Any = world.target
    wide = pa.table({"id": [1], **{f"c{number}": [number if number % 2 else None] for number in range(9_000)}})
    world.deliver(world.plan(wide))
    assert target.db.hlen("orders:1") == 4_502 and target.db.hget("orders:1", "c8999") == "8999"


def test_two_templates_of_one_form_are_one_place() -> None:
    from airflow_ft.sinks.redis.lineage import place

    connection = ConnectionInfo("cache", "redis", host="cache")
    assert place({"key": "orders:{id}"}, connection) == place({"key": "orders:{number}"}, connection)
    assert place({"key": "orders:{id}"}, connection) != place({"key": "users:{id}"}, connection)


def test_a_connection_names_its_database() -> None:
    from airflow_ft.sinks.redis.lineage import dataset

    connection = ConnectionInfo("cache", "redis", host="cache", extra={"db": 3})
    assert dataset({"key": "orders:{id}"}, connection).uri == "redis://cache:6379/3/orders%3A%7Bid%7D"
