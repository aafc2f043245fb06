"""MySQL, from the packages that tools/bootstrap.sh unpacks."""

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
        script = self._write(self.folder / "administrator.sql", self._administrator())
        options = [f"--datadir={data}", f"--init-file={script}", "--innodb-redo-log-capacity=128M"]
        self._run([*self._program(), "--initialize-insecure", *options])
        script.unlink()
