"""Meaning of a file system's errors, and their remedies."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow_ft.protocol.errors import AirflowFtError, SinkAccessError, SinkUnavailableError, UnfitTargetError


@contextmanager
def translated_errors(root: str, **where: Any) -> Iterator[None]:
    """Errors of the file system as ours, and all of ours with their place."""
    where = {"unconnected": True, **where}
    try:
        yield
    except AirflowFtError as error:
        if isinstance(error, OSError):  # of HDFS, which says what to do
            failure = SinkUnavailableError(error.what, code=error.code, remedy=error.remedy, **error.fields)
            raise failure.located(**where) from error
        raise error.located(**where) from error.__cause__
    except OSError as error:
        raise file_failure(root, error).located(**where) from error


def lacks_links(path: str, what: str) -> UnfitTargetError:
    """Return the error for a file system without hard links; `what` needs them."""
    return UnfitTargetError(
        f"the file system of {path} lacks hard links, which are needed to {what}.",
        code="file_system_unsupported",
        remedy="Name a folder on a file system with hard links (ext4, XFS, Btrfs).",
        path=path,
        feature="hard links",
    )


def _in_the_way(path: str) -> str:
    """Return the first part of a path that exists and is not a folder; the path itself if none is found."""
    found = [place for place in (Path(path), *Path(path).parents) if place.exists() and not place.is_dir()]
    return str(found[-1]) if found else path


def file_failure(root: str, error: OSError) -> AirflowFtError:
    """Return what is raised for an error of a local file system; `root` is the folder if the error names no file."""
    path = str(error.filename or root)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        what = f"the disk of {root} is full."
        remedy = "Free space, then retry. No partial file is visible."
        return SinkUnavailableError(what, code="disk_full", remedy=remedy, path=root)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        what = f"{path} cannot be written: {error.strerror}."
        remedy = f"Let the user who runs tasks own {root}, and mount it writable."
        return SinkAccessError(what, code="folder_unusable", remedy=remedy, path=path)
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        path = _in_the_way(path)
        what = f"{path} is not a folder."
        remedy = f"Move {path} away."
        return SinkAccessError(what, code="folder_unusable", remedy=remedy, path=path)
    if error.errno == errno.EXDEV:
        what = f"{root} and the folder where its rows are prepared are now on different file systems."
        remedy = "Mount them as before: a rename makes rows visible, and it works only within one file system."
        return SinkAccessError(what, code="file_systems_differ", remedy=remedy, path=root)
    remedy = "Check the disk or mount, then retry."
    if error.errno in (errno.EMFILE, errno.ENFILE):
        remedy = "Raise the limit of open files for Airflow's workers (`ulimit -n`, LimitNOFILE of systemd)."
    return SinkUnavailableError(f"{root}: {error}.", code="file_system_failed", remedy=remedy, path=root)
