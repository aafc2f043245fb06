"""Meaning of the errors of HDFS, and their remedies."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

from airflow_ft.protocol.errors import AirflowFtError, ConfigurationError, StorageUnavailableError

_RPC = re.compile(r'^\w*RPCError\("([^"]*)", "(.*)"\)$', re.DOTALL)
_RAISE_QUOTA = "Raise the quota (`hdfs dfsadmin -setSpaceQuota`, of names `-setQuota`), or free space in the folder."
_REMEDIES = {
    "AccessControlException": (
        errno.EACCES,
        "privilege_missing",
        "Let this user (HADOOP_USER_NAME) own the folder: `hdfs dfs -chown`.",
    ),
    "QuotaExceededException": (
        errno.EDQUOT,
        "limit_reached",
        _RAISE_QUOTA,
    ),
    "directory item limit": (
        errno.EDQUOT,
        "limit_reached",
        "Delete old checkpoints in the folder, or raise dfs.namenode.fs-limits.max-directory-items.",
    ),
    "encryption zone": (errno.EXDEV, "file_systems_differ", "Move it within one encryption zone."),
    "in the same namespace": (errno.EXDEV, "file_systems_differ", "Move it within one namespace of the router."),
    "Cannot find locations": (errno.EXDEV, "file_systems_differ", "Add a mount for it to the router."),
    "path component name limit": (errno.ENAMETOOLONG, "path_invalid", "Use a shorter name."),
    "SafeModeException": (
        errno.EAGAIN,
        "storage_unavailable",
        "Wait until the NameNode has left its safe mode.",
    ),
    "could only be written to": (
        errno.ENOSPC,
        "disk_full",
        "Check that the DataNodes run and have free space: `hdfs dfsadmin -report`.",
    ),
}
"""Error number, code and remedy by a part of the server's answer."""


@contextmanager
def translated_errors(uri: str, timeout: float) -> Iterator[None]:
    """Raise errors of the client as those of this package or of a local file system. `timeout`: seconds waited."""
    try:
        yield
    except AirflowFtError:
        raise
    except FileExistsError as error:
        raise FileExistsError(errno.EEXIST, "it exists already", uri) from error
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, _first_line(str(error)), uri) from error
    except TimeoutError as error:
        raise _unavailable(uri, f"no answer within {timeout:g} s", errno.ETIMEDOUT) from error
    except OSError as error:
        raise _unavailable(uri, _first_line(str(error)), errno.EHOSTUNREACH) from error
    except RuntimeError as error:
        text = str(error)
        if text.startswith("InvalidArgument"):
            what = f"the NameNode in {uri} is not known on this machine: {_first_line(text).rstrip('.')}."
            remedy = "Give a host and its port, or a nameservice from hdfs-site.xml in $HADOOP_CONF_DIR."
            raise ConfigurationError(what, code="namenode_unknown", remedy=remedy, path=uri) from error
        raise _refused(uri, text) from error


def quota_exceeded(uri: str, why: str) -> StorageUnavailableError:
    """Return the error for a folder whose quota does not allow what would come."""
    return StorageUnavailableError(
        f"HDFS will refuse {uri}: {why}.", code="limit_reached", number=errno.EDQUOT, remedy=_RAISE_QUOTA, path=uri
    )


def _refused(uri: str, text: str) -> StorageUnavailableError:
    """For what the NameNode or a DataNode has answered."""
    match = _RPC.match(text)
    what = _first_line(match[2]) if match else _first_line(text)
    for sign, (number, code, remedy) in _REMEDIES.items():
        if sign in text:
            return StorageUnavailableError(
                f"HDFS refuses {uri}: {what.rstrip('.')}.", code=code, number=number, remedy=remedy, path=uri
            )
    return _unavailable(uri, what, errno.EIO)


def _unavailable(uri: str, what: str, number: int) -> StorageUnavailableError:
    return StorageUnavailableError(
        f"{uri} cannot be reached: {what.rstrip('.')}.",
        code="server_unreachable",
        number=number,
        remedy="Check that NameNode and DataNodes run, and that host and port are those of the NameNode's RPC.",
        path=uri,
    )


def _first_line(text: str) -> str:
    """Without the traceback of the NameNode."""
    return re.split(r"\\n|\n", text.replace('\\"', '"'), maxsplit=1)[0].rstrip()
