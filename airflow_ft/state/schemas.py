"""Types of keys and values of a state store, and how a key becomes bytes in RocksDB."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_ft.protocol.errors import ConfigurationError, WalCorruptError
from airflow_ft.spark.state.schema_files import NEWEST, Schema, UnknownFormatError, schemas
from airflow_ft.state.rows import StateColumn, columns_of
from airflow_ft.wal.checksums import RESTORE_STATE

NO_PREFIX, PREFIX, RANGE = "NoPrefixKey", "PrefixKeyScan", "RangeKeyScan"


@dataclass(frozen=True, slots=True)
class Family:
    """A column family of a store; a store of an older operator is itself one ("default").

    `encoder`: how a key becomes bytes in RocksDB.
    """

    name: str
    key: tuple[StateColumn, ...]
    value: tuple[StateColumn, ...]
    encoder: str


def families(data: bytes, name: str) -> tuple[Family, ...]:
    """Return the families of a schema file.

    Raises:
        WalCorruptError: it is damaged.
        ConfigurationError: it has a newer format.
    """
    try:
        return tuple(_family(each) for each in schemas(data))
    except UnknownFormatError as newer:
        raise ConfigurationError(
            f"{name} has format {newer}. airflow-ft knows formats up to {NEWEST}.",
            code="state_unreadable",
            remedy="Read the state with Spark: `dataframe(spark, operator)` of the same handle.",
            path=name,
            version=newer.args[0],
        ) from newer
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WalCorruptError(
            f"{name}, a schema of Spark's state, is damaged.",
            code="state_damaged",
            remedy=RESTORE_STATE,
            path=name,
        ) from error


def _family(schema: Schema) -> Family:
    kind = str(schema.encoder.get("keyStateEncoderType", "")).removesuffix("StateEncoderSpec") or NO_PREFIX
    return Family(schema.name, columns_of(schema.key), columns_of(schema.value), kind)
