"""Check the English of docs, help, errors, page, docstrings and names of tests: `python -m tools.prose`.

Counts four kinds of faults by area and compares them with `tools/prose.json`, which allows what is left over from
earlier. A count above its limit fails; `--lower` writes lower limits after an improvement, and never higher ones.

| fault | what it is |
| --- | --- |
| dialect | words that readers had to decode: *anew, whoever, goes on, so many* |
| long | a sentence with more than 30 words |
| riddle | a docstring that begins with What, Whether, How, Where, Who, Of or That |
| name | a test whose name has more than 60 characters |
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMITS = Path(__file__).with_suffix(".json")
DIALECT = re.compile(
    r"\b(?:whoever|anew|nobody|somebody|(?:is|are|was|were|be|being) (?:told|waited for)|tells?"
    r"|go(?:es|ing|ne)? on|went on|stands?|stood|so (?:many|often|long)(?! as)|no more|at work|of one's own"
    r"|mend(?:s|ed|ing)?|in vain|what lacks|shall)\b",
    re.IGNORECASE,
)
MOST_WORDS = 30
MOST_CHARACTERS = 60
RIDDLE = re.compile(r"(?:What|Whether|How|Where|Who|Whom|Whose|Of|That)\b")


def main(arguments: list[str]) -> int:
    """Print the faults above their limits. Returns the exit status."""
    found = {area: _faults(list(texts)) for area, texts in areas().items()}
    if "--list" in arguments:
        for area in arguments[arguments.index("--list") + 1 :] or found:
            for fault, places in found[area].items():
                print(*(f"{area}: {fault}: {place}" for place in places), sep="\n")
        return 0
    limits: dict[str, dict[str, int]] = json.loads(LIMITS.read_text()) if LIMITS.exists() else {}
    counts = {area: {fault: len(places) for fault, places in faults.items()} for area, faults in found.items()}
    if "--lower" in arguments:
        lowered = {
            area: {fault: min(count, limits.get(area, {}).get(fault, count)) for fault, count in faults.items()}
            for area, faults in counts.items()
        }
        LIMITS.write_text(json.dumps(lowered, indent=2) + "\n")
        return 0
    above = [
        f"{area}: {count} {fault}, at most {limits.get(area, {}).get(fault, 0)} allowed"
        for area, faults in counts.items()
        for fault, count in faults.items()
        if count > limits.get(area, {}).get(fault, 0)
    ]
    if above:
        print(*above, sep="\n")
        print("Fix: rewrite what you have changed. `python -m tools.prose --list AREA` shows the places.")
    return 1 if above else 0


def areas() -> dict[str, Iterator[tuple[str, str]]]:
    """Return the texts of each area as (place, text)."""
    return {
        "docs": _pages(),
        "page": _strings_of_the_page(),
        "help": _strings_of_the_help(),
        "errors": _messages(),
        "docstrings": _docstrings(),
        "tests": _names_of_tests(),
    }


def sentences(text: str) -> list[str]:
    """Return the sentences of a text without code, one for each table cell, heading or item of a list."""
    text = re.sub(r"```.*?```", "\n", text, flags=re.DOTALL)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"``?[^`\n]+``?", "Code", text)
    parts = re.split(r"\n\s*\n|\n\s*(?:[-*>]|\d+\.) |\n\s*(?=\w+: )|\n?\||^#+ |\n#+ ", text, flags=re.MULTILINE)
    return [
        " ".join(sentence.split())
        for part in parts
        for sentence in re.split(r"(?<=[.!?:])\s+(?=[\"'(]?[A-Z`*])", part)
        if re.search(r"\w", sentence)
    ]


def _faults(texts: list[tuple[str, str]]) -> dict[str, list[str]]:
    faults: dict[str, list[str]] = {"dialect": [], "long": [], "riddle": [], "name": []}
    for place, text in texts:
        if place.startswith("test ") and len(text) > MOST_CHARACTERS:
            faults["name"].append(f"{place}: {text}")
        for sentence in sentences(text):
            faults["dialect"] += [f"{place}: {word}: {sentence}" for word in DIALECT.findall(sentence)]
            if len(sentence.split()) > MOST_WORDS:
                faults["long"].append(f"{place}: {sentence}")
        if place.startswith("def ") and RIDDLE.match(text.strip()):
            faults["riddle"].append(f"{place}: {text.strip().splitlines()[0]}")
    return faults


def _pages() -> Iterator[tuple[str, str]]:
    for page in [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        yield str(page.relative_to(ROOT)), page.read_text()


def _strings_of_the_page() -> Iterator[tuple[str, str]]:
    for number, line in enumerate((ROOT / "plugins/words.js").read_text().splitlines(), 1):
        if found := re.match(r'\s+\w+: "(.*)",$', line):
            yield f"words.js:{number}", found[1]


def _strings_of_the_help() -> Iterator[tuple[str, str]]:
    for name in ("arguments.py", "cli.py"):
        for node in ast.walk(ast.parse((ROOT / "airflow_ft/admin" / name).read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
                yield f"{name}:{node.lineno}", node.value


def _modules(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    for folder in folders or ("airflow_ft", "plugins"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            yield str(file.relative_to(ROOT)), ast.parse(file.read_text())


def _messages() -> Iterator[tuple[str, str]]:
    """The literal parts of what errors are made of."""
    for name, module in _modules():
        for node in ast.walk(module):
            if not isinstance(node, ast.Call):
                continue
            called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if called.endswith("Error"):
                for each in (*node.args, *(keyword.value for keyword in node.keywords)):
                    if text := _literal(each):
                        yield f"{name}:{node.lineno}", text


def _literal(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(_literal(each) if isinstance(each, ast.Constant) else "code" for each in node.values)
    return ""


def _docstrings() -> Iterator[tuple[str, str]]:
    for name, module in _modules():
        for node in ast.walk(module):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text:
                    line = getattr(node, "lineno", 1)
                    yield f"{'' if isinstance(node, ast.Module) else 'def '}{name}:{line}", text


def _names_of_tests() -> Iterator[tuple[str, str]]:
    for name, module in _modules("tests", "airflow_ft/testing"):
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                yield f"test {name}:{node.lineno}", node.name.replace("_", " ")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
