"""Check that a full refresh, which begins where the sources say, skips no unread records (I10).

A time, offsets or "latest" may be after the pipeline's last delivered position. So the start of a Kafka source is
compared with it before anything is computed. A folder is read as a whole. For other sources the distance between two
offsets is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.errors import DataLossError
from airflow_ft.protocol.model import Checkpoint
from airflow_ft.protocol.retention import POSITIONS_KEPT
from airflow_ft.sources.kafka import KafkaSource
from airflow_ft.spark.driver.topics import is_other
from airflow_ft.spark.state.locations import is_kafka

if TYPE_CHECKING:
    from airflow_ft.protocol.decision_log import HistoryLog


def delivered_positions(store: HistoryLog, pipeline: str) -> dict[str, Any]:
    """By source: its newest position of which the rows are in the sinks.

    Several numbers are read, since those that deliver what an aborted one has left have no positions.
    """
    found = _delivered(store, pipeline)
    former = store.pipeline(pipeline).former
    if not found and former is not None:
        found = _delivered(store, former.pipeline)
    positions: dict[str, Any] = {}
    for checkpoint in found:
        for name, position in checkpoint.positions.items():
            positions.setdefault(name, position)
    return positions


def _delivered(store: HistoryLog, pipeline: str) -> Sequence[Checkpoint]:
    newest = store.latest_confirmed(pipeline)
    if newest is None:
        return ()
    return [each for each in store.checkpoints(pipeline, POSITIONS_KEPT, newest.number + 1) if each.is_confirmed]


def refuse_passing_over(
    pipeline: str,
    name: str,
    source: KafkaSource,
    first: Mapping[str, Any],
    ids: Mapping[str, str],
    delivered: Mapping[str, Any],
) -> None:
    """DataLossError where a source would begin behind what was `delivered` of it, unless it lets records go.

    `first`: its first offsets; `ids`: of its topics. Of one that is another topic by now nothing was read, and
    "earliest" leaves out nothing that is there.
    """
    before, known = delivered.get("end") or {}, delivered.get("topic_ids", {})
    if not is_kafka(before) or source.starting_offsets == "earliest" or not source.fail_on_data_loss:
        return
    problems, skipped = [], []
    for topic, partitions in sorted(first.items()):
        new = topic not in before and source.pattern is None
        if new or is_other(known.get(topic, ""), ids.get(topic, "")):
            continue
        for partition, begin in sorted(partitions.items(), key=lambda each: int(each[0])):
            end = before.get(topic, {}).get(partition, 0)  # one that came since would have been read from there
            if begin > end:
                problems.append(
                    f"partition {partition} of topic {topic!r} was read up to {end} but would begin at {begin}"
                )
                skipped.append((topic, int(partition), end, begin))
    if problems:
        records = sum(begin - end for _, _, end, begin in skipped)
        raise DataLossError(
            f"a full refresh of source {name!r} would begin after its delivered position and skip up to {records}"
            f" records: {'; '.join(problems)}. Nothing was read or published.",
            code="records_skipped",
            pipeline=pipeline,
            participant=source.conn_id,
            remedy='Let the source begin earlier: starting_offsets="earliest", an earlier time, or offsets up to these.'
            " To skip the records, set fail_on_data_loss=False of the source for one run. Then set it back.",
            source=name,
            records=records,
            skipped=skipped,  # topic, partition, delivered end, first offset
        )
