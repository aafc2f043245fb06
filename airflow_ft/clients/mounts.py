"""Mounted file systems, and those of a network, on which SQLite's locks do not work."""

from __future__ import annotations

import re
from pathlib import Path

_NETWORK = re.compile(r"nfs\d?|cifs|smb\w*|afs|9p|ceph|glusterfs|lustre|beegfs|gpfs|ocfs2|gfs2|fuse\..+")
_LOCAL_FUSE = {"fuse.fuse-overlayfs"}  # the layers of a rootless container: a local disk


def mounts() -> list[tuple[Path, str]]:
    """Return mount point and type of each file system. From /etc/mtab if it exists: a link to the kernel's list."""
    import psutil  # type: ignore[import-untyped]

    return [(Path(each.mountpoint), each.fstype) for each in psutil.disk_partitions(all=True)]


def file_system(folder: Path) -> str:
    """Return the type of the file system that holds `folder`; "": unknown. Raises OSError."""
    depth, kind = -1, ""
    for point, mounted in mounts():
        if folder.resolve().is_relative_to(point) and len(point.parts) >= depth:  # the last mounted one is seen
            depth, kind = len(point.parts), mounted
    return kind


def network_file_system(folder: Path) -> str | None:
    """Return the type of the network file system that holds `folder`, or None. Raises OSError."""
    kind = file_system(folder)
    return kind if _NETWORK.fullmatch(kind) and kind not in _LOCAL_FUSE else None
