"""Every text of the page is in plugins/words.js: no other script has English in it, and no text is left over."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PLUGINS = Path(__file__).parents[2] / "plugins"
SCRIPTS = sorted(path.stem for path in PLUGINS.glob("*.js") if path.stem != "words")
NOT_SHOWN = frozenset(
    {"Content-Type", "Date", "from airflow_ft.example_dags.airflow_ft_maintenance import dag"}  # headers, Python
)
_CODE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|(?P<text>"(?:\\.|[^"\\\n])*")"""
    r"""|(?<=[(=,])\ ?/(?:\\.|\[[^\]]*\]|[^/\\\n*])+/|(?P<mark>[`{}])|.""",
    re.DOTALL | re.VERBOSE,
)
_TEMPLATE = re.compile(r"(?P<text>(?:\\.|\$(?!\{)|[^`\\$])*)(?P<end>`|\$\{)", re.DOTALL)
_WORD = re.compile(r"(?<![\w-])[A-Za-z]{2,}(?![\w-])")
_SHOWN = re.compile(
    r"""(?:null|\}),\ "(?=[^"]*[A-Za-z]{2})([^"]+)"\)"""
    r"""|\b(?:label|title|name|hint|caption|nothing|placeholder|"aria-label"):\ "(?=[^"]*[A-Za-z]{2})([^"]+)\"""",
    re.VERBOSE,
)


def texts(script: str) -> Iterator[str]:
    """What stands in quotes, and between the placeholders of templates; not in comments."""
    open_braces: list[int] = []  # of each template that a placeholder is open in
    place, inside = 0, False
    while place < len(script):
        found = (_TEMPLATE if inside else _CODE).match(script, place)
        assert found is not None, script[place : place + 40]
        place = found.end()
        if found["text"]:
            yield found["text"].strip('"')
        if inside:
            inside = False
            if found["end"] == "${":
                open_braces.append(0)
        elif found["mark"] == "`":
            inside = True
        elif found["mark"] == "{" and open_braces:
            open_braces[-1] += 1
        elif found["mark"] == "}" and open_braces:
            open_braces[-1] -= 1
            if open_braces[-1] < 0:
                open_braces.pop()
                inside = True


def english(script: str) -> list[str]:
    """What a reader of the page would take for English."""
    found = [text for text in texts(script) if re.match("[A-Z][a-z]", text) or (" " in text and _WORD.search(text))]
    found += [first or second for first, second in _SHOWN.findall(script)]
    return [text for text in found if text not in NOT_SHOWN]


@pytest.mark.parametrize(
    ("script", "texts"),
    [
        ('h(Text, null, "Rows")', ["Rows", "Rows"]),
        ("h(Text, null, `${count(n)} rows`)", [" rows"]),
        ('h(Text, { as: "span" }, "never")', ["never"]),
        ('h(Field, { label: "reason" })', ["reason"]),
        ("told(`a${b ? `${c} and {d}` : e}f`) // no text", [" and {d}"]),
        ('/* "No text" */ go(`dags/${id}/runs`, { width: "0 12px", style: "inline-block" })', []),
        ('path.replace(/ an "English expression/, "x")', []),
    ],
)
def test_english_is_told_from_code(script: str, texts: list[str]) -> None:
    assert english(script) == texts


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_script_but_one_has_english_in_it(name: str) -> None:
    assert english((PLUGINS / f"{name}.js").read_text()) == []


def test_each_text_is_shown_by_the_module_that_it_is_kept_for() -> None:
    words = (PLUGINS / "words.js").read_text()
    groups = dict(re.findall(r"export const (\w+) = /\*\* @type \{const\} \*/ \(\{\n(.*?)\n\}\);", words, re.DOTALL))
    assert set(groups) <= set(SCRIPTS) and len(groups) > 10
    for name, group in groups.items():
        kept = re.findall(r"^  (\w+): ", group, re.MULTILINE)
        used = set(re.findall(r"\bsay\.(\w+)", (PLUGINS / f"{name}.js").read_text()))
        assert set(kept) == used and len(kept) == len(used), name
