"""The declaration of a sink, as a DAG author writes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from airflow_ft.protocol.model import Promise

if TYPE_CHECKING:
    from airflow_ft.protocol.config import CheckpointConfig


class SinkSpec(Protocol):
    """Declaration of a sink by a DAG author; checked at construction, so at DAG parse."""

    @property
    def kind(self) -> str:
        """The system, as the registry calls it (`airflow_ft.sinks.registry`)."""

    @property
    def conn_id(self) -> str:
        """Return the Airflow connection, which names the participant; "" if it needs none (`UnconnectedSinkSpec`)."""

    @property
    def strategy(self) -> str: ...

    @property
    def promise(self) -> Promise: ...

    def at_least_once(self) -> Promise:
        """Return its promise where rows are not held back for a decision.

        Raises:
            ConfigurationError: it cannot deliver so.
        """

    def settings(self) -> Mapping[str, Any]:
        """Plain JSON for the plan, without secrets; what the participant reads back."""


class UnconnectedSinkSpec(SinkSpec, Protocol):
    """A sink that needs no Airflow connection: its `conn_id` is "", and it is a participant of its own."""

    @property
    def participant(self) -> str:
        """Return the participant's name. Tasks are named by it, so it must not change when Jinja is rendered."""


@runtime_checkable
class LimitedSinkSpec(SinkSpec, Protocol):
    """A sink that refuses deliveries above a number of rows."""

    @property
    def most_rows(self) -> int | None:
        """Return the most rows of a delivery; None: any number."""


@runtime_checkable
class HoldingSinkSpec(SinkSpec, Protocol):
    """A sink that holds something open between prepare and commit, and not for ever."""

    def check_checkpointing(self, config: CheckpointConfig) -> None:
        """ConfigurationError when it cannot be held as long as a checkpoint may take."""
