"""Print the figures of docs/architecture.md: `python -m tools.shape [COMMIT]`, by default of the files as they are."""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

PACKAGE = "airflow_ft"


def main(arguments: list[str]) -> None:
    """Print one figure a line."""
    for what, number in figures(_committed(arguments[0]) if arguments else _here()).items():
        print(f"{number:>7,}  {what}")


def figures(sources: Mapping[str, str]) -> dict[str, int]:
    """Return the figures of modules, by path."""
    parsed = {path: ast.parse(text) for path, text in sources.items()}
    modules = {_module(path) for path in sources}
    arrows, of_spec, widest = set(), 0, 0
    for path, tree in parsed.items():
        here = _part(_module(path))
        arrows |= {(here, _part(name)) for name in _imported(tree, modules)} if here else set()
        of_spec += sum(map(_takes_spec, ast.walk(tree)))
        widest = max(widest, *map(_methods, (each for each in tree.body if _is_protocol(each))), 0)
    arrows = {(here, there) for here, there in arrows if there and here != there}
    lengths = [text.count("\n") for text in sources.values()]
    return {
        "parts (packages and modules directly below airflow_ft)": len({_part(name) for name in modules} - {""}),
        "arrows (a part imports another)": len(arrows),
        "pairs of parts that import each other": sum((there, here) in arrows for here, there in arrows) // 2,
        "methods that the widest protocol declares": widest,
        "functions that take a PipelineSpec": of_spec,
        "files": len(lengths),
        "files over 400 lines": sum(length > 400 for length in lengths),
        "files under 40 lines": sum(length < 40 for length in lengths),
        "lines": sum(lengths),
    }


def _imported(tree: ast.Module, modules: set[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _is_protocol(node: ast.stmt) -> bool:
    return isinstance(node, ast.ClassDef) and any(ast.unparse(base).startswith("Protocol") for base in node.bases)


def _takes_spec(node: ast.AST) -> bool:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return any(each.annotation is not None and "PipelineSpec" in ast.unparse(each.annotation) for each in given)


def _methods(node: ast.stmt) -> int:
    return sum(isinstance(each, ast.FunctionDef) for each in getattr(node, "body", ()))


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _part(name: str) -> str:
    return [*name.split("."), ""][1]


def _here() -> dict[str, str]:
    return {path.as_posix(): path.read_text() for path in sorted(Path(PACKAGE).rglob("*.py"))}


def _committed(commit: str) -> dict[str, str]:
    packed = subprocess.run(["git", "archive", commit, PACKAGE], check=True, stdout=subprocess.PIPE).stdout
    found = {}
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for member in archive:
            if member.name.endswith(".py") and (file := archive.extractfile(member)) is not None:
                found[member.name] = file.read().decode()
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
