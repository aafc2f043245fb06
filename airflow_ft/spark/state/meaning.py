"""The meaning of operator state: which keys, functions and settings of the job have made it.

Spark compares the state of an earlier run with the job by types alone. It reads a sum as a maximum, a customer as a
city, and an id as an amount, if their types agree. So each location keeps a note of what its state means, and the next
run compares its job with that note before it computes anything.

    airflow_ft_meaning.json     {"format": 1, "spark": "4.2.0", "operators": [{"keys": [["orders.customer"]], ...}]}

An operator's meaning is a list of texts by aspect ("keys", "functions", "watermark" ...), read from the job's plan
(`airflow_ft.spark.driver.plan_meaning`). Each text is a list of alternatives, one for each branch of a union above the
sources. A source that is added or removed adds or removes alternatives, which changes no meaning.

Constants in a text are marked (`constant`). One that a run gives to its job, such as its date, may differ in each run.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from airflow_ft.spark.state.files import has_state
from airflow_ft.spark.state.location_files import keep, note
from airflow_ft.spark.state.locations import SparkLocation

MEANING_FILE = "airflow_ft_meaning.json"
_FORMAT = 2
"""Raise it when the same plan gets other texts. Notes of another format are not compared."""

Meaning = Mapping[str, Sequence[Sequence[str]]]
"""By aspect, a list of texts, each with its alternatives."""

WATERMARK = "watermark"
ROWS = "rows of "
"""Aspects of this beginning list the columns of rows that are kept whole, in their order."""
FIELDS = "fields of state variable "
"""Aspects of this beginning list names and types of fields. Spark itself compares their number and types."""

log = logging.getLogger("airflow_ft.spark")

_CONSTANT = re.compile("\u2039(~?)([^\u203a]*)\u203a")


def constant(text: str, *, varies: bool) -> str:
    """Return a constant as texts have it. varies: a run may have given it, so that it is not compared."""
    plain = text.replace("\u2039", "<").replace("\u203a", ">")
    return f"\u2039{'~' if varies else ''}{plain}\u203a"


def without_varying(text: str) -> str:
    """Return a text that is the same in each run."""
    return _CONSTANT.sub(lambda found: "\u2039~\u203a" if found[1] else found[0], text)


def readable(text: str) -> str:
    """Return a text without the marks of its constants."""
    return _CONSTANT.sub(lambda found: found[2], text)


@dataclass(frozen=True, slots=True)
class Memory:
    """The meaning of a job's state. spark: the version that has read the plan. operators: in Spark's order."""

    spark: str
    operators: tuple[Meaning, ...]

    def is_comparable(self, other: Memory) -> bool:
        """Return whether differences between the two can only come from the job.

        Another minor version of Spark may describe the same job by another plan.
        """
        return self.spark.split(".")[:2] == other.spark.split(".")[:2]

    def is_same(self, other: Memory) -> bool:
        """Return whether a note of the one is as good as a note of the other."""
        one, two = (json.dumps([dict(o) for o in m.operators], ensure_ascii=False) for m in (self, other))
        return self.spark == other.spark and without_varying(one) == without_varying(two)


def remember_meaning(location: SparkLocation, memory: Memory | None) -> None:
    """Keep what the state of a location means; None: it is unknown."""
    data = None
    if memory is not None:
        data = {"format": _FORMAT, "spark": memory.spark, "operators": [dict(each) for each in memory.operators]}
    keep(location.uri, MEANING_FILE, data)


def meaning_of(location: SparkLocation) -> Memory | None:
    """Return what `remember_meaning` has kept; None: it is unknown, or has another format."""
    found = note(location.uri, MEANING_FILE)
    if found is None or found.get("format") != _FORMAT:
        return None
    return Memory(str(found["spark"]), tuple(found["operators"]))


def warn_of_later_spark(location: SparkLocation, spark: str) -> None:
    """Log a warning if a later minor version of Spark than this one has written the location. "": this one is unknown.

    Spark may then fail at formats that it does not know.
    """
    found = meaning_of(location)
    if found is not None and spark and _minor(found.spark) > _minor(spark):
        log.warning(
            "Spark %s wrote %s, and this machine has Spark %s. If the pipeline fails at its state, install the later"
            " version on the workers.",
            found.spark,
            location.uri,
            spark,
        )


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def has_lost_state(location: SparkLocation) -> bool:
    """Return whether the folder of the state is gone although the location's operators had state."""
    memory = meaning_of(location)
    return memory is not None and bool(memory.operators) and not has_state(location.uri)


def differences(before: Meaning, now: Meaning) -> list[str]:
    """Return what has changed, aspect by aspect, in words that show both. An aspect that one lacks is not compared."""
    return [
        f"{aspect} were {texts(before[aspect])}, and are {texts(now[aspect])}"
        for aspect in before
        if aspect in now and not _agree(aspect, before[aspect], now[aspect])
    ]


def texts(meaning: Sequence[Sequence[str]]) -> str:
    """Return an aspect in one line."""
    return ", ".join(" or ".join(map(readable, each)) for each in meaning) or "none"


def lines(meaning: Meaning) -> Iterator[str]:
    """Show an operator's meaning to people, a line for each aspect that says something."""
    for aspect, texts_of_aspect in meaning.items():
        if texts_of_aspect:
            yield f"{aspect}: {texts(texts_of_aspect)}"


def _agree(aspect: str, before: Sequence[Sequence[str]], now: Sequence[Sequence[str]]) -> bool:
    if aspect == WATERMARK:  # a set of columns with their delays
        return _is_within({text for each in before for text in each}, {text for each in now for text in each})
    if aspect.startswith(FIELDS):
        old, new = ([text.split(" ")[0] for (text,) in meaning] for meaning in (before, now))
        return [name for name in old if name in new] == [name for name in new if name in old]
    if len(before) != len(now):
        # Of rows Spark keeps fewer columns than the plan shows, and refuses another number of them itself.
        return aspect.startswith(ROWS)
    return all(_is_within(set(one), set(other)) for one, other in zip(before, now, strict=True))


def _is_within(one: set[str], other: set[str]) -> bool:
    return any(
        all(any(_alike(a, b) for b in larger) for a in smaller) for smaller, larger in ((one, other), (other, one))
    )


def _alike(one: str, other: str) -> bool:
    """Return whether two texts differ in nothing but constants that a run may have given."""
    if one == other:
        return True
    a, b = _CONSTANT.split(one), _CONSTANT.split(other)  # text, mark, constant, text ...
    if a[::3] != b[::3]:
        return False
    return all(x == y or m or n for m, n, x, y in zip(a[1::3], b[1::3], a[2::3], b[2::3], strict=True))
