"""Base of sources whose plain form is their fields, and which need no Airflow connection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar, Self


class PlainSource:
    """The base of such a source, which is a dataclass."""

    kind: ClassVar[str]
    """Its name in plain data."""
    conn_id: ClassVar[None] = None
    """It needs no connection."""
    needs_connector: ClassVar[bool] = False
    """True: Spark needs a jar for it that does not come with Spark."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`."""
        return cls(**{name: data[name] for name in cls._names()})

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        values = {name: getattr(self, name) for name in self._names()}
        return {"kind": self.kind} | {n: dict(v) if isinstance(v, Mapping) else v for n, v in values.items()}

    @classmethod
    def _names(cls) -> list[str]:
        return [each.name for each in fields(cls)]  # type: ignore[arg-type]
