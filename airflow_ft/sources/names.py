"""Names of local files that Spark does not take as they are: patterns, hidden ones, ':', links, other encodings."""
# ruff: noqa: PTH112, PTH114, PTH118, PTH119, PTH120, PTH207
# A folder may hold 100,000 names, and `Path` takes ten times as long.

from __future__ import annotations

import glob
import os
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import islice
from urllib.parse import urlsplit

GLOB = "[ ] { } * ? \\"
"""Characters that Hadoop takes for parts of a pattern, in any name on a path."""
_GLOB = re.compile(r"[\[\]{}*?\\]")
_AUTHORITY = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*:(?://[^/]*)?")
_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*):")
_SPLIT = re.compile(r"(?:([A-Za-z][A-Za-z0-9+.-]*):(?://([^/]*))?)?(.*)", re.DOTALL)
_MARKERS = ("_SUCCESS", "_temporary", "_spark_metadata", "_delta_log")
_MOST = 100_000  # names that are looked at
_SHOWN = 3


def some(names: Collection[str]) -> str:
    """The first few of them, and how many more there are."""
    shown = sorted(names)
    return ", ".join(shown[:_SHOWN]) + (f" and {len(shown) - _SHOWN:,} more" if len(shown) > _SHOWN else "")


def is_pattern(text: str) -> bool:
    """Return whether Hadoop takes a path, or a part of it, for a pattern."""
    return _GLOB.search(text) is not None


def scheme(path: str) -> str:
    """The scheme of a path, in lower case; "": it has none, so the configuration of Hadoop says which it is."""
    found = _SCHEME.match(path)
    return found[1].lower() if found else ""


def local(place: str) -> str | None:
    """The path on this machine that a URI with the scheme `file` names; None: it is elsewhere."""
    if not place.startswith("file:"):
        return None
    rest = place.removeprefix("file:")
    return f"/{rest.lstrip('/')}" if not rest.startswith("//") or not urlsplit(place).netloc else None


def place_of(path: str) -> tuple[str, ...]:
    """Return a place to compare: scheme, authority and names. `/a`, `file:/a` and `file:///a/` are one place."""
    found = _SPLIT.match(path)
    assert found is not None  # it matches any text
    kind = {"": "file", "s3a": "s3"}.get((found[1] or "").lower(), (found[1] or "").lower())
    return (kind, (found[2] or "").rpartition("@")[2], *(name for name in found[3].split("/") if name))


def literal_prefixes(path: str) -> Iterator[str]:
    """Each beginning of a path whose last name looks like a pattern, as it would be called if it were none."""
    begin = len(path) - len(path.split("://", 1)[-1]) if "://" in path else 0
    for found in re.finditer(r"[^/]+", path[begin:]):
        if is_pattern(found[0]):
            yield path[: begin + found.end()]


def local_folders(path: str) -> list[str]:
    """Return what a local path (without scheme) names. Patterns return what they find now, as in Hadoop."""
    if not is_pattern(path):
        return [path] if os.path.lexists(path) else []
    return sorted({found for each in _alternatives(path) for found in glob.glob(_as_python(each), include_hidden=True)})


def finds(path: str, place: str) -> bool:
    """Return whether a declared path finds a file: as a pattern or literally, itself or a folder above it.

    Names are compared, and scheme and authority that the path has. One without them may belong to any file system.
    """
    declared, read = urlsplit(path), urlsplit(place)
    if declared.scheme not in ("", read.scheme) or declared.netloc not in ("", read.netloc):
        return False
    names = _names(place)
    return any(
        len(parts) <= len(names) and all(map(fnmatchcase, names, map(_as_python, parts)))
        for parts in map(_names, _alternatives(path))
    )


def _names(path: str) -> list[str]:
    return [name for name in _AUTHORITY.sub("", path).split("/") if name]


def _alternatives(pattern: str) -> Iterator[str]:
    """Expand `{a,b}`: return the patterns without alternatives."""
    found = re.search(r"(?<!\\)\{([^{}]*)\}", pattern)
    if found is None:
        yield pattern
        return
    for each in found[1].split(","):
        yield from _alternatives(pattern[: found.start()] + each + pattern[found.end() :])


def _as_python(pattern: str) -> str:
    escaped = re.sub(r"\\(.)", lambda found: glob.escape(found[1]), pattern)
    return escaped.replace("[^", "[!")


@dataclass(slots=True)
class Names:
    """Local files by what becomes of them; the paths are for people."""

    hidden: list[str] = field(default_factory=list)
    """Spark leaves them out in silence: '_', '.' in front, or '._COPYING_' behind."""
    nested: list[str] = field(default_factory=list)
    """Folders below a folder, which Spark does not look into."""
    colons: list[str] = field(default_factory=list)
    """Spark fails on them."""
    patterns: list[str] = field(default_factory=list)
    """Spark may take them for patterns: files, and folders with files in them."""
    foreign: list[str] = field(default_factory=list)
    """Java cannot decode them, and leaves them out in silence."""


