"""The folders of a Paimon table's partitions, as Paimon's own writers name them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_ft.sinks.arrow import is_text, positions
from airflow_ft.sinks.paimon.binary_row import Value

NULL = "__DEFAULT_PARTITION__"
_LONGEST = 255  # bytes of a folder's name
_ESCAPED = frozenset("\"#%'*/:=?\\{}[]^\x7f" + "".join(map(chr, range(32))))  # PartitionPathUtils of Paimon
_SPACES = (*range(9, 14), *range(28, 33), 0x1680, *range(0x2000, 0x2007), *range(0x2008, 0x200B), 0x2028, 0x2029,
           0x205F, 0x3000)  # fmt: skip
_BLANK = "".join(map(chr, _SPACES))
"""What Java calls whitespace. A value that is nothing else is in the folder of NULL."""


@dataclass(frozen=True, slots=True)
class Partitions:
    """Columns that a table is partitioned by, and their types, as Spark calls them."""

    by: Sequence[str]
    kinds: Sequence[str]
    null: str = NULL
    legacy: bool = True

    @classmethod
    def of(cls, by: Sequence[str], kinds: Sequence[str], options: Mapping[str, str]) -> Partitions:
        """Return those of a table with these options."""
        null = options.get("partition.default-name", NULL)
        return cls(by, kinds, null, options.get("partition.legacy-name", "true").lower() == "true")

    def folder(self, values: Sequence[Value]) -> str:
        """Return the folder of a partition, with "/" behind it; "" for a table without partitions."""
        parts = zip(self.by, self.kinds, values, strict=True)
        return "".join(f"{escaped(name)}={escaped(self._text(kind, value))}/" for name, kind, value in parts)

    def _text(self, kind: str, value: Value) -> str:
        if kind == "date" and isinstance(value, int) and not self.legacy:
            return str(np.datetime64(value, "D"))
        text = str(value).lower() if isinstance(value, bool) else str(value)
        return self.null if value is None or not text.strip(_BLANK) else text


def escaped(text: str) -> str:
    """Escape a partition's name or value as Paimon does."""
    return "".join(f"%{ord(c):02X}" if c in _ESCAPED else c for c in text)


def refused(rows: pa.RecordBatch, by: Sequence[str]) -> dict[int, str]:
    """Return the rows whose partition can have no folder, by position, and why."""
    found: dict[int, str] = {}
    for name in by:
        if name not in rows.schema.names or not is_text((column := rows.column(name)).type):
            continue
        for value in pc.unique(column.drop_null()):
            if why := _unfit(name, value.as_py()):
                found |= dict.fromkeys(positions(pc.equal(column, value)), f"column {name!r}: {why}")
    return found


def _unfit(name: str, text: str) -> str:
    """Return why a text can name no folder; "": it can."""
    if len(f"{escaped(name)}={escaped(text)}".encode()) > _LONGEST:
        return f"the name of its folder would be longer than {_LONGEST} bytes"
    if text.isspace() and text.strip(_BLANK):
        return "a blank text, for which Paimon's programs have different folders"
    return ""
