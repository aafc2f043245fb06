"""What `make release` refuses."""

from __future__ import annotations

from typing import Any

import pytest

from tools.release.__main__ import disagreeing
from tools.release.licences import dependencies

PACKAGE = '"""Words."""\n\n__version__ = "1.2.3"\n'
CHANGELOG = "# Changelog\n\n## 1.2.3 (2030-01-31)\n\n- all\n\n## 1.2.2 (2029-01-31)\n"


@pytest.mark.parametrize(
    ("package", "changelog", "tags", "expected"),
    [
        (PACKAGE, CHANGELOG, {}, ""),
        (PACKAGE, CHANGELOG, {"v1.2.3": "head", "v1.2.2": "older"}, ""),
        (PACKAGE, CHANGELOG, {"v1.2.3": "older"}, "another commit's"),
        (PACKAGE, CHANGELOG.replace("2030-01-31", "not released"), {}, "write the day"),
        (PACKAGE.replace("1.2.3", "1.3.0"), CHANGELOG, {}, "CHANGELOG.md begins with 1.2.3"),
        (
            PACKAGE.replace("1.2.3", "1.2.3.dev0"),
            CHANGELOG.replace("1.2.3", "1.2.3.dev0"),
            {},
            "no version of the form",
        ),
        (PACKAGE, "# Changelog\n", {}, "no heading"),
    ],
)
def test_package_changelog_and_tag_name_one_version(
    package: str, changelog: str, tags: dict[str, str], expected: str
) -> None:
    problems = list(disagreeing(package, changelog, tags, "head"))
    assert len(problems) == bool(expected)
    assert expected in "".join(problems)


@pytest.mark.parametrize(
    ("licences", "refused"),
    [
        ([{"license": {"id": "MIT"}}], ""),
        ([{"license": {"id": "LGPL-3.0-or-later"}}], ""),
        ([{"license": {"name": "License :: OSI Approved :: BSD License"}}], ""),
        ([{"expression": "GPL-3.0-only OR (MIT AND Apache-2.0)"}], ""),
        ([{"expression": "MIT AND GPL-3.0-only"}], "not on the list"),
        ([{"license": {"id": "MIT"}}, {"license": {"id": "AGPL-3.0-only"}}], "not on the list"),
        ([{"license": {"id": "SSPL-1.0"}}], "not on the list"),
        ([{"expression": "Apache-2.0 WITH Commons-Clause"}], "not on the list"),
        ([{"license": {"name": "as you like (but not in anger)"}}], "SPDX does not know"),
        ([{"license": {"name": "Proprietary"}}], "not on the list"),
        ([], "says nothing"),
    ],
)
def test_a_licence_that_this_package_cannot_depend_on_is_refused(licences: list[Any], refused: str) -> None:
    [one] = dependencies({"components": [{"name": "some-library", "version": "1", "licenses": licences}]})
    assert bool(one.refused) == bool(refused)
    assert refused in one.refused


def test_a_manual_licence_review_covers_only_its_distribution() -> None:
    components = [{"name": name, "version": "1"} for name in ("hdfs-native", "hdfs-native-of-others")]
    assert [bool(each.refused) for each in dependencies({"components": components})] == [False, True]
