"""What a system has besides its participant: strategies, settings, setup, proposals, names in lineage, columns."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_ft.protocol.datasets import Dataset
from airflow_ft.protocol.errors import ConfigurationError, DeclinedError, UnfitTargetError
from airflow_ft.protocol.planning import plan_delivery
from airflow_ft.sinks.registry import system
from airflow_ft.testing.findings import STRANGE, secrets_of
from airflow_ft.testing.world import SINK

if TYPE_CHECKING:
    from airflow_ft.testing.world import World

_UNKNOWN = "setting_of_a_later_release"


class PartsConformance:
    """The cases."""

    def test_the_system_lists_the_strategy_of_the_sink(self, world: World) -> None:
        sink = world.target.sink
        strategies = system(sink.kind).strategies
        assert sink.strategy in strategies, f"System(strategies=...) lacks {sink.strategy!r}: it has {[*strategies]}"
        assert strategies[sink.strategy].promise is sink.promise, "its promise and the sink's are the same"

    def test_an_unknown_setting_is_refused(self, world: World) -> None:
        """A later release has made the plan, and means something by it."""
        plan = world.plan()
        [planned] = plan.participants
        sinks = {name: {**settings, _UNKNOWN: True} for name, settings in planned.sinks.items()}
        plan = replace(plan, participants=(replace(planned, sinks=sinks),))
        with pytest.raises(ConfigurationError) as caught:
            world.prepare(plan)
        assert _UNKNOWN in str(caught.value) and caught.value.remedy

    def test_setup_can_be_repeated_and_prepare_finds_it(self, world: World) -> None:
        setup = _part(world, "setup")
        plan, connection = world.plan(), world.target.connection
        [planned] = plan.participants
        first, second = (setup.create(world.pipeline, planned, connection) for _ in range(2))
        assert isinstance(first, str) and second == "", f"the second setup has made {second!r}"
        lines = list(setup.describe(world.pipeline, planned, connection))
        assert lines and all(isinstance(line, str) for line in lines)
        _hides_secrets(world, first, *lines)
        world.deliver(plan)
        world.shows(world.ids_of(1))

    def test_a_proposed_table_has_the_columns(self, world: World) -> None:
        [planned] = world.plan().participants
        schema = pa.schema([*world.table(0).schema, ("order_no", pa.int64()), ("remark", pa.string())])
        lines = list(_part(world, "proposal").propose(planned, world.target.connection, {SINK: schema}))
        assert [name for name in schema.names if name not in "\n".join(lines)] == []
        _hides_secrets(world, *lines)

    def test_each_target_has_a_name_of_its_own_in_lineage(self, world: World) -> None:
        lineage, place = _part(world, "lineage"), system(world.target.sink.kind).place
        if not place:
            pytest.skip("System(place=) names no setting")
        others = [each.sink for each in (world.target.bag(), world.target.upserts()) if each is not None]
        uris: dict[str, set[str]] = {}
        for sink in (world.target.sink, *others):
            [planned] = plan_delivery({SINK: sink}).participants
            settings, connection = planned.sinks[SINK], replace(world.target.connection, conn_id=planned.name)
            assert place in settings, f"System(place={place!r}) names no setting of {[*settings]}"
            found = lineage.dataset(settings, connection)
            assert isinstance(found, Dataset) and found.namespace and found.name and "://" in found.uri
            assert lineage.dataset(dict(settings), connection) == found, "a target has one name"
            _hides_secrets(world, found.namespace, found.name, found.uri)
            uris.setdefault(settings[place], set()).add(found.uri)
        names = set().union(*uris.values())
        assert len(names) == len(uris), f"{len(uris)} targets have {len(names)} names: {names}"

    def test_unknown_columns_are_named_before_rows_are_computed(self, world: World) -> None:
        """As `prepare` judges them."""
        judge = getattr(_part(world, "requirements"), "schema_problems", None)
        if judge is None:
            pytest.skip("it judges no columns before rows are computed")
        world.deliver(world.plan())
        plan = world.plan(STRANGE)
        [planned] = plan.participants
        found = list(judge(planned, world.target.connection, {SINK: STRANGE.schema}))
        assert list(judge(planned, world.target.connection, {SINK: world.table(0).schema})) == []
        try:
            world.prepare(plan)
        except (DeclinedError, UnfitTargetError):
            assert found and all(each.remedy and each.sink == SINK for each in found), "prepare refuses these columns"
        else:
            assert not found, "prepare takes these columns"


def _part(world: World, name: str) -> Any:
    part = system(world.target.sink.kind).part(name)
    if part is None:
        pytest.skip(f"it has no part {name}")
    return part


def _hides_secrets(world: World, *texts: str) -> None:
    secrets = secrets_of(world.target.connection)
    assert not [text for text in texts for secret in secrets if secret in text], "a secret is shown"
