"""What setup.cfg claims to work with was tried, and docs/releasing.md says so."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from tools.release.matrix import BEGIN, COMBINATIONS, END, ROOT, TITLES, matrix_results, write


def claimed() -> tuple[set[str], dict[str, Requirement]]:
    """Releases of Python, and the requirements."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    pythons = re.findall(r"Python :: (3\.\d+)", parser["metadata"]["classifiers"])
    lines = [line for line in parser["options"]["install_requires"].splitlines() if line and line[0] != "#"]
    return set(pythons), {each.name: each for each in map(Requirement, lines)}


def minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def test_each_release_that_is_claimed_is_in_the_matrix() -> None:
    pythons, required = claimed()
    assert {one.python for one in COMBINATIONS} == pythons
    permitted = {f"{major}.{minor}" for major in (3, 4) for minor in range(20)}
    of_spark = {each for each in permitted if required["pyspark"].specifier.contains(f"{each}.0")}
    assert {one.pyspark for one in COMBINATIONS} == of_spark
    airflow = required["apache-airflow"].specifier
    assert all(airflow.contains(one.airflow) for one in COMBINATIONS)
    assert min((each.version for each in airflow if each.operator == ">="), key=Version) in {
        minor(one.airflow) for one in COMBINATIONS
    }


def test_the_page_says_that_each_combination_has_passed() -> None:
    assert {name for name, line in matrix_results().items() if line["result"] == "passed"} == {
        one.name for one in COMBINATIONS
    }


def test_the_table_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n\n{BEGIN}\n\nold \\1\n\n{END}\n\nafter\n")
    line = dict.fromkeys(TITLES, "x") | {"Python": "3.11.7", "pyspark": "4.2.1", "others": "newest"}
    for lines in ([line], [line, {**line, "Python": "3.12.1"}]):
        write(lines, page)
        assert list(matrix_results(page).values()) == lines
    text = page.read_text()
    assert text.startswith("before") and text.endswith("after\n") and "old" not in text
