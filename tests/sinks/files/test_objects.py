"""What answers of a store mean."""

from __future__ import annotations

import pytest

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import SinkAccessError
from airflow_ft.sinks.files.objects import Objects


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        ("Server returned non-2xx status code: 400 Bad Request: <Error><Code>ExpiredToken</Code>", "aws_session_token"),
        ("Received redirect without LOCATION, this normally indicates an incorrectly configured region", "region_name"),
    ],
    ids=["token", "region"],
)
def test_an_expired_token_or_wrong_region_is_named(answer: str, named: str) -> None:
    objects = Objects.of("s3://aws@bucket/x", ConnectionInfo("aws", "aws", login="a", password="b"), "m")
    error = objects.explain("s3://bucket/x", f"Generic S3 error: Error performing GET {answer}")
    assert isinstance(error, SinkAccessError) and error.code == "access_refused" and named in error.remedy
