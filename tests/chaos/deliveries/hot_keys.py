"""Keys that each chunk changes and deletes again, and the order in which a reader may see their states.

What a chunk does to them is known before, as that goes by its number alone. A draw is of one change only.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

CHUNK = 1_000_000  # ids of chunk n begin at n times this
FIRST = 10**12  # ids of these keys begin here
IDS = range(FIRST, FIRST + 5)
CHANGES = 24  # of a chunk


@dataclass(frozen=True)
class Change:
    """`kind`: "insert", "update" or "delete"."""

    kind: str
    id: int
    draw: int


def changes(chunk: int) -> list[Change]:
    """What a chunk does to the keys, in order."""
    choose = random.Random(f"changes of chunk {chunk}")
    kinds = ["update", "update", "insert", "delete"]
    return [Change(choose.choice(kinds), choose.choice(IDS), chunk * CHUNK + n) for n in range(CHANGES)]


def states(chunks: Iterable[int], begun: Mapping[int, int | None]) -> dict[int, list[int | None]]:
    """The draws of each key, one after the other, from its state before these chunks on. None: it is not there."""
    found = {id: [begun[id]] for id in IDS}
    for chunk in chunks:
        for change in changes(chunk):
            found[change.id].append(None if change.kind == "delete" else change.draw)
    return found


def after(chunks: int) -> dict[int, int | None]:
    """The state of each key after that many chunks."""
    return {id: draws[-1] for id, draws in states(range(chunks), dict.fromkeys(IDS)).items()}


class Order:
    """Whether a reader sees states move forward only. `to_come`: the states of each thing, in order."""

    def __init__(self, to_come: Mapping[Hashable, Sequence[object]]) -> None:
        self._to_come = to_come
        self._places = dict.fromkeys(to_come, 0)

    def problems(self, seen: Mapping[Hashable, object]) -> list[str]:
        """What is wrong with what is seen now; what comes later is compared with it."""
        found = []
        for thing, states in self._to_come.items():
            state = seen.get(thing)
            place = next((n for n in range(self._places[thing], len(states)) if states[n] == state), None)
            if place is None:
                found.append(f"I2: {thing} went to {state} from {states[self._places[thing]]}")
            else:
                self._places[thing] = place
        return found
