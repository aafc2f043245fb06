"""Copies of files and folders by reading and writing, also from one file system to another."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath
from typing import Any

from airflow_ft.protocol.errors import TransientError, WalCorruptError
from airflow_ft.wal import markers

CHUNK = 1 << 20
COPY_TRIES = 10
_COPIES = 16  # at once: most of a location's files are small, and each waits for the NameNode


def copy_file(source_files: Any, source: str, target_files: Any, target: str) -> None:
    """By reading and writing, also from one file system to another; returns when the copy is durable."""
    with source_files.open(source) as reader, target_files.create(target) as writer:
        while chunk := reader.read(CHUNK):
            writer.write(chunk)
        target_files.sync_file(writer)


def copy_tree(
    source_files: Any,
    source: str,
    target_files: Any,
    target: str,
    keep: Callable[[PurePosixPath], bool],
    at_once: int = _COPIES,
) -> int:
    """`FileSystem.link_tree` by reading and writing, `at_once` files; also from one file system to another."""

    def copy(name: str, _: int) -> None:
        parts = name.split("/")
        copy_file(source_files, source_files.uri(source, *parts), target_files, target_files.uri(target, *parts))

    return copy_each(source_files, source, target_files, target, keep, copy, at_once)


def copy_each(
    source_files: Any,
    source: str,
    target_files: Any,
    target: str,
    keep: Callable[[PurePosixPath], bool],
    copy: Callable[[str, int], None],
    at_once: int,
) -> int:
    """`FileSystem.link_tree` by `copy`, which copies one file: it gets the file's relative name and size in bytes."""
    for _ in range(COPY_TRIES):
        found = {name: size for name, size in source_files.tree(source).items() if keep(PurePosixPath(name))}
        if not found and not source_files.exists(source):
            markers.require(source_files, source)
            raise markers.missing(source)
        target_files.make_folder(target)
        try:
            with ThreadPoolExecutor(at_once) as pool:
                return sum(1 for _ in pool.map(copy, found, found.values()))
        except (FileNotFoundError, WalCorruptError):  # its owner has replaced files since they were listed
            target_files.remove_tree(target)
    raise changing(source)


def changing(source: str) -> TransientError:
    """The error for a folder whose files change while it is copied."""
    return TransientError(
        f"{source} changes faster than it can be copied.", code="folder_busy", remedy="Try again.", path=source
    )
