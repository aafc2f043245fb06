"""Errors of branches that are prepared before the decision."""

from __future__ import annotations

import pytest

from airflow_ft.sinks.base.prepared import marker_taken


@pytest.mark.parametrize(("branch", "named"), [("0002", "of branch 0002 of checkpoint 8 "), ("", "of checkpoint 8 ")])
def test_a_taken_marker_is_named_with_or_without_a_branch(branch: str, named: str) -> None:
    assert f"the marker {named}" in str(marker_taken(branch, 8))