def look(folders: Iterable[str], *, encoding: str = "utf-8", recursive: bool = False) -> Names:
    """Looks through local folders as Spark does, at some 100,000 names at most.

    encoding: by which Java decodes names. recursive: as the option `recursiveFileLookup`.
    """
    found = Names()
    for path, is_folder in islice(_walk(folders, found, recursive), _MOST):
        name = os.path.basename(path)
        if not _decodes(name, encoding):
            found.foreign.append(os.fsencode(path).decode("utf-8", "backslashreplace"))
        elif is_hidden(name):
            if not is_marker(name):
                found.hidden.append(path)
        else:
            if ":" in name and not is_folder:
                found.colons.append(path)
            if is_pattern(name):
                found.patterns.append(path)
    return found


def _walk(folders: Iterable[str], found: Names, recursive: bool) -> Iterator[tuple[str, bool]]:
    for folder in folders:
        if not os.path.isdir(folder):
            yield folder, False
            continue
        with os.scandir(folder) as entries:
            inside = [(entry.path, entry.is_dir()) for entry in islice(entries, _MOST)]
        yield from inside
        below = [path for path, is_folder in inside if is_folder and not is_hidden(os.path.basename(path))]
        if recursive or any("=" in os.path.basename(path) for path in below):
            yield from _walk(below, found, recursive)
        else:
            found.nested += below


def is_hidden(name: str) -> bool:
    """Return whether Hadoop and Spark leave out a name of a folder's listing."""
    return name[0] == "." or (name[0] == "_" and "=" not in name) or name.endswith("._COPYING_")


def is_marker(name: str) -> bool:
    """Return whether programs leave such a hidden name beside data, so that it is meant to be left out."""
    return name in _MARKERS or (name[0] == "." and name.endswith(".crc"))


def _decodes(name: str, encoding: str) -> bool:
    try:
        name.encode("utf-8")
        name.encode(encoding)
    except (UnicodeError, LookupError):
        return False
    return True


def twins(places: Iterable[str], root: str = "", *, recursive: bool = False) -> list[tuple[str, str]]:
    """(link, file) of local files that a source reads by two names: among `places` (URIs), or below its path `root`.

    recursive: as the option `recursiveFileLookup`.
    """
    paths = [path for place in places if (path := local(place)) is not None]
    resolved = _Resolved()
    found_by_root = local_folders(local(root) or root) if root else []
    roots = {each: resolved.path(each) for each in map(os.path.normpath, found_by_root)}
    real = set(roots.values())
    named: dict[str, list[str]] = {}
    for each in roots:
        named.setdefault(resolved.name(each), []).append(each)
    seen: dict[str, str] = {}
    found: list[tuple[str, str]] = []
    for path in paths:
        target = resolved.path(path)
        first = seen.setdefault(target, path)
        if first != path:
            found.append((path, first) if len(link_of(path)) > len(link_of(first)) else (first, path))
            continue
        own = path if path in roots else next((each for each in reversed([*_above(path)]) if each in roots), "")
        if not own:
            continue
        readers = list(_readers(target, recursive=recursive))
        if target == f"{roots[own]}{path.removeprefix(own)}":
            is_twin = any(other != own for each in readers for other in named.get(each, ()))
        else:
            is_twin = any(each in real for each in readers)
        if is_twin:
            found.append((path, target))
    return found


def link_of(path: str) -> str:
    """Return the last name on a path that is a link, with what comes before it; "": there is none."""
    while path not in ("", "/") and not os.path.islink(path):
        path = os.path.dirname(path)
    return path.rstrip("/")


class _Resolved:
    """Local paths without links. Each folder is resolved once."""

    def __init__(self) -> None:
        self._folders: dict[str, str] = {}

    def path(self, path: str) -> str:
        """Return a path without any link."""
        return os.path.realpath(path) if os.path.islink(path) else self.name(path)

    def name(self, path: str) -> str:
        """Return a path without links above its last name."""
        folder, name = os.path.split(path)
        if folder not in self._folders:
            self._folders[folder] = os.path.realpath(folder)
        return os.path.join(self._folders[folder], name)


def _above(path: str) -> Iterator[str]:
    """Yield the folders above a path, the nearest first."""
    while (folder := os.path.dirname(path)) != path:
        yield folder
        path = folder


def _readers(target: str, *, recursive: bool) -> Iterator[str]:
    """Yield what a source may declare to read this file: the file, its folder, and folders above those of partitions.

    recursive: all folders above it.
    """
    yield target
    name = os.path.basename(target)
    for folder in _above(target):
        if is_hidden(name):
            return
        yield folder
        name = os.path.basename(folder)
        if not name or not (recursive or "=" in name):
            return
