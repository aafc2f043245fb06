"""What the soak calls flat."""

from __future__ import annotations

import random

from tests.chaos.streams.soak import AHEAD, PACED, SAMPLES, TOO_MUCH, grown, paces

NUMBERS = [100 * wanted for wanted in range(1, SAMPLES + 1)]


def growing(by: float) -> list[dict[str, float]]:
    """Samples of a process that takes so many KB more at each checkpoint, unevenly."""
    noise = random.Random(1)
    return [dict.fromkeys(PACED, 130 + number * by / 1024 + noise.uniform(-2, 2)) for number in NUMBERS]


def test_a_steady_pace_is_seen_before_it_has_grown_much() -> None:
    slow, none = growing(3.6), growing(0)
    assert not grown(slow), "it has not grown by a tenth yet"
    for name in PACED:
        assert abs(paces(NUMBERS, slow)[name] - AHEAD * 3.6 / 1024) < 60
        assert paces(NUMBERS, slow)[name] > TOO_MUCH > abs(paces(NUMBERS, none)[name])


def test_what_has_grown_is_named() -> None:
    samples = [{"task handles": 10.0 + number / 100, "log and state files": 500.0} for number in NUMBERS]
    assert grown(samples) == ["task handles: 33 in the second quarter, 63 in the last one"]


def test_a_fluctuation_is_no_growth_but_a_trend_beside_it_is() -> None:
    noise = random.Random(4)
    pruned = [{"log and state files": 500 + noise.uniform(0, 1500)} for _ in NUMBERS]
    for low, high in ((0, 400), (400, 0)):  # whenever it is looked at
        quarters = [{"log and state files": sample["log and state files"] + low} for sample in pruned[:30]]
        quarters += [{"log and state files": sample["log and state files"] + high} for sample in pruned[30:]]
        assert not grown(quarters)
    left = zip(NUMBERS, pruned, strict=True)
    assert grown([{name: files + number / 2 for name, files in sample.items()} for number, sample in left])


def test_who_is_not_there_has_no_pace() -> None:
    lean = [{name: held for name, held in sample.items() if "workers" not in name} for sample in growing(0)]
    assert paces(NUMBERS, lean).keys() == {"task MB", "driver MB"}
