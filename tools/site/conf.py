"""How Sphinx makes a site of docs/, README.md and CHANGELOG.md: `make docs`.

The Markdown files are read where they lie, so a link is the same here, in Airflow's UI and on a forge. Furo is the
theme because it has a sidebar, a search and a dark mode that need no network, follows Sphinx' releases, and is what
pip's own documentation uses.
"""

import logging as python_logging
import os
import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

import airflow_ft

# What autodoc imports imports Airflow, which makes a folder for itself, and tells of it.
os.environ.setdefault("AIRFLOW_HOME", str(Path(".local/doctrees/airflow").resolve()))
python_logging.disable(python_logging.INFO)

HERE = Path(__file__).parent
CONTENTS = HERE / "contents.md"

project = "airflow-ft"
version = release = airflow_ft.__version__
root_doc = "docs/index"
include_patterns = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/**.md"]
exclude_patterns = [".*", "build", "dist"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 4
suppress_warnings = ["toc.not_included"]  # said below, with what to do
smartquotes_action = "D"  # dashes alone: quotation marks of docstrings are those of Python
default_role = "literal"
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
maximum_signature_line_length = 100

html_theme = "furo"
html_title = f"airflow-ft {version}"
html_extra_path = ["index.html"]
html_show_copyright = False
html_copy_source = False


def without_folders(app: Sphinx, page: str, source: list[str]) -> None:
    """A site has no place for a folder of the repository: its name stays, the link goes."""
    beside = (Path(app.srcdir) / page).parent

    def link(match: re.Match[str]) -> str:
        return match[1] if (beside / match[2]).is_dir() else match[0]

    source[0] = re.sub(r"\[([^\]]+)\]\(([^)\s#:]+)\)", link, source[0])


def with_contents(app: Sphinx, page: str, source: list[str]) -> None:
    """The first page has the table of contents, which Airflow's UI and forges would show as code."""
    if page == root_doc:
        source[0] += CONTENTS.read_text()


def refuse_lost_pages(app: Sphinx, env: BuildEnvironment) -> None:
    """A page that nobody finds is a mistake; Sphinx says so too, but not what to do."""
    for page in sorted(env.found_docs - set(env.files_to_rebuild) - {root_doc}):
        logging.getLogger(__name__).warning(
            "no table of contents has it. Fix: add a line `%s` to tools/site/contents.md, below the heading where a"
            " reader looks for it",
            page.removeprefix("docs/") if page.startswith("docs/") else f"/{page}",
            location=page,
        )


def signature_for_readers(
    app: Sphinx, kind: str, name: str, obj: Any, options: Any, arguments: str | None, returned: str | None
) -> tuple[str, str | None] | None:
    """Without the fields that no author gives, and with `...` for a default that is made anew each time."""
    if arguments is None:
        return None
    given = re.sub(r", (configured|given): \w+\[[^]]+\] = \w*\([^)]*\)", "", arguments)
    return given.replace("<factory>", "..."), returned


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", without_folders)
    app.connect("source-read", with_contents)
    app.connect("autodoc-process-signature", signature_for_readers)
    app.connect("env-check-consistency", refuse_lost_pages)
