"""Check the codes of errors: `python -m tools.errors [PATH ...]`.

| fault | what it is |
| --- | --- |
| no code | a general error (`GENERAL`) is made without `code=` |
| not listed | `docs/errors.md` does not list a code |
| not used | `docs/errors.md` lists a code that the package does not have |
| retried | a text says that the task is retried: only the task knows it, and its log says it (`operators.failing`) |
| prose | a test compares the words of an error (`match=`, `in str(...)`) |

PATH limits `no code`, `retried` and `prose` to files below it.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GENERAL = {
    "ConfigurationError",
    "DeclinedError",
    "SinkAccessError",
    "SinkUnavailableError",
    "StageError",
    "TerminalError",
    "TransientError",
    "UnfitTargetError",
}
"""Classes that stand for many errors. Each other class has a code of its own, and may be given a finer one."""
PAGE = ROOT / "docs" / "errors.md"
_LISTED = re.compile(r"^\| `([a-z][a-z0-9_]+)` \|", re.MULTILINE)
_RETRIED = re.compile(r"\b(?:Airflow|[Tt]he task) retries(?: the task)?\.(?:$| [A-Z])")
_PROSE = re.compile(r"\bmatch=|\bin str\((?:error|caught|told|raised|refused|found|failed|exited)\b")


def main(arguments: list[str]) -> int:
    """Print the faults. Returns the exit status."""
    below = [Path(argument).resolve() for argument in arguments] or [ROOT]
    used: set[str] = set()
    texts: set[str] = set()
    faults: list[str] = []
    for path in _files("airflow_ft", "plugins", "dags"):
        tree = ast.parse(path.read_text())
        texts.update(
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        )
        used.update(code for code in _codes(tree) if code.islower())  # capitals are warnings
        if any(path.is_relative_to(each) for each in below):
            faults += [f"{path.relative_to(ROOT)}:{line}: no code: {name}" for line, name in _without_code(tree)]
            faults += [f"{path.relative_to(ROOT)}:{line}: retried: {text}" for line, text in _retried(tree)]
    listed = set(_LISTED.findall(PAGE.read_text()))
    if below == [ROOT]:
        faults += [f"docs/errors.md: not listed: {code}" for code in sorted(used - listed)]
        faults += [f"docs/errors.md: not used: {code}" for code in sorted(listed - texts)]
    for path in _files("tests"):
        if any(path.is_relative_to(each) for each in below):
            faults += [
                f"{path.relative_to(ROOT)}:{number}: prose: {line.strip()}"
                for number, line in enumerate(path.read_text().splitlines(), 1)
                if _PROSE.search(line)
            ]
    print(*faults, sep="\n", end="\n" if faults else "")
    return 1 if faults else 0


def _files(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def _codes(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "code" and isinstance(node.value, ast.Constant):
            yield str(node.value.value)
        elif isinstance(node, ast.ClassDef) and node.name.endswith("Error"):
            for each in node.body:
                if isinstance(each, ast.Assign | ast.AnnAssign) and isinstance(each.value, ast.Constant):
                    target = each.targets[0] if isinstance(each, ast.Assign) else each.target
                    if isinstance(target, ast.Name) and target.id == "code":
                        yield str(each.value.value)


def _without_code(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if name in GENERAL and not any(each.arg in ("code", None) for each in node.keywords):
                yield node.lineno, name


def _retried(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Find texts of errors. Docstrings may say it, and they are expressions of their own."""
    docs = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node not in docs and _RETRIED.search(str(node.value)):
            yield node.lineno, str(node.value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
