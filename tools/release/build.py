"""Builds wheel and source archive of a commit: the same bytes whenever, wherever and by whomever they are built.

`make wheel`, or `python -m tools.release.build FOLDER`: what is committed goes in, and nothing else. Times are the
commit's, modes and owners are set here, and setuptools is that of requirements.lock: it writes its version into wheels.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
INSTALLED_AS = {
    "airflow_ft/": "airflow_ft/",
    "dags/": "airflow_ft/example_dags/",
    "docs/": "airflow_ft/docs/",
    "plugins/": "airflow_ft/plugins/",
}
"""Folder of the repository -> where it is installed; setup.py and setup.cfg say the same to setuptools."""
BESIDE = {"LICENSE", "CHANGELOG.md", "README.md", "MANIFEST.in", "pyproject.toml", "setup.cfg", "setup.py"}
"""What the source archive holds beside these folders, of what is committed."""
EXAMPLES = "examples/"
"""Only the source archive has these."""


def build(out: Path, *, root: Path = ROOT, commit: str = "HEAD") -> list[Path]:
    """Builds into `out`, which is emptied of earlier builds; returns the wheel and the source archive.

    Raises:
        subprocess.CalledProcessError: there is no such commit, or the build failed; its output says why.
    """
    time = int(_git(root, "log", "-1", "--format=%ct", commit))
    out.mkdir(parents=True, exist_ok=True)
    for old in (*out.glob("*.whl"), *out.glob("*.tar.gz")):
        old.unlink()
    with tempfile.TemporaryDirectory(prefix="airflow-ft-build-") as folder, committed(root, commit) as source:
        fresh = Path(folder)
        _run([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, str(source)], fresh, time)
        _normalise(next(fresh.glob("*.tar.gz")), time)
        return sorted(Path(shutil.move(made, out / made.name)) for made in fresh.iterdir())


@contextmanager
def committed(root: Path, commit: str = "HEAD") -> Iterator[Path]:
    """A folder with what is committed, with modes that do not follow the umask of whoever builds."""
    with tempfile.TemporaryDirectory(prefix="airflow-ft-source-") as folder:
        archive = Path(folder) / "source.tar"
        _git(root, "-c", "tar.umask=0022", "archive", "--prefix=source/", f"--output={archive}", commit)
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="tar")
        yield Path(folder) / "source"


def unexpected(built: Iterable[Path], *, root: Path = ROOT, commit: str = "HEAD") -> list[str]:
    """What is in a wheel or source archive of a commit and should not be, and what lacks; empty when all is well."""
    tracked = _git(root, "ls-tree", "-r", "--name-only", commit).splitlines()
    shipped = {file for file in tracked if file.startswith(tuple(INSTALLED_AS))}
    problems: list[str] = []
    for file in built:
        if file.suffix == ".whl":
            with zipfile.ZipFile(file) as wheel:
                names = set(wheel.namelist())
            info = f"{'-'.join(file.name.split('-')[:2])}.dist-info/"
            found = {name for name in names if not name.startswith(info)}
            allowed = set(map(_installed, shipped))
            needed = {*allowed, f"{info}licenses/LICENSE"}
        else:
            with tarfile.open(file) as archive:
                names = {member.name.partition("/")[2] for member in archive if member.isfile()}
            found = {name for name in names if not name.startswith("airflow_ft.egg-info/") and name != "PKG-INFO"}
            allowed = needed = shipped | BESIDE | {file for file in tracked if file.startswith(EXAMPLES)}
        problems += [f"{file.name} holds {name}, which does not belong there" for name in sorted(found - allowed)]
        problems += [f"{file.name} lacks {name}" for name in sorted(needed - names)]
    return problems


def digest(file: Path) -> str:
    """SHA-256, in hexadecimal digits."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _installed(name: str) -> str:
    folder = next(folder for folder in INSTALLED_AS if name.startswith(folder))
    return INSTALLED_AS[folder] + name.removeprefix(folder)


def _normalise(archive: Path, time: int) -> None:
    """Writes a tar.gz anew: entries by name, of nobody, with one time and two modes. Setuptools takes the disk's."""
    plain = archive.with_suffix(".new")
    with tarfile.open(archive) as old, tarfile.open(plain, "w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old, key=lambda each: each.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = time, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    # The file's name is left out of the header, and so is the time of packing.
    with archive.open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=time) as packed:
        packed.write(plain.read_bytes())
    plain.unlink()


def _run(command: list[str], folder: Path, time: int) -> None:
    same = {"SOURCE_DATE_EPOCH": str(time), "PYTHONHASHSEED": "0", "TZ": "UTC", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **same}, umask=0o022, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout


def main() -> None:
    """Builds into the folder that is named, and tells the digests."""
    for file in build(Path(sys.argv[1])):
        print(f"{digest(file)}  {file}")


if __name__ == "__main__":
    main()
