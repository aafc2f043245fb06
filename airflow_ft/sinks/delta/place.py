"""Place of a Delta table: a folder on disk, or in a bucket. Only this module knows the differences.

A version of a table is created once. On disk a file system creates its name once (a hard link). In a bucket delta-rs
and this package put an object on the condition that there is none (If-None-Match). A writer that replaces objects
without that condition can replace a version: Spark's own Delta writer does, unless it has its own lock.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from airflow_ft.clients.buckets import BucketSettings
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import ConfigurationError, WalCorruptError
from airflow_ft.sinks.base.places import is_object_store
from airflow_ft.sinks.delta.spec import DeltaSink
from airflow_ft.sinks.files.objects import Objects, keys_of
from airflow_ft.wal.filesystem import FileSystem, filesystem
from airflow_ft.wal.local import local_path, sync_above

if TYPE_CHECKING:
    from deltalake import DeltaTable

LOG, OURS = "_delta_log", "_airflow_ft"
_CONDITION = {"AWS_S3_ALLOW_UNSAFE_RENAME": "false", "AWS_CONDITIONAL_PUT": "etag"}  # whatever the environment says
_TOKENS = {"aws_session_token", "aws_token", "session_token", "token"}  # for delta-rs, in any case
_PATIENCE = {"max_retries": "4", "retry_timeout": "30s", "connect_timeout": "5s", "timeout": "300s"}
_OFTEN = {"delta.checkpointInterval": "10"}  # as Spark has it; delta-rs: 100, and each entry since is a request or two


@dataclass(frozen=True)
class Place:
    """The folder of a table. `options` are what delta-rs needs to reach it, with secrets."""

    files: FileSystem | Objects
    root: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, sink: DeltaSink, connection: ConnectionInfo) -> Self:
        """Return the place of a sink.

        Raises:
            ConfigurationError: its connection cannot be used.
        """
        if not is_object_store(sink.table):
            return cls(filesystem(str(sink.path)), sink.path.as_uri())
        objects = Objects.of(sink.table, connection, "")
        keys = keys_of(sink.table, connection)
        given = {} if keys is None else _private(keys)
        return cls(objects, objects.uri(sink.table), {**given, **_CONDITION, **_PATIENCE})

    def __str__(self) -> str:
        return self.root if self.is_bucket else str(local_path(self.root))

    @property
    def is_bucket(self) -> bool:
        """Return whether it is in an object store, where written objects are durable and never change."""
        return isinstance(self.files, Objects)

    def uri(self, *names: str) -> str:
        """Return the URI of a file or folder in it; a name may have several parts."""
        return self.files.uri(self.root, *(part for name in names for part in name.split("/")))

    def below(self, *names: str) -> Self:
        """A folder in it, as a table of its own."""
        return type(self)(self.files, self.uri(*names), self.options)

    # --- delta-rs ------------------------------------------------------------------------------------------------

    def open(self) -> DeltaTable:
        """The newest version of the table."""
        from deltalake import DeltaTable

        return DeltaTable(str(self), storage_options=dict(self.options) or None)

    def create(self, schema: Any, partition_by: list[str] | None, properties: Any) -> None:
        """A table's first version; raises what delta-rs does."""
        from deltalake import DeltaTable

        with suppress(FileExistsError):
            self.files.make_folder(self.root)
        if not self.is_bucket:
            sync_above(local_path(self.root))  # before others find the table, who do not sync these folders
        DeltaTable.create(
            str(self),
            schema,
            partition_by=partition_by,
            configuration=_OFTEN if self.is_bucket else None,
            storage_options=dict(self.options) or None,
            commit_properties=properties,
        )

    # --- versions ------------------------------------------------------------------------------------------------

    def commit_uri(self, version: int) -> str:
        """The entry of a version in the log."""
        return self.uri(LOG, f"{version:020}.json")

    def mark(self, version: int) -> object:
        """Return the identity of a version's entry; None if there is none."""
        uri = self.commit_uri(version)
        if isinstance(self.files, Objects):
            return self.files.mark(uri)
        with suppress(FileNotFoundError):
            found = local_path(uri).stat()
            return found.st_ino, found.st_mtime_ns, found.st_size
        return None

    def actions(self, version: int) -> Iterator[Mapping[str, Any]]:
        """Yield what a version has changed, as its entry in the log has it."""
        for line in self.files.read(self.commit_uri(version)).splitlines():
            if line.strip():
                yield json.loads(line)

    def put_together(self) -> int:
        """The version of the newest checkpoint of the log, from which readers begin; -1: there is none."""
        with suppress(WalCorruptError):
            return int(json.loads(self.files.read(self.uri(LOG, "_last_checkpoint")))["version"])
        return -1

    def take(self, version: int, source: str) -> None:
        """The file `source` becomes that version. FileExistsError: it was given already."""
        if isinstance(self.files, Objects):
            self.files.write(self.commit_uri(version), self.files.read(source))
        else:
            os.link(local_path(source), local_path(self.commit_uri(version)))

    def require_conditions(self) -> None:
        """UnfitTargetError where the store gives a version twice."""
        if isinstance(self.files, Objects):
            self.files.require_conditions(self.uri(OURS, f"probe-{uuid.uuid4().hex}"))

    def sync_log(self, versions: range) -> None:
        """Returns when these survive a power cut: delta-rs leaves that to the system."""
        if self.is_bucket:
            return
        for version in versions:
            with suppress(WalCorruptError), self.files.open(self.commit_uri(version)) as file:
                self.files.sync_file(file)
        self.files.sync_folders(self.uri(LOG), self.root)

    # --- files ---------------------------------------------------------------------------------------------------

    def renew(self, uri: str) -> None:
        """A file is as old as its delivery: VACUUM goes by the age, and that of the log may have waited for long."""
        if not self.is_bucket:  # there it is new
            now = time.time()
            os.utime(local_path(uri), (now, now))


def _private(keys: BucketSettings) -> dict[str, str]:
    """Return all options of a connection. delta-rs takes each one that is missing here from the environment.

    Raises:
        ConfigurationError: the environment has a session token and the connection has none. No option of delta-rs
            turns it off.
    """
    variables = sorted(name for name in os.environ if name.lower() in _TOKENS)
    if variables and not keys.session_token:
        raise ConfigurationError(
            f"delta-rs would send {variables[0]} of the environment beside the keys of connection {keys.conn_id!r}.",
            code="arguments_conflict",
            remedy=f"Unset {', '.join(variables)} for the tasks of this pipeline and for commands.",
            conn_id=keys.conn_id,
            variables=variables,
        )
    token = {"AWS_SESSION_TOKEN": keys.session_token} if keys.session_token else {}
    return {
        "AWS_REGION": keys.region,
        "AWS_ENDPOINT": keys.endpoint,
        "AWS_ENDPOINT_URL_S3": keys.endpoint,  # goes before AWS_ENDPOINT
        "AWS_ACCESS_KEY_ID": keys.access_key_id,
        "AWS_SECRET_ACCESS_KEY": keys.secret_access_key,
        "AWS_ALLOW_HTTP": str(keys.endpoint.startswith("http://")).lower(),
        "AWS_SKIP_SIGNATURE": "false",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false",
        "AWS_S3_EXPRESS": "false",
        **token,
    }
