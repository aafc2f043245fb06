"""MySQL, from the packages that tools/bootstrap.sh unpacks."""

import fcntl
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from tools.servers.base import Options, installed, library_path
from tools.servers.mysql_family import MySqlFamily


class MySql(MySqlFamily):
    """A real MySQL server; it writes a binary log, as MySQL does by default."""

    name = "mysql"
    defaults: ClassVar[Options] = {**MySqlFamily.defaults, "mysqlx": "OFF", "innodb-redo-log-capacity": "128M"}

    def _programs(self) -> Path:
        return installed("mysql", Path("servers/mysql"))

    def _program(self) -> Sequence[str]:
        root = self._programs()
        # The packages of a newer release bring their own C library, so they also need their own loader.
        loader = next(path for path in sorted(root.rglob("ld-linux*.so.*")) if path.exists())
        private = [str(folder) for folder in root.glob("usr/lib/*/mysql/private")] + [
            str(root / "usr/lib/mysql/private")
        ]
        return [
            str(loader),
            "--library-path",
            ":".join([library_path(root), *private]),
            str(root / "usr/sbin/mysqld"),
            "--no-defaults",
            f"--basedir={root / 'usr'}",
            f"--lc-messages-dir={root / 'usr/share/mysql'}",
            f"--character-sets-dir={root / 'usr/share/mysql/charsets'}",
            "--secure-file-priv=",
        ]

    def _initialise(self, data: Path) -> None:
        """Copies a data folder that was made once: making one takes MySQL seconds, most of them for keys."""
        template = self._programs() / "template"
        with template.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not template.exists():
                self._make_template(fresh := template.with_suffix(".new"))
                fresh.rename(template)
        subprocess.run(["cp", "--archive", f"{template / 'data'}/.", data], check=True)
        self._write(self.folder / "password", (template / "password").read_text())

    def _make_template(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self._make(folder / "data")
        script = self._write(self.folder / "administrator.sql", self._administrator())
        options = [f"--datadir={folder / 'data'}", f"--init-file={script}", "--innodb-redo-log-capacity=8M"]
        self._run([*self._program(), "--initialize-insecure", *options])
        script.unlink()
        (folder / "data" / "auto.cnf").unlink()  # the identity of a server, which makes its own
        self._write(folder / "password", self.password)
