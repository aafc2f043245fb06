"""The site of the documentation has every page, each link leads somewhere, and what authors import is described."""

import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

import airflow_ft

pytestmark = pytest.mark.slow

KINDS = ("operators", "sensors", "triggers", "notifications")
BASES = {"ActingOperator", "GateSensor"}  # nobody makes one
PROJECT = Path(__file__).resolve().parents[1]


def built(source: Path, site: Path, builder: str = "html") -> tuple[int, str]:
    """Exit status and warnings of a build as `make docs` does it."""
    sphinx = [sys.executable, "-m", "sphinx", "-b", builder, "-c", PROJECT / "tools/site", "-d", site / "doctrees"]
    done = subprocess.run(
        [*sphinx, "-E", "-W", "--keep-going", "-q", source, site / "html"],
        capture_output=True,
        text=True,
        cwd=PROJECT,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_the_reference_has_every_name_that_an_author_imports(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """`make test` reads all pages and resolves their links. `make test-all` writes them too, with their code blocks."""
    status, output = built(PROJECT, tmp_path, "html" if pytestconfig.getoption("--all") else "dummy")
    assert status == 0, output
    read = pickle.loads((tmp_path / "doctrees" / "environment.pickle").read_bytes())
    entries = read.domaindata["py"]["objects"]
    described = {name for name, entry in entries.items() if entry.objtype in ("class", "function", "exception")}
    missing = {name for name in airflow_ft.__all__ if f"airflow_ft.{name}" not in described} - {"__version__"}
    code = "".join(file.read_text() for kind in KINDS for file in (PROJECT / "airflow_ft" / kind).glob("*.py"))
    classes = set(re.findall(r"^class ([A-Z]\w+(?:Operator|Sensor|Trigger|Notifier))\b", code, re.MULTILINE)) - BASES
    missing |= classes - {name.rpartition(".")[2] for name in described}
    assert not missing, "add them to a page of docs/reference"
    private = {name for name in described if any(part.startswith("_") for part in name.split("."))}
    assert not private


def test_a_page_needs_no_network(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text("# Start\n\nA page with `code` and [a link](https://airflow.apache.org).\n")
    built(tmp_path, tmp_path / "out")
    pages = [*(tmp_path / "out" / "html").rglob("*.html")]
    assert tmp_path / "out" / "html" / "docs" / "index.html" in pages
    for page in pages:
        for line in page.read_text().splitlines():
            assert not ("http" in line and ("<script" in line or "<link" in line or "<img" in line)), (page, line)


def test_what_leads_nowhere_is_told_with_what_to_do(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text(
        "# Start\n\n[gone](gone.md), [no heading](lost.md#nothing), [folder](../docs), [file](../code.py)\n"
    )
    (docs / "lost.md").write_text("# Lost\n")
    (tmp_path / "code.py").write_text("")
    status, output = built(tmp_path, tmp_path / "out", "dummy")
    assert status != 0
    assert "cross-reference target not found: 'gone.md'" in output
    assert "local id not found in doc 'docs/lost': 'nothing'" in output
    assert (
        "docs/lost.md: WARNING: no table of contents has it. Fix: add a line `lost` to tools/site/contents.md" in output
    )
    assert "folder" not in output and "code.py" not in output
