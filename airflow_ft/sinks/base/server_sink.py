"""What a DAG author writes for every server that an Airflow connection leads to. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar, Self, cast

from airflow_ft.protocol.arguments import check_known
from airflow_ft.protocol.model import ParticipantPlan, Promise
from airflow_ft.sinks.base.settings import SinkArguments, refuse_unknown, shared_setting
from airflow_ft.sinks.registry import Strategy


class ServerSink(SinkArguments):
    """Base of a frozen dataclass with these fields and others: rows into a server.

    The dataclass declares all fields itself, so that its signature begins with the place of the rows.
    """

    __slots__ = ()

    conn_id: str
    strategy: str
    shared: bool

    kind: ClassVar[str]
    strategies: ClassVar[Mapping[str, Strategy]]

    @property
    def promise(self) -> Promise:
        """Return what the strategy promises."""
        return self.strategies[self.strategy].promise

    def at_least_once(self) -> Promise:
        """Return the same promise: a repeated delivery runs under its marker."""
        return self.promise

    @classmethod
    def from_settings(cls, conn_id: str, strategy: str, settings: Mapping[str, Any]) -> Self:
        """The sink that a plan holds. ConfigurationError when the plan knows settings that this release does not."""
        made: Any = cls
        refuse_unknown(settings, {field.name for field in fields(made)} - {"conn_id", "strategy"})
        return cast("Self", made(conn_id=conn_id, strategy=strategy, **settings))

    @classmethod
    def all_of(cls, plan: ParticipantPlan) -> dict[str, Self]:
        """The sinks of a plan, by name. ConfigurationError: a setting is unknown, or they contradict each other."""
        sinks = {name: cls.from_settings(plan.name, plan.strategy, given) for name, given in plan.sinks.items()}
        cls._check_together(plan, sinks)
        return sinks

    @classmethod
    def _check_together(cls, plan: ParticipantPlan, sinks: Mapping[str, Self]) -> None:
        """Raise if sinks of one plan contradict each other."""

    def _settings(self) -> dict[str, Any]:
        """Return plain JSON for the plan."""
        this: Any = self
        names = [field.name for field in fields(this) if field.name not in ("conn_id", "strategy", "shared")]
        return {**{name: getattr(self, name) for name in names}, **shared_setting(self.shared)}

    def _check_choices(self, **known: Sequence[str]) -> None:
        """Raise if an argument is none of the `known` words, or the connection has no name."""
        choices = {**known, "strategy": tuple(self.strategies)}
        for name in ("conn_id", *choices):
            check_known(name, getattr(self, name), of=type(self).__name__)
        for name, words in choices.items():
            if getattr(self, name) not in words:
                raise self._invalid(name, getattr(self, name), f"Give {name}= one of {', '.join(words)}.")
        if not self.conn_id or self.conn_id != self.conn_id.strip():
            remedy = f"Give the id of an Airflow connection of type {self.kind}, without blanks around it."
            raise self._invalid("conn_id", self.conn_id, remedy)
