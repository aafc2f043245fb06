"""An object store with the S3 API: moto, in an environment of its own that tools/bootstrap.sh makes.

It holds everything in memory: what it has is gone when it ends.
"""

import urllib.parse
import urllib.request
import xml.etree.ElementTree as xml
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Self

from tools.servers.base import Options, Server, installed

_SETTING_UP = 4  # requests without a signature, until there are a user, a policy, a key and a bucket
_PROGRAM = """
import functools
from moto import server
from moto.moto_server.werkzeug_app import DomainDispatcherApplication as Dispatcher

Dispatcher.get_backend_for_host = functools.lru_cache(64)(Dispatcher.get_backend_for_host)
server.main()
"""
"""Start moto, and remember which backend serves a host: moto lists its 200 folders for each request to find out."""
_POLICY = '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}'


class S3(Server):
    """One store with the bucket `bucket`; `login` and `password` are the keys of its user."""

    name = "s3"
    bucket: ClassVar[str] = "lake"
    user: ClassVar[str] = "admin"

    def __init__(self, folder: Path, port: int | None = None, options: Options | None = None) -> None:
        super().__init__(folder, port, options)
        self.login = self.password = ""

    @property
    def url(self) -> str:
        """The endpoint."""
        return f"http://{self.host}:{self.port}"

    def start(self) -> Self:
        super().start()
        self._iam("CreateUser")
        self._iam("PutUserPolicy", PolicyName="all", PolicyDocument=_POLICY)
        made = xml.fromstring(self._iam("CreateAccessKey"))
        found = {each.tag.rpartition("}")[2]: each.text or "" for each in made.iter()}
        self.login, self.password = found["AccessKeyId"], found["SecretAccessKey"]
        self._ask(urllib.request.Request(f"{self.url}/{self.bucket}", method="PUT"))
        return self

    def _iam(self, action: str, **given: str) -> bytes:
        form = {"Action": action, "Version": "2010-05-08", "UserName": self.user, **given}
        scope = "Credential=nobody/20260101/us-east-1/iam/aws4_request"  # by which it finds the service
        headers = {"Authorization": f"AWS4-HMAC-SHA256 {scope}, SignedHeaders=host, Signature=none"}
        return self._ask(urllib.request.Request(self.url, urllib.parse.urlencode(form).encode(), headers))

    def _ask(self, request: urllib.request.Request) -> bytes:
        with urllib.request.urlopen(request, timeout=30) as answer:
            body: bytes = answer.read()
            return body

    def _initialise(self, data: Path) -> None:
        """It keeps nothing there."""

    def _command(self, data: Path) -> Sequence[str]:
        return [str(self._programs() / "python"), "-c", _PROGRAM, "-H", self.host, "-p", str(self.port)]

    def _environment(self) -> dict[str, str]:
        return super()._environment() | {"INITIAL_NO_AUTH_ACTION_COUNT": str(_SETTING_UP)}

    def _answers(self) -> bool:
        try:
            self._ask(urllib.request.Request(f"{self.url}/moto-api/"))
        except OSError:
            return False
        return True

    def _programs(self) -> Path:
        return installed("s3", Path("s3/bin"))
