"""Other programs that read and write Paimon tables: pypaimon, and Paimon's own library for Java.

pypaimon demands an older pyarrow than airflow-ft, so it runs as a process of the interpreter in `.local/paimon`, which
`tools/bootstrap.sh paimon` installs::

    with Paimon("/data/lake") as paimon:
        paimon.append("shop.orders", rows)
        paimon.rows("shop.orders")

Several threads may share one. `library` runs the library for Java, which compacts tables and expires snapshots.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.feather as feather

from tools.servers.base import ServerError, installed, local_folder

PYTHON = Path("paimon/bin/python")


def is_installed() -> bool:
    """Return whether `tools/bootstrap.sh paimon` has run."""
    return (local_folder() / PYTHON).exists()


class PaimonError(RuntimeError):
    """pypaimon did not do what was asked of it; `kind` is the class of its error."""

    def __init__(self, text: str, trace: str) -> None:
        self.kind = text.partition(":")[0]
        super().__init__(f"{text}\n{trace}")


class Paimon:
    """pypaimon over the folder `warehouse`. Tables are named `database.table`."""

    def __init__(self, warehouse: Path | str = "") -> None:
        self.warehouse = str(warehouse)
        self._lock = threading.Lock()
        self._folder = tempfile.TemporaryDirectory(prefix="paimon-")
        program = Path(__file__).with_name("process.py")
        command = [str(installed("paimon", PYTHON)), "-I", str(program)]
        with (Path(self._folder.name) / "log").open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The process of pypaimon."""
        return self._process.pid

    def at(self, warehouse: Path | str) -> Paimon:
        """Return the same process over another folder."""
        other = copy(self)
        other.warehouse = str(warehouse)
        return other

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._folder.cleanup()

    def create(
        self, table: str, schema: pa.Schema, partitions: Sequence[str] = (), keys: Sequence[str] = (), **options: str
    ) -> None:
        """Make a table, and its database; underscores in names of `options` stand for hyphens."""
        named = {name.replace("_", "-"): value for name, value in options.items()}
        with self._lock:
            rows = self._put(schema.empty_table())
            self._ask("create", table, rows=rows, partitions=[*partitions], keys=[*keys], options=named)

    def append(self, table: str, rows: pa.Table) -> None:
        """Add rows, in one snapshot."""
        with self._lock:
            self._ask("append", table, rows=self._put(rows))

    def append_asleep(self, table: str, rows: pa.Table, asleep: Path, awake: Path) -> None:
        """Add rows, and sleep just before the rename onto the snapshot's name, from `asleep` until `awake` is there."""
        with self._lock:
            self._ask("append_asleep", table, rows=self._put(rows), asleep=str(asleep), awake=str(awake))

    def overwrite(self, table: str, rows: pa.Table) -> None:
        """Replace all rows of the table."""
        with self._lock:
            self._ask("overwrite", table, rows=self._put(rows))

    def rows(self, table: str, where: Mapping[str, Any] | None = None) -> pa.Table:
        """Return the rows of the newest snapshot, or those with the values `where`."""
        path = Path(self._folder.name) / "found.arrow"
        with self._lock:
            self._ask("rows", table, into=str(path), where=dict(where or {}))
            return feather.read_table(path, memory_map=False)

    def has(self, table: str) -> bool:
        """Return whether there is such a table."""
        database, _, name = table.partition(".")
        return (Path(self.warehouse) / f"{database}.db" / name / "schema").is_dir()

    def files(self, table: str) -> list[str]:
        """Return the data files of the newest snapshot."""
        return list(self.ask("files", table))

    def snapshots(self, table: str) -> list[dict[str, Any]]:
        """Return id, kind, user and properties of each snapshot."""
        return list(self.ask("snapshots", table))

    def tags(self, table: str) -> list[str]:
        """Return the names of the table's tags."""
        return list(self.ask("tags", table))

    def ask(self, do: str, table: str, **given: Any) -> Any:
        """Let the process do what the method `do` of its class `Table` does."""
        with self._lock:
            return self._ask(do, table, **given)

    def _put(self, rows: pa.Table) -> str:
        path = Path(self._folder.name) / "given.arrow"
        feather.write_feather(rows, path, compression="uncompressed")
        return str(path)

    def _ask(self, do: str, table: str, **given: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        request = {"do": do, "warehouse": self.warehouse, "table": table, **given}
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            log = (Path(self._folder.name) / "log").read_text(errors="replace")
            raise ServerError(f"pypaimon has ended: {log[-3000:]}")
        answer = json.loads(line)
        if "error" in answer:
            raise PaimonError(answer["error"], answer["trace"])
        return answer["found"]


def library(warehouse: Path | str, table: str, do: str, *more: str) -> list[Any]:
    """Run Paimon's own library for Java once, which takes seconds, and return what it prints as JSON.

    Args:
        warehouse: the folder of all databases.
        table: `database.table`.
        do: `rows` (those with the number `more[1]` in the column `more[0]` alone), `compact`, `expire` (all snapshots
            but the newest), or `clean` (files that no snapshot knows, whatever their age).
        more: what `do` takes.
    """
    java = shutil.which("java")
    if java is None:
        raise ServerError("there is no java: run tools/bootstrap.sh paimon")
    jars = [installed("paimon", Path("jars/paimon")), installed("hdfs", Path("jars/hdfs"))]
    options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    path = ":".join(f"{folder}/*" for folder in jars)
    program = Path(__file__).with_name("Table.java")
    command = [java, *options, "-cp", path, str(program), str(warehouse), *table.split("."), do, *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise ServerError(f"Paimon's library failed: {done.stderr[-3000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]
