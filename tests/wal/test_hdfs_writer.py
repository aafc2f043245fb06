"""Files of HDFS that are longer than a block, without a server."""

from __future__ import annotations

import pytest

from airflow_ft.wal.hdfs import _Writer

MIB = 1 << 20


class Blocks:
    """As hdfs-native writes: a full block stays open until the next byte, and `hsync` reaches the open one only."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.synced: list[int] = []

    def write(self, data: bytes) -> None:
        while data:
            if not self.lengths or self.lengths[-1] == MIB:
                self.lengths.append(0)
                self.synced.append(0)
            part = data[: MIB - self.lengths[-1]]
            self.lengths[-1] += len(part)
            data = data[len(part) :]

    def hsync(self) -> None:
        self.synced[-1] = self.lengths[-1]

    def close(self) -> None:
        """The DataNodes sync nothing."""


@pytest.mark.parametrize("sizes", [(3 * MIB,), (MIB,), (MIB - 1, 1, 1), (700_000,) * 5], ids=str)
def test_each_block_of_a_file_is_synced(sizes: tuple[int, ...]) -> None:
    blocks = Blocks()
    with _Writer("hdfs://nn/file", blocks, lambda: MIB) as file:
        for size in sizes:
            assert file.write(bytes(size)) == size
        assert file.tell() == sum(sizes)
    assert sum(blocks.lengths) == sum(sizes) and blocks.synced == blocks.lengths
