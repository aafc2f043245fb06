"""Remedies that name a size."""

from __future__ import annotations

import re

import pytest

from airflow_ft.sinks.mysql.limits import packet_remedy


@pytest.mark.parametrize("size", [1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3_004_098, (1 << 30) - 1, 1 << 30])
def test_a_packet_has_room_once_the_server_has_rounded_it(size: int) -> None:
    found = re.search(r"max_allowed_packet = (\d+)", packet_remedy(size))
    assert found and size <= int(found[1]) // 1024 * 1024 <= 1 << 30


def test_no_setting_is_proposed_that_no_server_takes() -> None:
    assert "SET GLOBAL" not in packet_remedy((1 << 30) + 1)
