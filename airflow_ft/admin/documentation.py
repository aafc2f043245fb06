"""The documentation that comes with the package, as `airflow ft docs` and Airflow's page show it: its pages by name.

It imports nothing, unless a reference page is asked for: that consists of names, whose docstrings are read then.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import EnumType
from importlib import import_module
from pathlib import Path
from typing import Any

from airflow_ft.protocol.errors import ConfigurationError

_HERE = Path(__file__).parents[1]  # the package
FOLDER = next((folder for folder in (_HERE / "docs", _HERE.parent / "docs") if folder.is_dir()), _HERE / "docs")
"""Where it is installed, or in a checkout."""
_WIDTH = 100
_REFERENCE = re.compile(r"```\{eval-rst\}\n(.*?)```", re.DOTALL)


@dataclass(frozen=True)
class Section:
    """A part of a page, from its heading to the next one."""

    page: str
    heading: str
    text: str

    @property
    def anchor(self) -> str:
        """Its address on the page, as forges, Sphinx and Airflow's page have it."""
        return anchor(self.heading)


def anchor(heading: str) -> str:
    """The address of a heading: `## What is kept, and why` is `#what-is-kept-and-why`."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def pages() -> dict[str, Path]:
    """Every page by its name, such as `kafka` or `reference/sinks`; the first one is `index`."""
    found = {file.relative_to(FOLDER).with_suffix("").as_posix(): file for file in FOLDER.rglob("*.md")}
    return dict(sorted(found.items(), key=lambda each: (each[0] != "index", "/" in each[0], each[0])))


def page(name: str) -> str:
    """The Markdown of a page; `kafka.md` and `docs/kafka.md` are the same one.

    Raises:
        ConfigurationError: there is no such page.
    """
    wanted = name.removeprefix("docs/").removesuffix(".md")
    known = pages()
    if wanted not in known:
        guess = "".join(f"Did you mean {near!r}? " for near in get_close_matches(wanted, known, n=1))
        raise ConfigurationError(
            f"the documentation has no page {name!r}.",
            code="page_unknown",
            remedy=f"{guess}Run `airflow ft docs` to list all pages, or `airflow ft docs --search WORD`.",
            name=name,
        )
    return _REFERENCE.sub(lambda found: "".join(_described(found[1])), known[wanted].read_text(encoding="utf-8"))


def title(text: str) -> str:
    """The first line of a page."""
    return text.partition("\n")[0].lstrip("# ")


def sections(name: str) -> Iterator[Section]:
    """The parts of a page; a line of code that begins with # is no heading."""
    heading, lines, code = "", list[str](), False
    for line in page(name).splitlines():
        code ^= line.startswith("```")
        if not code and (found := re.match(r"#+ (.+)", line)):
            if heading:
                yield Section(name, heading, "\n".join(lines))
            heading, lines = found[1], []
        lines.append(line)
    yield Section(name, heading, "\n".join(lines))


def search(words: str) -> list[Section]:
    """Return the sections that contain this phrase, otherwise those that contain all of its words, in any case.

    Sections with the words in their heading come first, then those with the most occurrences.
    """
    known = [each for name in pages() for each in sections(name)]
    for wanted in ([words.lower()], words.lower().split()):
        if found := [each for each in known if all(word in each.text.lower() for word in wanted)]:
            return sorted(found, key=lambda each: _rank(each, wanted))
    return []


def _rank(section: Section, wanted: Sequence[str]) -> tuple[bool, int]:
    heading, text = section.heading.lower(), section.text.lower()
    return any(word not in heading for word in wanted), -sum(text.count(word) for word in wanted)


def _described(directives: str) -> Iterator[str]:
    """Yield what Sphinx would make of its directives: signatures and docstrings, as blocks of code."""
    wanted: list[tuple[str, str | None]] = []
    for line in directives.splitlines():
        if found := re.match(r"\.\. auto\w+:: (\S+)", line):
            wanted.append((found[1], None))
        elif found := re.match(r"\s+:members:(.*)", line):
            wanted[-1] = (wanted[-1][0], found[1])
    for name, members in wanted:
        try:
            item = _imported(name)
        except ImportError as error:
            yield f"### {name}\n\nIt is not described here: {error}.\n\n"
            continue
        yield _block(name, item)
        for each in _members(item, members):
            if (member := inspect.getattr_static(item, each, None)) is not None:  # else it is only annotated
                yield _block(f"{name}.{each}", member)


def _imported(name: str) -> Any:
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            item: Any = import_module(".".join(parts[:count]))
        except ModuleNotFoundError as error:
            if error.name != ".".join(parts[:count]):  # a package of others, which is not installed
                raise
            continue
        for part in parts[count:]:
            item = getattr(item, part)
        return item
    raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _members(item: Any, wanted: str | None) -> list[str]:
    """Return the members for `:members:`: all public ones of its own, in the order of the source, or the named ones."""
    if wanted is None:
        return []
    if named := re.findall(r"\w+", wanted):
        return named
    home = item.__name__ if inspect.ismodule(item) else item.__module__
    return [name for name, value in vars(item).items() if not name.startswith("_") and _describes_itself(value, home)]


def _describes_itself(value: Any, home: str) -> bool:
    value = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
    wanted = inspect.isclass(value) or inspect.isfunction(value)
    return wanted and bool(value.__doc__) and value.__module__ == home


def _block(name: str, item: Any) -> str:
    item = getattr(item, "__func__", item)  # of a class method
    short, call = name.rpartition(".")[2], ""
    if isinstance(item, EnumType):
        call = ", ".join(f"{short}.{each}" for each in item.__members__)
    elif inspect.isfunction(item) or (inspect.isclass(item) and {"__init__", "__new__"} & vars(item).keys()):
        call = f"{short}{_signature(item)}"
    code = f"```python\n{call}\n```\n\n" if call else ""
    return f"### {name}\n\n{code}```text\n{inspect.getdoc(item) or ''}\n```\n\n"


def _signature(item: Any) -> str:
    """As an author writes it: types without quotes, and a line for each argument if there are many."""
    text = re.sub(r"(: |-> )([\"'])(.*?)\2(?=[,)]| = |$)", r"\1\3", str(inspect.signature(item)))
    text = text.replace("<factory>", "...")
    return text if len(text) < _WIDTH else re.sub(r", (?=\*{0,2}\w+: |\*, )", ",\n    ", text)
