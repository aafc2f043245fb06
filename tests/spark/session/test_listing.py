"""What Spark has listed, against what is there: with a real session, also where a file system prints in its own way."""

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_ft.protocol.errors import StageError
from airflow_ft.spark.driver import listing
from airflow_ft.spark.driver.listing import check_listings, static_listings
from tests.raising import raises


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a b;.txt", "é%20#.txt", "k=1.txt", "gone.txt"):
        (tmp_path / "in" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "in" / name).write_text(name)
    return tmp_path / "in"


@pytest.fixture(params=["as Hadoop prints it", "in its own way"])
def printed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "in its own way":
        monkeypatch.setattr(listing, "_STATUS", re.compile("(another)(file)(system)"))


@pytest.mark.usefixtures("printed")
def test_files_changed_or_removed_after_listing_are_named(spark: SparkSession, folder: Path) -> None:
    found = static_listings(spark.read.text(str(folder)))
    assert [len(each.files) for each in found] == [4]
    sizes = {path.rpartition("/")[2]: size for path, (size, _) in found[0].files.items()}
    assert sizes == {path.name: path.stat().st_size for path in folder.iterdir()}
    check_listings(found, "orders")
    with (folder / "é%20#.txt").open("a") as file:
        file.write("more")
    with raises(StageError, "file_changed", pipeline="orders") as caught:
        check_listings(found, "orders")
    assert caught.error and [path.rpartition("/")[2] for path in caught.error.fields["paths"]] == ["é%20#.txt"]
    (folder / "gone.txt").unlink()
    with raises(StageError, "file_changed", pipeline="orders") as caught:
        check_listings(found, "orders")
    assert caught.error and "gone.txt" in caught.error.what
    (folder / "gone.txt").mkdir()
    with raises(StageError, "file_changed", pipeline="orders") as caught:
        check_listings(found, "orders")
    assert caught.error and [path.rpartition("/")[2] for path in caught.error.fields["paths"]] == ["gone.txt"]


def test_what_is_no_file_is_not_listed(spark: SparkSession, folder: Path) -> None:
    assert static_listings(spark.range(3)) == []
    only = (
        spark.read.text(str(folder)).where("value = 'x'").union(spark.range(1).selectExpr("cast(id as string) value"))
    )
    assert [len(each.files) for each in static_listings(only)] == [4]
