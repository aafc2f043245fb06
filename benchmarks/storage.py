"""What the log's file system costs: a local path and HDFS beside each other, `python -m benchmarks.storage [FOLDER]`.

HDFS is a NameNode and a DataNode on this machine, so nothing is said of a network. Medians of `ROUNDS` rounds.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from unittest.mock import patch

import pyarrow as pa

from airflow_ft.wal import open_wal
from airflow_ft.wal.filesystem import filesystem
from airflow_ft.wal.writer import SegmentFolder, write_segment
from tools.servers import Hdfs

ROUNDS, ROWS, FILES = 3, 200_000, 40


def measure(root: str) -> Iterator[tuple[str, float]]:
    """Each with its seconds."""
    files = filesystem(root)
    table = pa.table({"id": pa.array(range(ROWS)), "name": [f"name {n % 1000}" for n in range(ROWS)]})
    segments = []

    def write(number: int) -> None:
        segments.append(write_segment(SegmentFolder(root, "p", 1, number + 1, 0), 1, {"rows": table}))

    def read(number: int) -> None:
        reader = open_wal().open(segments[number])
        assert sum(b.num_rows for file in reader.files("rows") for b in reader.batches("rows", file)) == ROWS

    yield f"a segment of {ROWS:,} rows, written and sealed", _median(write)
    yield "the same, checked and read", _median(read)
    yield "a small file", _median(lambda number: files.write(files.uri(root, "small", str(number)), b"x" * 500))
    yield "looking whether a file is there", _median(lambda number: files.exists(files.uri(root, "small", "0")))
    old = files.uri(root, "location")
    for number in range(FILES):
        files.write(files.uri(old, "state", str(number % 4), str(number)), b"x" * 2000)
    copy = _median(lambda number: files.link_tree(old, files.uri(root, f"copy-{number}"), lambda _: True))
    yield f"a cut-back copy of {FILES} small files", copy


def _median(step: Callable[[int], object]) -> float:
    taken = []
    for number in range(ROUNDS):
        began = time.perf_counter()
        step(number)
        taken.append(time.perf_counter() - began)
    return median(taken)


def main() -> None:
    """Prints a table."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="airflow-ft-storage-"))
    with Hdfs(folder / "hdfs") as server, patch.dict("os.environ", {"HADOOP_USER_NAME": server.user}):
        found = {
            name: dict(measure(root)) for name, root in (("local", f"{folder}/wal"), ("HDFS", f"{server.url}/wal"))
        }
    lines = ["| seconds | " + " | ".join(found) + " |", "| --- | --- | --- |"]
    for what in found["local"]:
        lines.append(f"| {what} | " + " | ".join(f"{each[what]:.4f}" for each in found.values()) + " |")
    sys.stdout.write("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
