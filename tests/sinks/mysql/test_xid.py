"""Names of prepared branches: what fits, what is recognised, and what is nobody's business."""

from __future__ import annotations

import pytest

from airflow_ft.sinks.base.slices import MIN_ROWS, label, labels
from airflow_ft.sinks.base.sql_sink import MAX_BRANCHES
from airflow_ft.sinks.mysql.ledger import Ledger
from airflow_ft.sinks.mysql.xid import FORMAT_ID, Xid, owner_of, parse

LEDGER = Ledger("shop", "orders", "mysql_default")
OWNER = owner_of(LEDGER, "11111111-2222-4333-8444-555555555555")
NONCE = "0123456789abcdef01234567"


def parts(xid: Xid) -> tuple[bytes, bytes]:
    _, first, _, second, _ = xid.sql.split("'")
    return first.encode("ascii"), second.encode("ascii")


@pytest.mark.parametrize("number", [1, 2**64 - 1])
def test_the_largest_numbers_fit_and_are_read_back(number: int) -> None:
    xid = Xid(OWNER, number, number, number, label(MAX_BRANCHES), NONCE)
    first, second = parts(xid)
    assert len(first) <= 64 and len(second) <= 64
    assert parse(FORMAT_ID, first, second) == xid
    assert xid.sql.endswith(f",{FORMAT_ID}")


def test_owners_differ_by_installation_pipeline_and_participant() -> None:
    others = [Ledger("shop", "orders-2", "mysql_default"), Ledger("shop", "orders", "mysql_other"), LEDGER]
    installations = ["1", "1", "2"]
    found = {owner_of(ledger, name) for ledger, name in zip(others, installations, strict=True)}
    assert len(found | {owner_of(LEDGER, "1")}) == 4
    assert owner_of(Ledger("elsewhere", "orders", "mysql_default"), "1") == owner_of(LEDGER, "1")


@pytest.mark.parametrize(
    ("format_id", "first", "second"),
    [
        (4711, f"aft.{OWNER}.1".encode(), f"1.1.0001.{NONCE}".encode()),
        (FORMAT_ID, b"", b""),
        (FORMAT_ID, b"\xff\x00", b"1"),
        (FORMAT_ID, f"aft.{OWNER}.1.".encode(), f"1.1.0001.{NONCE}".encode()),
        (FORMAT_ID, f"aft.{OWNER}.1".encode(), f"1.1.0001.{NONCE}\n".encode()),
        (FORMAT_ID, f"aft.{OWNER.upper()}.1".encode(), f"1.1.0001.{NONCE}".encode()),
        (FORMAT_ID, f"aft.{OWNER}.1".encode(), b"1.1.0001.short"),
    ],
)
def test_what_is_not_ours_is_nobodys(format_id: int, first: bytes, second: bytes) -> None:
    assert parse(format_id, first, second) is None


def test_labels_are_distinct_and_fit_an_xid() -> None:
    assert len(set(labels(MAX_BRANCHES))) == MAX_BRANCHES and max(map(len, labels(MAX_BRANCHES))) == 4


def test_the_rule_of_division_is_part_of_stored_plans() -> None:
    """A redo in a later release must find the same slices: this number is not to be changed."""
    assert MIN_ROWS == 5_000
