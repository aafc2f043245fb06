"""Files that Spark's state stores write: the changes of each micro-batch, and full snapshots from time to time.

    state/<operator>/<partition>[/<store>]/<version>.changelog, .delta      the changes; batch n writes version n + 1
    state/<operator>/<partition>[/<store>]/<version>.zip, .snapshot         a full snapshot
    state/<operator>/<partition>[/<store>]/SSTs/*.sst                       what a .zip names, shared among snapshots

A snapshot is made with a micro-batch, by default every tenth one. But only Spark's maintenance puts it into the
location, once a minute, and a store drops waiting snapshots when it is closed. A run of a few seconds would leave
none, and each later run would replay the changes of all runs before. So a run that ends writes it (`upload`).
"""

from __future__ import annotations

import errno
import json
import logging
import re
import zipfile
import zlib
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.errors import WalCorruptError
from airflow_ft.protocol.formats import understood
from airflow_ft.protocol.model import StateSizes
from airflow_ft.wal.filesystem import FileSystem, filesystem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAMAGED = "state_damaged"
_FILE = re.compile(r"^(\d+)(?:_[^.]+)*\.(delta|changelog|snapshot|zip)$")
_CHANGES = ("delta", "changelog")
_SHARED = ("SSTs", "logs")
_STORES = "org.apache.spark.sql.execution.streaming.state.StateStore"
_LOADED, _IN_MAINTENANCE = "loadedProviders", "maintenancePartitions"

log = logging.getLogger("airflow_ft.spark")


def sizes(location: str, batch: int) -> StateSizes | None:
    """Return the sizes of the state after a batch; None: there is no state, or Spark no longer keeps it.

    Lists the folders of the state, which hold a bounded number of versions, and reads the sizes of one version.
    WalCorruptError (`DAMAGED`) when a snapshot is damaged.
    """
    files, version = filesystem(location), batch + 1
    changes = snapshot = replayed = 0
    known = False
    try:
        for folder, versions in stores_of(files, files.uri(location, "state")):
            of_it = [(kind, name) for number, kind, name in versions if number == version]
            known = known or bool(of_it)
            changes += sum(files.size(files.uri(folder, name)) for kind, name in of_it if kind in _CHANGES)
            full = max((each for each in versions if each[0] <= version and each[1] not in _CHANGES), default=None)
            replayed = max(replayed, version - (full[0] if full else 0))
            if full:
                snapshot += _whole(files, folder, full[2])
    except FileNotFoundError:  # removed meanwhile
        return None
    except WalCorruptError as error:
        if error.code == DAMAGED:
            raise
        return None  # removed, too
    return StateSizes(changes, snapshot, replayed) if known else None


def has_state(location: str) -> bool:
    """Return whether any operator has state in a location."""
    files = filesystem(location)
    return bool(_numbered(files, files.uri(location, "state")))


def upload(spark: SparkSession) -> None:
    """Has the stores of this JVM put the snapshots that wait for Spark's maintenance into the location now.

    To be called when no query works any more. On a cluster the stores are elsewhere: see `submit.settings`.
    """
    jvm: Any = spark._jvm
    try:
        stores = jvm.java.lang.Class.forName(f"{_STORES}$")
        module = stores.getField("MODULE$").get(None)
        module.stopMaintenanceTask()  # no other thread uses them
        loaded = stores.getDeclaredField("loadedProviders")
        loaded.setAccessible(True)
        providers = loaded.get(module).values().toList()
        while not providers.isEmpty():
            providers.head().doMaintenance()
            providers = providers.tail()
    except Exception as error:  # the changes are all there
        log.warning("Spark's state stores wrote no full snapshot: %s", error)


