"""A custom source: a class over Spark's Python data source API."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.argument_names import by_name
from airflow_ft.protocol.arguments import check_known, check_options, check_text, check_type
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.sources.plain import PlainSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_ft.protocol.connections import ConnectionInfo


@by_name
@dataclass(frozen=True, kw_only=True)
class CustomSource(PlainSource):
    """Rows of a Python class that implements Spark's data source API.

    Args:
        data_source: a `pyspark.sql.datasource.DataSource`, named "package.module:Class" and found as the job is.
        replayable: True promises that two offsets always enclose the same rows, and that `initialOffset` is stable
            until the first published checkpoint. No check can prove that; without it rows are lost or duplicated. Use
            False otherwise, in a stream with `CheckpointingMode.AT_MOST_ONCE`: each attempt begins at `initialOffset`,
            and the class decides which rows come again.
        schema: the columns, as a DDL string. None: that of its own `schema()`.
        options: its options, as texts; secrets do not belong there, since the decision log keeps them.

    Raises:
        ConfigurationError: for what cannot work.
    """

    kind = "custom"

    data_source: str
    replayable: bool
    options: Mapping[str, str] = field(default_factory=dict)
    schema: str | None = None

    def __post_init__(self) -> None:
        of = "CustomSource"
        check_text("data_source", self.data_source, of=of)
        check_known("data_source", self.data_source, of=of)
        check_type("replayable", self.replayable, bool, "Give True or False.", of=of)
        check_options(self.options, of)
        ddl = 'Give the columns as in SQL, such as schema="id bigint, at date".'
        check_type("schema", self.schema, str, ddl, optional=True, of=of)
        module, colon, name = self.data_source.partition(":")
        if not (module and colon and name):
            raise ConfigurationError(
                f"data_source of CustomSource is {self.data_source!r}, which names no class.",
                code="argument_invalid",
                remedy='Name a module and the class in it, as for a job: "package.module:Class".',
                argument="data_source",
                value=self.data_source,
            )

    def read(
        self,
        spark: SparkSession,
        connection: ConnectionInfo | None = None,
        *,
        streaming: bool = True,
        tags: Mapping[str, str] | None = None,
    ) -> DataFrame:
        """A streaming DataFrame, or a static one if the class has a `reader`. ConfigurationError when there is none."""
        found = self._class()
        spark.dataSource.register(found)
        reader: Any = spark.readStream if streaming else spark.read
        if self.schema:
            reader = reader.schema(self.schema)
        frame: DataFrame = reader.format(found.name()).options(**self.options, **(tags or {})).load()
        return frame

    def _class(self) -> Any:
        from pyspark.sql.datasource import DataSource

        module, _, name = self.data_source.partition(":")
        try:
            found: Any = importlib.import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError) as error:
            raise ConfigurationError(
                f"data_source {self.data_source!r} of CustomSource cannot be imported: {error}.",
                code="class_missing",
                remedy="Correct the name. Its module must be installed, or be where the job's module is.",
                argument="data_source",
                value=self.data_source,
            ) from error
        if not (isinstance(found, type) and issubclass(found, DataSource)):
            raise ConfigurationError(
                f"data_source {self.data_source!r} of CustomSource is not a pyspark.sql.datasource.DataSource.",
                code="argument_invalid",
                remedy="Derive the class from pyspark.sql.datasource.DataSource.",
                argument="data_source",
                value=self.data_source,
            )
        return found
