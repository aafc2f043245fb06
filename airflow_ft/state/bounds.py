"""Limits of a handle in a process with other work, such as the API server of Airflow."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_ft.protocol.errors import ConfigurationError

TOO_LARGE = "state_too_large"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of a handle.

    `bytes`: of files that the handle reads as a whole, into memory, or copies from HDFS. `entries`: most entries of a
    key that `entries` returns. `stores`: most stores that are open, since RocksDB opens all files of a store.
    """

    bytes: int
    entries: int
    stores: int

    def require(self, pipeline: str, needed: int) -> None:
        """ConfigurationError if a lookup needs more bytes of files."""
        if needed > self.bytes:
            raise ConfigurationError(
                f"the lookup needs {needed:,} bytes of state files, and {self.bytes:,} are allowed here.",
                code=TOO_LARGE,
                remedy=f"Look it up in a process of your own: `airflow ft state get {pipeline} ...`, or with"
                " airflow_ft.state.",
                pipeline=pipeline,
                bytes=needed,
                most=self.bytes,
            )
