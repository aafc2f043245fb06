"""Who may use files and folders of a local disk: owner, group, mode and POSIX access lists (ACLs)."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

_NO_ACCESS = {errno.EACCES, errno.EPERM, errno.ENOSYS, errno.EINVAL, errno.ENOTSUP}
"""Errors of another user's folder, of a group that is not this user's, and of file systems without groups or ACLs."""
_ACCESS_LISTS = ("system.posix_acl_access", _DEFAULT_LIST := "system.posix_acl_default")
_WRITING = stat.S_IWGRP | stat.S_IWOTH


def make_like(path: Path, model: Path) -> bool:
    """Give a folder, which is created if it is not there, the mode, group and ACLs of another one.

    Returns False if this user or the file system cannot set them.
    """
    wanted = _access(model)
    path.mkdir(mode=stat.S_IRWXU, exist_ok=True)  # at no moment more open than the model
    if (found := _access(path)) == wanted:
        return True
    mode, group, lists = wanted
    try:
        path.chmod(stat.S_IRWXU)
        if found[1] != group:
            os.chown(path, -1, group)
        for name in _access(path)[2].keys() - lists:
            os.removexattr(path, name)
        for name, value in lists.items():
            os.setxattr(path, name, value)
        path.chmod(mode)
    except OSError as error:
        if error.errno not in _NO_ACCESS:
            raise
        with contextlib.suppress(OSError):
            path.chmod(found[0] & mode)  # not more open than before, nor than the model
    return _access(path) == wanted


def may_be_linked(path: Path, other: Path) -> bool:
    """Return whether a link to `path` may replace the new file `other`: with the same owner, group, ACLs and readers.

    Hadoop creates files with its own umask (022). If only the mode differs, `path` loses what `other` does not permit,
    unless it has other links, or a default ACL of one of the folders decides modes. It is never opened further.
    """
    found, there, (mode, *rest) = path.stat(), other.stat(), _access(other)
    if (found.st_uid, found.st_dev) != (there.st_uid, there.st_dev) or list(_access(path)[1:]) != rest:
        return False
    own = stat.S_IMODE(found.st_mode)
    if own == mode:
        return True
    wanted = own & mode
    if wanted | _WRITING != mode | _WRITING or any(_DEFAULT_LIST in _access(each.parent)[2] for each in (path, other)):
        return False
    if own != wanted and found.st_nlink == 1:
        with contextlib.suppress(OSError):  # a disk is mounted read-only, or has no modes
            path.chmod(wanted)
    return stat.S_IMODE(path.stat().st_mode) == wanted


def _access(path: Path) -> tuple[int, int, dict[str, bytes]]:
    """Return who may use a file or folder: its mode, its group, and its access lists (ACLs)."""
    status = path.stat()
    try:
        names = os.listxattr(path)
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.ENOSYS):
            raise
        names = []
    lists = {name: os.getxattr(path, name) for name in names if name in _ACCESS_LISTS}
    return stat.S_IMODE(status.st_mode), status.st_gid, lists
