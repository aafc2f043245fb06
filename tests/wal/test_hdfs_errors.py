"""Answers of a NameNode, as errors of this package."""

from __future__ import annotations

import errno

import pytest

from airflow_ft.protocol.errors import StorageUnavailableError
from airflow_ft.wal.hdfs_errors import translated_errors
from tests.raising import raises


@pytest.mark.parametrize(
    ("answer", "code", "number"),
    [
        ("The directory item limit of /lake is exceeded: limit=2 items=2", "limit_reached", errno.EDQUOT),
        ("Name node is in safe mode: SafeModeException", "storage_unavailable", errno.EROFS),
    ],
)
def test_an_answer_of_the_name_node_has_its_own_remedy(answer: str, code: str, number: int) -> None:
    with raises(StorageUnavailableError, code, errno=number), translated_errors("hdfs://namenode/lake", 1):
        raise RuntimeError(f'RPCError("java.io.IOException", "{answer}")')
