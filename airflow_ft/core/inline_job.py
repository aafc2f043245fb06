"""A job that is written in the DAG file: its source, as it travels to Spark's driver (`airflow_ft.job`)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import PurePath
from typing import Any

from airflow_ft.core.errors import ConfigurationError

MOST_BYTES = 256 * 1024
"""The decision log keeps the source of each version of a job."""

_DECLARED = "__airflow_ft_job__"
_SECRET = re.compile(
    r"""(?ix)(\w*(?:secret|passw(?:or)?d|passphrase|token|credential|(?:access|account|api|private)_?key)\w*["']?
    \s*(?::[^=\n"']*)?[=:]\s*\(?\s*[rbuf]{0,2})(["'])(?:(?!\2)[^\\\n]|\\.)+\2"""
)


@dataclass(frozen=True, slots=True)
class Part:
    """A definition, an import or a constant: its text, and the line of the file at which that begins."""

    line: int
    text: str


@dataclass(frozen=True, slots=True, repr=False)
class InlineJob:
    """A function or class by source: what is needed to have it in a process that does not import its file.

    name: its own. file: the whole path, for tracebacks. parts: in the order in which they are to be executed; the last
    one is the job. postponed: its file says `from __future__ import annotations`. divides: it has a `split`, or may
    have one.

    ConfigurationError when the source is longer than 256 KB.
    """

    name: str
    file: str
    parts: tuple[Part, ...]
    postponed: bool = False
    divides: bool = True

    def __post_init__(self) -> None:
        size = sum(len(part.text.encode()) for part in self.parts)
        if size > MOST_BYTES:
            raise ConfigurationError(
                f"the job {self.reference} and what it uses have {size:,} bytes of source, and {MOST_BYTES:,} are"
                " taken.",
                remedy='put it into a module: job="package.module".',
            )

    @property
    def reference(self) -> str:
        """What it is called in messages: "orders.py:transform"; nothing of the machine is in it."""
        return f"{PurePath(self.file).name}:{self.name}"

    @property
    def source(self) -> str:
        """All of it as one text; where its parts stand in the file makes no difference."""
        first = ("from __future__ import annotations",) if self.postponed else ()
        return "\n\n".join([*first, *(part.text for part in self.parts)])

    @property
    def sha256(self) -> str:
        """Of `source`."""
        return hashlib.sha256(self.source.encode()).hexdigest()

    @property
    def shown_source(self) -> str:
        """`source` for people, in which text that is given to what is called like a secret is hidden."""
        return _SECRET.sub(r"\1\2***\2", self.source)

    def __str__(self) -> str:
        """As Airflow shows it, and tells versions of a DAG by it."""
        return f"{self.reference} (sha256 {self.sha256[:16]})"

    __repr__ = __str__

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> InlineJob:
        """The inverse of `to_json`."""
        return cls(**{**data, "parts": tuple(Part(**part) for part in data["parts"])})


def declare(definition: Any, job: InlineJob) -> None:
    """Notes at a function or class that it is this job."""
    setattr(definition, _DECLARED, (definition, job))


def declared_job(value: Any) -> Any:
    """The InlineJob that a function or class was declared to be; else the value.

    Itself, and neither its base nor what it wraps (`functools.wraps` copies all attributes).
    """
    declared, job = getattr(value, "__dict__", {}).get(_DECLARED, (None, None))
    return value if job is None or declared is not value else job
