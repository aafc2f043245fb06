"""The harness of `make bench`: what it takes for exact, and how ratios are made."""

from __future__ import annotations

import zlib
from xml.etree import ElementTree

import pyarrow as pa
import pytest

from benchmarks.bench import check
from benchmarks.data import FLIGHTS, ORDERS, Content, Dataset, orders, records_content
from benchmarks.measuring import Claim, Comparison, Contender, MeasurementError
from benchmarks.picture import svg
from benchmarks.reporting import verdict_table


def _comparison(wanted: float | None = 1.5) -> Comparison:
    """Ours costs 2, 2, 1; the better one of the others 3, 4, 3."""
    costs = {"ours": iter([2.0, 2.0, 1.0]), "good": iter([3.0, 4.0, 3.0]), "bad": iter([9.0, 1.0, 9.0])}
    order: list[str] = []

    def run(name: str) -> float:
        order.append(name)
        return next(costs[name])

    contenders = [Contender(name, lambda name=name: run(name), warm_up=0) for name in costs]  # type: ignore[misc]
    comparison = Comparison("a", "A", contenders, [Claim("ours & theirs", "ours", ("good", "bad"), wanted)])
    comparison.measure(3, lambda _: None)
    assert order == ["ours", "good", "bad", "good", "bad", "ours", "bad", "ours", "good"], "each begins a round"
    return comparison


def test_a_claim_is_judged_per_round_against_the_best_competitor() -> None:
    (verdict,) = _comparison().verdicts()
    assert verdict.best == "good"
    assert (verdict.ratio.low, verdict.ratio.median, verdict.ratio.high) == (1.5, 2.0, 3.0)
    assert verdict.is_reached


@pytest.mark.parametrize(("wanted", "mark"), [(1.5, "yes"), (2.1, "NO"), (None, "")])
def test_the_table_says_whether_a_claim_is_reached(wanted: float | None, mark: str) -> None:
    line = verdict_table([_comparison(wanted)])[1]
    assert ("yes" in line, "NO" in line) == (mark == "yes", mark == "NO")


def test_the_picture_is_well_formed() -> None:
    root = ElementTree.fromstring(svg([_comparison(), _comparison(None)], "rows < all & more"))
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count("ours & theirs") == 2
    assert "2.00" in texts


def test_what_is_not_exact_has_no_figure() -> None:
    check("somebody", Content(2, 7), Content(2, 7))
    for found in (Content(1, 7), Content(3, 7), Content(2, 8)):
        with pytest.raises(MeasurementError):
            check("somebody", found, Content(2, 7))


def test_generated_rows_are_reproducible_and_varied() -> None:
    assert orders(1000).equals(orders(1000))
    assert len(set(orders(1000).column("score").to_pylist())) > 990
    assert orders(10, first=5).column("id").to_pylist() == list(range(5, 15))


@pytest.mark.parametrize("dataset", [ORDERS, FLIGHTS], ids=lambda dataset: dataset.name)
def test_values_that_change_places_change_the_checksum(dataset: Dataset) -> None:
    table = dataset.make(100)
    unchanged = dataset.content(table).checksum
    checked = 0
    for index, name in enumerate(table.column_names):
        column = pa.chunked_array([table.column(name).take([1, 0, *range(2, 100)])])
        changed = table.set_column(index, table.schema.field(name), column)
        if changed.equals(table):
            continue  # two equal neighbours
        assert dataset.content(changed).checksum != unchanged, name
        checked += 1
    assert checked >= 8


def test_a_record_counts_with_its_key() -> None:
    table = ORDERS.records(orders(3))
    first = table.slice(0, 1).to_pylist()[0]
    expected = zlib.crc32((first["key"] + first["value"]).encode())
    assert records_content(table.slice(0, 1)) == Content(1, expected)
