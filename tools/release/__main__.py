"""`make release`: is everything there that a release needs? Uploads nothing.

What it makes lies in .local/release: dist/ with wheel and source archive, sbom.json (CycloneDX), licences.txt. Each
check is a line; below it stands what is to be mended. Exit status 0 only when nothing is.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tools.release.build import ROOT, build, digest, unexpected
from tools.release.installing import extras, import_all, install, metadata
from tools.release.licences import dependencies
from tools.servers.base import local_folder

OUT = local_folder() / "release"
DIST = OUT / "dist"
SBOM = OUT / "sbom.json"
LICENCES = OUT / "licences.txt"


def clean() -> Iterator[str]:
    """Nothing lies about that is not committed: a release is a commit."""
    for line in _output("git", "status", "--porcelain").splitlines():
        yield f"commit or remove {line[3:]}"


def version() -> Iterator[str]:
    """Package, changelog and tag name the same version."""
    yield from disagreeing(
        (ROOT / "airflow_ft" / "__init__.py").read_text(),
        (ROOT / "CHANGELOG.md").read_text(),
        {tag: _output("git", "rev-list", "-n", "1", tag).strip() for tag in _output("git", "tag").split()},
        _output("git", "rev-parse", "HEAD").strip(),
    )


def disagreeing(package: str, changelog: str, tags: dict[str, str], head: str) -> Iterator[str]:
    """What these texts say differently; `tags` are the commits that have a tag already."""
    found = next(
        node.value
        for node in ast.parse(package).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__version__"
    )
    number = str(ast.literal_eval(found))
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", number):
        yield f"{number} is no version of the form 1.2.3, 1.2.3rc1"
    heading = re.search(r"^## (\S+) \((.+)\)$", changelog, re.MULTILINE)
    if heading is None:
        yield "CHANGELOG.md has no heading of the form '## 1.2.3 (2030-01-31)'"
        return
    if heading[1] != number:
        yield f"the package is {number}, but CHANGELOG.md begins with {heading[1]}"
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", heading[2]):
        yield f"CHANGELOG.md says '({heading[2]})' of {heading[1]}: write the day, as 2030-01-31"
    if tags.get(f"v{number}", head) != head:
        yield f"v{number} is another commit's already: the next release needs a version of its own"


def reproducible() -> Iterator[str]:
    """A second build, from a clone elsewhere, gives the same bytes; nothing lacks, and nothing is too much."""
    commit = _output("git", "rev-parse", "HEAD").strip()  # others may commit meanwhile
    first = build(DIST, commit=commit)
    with tempfile.TemporaryDirectory(prefix="airflow-ft-again-") as folder:
        clone = Path(folder) / "clone"
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True, umask=0o077)
        for one, other in zip(first, build(Path(folder) / "dist", root=clone, commit=commit), strict=True):
            if digest(one) != digest(other):
                yield f"{one.name} has other bytes when it is built again"
    yield from unexpected(first, commit=commit)


def described() -> Iterator[str]:
    """Registries take what it says of itself."""
    done = subprocess.run(
        [Path(sys.executable).with_name("twine"), "check", "--strict", *built()],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        yield done.stdout.strip()
    for line in metadata(wheel()).get("Project-URL", []):
        name, _, url = line.partition(", ")
        if not url.startswith("https://"):
            yield f"Project-URL {name} is {url!r}: PyPI takes addresses with https:// alone, until then an own index"


def installed() -> Iterator[str]:
    """The wheel and each extra install into a fresh environment, where all public names can be imported."""
    known = extras(wheel())
    with tempfile.TemporaryDirectory(prefix="airflow-ft-extras-") as folder:
        base = Path(folder) / "base"
        for wanted in ([], *([extra] for extra in known), known):
            environment = Path(folder) / ("-".join(wanted) or base.name)
            python = install(wheel(), wanted, environment, base if wanted else None)
            if problem := import_all(python):
                yield f"airflow-ft[{','.join(wanted)}]: {problem}"
        # The last environment has them all.
        program = Path(sys.executable).with_name("cyclonedx-py")
        kind = ("--output-reproducible", "--output-format", "JSON", "--output-file", SBOM)
        settings = {**os.environ, "SOURCE_DATE_EPOCH": _time()}
        subprocess.run([program, "environment", *kind, python], check=True, capture_output=True, env=settings)


def licensed() -> Iterator[str]:
    """Software under Apache-2.0 can depend on each dependency."""
    found = list(dependencies(json.loads(SBOM.read_text())))
    LICENCES.write_text("".join(f"{each.name} {each.version}: {each.licence or 'unknown'}\n" for each in found))
    for each in found:
        if each.refused:
            yield f"{each.name} {each.version} {each.refused}: {each.licence or 'see its repository'}"


CHECKS: tuple[tuple[str, Callable[[], Iterable[str]]], ...] = (
    ("everything is committed", clean),
    ("package, changelog and tag agree", version),
    ("the build is reproducible, and holds what belongs there", reproducible),
    ("metadata are valid", described),
    ("installs with each extra, imports, bill of materials", installed),
    ("licences of dependencies are allowed", licensed),
)


def main() -> int:
    """Runs all checks, whatever became of those before."""
    OUT.mkdir(parents=True, exist_ok=True)
    wrong = 0
    for title, check in CHECKS:
        began = time.monotonic()
        try:
            problems = list(check())
        except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
            problems = [f"{error} {getattr(error, 'stderr', '') or ''}".strip()]
        wrong += bool(problems)
        print(f"{'MEND' if problems else 'ok  '}  {title} ({time.monotonic() - began:.0f} s)")
        for problem in problems:
            print(f"      - {problem}")
    for file in built():
        print(f"{digest(file)}  {file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file}")
    print(
        "Nothing was uploaded."
        + ("" if wrong else " What is left: make test-all, make matrix, make audit; docs/releasing.md")
    )
    return 1 if wrong else 0


def built() -> list[Path]:
    """Wheel and source archive."""
    return sorted((*DIST.glob("*.whl"), *DIST.glob("*.tar.gz")))


def wheel() -> Path:
    """The one that was built last."""
    return next(DIST.glob("*.whl"))


def _time() -> str:
    return _output("git", "log", "-1", "--format=%ct").strip()


def _output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
