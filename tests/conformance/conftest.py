"""What of the conformance kit runs when."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A million rows into a server take too long for each change: SQLite shows the same."""
    for item in items:
        if "test_memory_does_not_grow_with_rows" in item.nodeid and item.get_closest_marker("server"):
            item.add_marker(pytest.mark.release)
