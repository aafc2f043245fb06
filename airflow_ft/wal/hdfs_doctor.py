"""Can the write-ahead log on HDFS be written durably, is there room, and are the rows that are still needed there?"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from airflow_ft.clients.hadoop import read_site
from airflow_ft.protocol.doctor import Examination
from airflow_ft.wal.hdfs import HdfsFileSystem

SYNC_ON_CLOSE = "dfs.datanode.synconclose"


def examine_hdfs(exam: Examination, root: str, largest: int) -> bool:
    """A file is written, renamed, read and removed again; `largest`: bytes of the largest checkpoint that is needed.

    Whether the place can be reached at all.
    """
    files = HdfsFileSystem()
    existing = exam.attempt("place", lambda: _nearest(files, root))
    if existing is None:
        return False
    if existing != files.uri(root):
        exam.ok("place", f"{root} does not exist yet: the first run creates it")
    writable = exam.passes(
        "writable", f"a file was written to {existing}, synced and removed", lambda: _try(files, existing)
    )
    if writable:
        _room(exam, files, existing, largest)
    _durability(exam)
    return True


def _nearest(files: HdfsFileSystem, root: str) -> str:
    folder = files.uri(root)
    while not files.exists(folder):
        folder = files.parent(folder)
    return folder


def _try(files: HdfsFileSystem, folder: str) -> None:
    probe = files.uri(folder, f".airflow-ft-{uuid.uuid4().hex}")
    files.write(probe, b"airflow-ft")
    files.remove(probe)


def _room(exam: Examination, files: HdfsFileSystem, folder: str, largest: int) -> None:
    bound, used = files.quota(folder)
    if not bound:
        exam.ok("room", "its folder has no quota; the free space of the DataNodes is not known here")
        return
    text = f"{max(0, bound - used) / (1 << 20):,.0f} MB of its quota are free, including replicas"
    if bound - used < max(1 << 30, 9 * largest):
        exam.warn(
            "room", text, "Raise the quota. A checkpoint that does not fit fails, and the next try computes it again."
        )
    else:
        exam.ok("room", text)


def _durability(exam: Examination) -> None:
    """DataNodes read their own file; the client's is usually the same one."""
    configured = _site().get(SYNC_ON_CLOSE)
    if configured == "true":
        exam.ok("durable", f"{SYNC_ON_CLOSE} is true in hdfs-site.xml on this machine; the DataNodes need it, too")
        return
    here = "in hdfs-site.xml on this machine"
    found = f"is {configured} {here}" if configured else f"is not set {here}"
    exam.warn(
        "durable",
        f"{SYNC_ON_CLOSE} {found}. If it is false (the default), DataNodes keep a file that Spark has closed in memory"
        " for a while. If all of them lose power then, the file is lost, and its checksum shows that.",
        f"Set {SYNC_ON_CLOSE}=true on the DataNodes, and $HADOOP_CONF_DIR on this machine, to survive that.",
    )


def _site() -> dict[str, str]:
    folder = os.environ.get("HADOOP_CONF_DIR") or f"{os.environ.get('HADOOP_HOME', '')}/etc/hadoop"
    return read_site(Path(folder) / "hdfs-site.xml")
