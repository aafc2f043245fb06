"""What a sink reports: columns and rows that it refuses, what `verify` and the doctor find, errors without secrets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
import pytest

from airflow_ft.protocol.doctor import Check, Verdict
from airflow_ft.protocol.errors import AirflowFtError, DeclinedError, HaltError, SinkAccessError, UnfitTargetError
from airflow_ft.protocol.model import Plan, Promise
from airflow_ft.protocol.participant import Judging, Participant
from airflow_ft.protocol.planning import plan_delivery
from airflow_ft.protocol.secrets import secret_values
from airflow_ft.protocol.verify import Delivered
from airflow_ft.protocol.votes import Outcome
from airflow_ft.sinks.doctor import examine, is_examined
from airflow_ft.sinks.registry import system
from airflow_ft.testing.dead_letters import NOTHING_REFUSED
from airflow_ft.testing.relay import Fate
from airflow_ft.testing.world import OURS, ROWS, SINK, THEIRS
from airflow_ft.wal import open_wal

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_ft.protocol.connections import ConnectionInfo
    from airflow_ft.protocol.sink_spec import SinkSpec
    from airflow_ft.testing.world import World

_MANY_CALLS = 50
STRANGE = pa.table({"id": [1], "text": ["a"], "no_such_column": [1]})


class FindingsConformance:
    """The cases."""

    trips_apart: ClassVar[int]  # see `LostMessagesConformance`

    # --- rows that cannot be taken ---------------------------------------------------------------------------------

    def test_an_unknown_column_is_named_before_any_row_is_visible(self, world: World) -> None:
        self._takes_or_refuses_a_strange_column(world)

    def test_an_unknown_column_of_a_later_segment_is_named(self, world: World) -> None:
        """The first segment of a checkpoint may have other columns than the next ones."""
        self._takes_or_refuses_a_strange_column(world, world.table(2 * ROWS, 2))

    def _takes_or_refuses_a_strange_column(self, world: World, *before: pa.Table) -> None:
        """Give a checkpoint segments of known columns, then one with another column."""
        world.deliver(world.plan())
        segments = [world.segment(number, table) for number, table in enumerate((*before, STRANGE), 2)]
        plan = world.plan_of(segments[-1].number, *segments)
        sink, judged = world.participant(plan), ""
        try:
            if isinstance(sink, Judging):  # as a dry run does, before `prepare` may add the column
                sink.judge(world.pipeline, [open_wal().open(each) for each in segments])
        except Exception as error:  # a sink that refuses the column promises nothing
            judged = repr(error)
        try:
            vote = world.prepare(plan)
        except (DeclinedError, UnfitTargetError) as error:
            assert "no_such_column" in str(error) and error.remedy and error.sink == SINK
            world.shows(world.ids_of(1))
        else:  # it takes any column
            assert getattr(world.target.sink, "schema_evolution", True), "schema_evolution=False adds no column"
            assert not judged, f"a dry run refuses what a run delivers: {judged}"
            world.commit(plan, vote)
            world.shows(sorted([1, *world.ids_of(1), *(id for table in before for id in table["id"].to_pylist())]))

    def test_a_dropped_table_is_refused_by_prepare(self, world: World) -> None:
        """Not as rows that are at fault, nor as a server that is away; or the table is made again."""
        world.deliver(world.plan())
        if not world.target.drop():
            pytest.skip("its table cannot be dropped")
        plan = world.plan()
        try:
            vote = world.prepare(plan)
        except (HaltError, SinkAccessError) as error:
            assert error.remedy
        else:
            world.commit(plan, vote)
            world.shows(world.ids_of(2))

    @pytest.mark.parametrize("carries", [True, False], ids=["it decides", "it follows"])
    def test_of_refused_rows_nothing_comes(self, world: World, carries: bool) -> None:
        """If another participant decides, prepare refuses them: after the decision a person has to act."""
        if world.target.refused is None:
            pytest.skip(NOTHING_REFUSED)
        if carries and world.participant_plan().promise is not Promise.ATOMIC:
            pytest.skip("it never decides: its promise is not ATOMIC")
        world.commit_point = carries
        plan = world.plan(world.target.refused)
        with pytest.raises((DeclinedError, UnfitTargetError)) as caught:
            vote = world.prepare(plan)
            assert carries or not world.target.tries_rows, "prepare voted yes, and another participant has decided"
            world.commit(plan, vote)
        assert caught.value.sink == SINK and caught.value.remedy
        world.shows([])
        assert world.abort(plan).outcome is Outcome.ABORTED
        world.deliver(good := world.plan())
        world.shows(world.ids_of(2))
        sink = world.participant(plan)
        if isinstance(sink, Judging) and isinstance(caught.value, DeclinedError):  # a dry run refuses the same
            sink.judge(world.pipeline, [open_wal().open(each) for each in good.segments])
            with pytest.raises(DeclinedError) as tried:
                sink.judge(world.pipeline, [open_wal().open(each) for each in plan.segments])
            assert tried.value.code == caught.value.code

    def test_a_refused_delivery_leaves_no_files(self, world: World) -> None:
        if world.target.refused is None:
            pytest.skip(NOTHING_REFUSED)
        if world.participant_plan().promise is not Promise.ATOMIC:
            pytest.skip("it never decides: its promise is not ATOMIC")
        world.deliver(world.plan())
        segments = world.segment(2, world.table(3 * ROWS)), world.segment(3, world.target.refused)
        plan = world.plan_of(3, *segments)
        try:
            vote = world.prepare(plan)
        except (DeclinedError, UnfitTargetError):
            pytest.skip("its prepare refuses them")
        if not (before := _files(world)):
            pytest.skip("none of its files lie in the test's folder")
        with pytest.raises((DeclinedError, UnfitTargetError)):
            world.commit(plan, vote)
        world.close()
        assert _files(world) - before == set(), "files of refused rows are left"

    # --- who looks from outside ------------------------------------------------------------------------------------

    @pytest.mark.parametrize("what", ["nothing", "loss", "double", "change"])
    def test_verify_finds_what_somebody_else_has_done(self, world: World, what: str) -> None:
        verification = system(world.target.sink.kind).part("verify")
        if verification is None:
            pytest.skip("it has no verification")
        first = world.plan()
        delivered = [Delivered(first, world.deliver(first), None)]
        planted = int(what != "nothing" and world.target.plant(what, ROWS + 7))
        if what != "nothing" and not planted:
            pytest.skip("the target cannot plant that")
        second = world.plan()
        delivered.append(Delivered(second, world.deliver(second), delivered[0].proof))
        without = world.plan_of(3, world.nothing(3))
        delivered.append(Delivered(without, world.deliver(without), delivered[1].proof))
        [planned] = delivered[-1].plan.participants
        [report] = verification.verify(delivered, planned, world.target.connection, open_wal())
        assert (report.error, report.expected, report.numbers) == ("", 2 * ROWS, (1, 2, 3))
        lost = planted if what in ("loss", "change") else 0
        assert (report.missing, report.repeated) == (lost, planted if what == "double" else 0)
        assert [each.number for each in report.differences] == [1] * bool(lost)
        if lost == 1 and (samples := report.differences[0].samples):
            assert f"row {ROWS + 7}" in f"{samples[0]} {report.differences[0].file}"

    def test_the_doctor_finds_nothing_wrong_where_nothing_is(self, world: World) -> None:
        world.deliver(world.plan())
        checks = self._examined(world, world.target.sink, world.target.connection, world.table(0))
        assert checks and [check for check in checks if check.verdict is Verdict.PROBLEM] == []

    def test_doctor_and_prepare_both_report_a_misconfigured_sink(self, world: World) -> None:
        mistakes = world.target.mistaken()
        if not mistakes:
            pytest.skip("the target names no mistakes")
        for name, (sink, connection) in mistakes.items():
            checks = self._examined(world, sink, connection, world.table(0))
            problems = [check for check in checks if check.verdict is Verdict.PROBLEM]
            assert problems and all(check.text and check.remedy for check in problems), name
            [planned] = plan_delivery({SINK: sink}).participants
            plan = replace(world.plan(), participants=(planned,))
            with pytest.raises(AirflowFtError) as raised:
                world.participant(plan, connection).prepare(plan, world.fence())
            assert raised.value.remedy, name
            if connection != world.target.connection:
                assert not isinstance(raised.value, DeclinedError), f"{name}: the rows are not at fault"
            for text in (str(raised.value), *(f"{check.text} {check.remedy}" for check in problems)):
                assert not [one for one in secrets_of(world.target.connection, connection) if one in text], name
            world.shows([])

    def _examined(self, world: World, sink: SinkSpec, connection: ConnectionInfo, rows: pa.Table) -> Sequence[Check]:
        if not is_examined(sink.kind):
            pytest.skip("it has no examination")
        [planned] = plan_delivery({SINK: sink}).participants
        reader = open_wal().open(world.segment(99, rows))
        return examine(world.pipeline, planned, connection, [reader], OURS)

    def test_an_error_while_it_reads_is_no_empty_memory(self, world: World) -> None:
        """`head` and `proof` are None only where nothing is: else a delivered checkpoint seems to be none."""
        plan = world.plan()
        world.deliver(plan)
        struck = 0
        for read in (_head, _proof):
            truth = read(world.participant(plan), plan)
            is_struck = partial(_is_struck, world, plan, read, truth)
            further = self.trips_apart if world.target.connection.port else 1
            made = sum(1 for _ in takewhile(is_struck, range(0, _MANY_CALLS, further)))
            assert made * further < _MANY_CALLS, f"a reading makes {_MANY_CALLS} calls or more, and not all are tried"
            struck += made
        if not struck:
            pytest.skip("none of its calls is seen while it reads")

    # --- errors ------------------------------------------------------------------------------------------------------

    def test_no_secret_is_in_an_error_or_a_log(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        secrets = secrets_of(world.target.connection)
        if not secrets:
            pytest.skip("its connection has no secret")
        plan = world.plan()
        with caplog.at_level(logging.INFO):
            world.deliver(plan)
            with pytest.raises(AirflowFtError) as caught:
                world.participant(plan).prepare(plan, world.fence(1, 99, THEIRS))
            world.close()
        for text in (str(caught.value), caught.value.remedy, caplog.text):
            assert not [one for one in secrets if one in text], "an error or a log shows a secret"


Read = Callable[[Participant, Plan], object]


def _is_struck(world: World, plan: Plan, read: Read, truth: object, at: int) -> bool:
    """Have call `at` of a reading fail, which must raise or find the truth. False: it makes fewer calls."""
    target = world.target
    loses = target.losing(Fate.LOSE_REQUEST, at) if target.connection.port else target.failing(at, str(world.folder))
    with loses as way:
        if way is None:
            return False
        connection, has_failed = way
        with suppress(AirflowFtError), closing(world.participant(plan, connection)) as participant:
            seen, what = read(participant, plan), read.__name__.replace("_", " ")
            assert seen == truth, f"call {at} has failed, and the{what} is {seen}, not {truth}"
        return has_failed()


def _head(participant: Participant, plan: Plan) -> object:
    return participant.head(plan.pipeline)


def _proof(participant: Participant, plan: Plan) -> object:
    return participant.proof(plan)


def _files(world: World) -> set[Path]:
    """Return the files with rows in the test's folder that are not the log's."""
    log = world.folder / "wal"
    return {path for path in world.folder.rglob(world.target.row_files) if path.is_file() and log not in path.parents}


def secrets_of(*connections: ConnectionInfo) -> list[str]:
    """Return passwords, and the secrets in the extra, as Kafka's are."""
    found = {secret for one in connections for secret in secret_values(one.extra)}
    return sorted({*found, *(one.password for one in connections)} - {""})
