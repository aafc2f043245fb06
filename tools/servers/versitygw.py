"""An object store with the S3 API that survives a kill: versitygw over a folder of this machine.

tools/bootstrap.sh builds it from the Go module proxy when it is asked for `versitygw`, where Go is installed.
"""

import os
import secrets
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from tools.servers.base import Server, installed

PROGRAM = Path("versitygw/versitygw")
_SIDECAR = "attributes"
"""The folder for objects' attributes, if the file system keeps none of users. There a put that fails because its folder
was just deleted leaves attributes behind: versitygw then refuses the key as taken for ever (412), and finds no object.
"""


class VersityGw(Server):
    """One store with the bucket `bucket`; `login` and `password` are its keys. Requests are in `requests`."""

    name = "versitygw"
    bucket: ClassVar[str] = "wal"
    login: ClassVar[str] = "airflow-ft"
    region: ClassVar[str] = "us-east-1"

    @property
    def password(self) -> str:
        """Made at random for each data folder and kept beside it."""
        path = self.folder / "password"
        if not path.exists():
            self._prepare_folder()
            self._write(path, secrets.token_hex(12))
        return path.read_text()

    @property
    def url(self) -> str:
        """The endpoint."""
        return f"http://{self.host}:{self.port}"

    def connection(self) -> dict[str, Any]:
        """Return the fields of a connection of Airflow's type `aws`."""
        extra = {"region_name": self.region, "endpoint_url": self.url}
        return {"login": self.login, "password": self.password, "extra": extra}

    def place(self, folder: str, conn_id: str = "lake") -> str:
        """Return the URI of a folder by a connection."""
        return f"s3://{conn_id}@{self.bucket}/{folder}"

    def requests(self) -> list[str]:
        """Return the lines of its access log, one a request."""
        path = self.folder / "access.log"
        return path.read_text(errors="replace").splitlines() if path.exists() else []

    def _initialise(self, data: Path) -> None:
        beside = () if _has_attributes(data) else (_SIDECAR,)
        for name in (f"objects/{self.bucket}", "versions", *beside):
            folder = data / name
            for each in (folder.parent, folder):
                if not each.exists():
                    self._make(each)

    def _command(self, data: Path) -> Sequence[str]:
        return [
            str(self._programs()),
            *("--port", f"{self.host}:{self.port}"),
            *("--region", self.region),
            "--quiet",
            *("--access-log", str(self.folder / "access.log")),
            "posix",
            *(("--sidecar", str(data / _SIDECAR)) if (data / _SIDECAR).exists() else ()),
            str(data / "objects"),
        ]

    def _environment(self) -> dict[str, str]:
        keys: Mapping[str, str] = {"ROOT_ACCESS_KEY": self.login, "ROOT_SECRET_KEY": self.password}
        return {**super()._environment(), **keys}

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/", timeout=5):
                return True
        except urllib.error.HTTPError:  # it wants a signature
            return True
        except OSError:
            return False

    def _programs(self) -> Path:
        return installed("versitygw", PROGRAM)


def _has_attributes(folder: Path) -> bool:
    try:
        os.setxattr(folder, "user.airflow-ft", b"")
    except OSError:
        return False
    return True
