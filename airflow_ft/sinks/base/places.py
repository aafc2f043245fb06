"""Sinks that are named by a place: how their names are made, and checked at DAG parse.

They need no connection; a place in S3 may name one.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from airflow_ft.clients import s3
from airflow_ft.protocol.arguments import check_known, check_texts, check_type, is_resolved_later, is_template, shown
from airflow_ft.protocol.errors import ConfigurationError, SinkAccessError
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.secrets import safe_uri
from airflow_ft.sinks.base.settings import refuse_jinja, shared_setting

_LONGEST_NAME = 60
_MAX_FILE_BYTES = 1 << 40
_CLIENTS = {s3.SCHEME: ("obstore", "obstore"), "hdfs": ("hdfs_native", "hdfs-native")}
"""Module and package that reach places of a scheme; the extra of airflow-ft has the scheme's name."""


def is_late(place: str) -> bool:
    """Return whether it is known only in a run."""
    return is_template(place) or is_resolved_later(place)


def is_object_store(place: str) -> bool:
    """Return whether it names a folder in an object store."""
    return isinstance(place, str) and place.startswith(f"{s3.SCHEME}://")


def conn_id_of(setting: str, plan: ParticipantPlan) -> str:
    """The Airflow connection that a plan's places name, as `s3://CONNECTION@BUCKET/FOLDER`; "": none.

    `setting` is the name of what holds the place.
    """
    places = (settings[setting] for settings in plan.sinks.values())
    return next(filter(None, (urlsplit(place).username for place in places if is_object_store(place))), "")


def check_bucket(place: str, folders: str = "[^/]+") -> None:
    """ConfigurationError for a place in S3 that cannot be one."""
    if not re.fullmatch(rf"s3://([\w.-]+@)?[a-z0-9][a-z0-9.-]+(/{folders})+/?", place):
        what = f"{safe_uri(place)!r} is not a folder in a bucket."
        remedy = "Give s3://BUCKET/FOLDER, or s3://CONNECTION@BUCKET/FOLDER with the id of an Airflow connection."
        raise ConfigurationError(what, code="path_invalid", remedy=remedy, path=safe_uri(place))


def lacking(place: object) -> dict[str, str]:
    """Return the package that reaches a place if it is not installed, by the extra that installs it."""
    scheme = place.partition("://")[0] if isinstance(place, str) else ""
    module, package = _CLIENTS.get(scheme, ("", ""))
    return {scheme: package} if module and find_spec(module) is None else {}


def check_sink(sink: Any, place: str, example: str) -> None:
    """Name, columns of partitions and size of files; `place` is the field that says where. ConfigurationError.

    By the name tasks are called, so it has to be given where the place is known only in a run.
    """
    of, name, at, size = type(sink).__name__, sink.name, getattr(sink, place), sink.file_bytes
    columns = keep_columns(sink, "partition_by")
    if len(set(columns)) < len(columns) or not all(columns):
        what = f"{of}: partition_by is {list(columns)}. A name is empty or appears twice."
        remedy = "Name each column once in partition_by."
        raise ConfigurationError(
            what, code="argument_invalid", remedy=remedy, argument="partition_by", value=list(columns)
        )
    check_type("file_bytes", size, int, "Give a number of bytes.", of=of)
    if not 1 <= size <= _MAX_FILE_BYTES:
        what = f"{of}: file_bytes is {size}. It can be 1 to {_MAX_FILE_BYTES} bytes."
        remedy = "Give another size: file_bytes=128 << 20 is 128 MB."
        raise ConfigurationError(what, code="argument_invalid", remedy=remedy, argument="file_bytes", value=size)
    if is_late(name) or not re.fullmatch(r"[A-Za-z0-9_.-]*", name):
        what = f"{of}: name is {name!r}, which cannot be part of a task's name."
        remedy = "Use only letters, digits, '_', '-' and '.' in name."
        raise ConfigurationError(what, code="name_invalid", remedy=remedy, argument="name", value=name)
    if not is_late(at) and {".", ".."} & set(str(at).split("/")):
        what = f"{of}: {place} is {safe_uri(str(at))!r}. Two spellings of one place would be two sinks."
        remedy = f"Write {place} without '.' and '..'."
        raise ConfigurationError(what, code="path_invalid", remedy=remedy, argument=place, path=safe_uri(str(at)))
    if is_late(at) and not name:
        raise ConfigurationError(
            f"{of}: {place} is {shown(at)}, which is known only in a run. The sink needs a name, because tasks are"
            " named by it.",
            code="argument_missing",
            remedy=f'Give the sink a name: name="{example}".',
            argument="name",
        )


def keep_columns(sink: Any, argument: str) -> tuple[str, ...]:
    """Keep an argument that names columns as a tuple, and return it. ConfigurationError: it does not name any."""
    of = type(sink).__name__
    check_texts(argument, getattr(sink, argument), of=of)
    columns = tuple(getattr(sink, argument))
    check_known(argument, columns, of=of)
    if getattr(sink, argument) != columns:  # a default of the class is no field
        object.__setattr__(sink, argument, columns)
    return columns


