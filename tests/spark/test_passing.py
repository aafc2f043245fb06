"""Where everything is read anew: what would pass over records that nobody has read is refused. No Spark, no broker."""

from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.errors import DataLossError
from airflow_ft.sources import KafkaSource
from airflow_ft.spark.driver.durable import delivered_positions, refuse_passing_over
from airflow_ft.store import open_store
from tests.raising import raises
from tests.store.scene import PIPELINE, Scene

SOURCE = KafkaSource(topics=["a", "b"], starting_offsets="latest")
STOOD = {"end": {"a": {"0": 5, "1": 7}, "b": {"0": 3}}, "topic_ids": {"a": "A", "b": "B"}}
IDS = {"a": "A", "b": "B"}


@pytest.mark.parametrize(
    ("first", "more", "skipped"),
    [
        ({"a": {"0": 5, "1": 2}, "b": {"0": 3}}, {}, []),
        ({"a": {"0": 9, "1": 7}, "b": {"0": 5}}, {}, [("a", 0, 5, 9), ("b", 0, 3, 5)]),
        ({"a": {"0": 5, "10": 1, "2": 4}}, {}, [("a", 2, 0, 4), ("a", 10, 0, 1)]),
        ({"a": {"0": 9}}, {"ids": {"a": "A2"}}, []),
        ({"a": {"0": 9}}, {"ids": {"a": ""}}, [("a", 0, 5, 9)]),
        ({"c": {"0": 9}}, {}, []),
        ({"c": {"0": 9}}, {"pattern": "a|b|c", "topics": ()}, [("c", 0, 0, 9)]),
        ({"a": {"0": 9}}, {"starting_offsets": "earliest"}, []),
        ({"a": {"0": 9}}, {"fail_on_data_loss": False}, []),
        ({"a": {"0": 9}}, {"delivered": {"end": None}}, []),
    ],
    ids=["before", "behind", "new partitions", "other", "no id", "declared", "matches", "earliest", "wanted", "unread"],
)
def test_a_source_begins_no_later_than_it_was_read(
    first: Any, more: dict[str, Any], skipped: list[tuple[str, int, int, int]]
) -> None:
    ids, delivered = more.pop("ids", IDS), more.pop("delivered", STOOD)
    source = KafkaSource(**{"topics": SOURCE.topics, "starting_offsets": "latest", **more})
    records = sum(begin - end for _, _, end, begin in skipped)
    expected = raises(DataLossError, "records_skipped", source="orders", records=records, skipped=skipped)
    with expected if skipped else nullcontext():
        refuse_passing_over("p", "orders", source, first, ids, delivered)


def test_delivered_positions_include_rows_carried_over(tmp_path: Path) -> None:
    with closing(open_store(f"sqlite:///{tmp_path}/ft.db")) as store:
        scene = Scene(store)
        assert delivered_positions(store, PIPELINE) == {}
        for number in scene.stage(2):
            scene.complete(number)
        assert delivered_positions(store, PIPELINE) == {"orders": 2}
        (third,) = scene.stage()
        assert delivered_positions(store, PIPELINE) == {"orders": 2}, "what is not delivered is read again"
        scene.abort(third)
        carrier = scene.carry()
        scene.complete(carrier, [third])
        assert delivered_positions(store, PIPELINE) == {"orders": 3}
