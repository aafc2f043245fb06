from __future__ import annotations

import pyarrow as pa
import pytest

from airflow_ft.protocol.errors import DeclinedError
from airflow_ft.sinks.mysql.labels import Labels
from tests.raising import raises


def labels(full_type: str) -> Labels:
    found = Labels.parse(full_type.split("(")[0], full_type)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("full_type", "held", "lacking"),
    [
        ("enum('a','b')", ["a", "b", None], ["", "A", "a ", "1", "a,b"]),
        ("enum('it''s','','x,y','(z)')", ["it's", "", "x,y", "(z)"], ["it''s", "x", "it"]),
        ("enum('b\\\\s','n\\nl','raw\\')", ["b\\s", "n\nl"], ["bs", "nl"]),
        ("enum('?','a?b')", ["?", "😀", "a?b", "a😀b"], ["ü", "ab", "a😀😀b"]),
        ("set('x','y','1')", ["", "x", "y,x", "1,1", "x,y,1"], ["x,", "x, y", "3", "X"]),
        ("set('','x')", ["", "x", ",x"], ["y"]),
    ],
)
def test_texts_and_labels(full_type: str, held: list[str | None], lacking: list[str]) -> None:
    array = pa.array([*held, *lacking], pa.string())
    expected = [False] * len(held) + [True] * len(lacking)
    for given in (array, array.dictionary_encode(), array.cast(pa.large_string())):
        assert labels(full_type).unknown(given).to_pylist() == expected
        assert labels(full_type).unknown(given.slice(1)).to_pylist() == expected[1:]
    labels(full_type).refuse(array.slice(0, len(held)), "v")
    for at in range(len(held), len(array)):
        with raises(DeclinedError, "value_unfit", column="v"):
            labels(full_type).refuse(array.slice(at, 1), "v")


def test_other_types_have_no_labels_and_null_is_never_refused() -> None:
    assert Labels.parse("varchar", "varchar(9)") is None
    found = labels("enum('a')")
    assert found.unknown(pa.array([], pa.string())).to_pylist() == []
    found.refuse(pa.nulls(3), "v")
    assert found.unknown(pa.array([None, None], pa.string())).to_pylist() == [False, False]


def test_a_set_is_put_in_order() -> None:
    array = pa.array(["y,x", "x,x", "", None, "x,unknown", "y"])
    assert labels("set('x','y')").in_order(array).to_pylist() == ["x,y", "x", "", None, "x,unknown", "y"]
    assert labels("enum('y,x','x')").in_order(array).to_pylist() == array.to_pylist()


def test_many_wrong_values_are_told_shortly() -> None:
    with pytest.raises(DeclinedError) as declined:
        labels("enum('a')").refuse(pa.array([f"{at}" * 50 for at in range(9)]), "v")
    assert declined.value.what.count("...") == 6 and len(declined.value.what) < 400
