"""Distribution of a custom source's splits over its parallel readers: Flink's redistribution of operator state.

The state of a source is its offset: for each split (a file, a partition, a shard) how far it was read. Spark keeps it,
and asks the source for the readers of each micro-batch (`partitions`). So splits are distributed again for each
micro-batch, by its number of readers. It imports no pyspark.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from airflow_ft.protocol.errors import ConfigurationError

__all__ = ["Redistribution", "Share", "redistribute"]


class Redistribution(StrEnum):
    """EVEN_SPLIT: each split has one reader. UNION: each reader gets all splits, and takes what is its own of them
    (`Share.takes`). BROADCAST: each reader gets all splits, and reads all of them.
    """

    EVEN_SPLIT = "EVEN_SPLIT"
    UNION = "UNION"
    BROADCAST = "BROADCAST"


@dataclass(frozen=True, slots=True)
class Share:
    """Share of the reader `reader` of `readers` (from 0): splits by their names, with what to read of each."""

    reader: int
    readers: int
    splits: Mapping[str, Any]

    def takes(self, what: object) -> bool:
        """Return whether this reader takes `what` (a row's key, a number): stable, and true for exactly one reader."""
        return zlib.crc32(str(what).encode()) % self.readers == self.reader


def redistribute(splits: Mapping[str, Any], readers: int, how: Redistribution) -> list[Share]:
    """Return a share for each of `readers` readers; of an even split only for those with a split.

    Independent of the order of the splits.

    Raises:
        ConfigurationError: there is no reader.
    """
    if readers < 1:
        raise ConfigurationError(
            f"readers is {readers}.",
            code="argument_invalid",
            remedy="Give at least one reader.",
            argument="readers",
            value=str(readers),
        )
    names = sorted(splits)
    if how is Redistribution.EVEN_SPLIT:
        dealt = [names[reader::readers] for reader in range(min(readers, len(names)))]
    else:
        dealt = [names] * readers if names else []
    return [Share(reader, readers, {name: splits[name] for name in of_it}) for reader, of_it in enumerate(dealt)]
