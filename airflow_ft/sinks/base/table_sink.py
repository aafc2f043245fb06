"""What a DAG author writes for one table of a table format. Imports nothing heavy."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar, Self, cast

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.datasets import Dataset, folder
from airflow_ft.protocol.model import ParticipantPlan, Promise
from airflow_ft.sinks.base.places import name_of, settings_of
from airflow_ft.sinks.base.settings import SinkArguments, refuse_unknown


class TableSink(SinkArguments):
    """Base of a frozen dataclass for rows into one table.

    The dataclass declares the fields `table` and `name`, and those that its authors may set. The other attributes
    below keep their defaults. It declares all fields itself, so that its signature begins with the table.
    """

    __slots__ = ()

    table: str
    name: str
    partition_by: Sequence[str] = ()
    file_bytes: int = 128 << 20
    create: bool = True

    kind: ClassVar[str]
    conn_id: ClassVar[str] = ""
    promise: ClassVar[Promise]

    @property
    def participant(self) -> str:
        """The name, or one made from the table. It is the same in all runs."""
        return self.name or name_of(self.kind, self.table)

    def at_least_once(self) -> Promise:
        """Return the same promise: marker and rows are in one commit."""
        return self.promise

    def settings(self) -> Mapping[str, Any]:
        """Plain JSON for the plan. ConfigurationError while Jinja is left in one of them."""
        this: Any = self
        return {name: value for name, value in settings_of(this, self.table).items() if name != "strategy"}

    @classmethod
    def from_settings(cls, name: str, settings: Mapping[str, Any]) -> Self:
        """The sink that a plan holds. ConfigurationError when the plan knows settings that this release does not."""
        made: Any = cls
        refuse_unknown(settings, {field.name for field in fields(made)} - {"name", "strategy"})
        return cast("Self", made(name=name, **settings))


IN_A_CATALOG: Mapping[str, str] = {
    "conn_id": 'Write the connection first in the table: table="CONNECTION.SCHEMA.TABLE".'
}
"""Remedies for arguments that a table in a catalog does not have."""


def connection_of(plan: ParticipantPlan) -> str:
    """Return the Airflow connection that a plan's table names."""
    [settings] = plan.sinks.values()
    return str(settings["table"]).partition(".")[0]


def folder_dataset(settings: Mapping[str, Any], _: ConnectionInfo) -> Dataset:
    """Return what lineage calls a table in a folder: `file`, `/data/orders`; or `s3://bucket`, `orders`."""
    return folder(settings["table"])


def folder_place(settings: Mapping[str, Any], _: ConnectionInfo) -> str:
    """Return one text for one table: on disk its real folder, with links resolved."""
    found = folder(settings["table"])
    return os.path.realpath(found.name) if found.namespace == "file" else found.uri
