"""Compare a table's rows with the log's, as the metastore names their files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.verify import Delivered, SinkReport
from airflow_ft.protocol.write_ahead_log import WalReader
from airflow_ft.sinks.arrow import scalar
from airflow_ft.sinks.base.table_columns import WHOLE
from airflow_ft.sinks.files.partitions import NULL
from airflow_ft.sinks.hive.columns import FORMAT
from airflow_ft.sinks.hive.formats import batches, format_of
from airflow_ft.sinks.hive.memory import is_memory
from airflow_ft.sinks.hive.metastore import Connected
from airflow_ft.sinks.hive.requirements import CHECKS
from airflow_ft.sinks.hive.spec import KEY
from airflow_ft.sinks.hive.table import Version, path_of
from airflow_ft.wal.filesystem import filesystem

_KEYS = {"string": pa.large_string(), "boolean": pa.bool_(), "date": pa.date32()}
_KEYS |= {name: kind for name, (_, kind) in WHOLE.items()}


def verify(
    delivered: Sequence[Delivered],
    plan: ParticipantPlan,
    connection: ConnectionInfo,
    wal: WalReader,
    *,
    full: bool = False,
) -> list[SinkReport]:
    """One report a table. SinkUnavailableError, SinkAccessError, WalCorruptError: nothing could be compared."""
    return CHECKS.verify(delivered, plan, connection, wal, FORMAT, rows_of)


def rows_of(place: Connected, version: Version, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all partitions, with these columns; one that a file lacks is NULL."""
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
                        columns[key] = _repeated(values[key], kind, batch.num_rows)
                    yield pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _repeated(text: str, kind: pa.DataType, rows: int) -> pa.Array:
    return pa.repeat(scalar(None if text == NULL else text, kind), rows)
