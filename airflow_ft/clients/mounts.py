"""Mounted file systems, and those of a network, on which SQLite's locks do not work."""

from __future__ import annotations

import os
import re
from pathlib import Path

_NETWORK = re.compile(r"nfs\d?|cifs|smb\w*|afs|9p|ceph|glusterfs|lustre|beegfs|gpfs|ocfs2|gfs2|fuse\..+")
_ESCAPED = re.compile(rb"\\([0-7]{3})")
_LOCAL_FUSE = {"fuse.fuse-overlayfs"}  # the layers of a rootless container: a local disk


def mounts() -> list[tuple[Path, str]]:
    """Return mount point and type of each file system; nothing without /proc.

    Not by psutil: it reads /etc/mtab, which may be old.
    """
    try:
        lines = Path("/proc/self/mounts").read_bytes().splitlines()
    except FileNotFoundError:
        return []
    fields = [[_ESCAPED.sub(_unescaped, each) for each in line.split(b" ")] for line in lines]
    return [(Path(os.fsdecode(point)), os.fsdecode(kind)) for _, point, kind, *_ in fields]


def _unescaped(code: re.Match[bytes]) -> bytes:
    return bytes([int(code[1], 8)])


def file_system(folder: Path) -> str:
    """Return the type of the file system that holds `folder`; "": unknown. Raises OSError."""
    depth, kind, real = -1, "", folder.resolve()
    for point, mounted in mounts():
        if real.is_relative_to(point) and len(point.parts) >= depth:  # the last mounted one is seen
            depth, kind = len(point.parts), mounted
    return kind


def network_file_system(folder: Path) -> str | None:
    """Return the type of the network file system that holds `folder`, or None. Raises OSError."""
    kind = file_system(folder)
    return kind if _NETWORK.fullmatch(kind) and kind not in _LOCAL_FUSE else None
