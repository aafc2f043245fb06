"""What a metastore and its table must have; see `airflow_ft.sinks.base.requirements`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.protocol.numbers import count_text
from airflow_ft.sinks.arrow import scalar
from airflow_ft.sinks.base.places import room
from airflow_ft.sinks.base.requirements import ASK_SECONDS
from airflow_ft.sinks.base.table_checks import CatalogChecks
from airflow_ft.sinks.base.table_columns import WHOLE
from airflow_ft.sinks.files.partitions import NULL
from airflow_ft.sinks.hive import columns
from airflow_ft.sinks.hive.formats import batches, format_of
from airflow_ft.sinks.hive.memory import is_memory
from airflow_ft.sinks.hive.metastore import ANSWER_SECONDS, Connected
from airflow_ft.sinks.hive.spec import KEY, HiveSink
from airflow_ft.sinks.hive.table import OURS, Version, new_location, path_of
from airflow_ft.wal.filesystem import filesystem, is_remote
from airflow_ft.wal.local import local_path

_KEYS = {"string": pa.large_string(), "boolean": pa.bool_(), "date": pa.date32()}
_KEYS |= {name: kind for name, (_, kind) in WHOLE.items()}


class Checks(CatalogChecks[Version]):
    """Tables in a metastore that answers."""

    sink, form, version = HiveSink, columns.FORMAT, Version

    def at(self, sink: HiveSink, connection: ConnectionInfo, *, quickly: bool = False) -> Connected:
        seconds = ASK_SECONDS if quickly else ANSWER_SECONDS
        return Connected(connection, sink.identifier, seconds, sink.aws_conn_id)

    def rows(self, place: Connected, version: Version, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all partitions; a column that a file lacks is NULL."""
        keys = version.table.partitionKeys
        own = [key.name for key in keys].index(KEY)
        types = {key.name: _KEYS[key.type] for key in keys if key.name in names}
        for part in place.partitions(place.client.get_partition_names(*place.identifier, -1)):
            if is_memory(part.values[own]):
                continue
            values = dict(zip((key.name for key in keys), part.values, strict=True))
            folder = path_of(part.sd.location, place.aws_conn_id)
            files = filesystem(folder)
            for name in sorted(files.tree(folder)):
                if name.rpartition("/")[2].startswith(("_", ".")):
                    continue
                with files.open(files.uri(folder, *name.split("/"))) as source:
                    for batch in batches(format_of(part) or version.format, source, names):
                        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
                        for key, kind in types.items():
                            value = scalar(None if values[key] == NULL else values[key], kind)
                            columns[key] = pa.repeat(value, batch.num_rows)
                        yield pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    def room(self, sink: HiveSink, place: Connected, version: Version | None) -> str:
        """Look at the folder on a disk. Of a folder in HDFS or a bucket, find out that it can be reached."""
        root = version.root if version is not None else path_of(new_location(place), place.aws_conn_id)
        if is_remote(root):
            filesystem(root).seen_folder(root)
            return ""
        folder = local_path(root)
        if version is not None:
            version.require_folder()
        free = room(folder / (OURS if version is not None else ""), for_all=True)  # the metastore has its own user
        return f", {free:,} bytes free"

    def shown(self, place: Connected, version: Version) -> str:
        return f"{place} at {version.root}, {count_text(len(version.columns), 'column')}"

    def problems(
        self, sink: HiveSink, version: Version | None, schema: pa.Schema, name: str
    ) -> Iterable[AirflowFtError]:
        return columns.schema_problems(sink, schema, version.table if version is not None else None, name)


CHECKS = Checks()
required, schema_problems = CHECKS.required, CHECKS.schema_problems
