"""Rows that a sink refused after the decision, and that a person set aside under the checkpoint's marker (I2).

They are part of the sink's own proof, written in the transaction that delivered the other rows. The proof therefore
says which rows are missing, where they were written, and why (docs/protocol.md, Rows that are set aside).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_ft.protocol.model import Checkpoint
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.votes import Proof

_DETAIL = "set_aside"  # in a proof's detail
REASONS = 5
"""How many different reasons a proof keeps; each row's own one is in the dead letters."""


@dataclass(frozen=True, slots=True)
class SetAside:
    """Rows of one sink. `files` are the URIs of the dead letters, `reasons` some of the sink's own words.

    `places` say which rows: number of the segment, file of the log, first row (from 0), the one after the last.
    """

    rows: int
    files: tuple[str, ...]
    reasons: tuple[str, ...]
    places: tuple[tuple[int, str, int, int], ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "rows": self.rows,
            "files": list(self.files),
            "reasons": list(self.reasons),
            "places": [list(place) for place in self.places],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SetAside:
        """The inverse of `to_json`."""
        places = tuple((int(n), str(file), int(start), int(stop)) for n, file, start, stop in data["places"])
        return cls(int(data["rows"]), tuple(data["files"]), tuple(data["reasons"]), places)

    def __add__(self, other: SetAside) -> SetAside:
        reasons = tuple(dict.fromkeys((*self.reasons, *other.reasons)))[:REASONS]
        places = tuple(sorted((*self.places, *other.places)))
        return SetAside(self.rows + other.rows, (*self.files, *other.files), reasons, places)

    def text(self, sink: str) -> str:
        """For people: how many, why, and where."""
        return (
            f"{count_text(self.rows, f'row of {sink} was', f'rows of {sink} were')} refused and set aside"
            f" ({'; '.join(self.reasons)}): {', '.join(self.files)}"
        )


def detail(found: Mapping[str, SetAside]) -> dict[str, Any]:
    """Return what a proof's detail says of these, by sink; nothing when there are none."""
    return {_DETAIL: {sink: each.to_json() for sink, each in sorted(found.items())}} if found else {}


def read_detail(given: Mapping[str, Any]) -> dict[str, SetAside]:
    """The inverse of `detail`."""
    return {sink: SetAside.from_json(data) for sink, data in given.get(_DETAIL, {}).items()}


def together(several: Iterable[Mapping[str, SetAside]]) -> dict[str, SetAside]:
    """Return what several transactions have set aside, by sink."""
    found: dict[str, SetAside] = {}
    for each in several:
        for sink, part in each.items():
            found[sink] = found[sink] + part if sink in found else part
    return found


def of_proof(proof: Proof | None) -> dict[str, SetAside]:
    """Return what a proof says was set aside, by sink."""
    return read_detail(proof.detail) if proof is not None else {}


def of_checkpoint(checkpoint: Checkpoint) -> dict[str, SetAside]:
    """Return what its proofs say was set aside, by sink (a sink belongs to one participant)."""
    return together(of_proof(vote.proof) for vote in checkpoint.votes.values())