def upload_own(spark: SparkSession, location: str) -> bool:
    """As `upload`, for the stores of one location (a path of Hadoop) in a JVM whose other stores are in use.

    Also unloads them: otherwise Spark's maintenance would write to this location for another minute, beside the next
    run. Returns whether nothing of Spark writes there any more. False on a cluster, whose executors continue for the
    other streams.
    """
    jvm: Any = spark._jvm
    try:
        stores = jvm.java.lang.Class.forName(f"{_STORES}$")
        module = stores.getField("MODULE$").get(None)

        def own(name: str) -> Iterator[Any]:
            field = stores.getDeclaredField(name)
            field.setAccessible(True)
            found = field.get(module)
            known = found.keys().toList() if name == _LOADED else found.toList()
            while not known.isEmpty():
                if _plain(str(known.head().storeId().checkpointRootLocation())).startswith(f"{_plain(location)}/"):
                    yield known.head()
                known = known.tail()

        for _ in range(2):  # another stream may add a store while they are listed
            for store in own(_LOADED):
                module.doMaintenanceAndUnload(store)
        return bool(spark.sparkContext._jsc.sc().isLocal()) and not any(own(_IN_MAINTENANCE))
    except Exception as error:  # the changes are all there
        log.warning("Spark's state stores wrote no full snapshot: %s", error)
        return False


def _plain(path: str) -> str:
    """A path of Hadoop, which names local ones in several ways."""
    return re.sub("^file:/+", "/", path).rstrip("/")


def drop_unnamed(location: str) -> None:
    """Remove files of RocksDB from a cut-back copy that no snapshot in it names.

    They belong to later micro-batches, and one of them may be half written.
    """
    files = filesystem(location)
    for folder, versions in stores_of(files, files.uri(location, "state")):
        named: set[str] = set()
        for _, kind, name in versions:
            if kind == "zip":
                named |= _named(files, folder, name).keys()
        for shared in _SHARED:
            for name in files.names(files.uri(folder, shared)):
                if name.lstrip(".").removesuffix(".crc") not in named:
                    files.remove(files.uri(folder, shared, name))


def drop_stores(location: str) -> None:
    """Remove the files of the state stores, but not their schemas, from a copy whose state is created again."""
    files = filesystem(location)
    state = files.uri(location, "state")
    for name in files.tree(state):
        if not {"_metadata", "_stateSchema"} & set(name.split("/")):
            files.remove(files.uri(state, *name.split("/")))


def stores_of(files: FileSystem, state: str) -> Iterator[tuple[str, list[tuple[int, str, str]]]]:
    """The folder of each store, with version, kind and name of its files."""
    for operator in _numbered(files, state):
        for partition in _numbered(files, operator):
            names = files.names(partition)
            folders = [partition] if any(map(_FILE.match, names)) else [files.uri(partition, name) for name in names]
            for folder in folders:
                matches = filter(None, map(_FILE.match, files.names(folder) if folder != partition else names))
                if versions := [(int(match[1]), match[2], match[0]) for match in matches]:
                    yield folder, versions


def _numbered(files: FileSystem, folder: str) -> list[str]:
    return [files.uri(folder, name) for name in files.names(folder) if name.isdigit()]


def _whole(files: FileSystem, folder: str, name: str) -> int:
    """Bytes of a snapshot with what it names."""
    size = files.size(files.uri(folder, name))
    if not name.endswith(".zip"):
        return size
    return size + sum(_named(files, folder, name).values())


def _named(files: FileSystem, folder: str, name: str) -> dict[str, int]:
    """Return the shared files that a .zip names, with their sizes; WalCorruptError when it is damaged."""
    where = files.uri(folder, name)
    with understood(partial(_damaged, where)), files.open(where) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                metadata = json.loads(archive.read("metadata").decode().partition("\n")[2])
        except (zipfile.BadZipFile, zlib.error, RuntimeError) as error:
            raise ValueError(str(error)) from error
        except OSError as error:
            if error.errno != errno.EINVAL:  # damaged offsets have zipfile seek to before the file's first byte
                raise
            raise ValueError(str(error)) from error
        found = [(str(each["dfsSstFileName"]), int(each["sizeBytes"])) for each in metadata.get("sstFiles") or ()]
        found += [(str(each["dfsLogFileName"]), int(each["sizeBytes"])) for each in metadata.get("logFiles") or ()]
        return dict(found)


def _damaged(where: str, mistake: str) -> WalCorruptError:
    return WalCorruptError(
        f"{where}, a snapshot of Spark's state, is damaged: {mistake}.",
        code=DAMAGED,
        remedy=f"Restore {where} from a backup, or restore a savepoint. Or run `airflow ft reset-state PIPELINE`, which"
        " drops the state and keeps the positions.",
        path=where,
    )
