"""MariaDB, from the packages that tools/bootstrap.sh unpacks."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from tools.servers.base import Options, installed, library_path
from tools.servers.mysql_family import MySqlFamily

# What mariadb-install-db feeds to the server, without help texts and test database.
_SCRIPTS = (
    "mysql_system_tables.sql",
    "mysql_performance_tables.sql",
    "mysql_system_tables_data.sql",
    "maria_add_gis_sp_bootstrap.sql",
    "mysql_sys_schema.sql",
)


class MariaDb(MySqlFamily):
    """A MariaDB server. As in a plain installation it writes no binary log, unless `options={"log_bin": "binlog"}`."""

    name = "mariadb"
    defaults: ClassVar[Options] = {
        **MySqlFamily.defaults,
        "innodb-log-file-size": "64M",
        "aria-pagecache-buffer-size": "8M",
    }

    def _programs(self) -> Path:
        return installed("mariadb", Path("servers/mariadb"))

    def _environment(self) -> dict[str, str]:
        return super()._environment() | {"LD_LIBRARY_PATH": library_path(self._programs())}

    def _program(self) -> Sequence[str]:
        root = self._programs()
        return [
            str(root / "usr/sbin/mariadbd"),
            "--no-defaults",
            f"--basedir={root / 'usr'}",
            f"--lc-messages-dir={root / 'usr/share/mysql'}",
            f"--character-sets-dir={root / 'usr/share/mysql/charsets'}",
            f"--plugin-dir={root / 'usr/lib/mysql/plugin'}",
        ]

    def _initialise(self, data: Path) -> None:
        scripts = self._programs() / "usr/share/mysql"
        text = ["CREATE DATABASE mysql;", "USE mysql;", "SET @auth_root_socket=NULL, @skip_auth_anonymous_user=1;"]
        text += [(scripts / name).read_text() for name in _SCRIPTS if (scripts / name).exists()]
        text += ["FLUSH PRIVILEGES;", self._administrator()]
        script = self._write(self.folder / "bootstrap.sql", "\n".join(text))
        options = [f"--datadir={data}", "--bootstrap", "--skip-networking", "--innodb-log-file-size=64M"]
        # --bootstrap reads from its standard input, which no server here inherits.
        self._run(["sh", "-c", 'exec "$@" < "$0"', str(script), *self._program(), *options])
        script.unlink()
