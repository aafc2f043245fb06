"""Announcements that end early: a run delivers all the same, over a real decision log and a real MariaDB (I7)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.errors import FencedError, SinkUnavailableError
from airflow_ft.protocol.lease import Worker, new_epoch
from airflow_ft.protocol.steps import (
    announce_step,
    commit_step,
    confirm_step,
    load_step,
    prepare_step,
    recover_step,
)
from airflow_ft.sinks.base import slices
from airflow_ft.wal.writer import SegmentFolder, write_segment
from tests.integration.test_mysql_mixes import RUN, Mix
from tests.protocol.systems import NoArchive
from tests.sinks.mysql.world import orders
from tools.servers import Database, MariaDb

pytestmark = [pytest.mark.server]

CONFIG = CheckpointConfig(max_delivery_rows=0)
A, B = "first-xa", "second-xa"


@pytest.fixture(autouse=True)
def small_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "MIN_ROWS", 2)


@pytest.fixture
def mix(mariadb: MariaDb, tmp_path: Path) -> Iterator[Mix]:
    with ExitStack() as stack:
        found = {name: stack.enter_context(Database.fresh(mariadb)) for name in ("first", "second")}
        for database in found.values():
            database.sql("CREATE TABLE orders (pipeline_rows BIGINT, id BIGINT, name VARCHAR(100)) ENGINE=InnoDB")
        yield Mix(found, ("", ""), {"a": ("first", "xa"), "b": ("second", "xa")}, 1, tmp_path)
        mariadb.end_prepared()


def stage(mix: Mix, *rows: int) -> None:
    mix.store.register(mix.pipeline)
    mix.store.enter_turn(mix.pipeline, RUN, None)
    with new_epoch(mix.store, mix.pipeline, Worker(f"{RUN}/step", 1), "stage", 3600.0) as (epoch, _):
        mix.store.begin_stage(mix.pipeline, epoch, RUN)
        for count in rows:
            number = mix.store.trigger(mix.pipeline, epoch, RUN)
            table = orders(number * 100, count).append_column("pipeline_rows", [[mix.index] * count])
            where = SegmentFolder(str(mix.folder / "wal"), mix.pipeline, epoch, 1, number)
            segment = write_segment(where, number, dict.fromkeys(mix.sinks, table))
            before = mix.store.pipeline(mix.pipeline).last_published
            mix.store.publish(mix.pipeline, epoch, number, before, segment, None, {})
        mix.store.end_stage(mix.pipeline, epoch, RUN, None)


def test_prepare_is_not_fenced_for_ever_by_an_earlier_number(mix: Mix) -> None:
    """The other participant votes late on number 1, so number 1 is prepared again: the head is newer."""
    stage(mix, 4, 12)
    recover_step(mix.context())
    announced = announce_step(mix.context(), mix.delivery, CONFIG, A)  # prepares 1, announces 2
    assert announced is not None and announced.number == 2
    for branch in announced.branches:
        assert load_step(mix.context(), announced, branch)
    errors = []
    for try_number in (1, 2, 3, 4):  # as many as Airflow's retries
        try:
            prepare_step(mix.context(try_number), mix.delivery, CONFIG, A, announced)
        except FencedError as error:
            errors.append(error.what)
        prepare_step(mix.context(), mix.delivery, CONFIG, B)  # the other participant is there from now on
        if len(errors) != try_number:
            break
    else:
        pytest.fail(f"each try of prepare is fenced by its own earlier number: {errors}")
    for name in mix.delivery.names:
        commit_step(mix.context(), name)
    confirm_step(mix.context(), CONFIG, NoArchive())  # type: ignore[arg-type]


def test_a_voted_checkpoint_is_delivered_if_announce_runs_again(mix: Mix) -> None:
    """The participant has voted, the other one has not."""
    stage(mix, 12)
    recover_step(mix.context())
    announced = announce_step(mix.context(), mix.delivery, CONFIG, A)
    prepare_step(mix.context(), mix.delivery, CONFIG, A, announced)
    announce_step(mix.context(2), mix.delivery, CONFIG, A)
    prepare_step(mix.context(), mix.delivery, CONFIG, B)
    for name in mix.delivery.names:
        commit_step(mix.context(), name)
    confirm_step(mix.context(), CONFIG, NoArchive())  # type: ignore[arg-type]


def test_a_repeated_prepare_keeps_the_branches_of_its_vote(mix: Mix) -> None:
    """Its first try has voted and died, and the other participant has not voted."""
    stage(mix, 12)
    recover_step(mix.context())
    server = mix.databases["first"].server
    announced = announce_step(mix.context(), mix.delivery, CONFIG, A)
    assert announced is not None
    for branch in announced.branches:
        assert load_step(mix.context(), announced, branch)
    prepare_step(mix.context(), mix.delivery, CONFIG, A, announced)
    loaded = sorted(server.sql("XA RECOVER"))
    assert len(loaded) == len(announced.branches)
    prepare_step(mix.context(2), mix.delivery, CONFIG, A, announced)
    assert sorted(server.sql("XA RECOVER")) == loaded
    prepare_step(mix.context(), mix.delivery, CONFIG, B)
    for name in mix.delivery.names:
        commit_step(mix.context(), name)
    confirm_step(mix.context(), CONFIG, NoArchive())  # type: ignore[arg-type]
    proof = mix.store.checkpoint(mix.pipeline, announced.number).votes[A].proof
    assert proof is not None and "redelivered" not in proof.detail


def test_a_load_finds_a_branch_that_a_person_has_committed(mix: Mix) -> None:
    stage(mix, 12)
    recover_step(mix.context())
    server = mix.databases["first"].server
    announced = announce_step(mix.context(), mix.delivery, CONFIG, A)
    assert announced is not None and load_step(mix.context(), announced, "0001")
    [(*_, name)] = server.sql("XA RECOVER FORMAT='SQL'")
    server.sql(f"XA COMMIT {name}")
    assert load_step(mix.context(2), announced, "0001"), "it is there, and needs no other try"
    for branch in announced.branches[1:]:
        assert load_step(mix.context(), announced, branch)
    prepare_step(mix.context(), mix.delivery, CONFIG, A, announced)
    prepare_step(mix.context(), mix.delivery, CONFIG, B)
    for name in mix.delivery.names:
        commit_step(mix.context(), name)
    confirm_step(mix.context(), CONFIG, NoArchive())  # type: ignore[arg-type]
    for database in mix.databases.values():
        assert database.sql("SELECT COUNT(*), COUNT(DISTINCT id) FROM orders") == [(12, 12)]


def test_a_load_whose_epoch_is_over_gives_up_at_once(mix: Mix) -> None:
    """Its retries would be fenced again, and `prepare` would wait for them."""
    stage(mix, 12)
    recover_step(mix.context())
    announced = announce_step(mix.context(), mix.delivery, CONFIG, A)
    assert announced is not None
    with new_epoch(mix.store, mix.pipeline, Worker("somebody", 1), "recover", 3600.0):
        pass
    assert load_step(mix.context(), announced, "0001") is False


def test_a_vote_that_fails_leaves_no_locks_and_names_the_way_out(mix: Mix, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two branches have the same unique key: one of them waits for the other, which is prepared."""
    monkeypatch.setattr(slices, "MIN_ROWS", 1)
    server = mix.databases["first"].server
    mix.databases["first"].sql("ALTER TABLE orders ADD UNIQUE (pipeline_rows)")
    stage(mix, 2)
    recover_step(mix.context())
    announced = announce_step(mix.context(), mix.delivery, CONFIG, A)
    assert announced is not None and load_step(mix.context(), announced, "0001")
    assert len(server.sql("XA RECOVER")) == 1
    with pytest.raises(SinkUnavailableError) as caught:
        prepare_step(mix.context(), mix.delivery, CONFIG, A, announced)
    assert "branches=1" in caught.value.remedy and server.sql("XA RECOVER") == []
