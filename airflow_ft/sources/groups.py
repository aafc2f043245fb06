"""Which consumer groups may follow the sources of one pipeline: each partition of a group has one offset."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.sources import KafkaSource, Source


def check_groups(sources: Mapping[str, Source]) -> None:
    """Raise ConfigurationError if two sources commit offsets of the same topic to one group.

    The committed offset would be that of either source by chance, and consumers that start at the group, or monitor
    it, would rely on it. Topics of a pattern are found at run time and are not checked.
    """
    kafka = {name: each for name, each in sources.items() if isinstance(each, KafkaSource)}
    told = {name: each for name, each in kafka.items() if each.group_id and each.commit_offsets}
    for (one, first), (other, second) in combinations(told.items(), 2):
        both = sorted(set(first.topics) & set(second.topics))
        if both and (first.conn_id, first.group_id) == (second.conn_id, second.group_id):
            raise ConfigurationError(
                f"sources {one!r} and {other!r} read {both[0]!r}, and group {first.group_id!r} can follow only one.",
                code="group_shared",
                remedy="Give each source its own group_id, or set commit_offsets=False for one of them.",
                sources=[one, other],
                topic=both[0],
                group=first.group_id,
            )
