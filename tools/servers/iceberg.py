"""Iceberg's own REST catalog, the fixture of its tests, from the jars that tools/bootstrap.sh copies."""

import shutil
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from tools.servers.base import Server, ServerError, installed

_MAIN = "org.apache.iceberg.rest.RESTCatalogServer"


class IcebergRest(Server):
    """A REST catalog whose tables lie on disk, and whose memory is a file of SQLite; `url` is what clients get."""

    name = "iceberg"
    heap: ClassVar[str] = "192m"

    @property
    def url(self) -> str:
        """`http://host:port`."""
        return f"http://{self.host}:{self.port}"

    def _initialise(self, data: Path) -> None:
        """It makes what it needs."""

    def _command(self, data: Path) -> Sequence[str]:
        java = shutil.which("java")
        if java is None:
            raise ServerError("there is no java: run tools/bootstrap.sh iceberg")
        options = [f"-Xmx{self.heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true"]
        return [java, *options, "-cp", f"{self._programs()}/*", _MAIN]

    def _environment(self) -> dict[str, str]:
        data = self.folder / "data"
        return super()._environment() | {
            "CATALOG_REST_PORT": str(self.port),
            "CATALOG_CATALOG__IMPL": "org.apache.iceberg.jdbc.JdbcCatalog",
            "CATALOG_URI": f"jdbc:sqlite:{data / 'catalog.db'}",
            "CATALOG_WAREHOUSE": (self.folder / "lake").as_uri(),
            "CATALOG_JDBC_STRICT__MODE": "true",
            **{name: str(value) for name, value in self.options.items()},
        }

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/v1/config", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _programs(self) -> Path:
        return installed("iceberg", Path("jars/iceberg"))