def path_of(table: str) -> Path:
    """Return the folder of an absolute path or of a `file:///` URI."""
    return Path(table if table.startswith("/") else unquote(urlsplit(table).path))


def check_path(sink: Any, remedy: str) -> None:
    """ConfigurationError if the sink's table is neither an absolute path nor a `file:///` URI."""
    if not sink.table.startswith(("/", "file:///")):
        scheme = urlsplit(sink.table).scheme
        raise unusable(sink, f"is on {scheme}, which is not supported" if scheme else "is a relative path", remedy)


def unusable(sink: Any, what: str, remedy: str) -> ConfigurationError:
    """Return the error for a table's folder that cannot be one."""
    table = safe_uri(sink.table)
    return ConfigurationError(
        f"table of {type(sink).__name__} is {table!r}, which {what}.",
        code="path_invalid",
        remedy=remedy,
        argument="table",
        value=table,
    )


def name_of(kind: str, place: str) -> str:
    """Return the name of a participant at that place, which is stable over rendering."""
    made = f"{kind}-" + re.sub(r"[^A-Za-z0-9]+", "-", place.removeprefix("file://")).strip("-")
    if len(made) <= _LONGEST_NAME:
        return made
    return f"{made[: _LONGEST_NAME - 9]}-{hashlib.sha256(place.encode()).hexdigest()[:8]}"


def settings_of(sink: Any, *texts: str) -> dict[str, Any]:
    """All fields of a sink but its name, as plain JSON. ConfigurationError while Jinja is left in a text or column."""
    refuse_jinja(*texts, *sink.partition_by)
    given = {field.name: getattr(sink, field.name) for field in fields(sink) if field.name != "name"}
    shared = shared_setting(given.pop("shared", False))
    columns = {"partition_by": list(sink.partition_by)} if "partition_by" in given else {}
    return {**given, **columns, **shared}


def only_sink(plan: ParticipantPlan, place: str) -> tuple[str, Mapping[str, Any]]:
    """Name and settings of the one sink that is the participant. ConfigurationError when there are several."""
    if len(plan.sinks) != 1:
        what = f"the sinks {', '.join(plan.sinks)} have the same name {plan.name!r}, and each {place} needs its own."
        remedy = "Give each of these sinks another name with name=."
        raise ConfigurationError(what, code="arguments_conflict", remedy=remedy, argument="name", value=plan.name)
    [found] = plan.sinks.items()
    return found


def room(folder: Path, *, for_all: bool = False) -> int:
    """Bytes that are free; SinkAccessError when it cannot be written, or made. `for_all`: other users write there."""
    there = next(each for each in (folder, *folder.parents) if each.exists())
    if not there.is_dir():
        what = f"{there} is not a folder."
        remedy = f"Move {there} away: a folder must be there."
        raise SinkAccessError(what, code="folder_unusable", remedy=remedy, path=str(there))
    if not os.access(there, os.W_OK | os.X_OK):
        what = f"the user who runs this task cannot write the folder {there}."
        remedy = f"Run `chown USER {there}` with the user who runs tasks."
        if for_all:
            remedy = f"Run `chgrp GROUP {there} && chmod g+rwx {there}` with a group of all users who write there."
        raise SinkAccessError(what, code="folder_unusable", remedy=remedy, path=str(there))
    if there != folder:
        _require_writable(there, folder)
    return shutil.disk_usage(there).free


def require_file(file: Path) -> None:
    """Raise SinkAccessError if a database's file cannot be written or created. OSError: it cannot be reached."""
    exists, folder = file.exists(), file.resolve().parent
    if not os.access(folder, os.W_OK):  # SQLite creates a journal beside the file
        what = f"the folder {folder} does not exist or is not writable."
        remedy = f"Create the folder {folder}, or make it writable by the user who runs the tasks."
        raise SinkAccessError(what, code="folder_unusable", remedy=remedy, path=str(folder))
    if exists and not os.access(file, os.W_OK):
        what, remedy = f"the file {file} is not writable.", "Make it writable by the user who runs the tasks."
        raise SinkAccessError(what, code="file_unusable", remedy=remedy, path=str(file))


def _require_writable(there: Path, folder: Path) -> None:
    """Raise SinkAccessError if no file can be created in a folder whose mode allows it, as in /proc."""
    try:
        with tempfile.TemporaryFile(dir=there.resolve(), prefix=".airflow-ft-"):  # by a link, the file gets a name
            pass
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS):
            return  # such as a full disk: `prepare` judges it
        what = f"{folder} does not exist, and nothing can be created in {there}: {error.strerror}."
        remedy = f"Create {folder}, or mount its disk. Or correct the sink's folder, the warehouse of its connection or"
        remedy += " the location of its table."
        raise SinkAccessError(what, code="folder_unusable", remedy=remedy, path=str(folder)) from error
