"""Sinks that are named by a place: how their names are made, and checked at DAG parse.

They need no connection; a place in S3 may name one.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from airflow_ft.core.arguments import check_known, check_texts, check_type, is_resolved_later, is_template, shown
from airflow_ft.core.errors import ConfigurationError, SinkAccessError
from airflow_ft.core.model import ParticipantPlan
from airflow_ft.sinks.base.settings import refuse_jinja, shared_setting

_LONGEST_NAME = 60
_MAX_FILE_BYTES = 1 << 40
S3 = "s3"
_CLIENTS = {S3: "obstore", "hdfs": "hdfs_native"}
"""Module that reaches places of a scheme; the extra of airflow-ft that brings it has the scheme's name."""


def is_late(place: str) -> bool:
    """Return whether it is known only in a run."""
    return is_template(place) or is_resolved_later(place)


def is_object_store(place: str) -> bool:
    """Return whether it names a folder in an object store."""
    return isinstance(place, str) and place.startswith(f"{S3}://")


def conn_id_of(setting: str, plan: ParticipantPlan) -> str:
    """The Airflow connection that a plan's places name, as `s3://CONNECTION@BUCKET/FOLDER`; "": none.

    `setting` is the name of what holds the place.
    """
    places = (settings[setting] for settings in plan.sinks.values())
    return next(filter(None, (urlsplit(place).username for place in places if is_object_store(place))), "")


def check_bucket(place: str, folders: str = "[^/]+") -> None:
    """ConfigurationError for a place in S3 that cannot be one, or where its client is lacking."""
    if not re.fullmatch(rf"s3://([\w.-]+@)?[a-z0-9][a-z0-9.-]+(/{folders})+/?", place):
        shown = re.sub("//.*@", "//...@", place)  # somebody may have put keys there
        raise ConfigurationError(
            f"{shown!r} is no folder in a bucket.",
            remedy="give s3://BUCKET/FOLDER, or s3://CONNECTION@BUCKET/FOLDER, which names an Airflow connection.",
        )
    check_client(place)


def check_client(place: str) -> None:
    """ConfigurationError when what reaches a place is not installed."""
    scheme = place.partition("://")[0]
    if scheme in _CLIENTS and find_spec(_CLIENTS[scheme]) is None:
        raise missing_client(scheme)


def missing_client(scheme: str) -> ConfigurationError:
    """Return what reaches places of that kind is not installed."""
    return ConfigurationError(
        f"a folder {scheme}://... needs {_CLIENTS[scheme]}, which is not installed here.",
        remedy=f"pip install 'airflow-ft[{scheme}]', where DAGs are parsed and where tasks run.",
    )


def check_sink(sink: Any, place: str, example: str) -> None:
    """Name, columns of partitions and size of files; `place` is the field that says where. ConfigurationError.

    By the name tasks are called, so it has to be given where the place is known only in a run.
    """
    of, name, at, size = type(sink).__name__, sink.name, getattr(sink, place), sink.file_bytes
    check_texts("partition_by", sink.partition_by, of=of)
    columns = tuple(sink.partition_by)
    check_known("partition_by", columns, of=of)
    object.__setattr__(sink, "partition_by", columns)
    if len(set(columns)) < len(columns) or not all(columns):
        raise ConfigurationError(f"partition_by of {of} is {list(columns)}.", remedy="name each column once.")
    check_type("file_bytes", size, int, "give a number of bytes.", of=of)
    if not 1 <= size <= _MAX_FILE_BYTES:
        raise ConfigurationError(f"file_bytes of {of} is {size}.", remedy="give 128 << 20, for example: 128 MB.")
    if is_late(name) or not re.fullmatch(r"[A-Za-z0-9_.-]*", name):
        raise ConfigurationError(
            f"name of {of} is {name!r}, and tasks are named by it.",
            remedy="use letters, digits, '_', '-' and '.' only.",
        )
    if not is_late(at) and {".", ".."} & set(str(at).split("/")):
        raise ConfigurationError(
            f"{place} of {of} is {at!r}: two spellings of one place would be two sinks.",
            remedy="write it without '.' and '..'.",
        )
    if is_late(at) and not name:
        raise ConfigurationError(
            f"{place} of {of} is {shown(at)}, which only a run renders, and tasks are named by the sink.",
            remedy=f'give it a name: name="{example}".',
        )


def name_of(kind: str, place: str) -> str:
    """Of a participant at that place: it stays, whatever is rendered."""
    made = f"{kind}-" + re.sub(r"[^A-Za-z0-9]+", "-", place.removeprefix("file://")).strip("-")
    if len(made) <= _LONGEST_NAME:
        return made
    return f"{made[: _LONGEST_NAME - 9]}-{hashlib.sha256(place.encode()).hexdigest()[:8]}"


def settings_of(sink: Any, *texts: str) -> dict[str, Any]:
    """All fields of a sink but its name, as plain JSON. ConfigurationError while Jinja is left in a text or column."""
    refuse_jinja(*texts, *sink.partition_by)
    given = {field.name: getattr(sink, field.name) for field in fields(sink) if field.name != "name"}
    shared = shared_setting(given.pop("shared", False))
    return {**given, "partition_by": list(sink.partition_by), **shared}


def only_sink(plan: ParticipantPlan, place: str) -> tuple[str, Mapping[str, Any]]:
    """Name and settings of the one sink that is the participant. ConfigurationError when there are several."""
    if len(plan.sinks) != 1:
        raise ConfigurationError(
            f"the sinks {', '.join(plan.sinks)} are called {plan.name!r}, and a {place} is a participant of its own.",
            remedy="give each another name: name=.",
        )
    [found] = plan.sinks.items()
    return found


def room(folder: Path) -> int:
    """Bytes that are free; SinkAccessError when it cannot be written, or made."""
    there = next(each for each in (folder, *folder.parents) if each.exists())
    if not there.is_dir():
        raise SinkAccessError(f"{there} is no folder.", remedy="move it away; or name another one.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise SinkAccessError(f"{there} cannot be written.", remedy="let the user who runs tasks own it.")
    return shutil.disk_usage(there).free
