"""What the errors of a file system mean, and what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from airflow_ft.core.errors import AirflowFtError, SinkAccessError, SinkUnavailableError


@contextmanager
def telling(root: str, **where: Any) -> Iterator[None]:
    """Errors of the file system as ours, and all of ours with their place."""
    where = {"unconnected": True, **where}
    try:
        yield
    except AirflowFtError as error:
        if isinstance(error, OSError):  # of HDFS, which says by itself what to do
            told = SinkUnavailableError(error.what, remedy=error.remedy)
            raise told.located(**where) from error
        raise error.located(**where) from error.__cause__
    except OSError as error:
        raise _told(root, error).located(**where) from error


def _told(root: str, error: OSError) -> AirflowFtError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return SinkUnavailableError(
            f"the disk of {root} is full.", remedy="make room; it is tried again, and nothing half is visible."
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return SinkAccessError(
            f"{error.filename or root} cannot be written: {error.strerror}.",
            remedy=f"let the user who runs tasks own {root}, and mount it to be written.",
        )
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return SinkAccessError(f"{error.filename or root} is no folder.", remedy="move it away; or name another one.")
    if error.errno == errno.EXDEV:
        return SinkAccessError(
            f"{root} and the folder where its rows are prepared lie on different file systems by now.",
            remedy="bring back what was mounted: rows become visible by a rename.",
        )
    return SinkUnavailableError(f"{root}: {error}.", remedy="it is tried again.")
