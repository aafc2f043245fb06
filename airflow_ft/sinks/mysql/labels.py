"""The labels of ENUM and SET columns: a text must be one of them (of a SET: several, between commas), byte for byte.

The server silently accepts more. It compares by the collation ('NEW' becomes 'new'). It takes a text that is no label
but looks like a number for the *number* of a label, so '1' becomes the first label. Of a SET only the order and
repetitions do not count, which it does not keep.

information_schema shows a character of four bytes as '?'. So a '?' may be any of them: the server judges such texts,
and never as a number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from airflow_ft.protocol.errors import DeclinedError
from airflow_ft.sinks.arrow import flags, numbers, scalar

LABELLED = {"enum", "set"}
SHOWN = 5
_LABEL = re.compile(r"'((?:[^']|'')*)'", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_CONTROL = {"0": "\0", "n": "\n", "r": "\r", "Z": "\x1a"}
_FOUR_BYTES = re.compile("[\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class Labels:
    """Labels that a column accepts; `places` are the labels' places by their text, in the order of the column."""

    several: bool
    places: Mapping[str, int]

    @classmethod
    def parse(cls, kind: str, full_type: str) -> Labels | None:
        """Return the labels of a column's type as in information_schema ("enum('a','b')"); None for other types."""
        if kind not in LABELLED:
            return None
        places: dict[str, int] = {}
        for place, found in enumerate(_LABEL.findall(full_type)):
            label = found.replace("''", "'")
            places.setdefault(label, place)
            places.setdefault(_ESCAPED.sub(lambda match: _CONTROL.get(match[1], match[1]), label), place)
        return cls(kind == "set", places)

    def __str__(self) -> str:
        names = [repr(label) for label in self.places]
        return ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")

    def unknown(self, array: pa.Array) -> pa.Array:
        """Return which texts are not of the labels; nulls are not."""
        encoded = array.cast(pa.large_string()).dictionary_encode()
        # A null's index is that of one more value, which is not wrong.
        wrong = [text is not None and not self._holds(text) for text in encoded.dictionary.to_pylist()]
        places = encoded.indices.fill_null(scalar(len(wrong), encoded.indices.type))
        return flags(np.array([*wrong, False], np.bool_)[numbers(places)])

    def refuse(self, array: pa.Array, column: str) -> None:
        """DeclinedError, naming the texts that are not of the labels. The last look, when rows are sent."""
        if pa.types.is_null(array.type):
            return
        wrong = array.filter(self.unknown(array))
        if len(wrong):
            raise DeclinedError(
                f"{shown(wrong)} {'is' if len(wrong) == 1 else 'are'} not among the labels {self}.",
                code="value_unfit",
                remedy=f"Correct the values in the job, or add the label to the column {column}.",
                column=column,
            )

    def in_order(self, array: pa.Array) -> pa.Array:
        """Texts of a SET as the server would give them back; what is not of its labels stays as it is."""
        kind = array.type
        encoded = array.cast(pa.large_string()).dictionary_encode()
        texts = [self._in_order(text) for text in encoded.dictionary.to_pylist()]
        return pa.array(texts, pa.large_string()).take(encoded.indices).cast(kind)

    def _in_order(self, text: str) -> str:
        if not text or not self._holds(text):
            return text
        return ",".join(sorted(set(text.split(",")), key=lambda label: self._place(label) or 0))

    def _holds(self, text: str) -> bool:
        if not self.several:
            return self._place(text) is not None
        return text == "" or all(self._place(part) is not None for part in text.split(","))

    def _place(self, text: str) -> int | None:
        place = self.places.get(text)
        return self.places.get(_FOUR_BYTES.sub("?", text)) if place is None else place


def shown(values: pa.Array) -> str:
    """Some of the values, each once, for people."""
    texts = [str(value) for value in values.unique().to_pylist()]
    short = [repr(text if len(text) <= 40 else f"{text[:37]}...") for text in texts[:SHOWN]]
    return ", ".join(short) + (", ..." if len(texts) > SHOWN else "")
