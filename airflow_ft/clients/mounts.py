"""Network file systems, on which SQLite's locks do not work."""

from __future__ import annotations

import re
from pathlib import Path

_MOUNTS = Path("/proc/mounts")
_NETWORK = re.compile(r"nfs\d?|cifs|smb\w*|afs|9p|ceph|glusterfs|lustre|beegfs|gpfs|ocfs2|gfs2|fuse\..+")
_LOCAL_FUSE = {"fuse.fuse-overlayfs"}  # the layers of a rootless container: a local disk


def network_file_system(folder: Path) -> str | None:
    """Return the type of the network file system that `folder` lies on, or None. May raise OSError."""
    if not _MOUNTS.exists():
        return None
    return network_mount(folder.resolve(), _MOUNTS.read_text(encoding="utf-8", errors="replace"))


def network_mount(folder: Path, mounts: str) -> str | None:
    """The type of the network file system that `folder` (resolved) lies on, by the text of /proc/mounts, or None."""
    best, kind = -1, ""
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        # /proc/mounts writes blanks as octal (proc(5), getmntent(3)).
        point = Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[1]))
        depth = len(point.parts)
        if (folder == point or point in folder.parents) and depth >= best:  # of equal ones the last mounted is seen
            best, kind = depth, fields[2]
    return kind if _NETWORK.fullmatch(kind) and kind not in _LOCAL_FUSE else None
