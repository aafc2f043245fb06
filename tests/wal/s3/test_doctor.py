"""What the doctor says of a bucket under the log, and that it leaves nothing there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import obstore
import pytest

from airflow_ft.clients import buckets
from airflow_ft.clients.buckets import BucketSettings
from airflow_ft.protocol.doctor import Verdict
from airflow_ft.wal import open_wal
from airflow_ft.wal.doctor import examine_wal
from airflow_ft.wal.filesystem import FileSystem
from tests.integration.proxy import Proxy
from tests.wal.s3.conftest import connection_of
from tools.servers import VersityGw

pytestmark = pytest.mark.timeout(300)


def verdicts(root: str) -> dict[str, Verdict]:
    return {check.name: check.verdict for check in examine_wal(root, open_wal(), [])}


def test_a_store_that_has_everything(root: str, files: FileSystem) -> None:
    assert verdicts(root) == dict.fromkeys(("writable", "condition", "copy", "removable"), Verdict.OK)
    assert not files.exists(root)


def test_a_store_without_conditions(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some know no If-None-Match, and replace the object silently."""
    put = obstore.put
    monkeypatch.setattr(obstore, "put", lambda store, key, data, **_: put(store, key, data))
    assert verdicts(root)["condition"] is Verdict.PROBLEM


def test_a_store_that_knows_no_conditions(versitygw: VersityGw, root: str) -> None:
    with Proxy(versitygw.port) as proxy:
        proxy.answer_501(b"if-none-match")
        through = connection_of(versitygw, endpoint_url=f"http://127.0.0.1:{proxy.port}")
        buckets.learn(BucketSettings.of(through))
        checks = {check.name: check for check in examine_wal(root, open_wal(), [])}
    assert checks["writable"].verdict is Verdict.PROBLEM and "If-None-Match" in checks["writable"].text


def test_a_store_whose_lists_are_late(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(obstore, "list_with_delimiter", lambda *_: {"common_prefixes": [], "objects": []})
    assert verdicts(root)["writable"] is Verdict.PROBLEM


def test_keys_that_are_refused_and_a_connection_without_any(versitygw: VersityGw, root: str) -> None:
    buckets.learn(BucketSettings.of(replace(connection_of(versitygw), password="wrong")))
    assert verdicts(root)["writable"] is Verdict.PROBLEM
    buckets.forget()
    buckets.resolve_with(lambda conn_id: replace(connection_of(versitygw, conn_id), password=""))
    checks: dict[str, Any] = {check.name: check for check in examine_wal(root, open_wal(), [])}
    assert checks["place"].verdict is Verdict.PROBLEM and list(checks) == ["place"]
