"""`tools/bootstrap.sh` installs its components side by side; what several of them want is installed once."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

TOOLS = Path(__file__).parents[1] / "tools"

PYTHON = """#!/usr/bin/env bash
# Replaces Python: prints its own path, and installs uv slowly into a folder that must not exist.
case "$*" in
  -c*) echo "$0" ;;
  *"pip install"*)
    echo install >>"$(dirname "$0")/installs"
    target=$(sed -E 's/.*--target ([^ ]+) .*/\\1/' <<<"$*")
    mkdir "$target"
    sleep 0.5
    mkdir "$target/bin"
    printf '#!/usr/bin/env bash\\n' >"$target/bin/uv"
    chmod +x "$target/bin/uv" ;;
esac
"""


def test_components_that_start_at_once_install_uv_once(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bootstrap.sh", "python.sh", "s3.lock"):
        shutil.copy(TOOLS / name, tools)
    for name in ("requirements.lock", "setup.cfg", "setup.py"):
        (tmp_path / name).touch()
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)

    ended = subprocess.run(
        [tools / "bootstrap.sh", "venv", "s3"],
        env={**os.environ, "AIRFLOW_FT_PYTHON": str(python)},
        capture_output=True,
        text=True,
    )

    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "installs").read_text().split() == ["install"]
    assert {path.name for path in (tmp_path / ".local" / "stamps").iterdir()} == {"venv", "s3"}
