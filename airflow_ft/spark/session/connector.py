"""Spark's Kafka connector: which one fits the Spark that is here, and where its jars come from.

pyspark does not contain the connector, and a release of Spark is not always followed by one of the connector: 4.2.1 has
none, 4.2.0 has. Nor is the connector's own dependency, the token provider, published for every release, so Spark's
resolver (`spark.jars.packages`) finds the one without the other. Hence a table of what exists: four files each, as
everything else that they need is part of Spark. They are fetched once into a folder of Airflow's, and are used only
with the contents that the table says.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import logging
import os
import re
import shutil
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote, urlsplit, urlunsplit

from airflow_ft.protocol.errors import ConfigurationError, StageError
from airflow_ft.spark import private
from airflow_ft.spark.request import listed
from airflow_ft.spark.session.home import spark_home

ARTIFACT = "spark-sql-kafka-0-10_2.13"
CENTRAL = "https://repo1.maven.org/maven2/"
OLDEST = (4, 0, 0)
_TIMEOUT = 60  # seconds without an answer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Jar:
    """A file of a Maven repository, and what it contains."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def file(self) -> str:
        """Its name."""
        return f"{self.artifact}-{self.version}.jar"

    @property
    def path(self) -> str:
        """Return where it is in any Maven repository."""
        return f"{self.group.replace('.', '/')}/{self.artifact}/{self.version}/{self.file}"


def _clients(version: str, sha256: str) -> Jar:
    return Jar("org.apache.kafka", "kafka-clients", version, sha256)


def _pool(version: str, sha256: str) -> Jar:
    return Jar("org.apache.commons", "commons-pool2", version, sha256)


_TOKENS = Jar(
    "org.apache.spark",
    "spark-token-provider-kafka-0-10_2.13",
    "4.0.0",
    "f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767",
)
_CLIENTS_390 = _clients("3.9.0", "15c1e137f2c2c94398e27abc4060a03b6bde10bf9fac15e8f70c02320b202f18")
_CLIENTS_391 = _clients("3.9.1", "7568b998572d256f0b7bc0afdc1b7a2588b8b08415c62ce314c864a6851ae9d9")
_CLIENTS_392 = _clients("3.9.2", "014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8")
_POOL_212 = _pool("2.12.0", "6d3bd18df8410f3e31b031aca582cc109342358a62a2759ebd0c4cdf30d06f8b")
_POOL_2121 = _pool("2.12.1", "5273c8bc8c0dca2211175c0d27efbd7228efae99689aac001a8e1ef8e872e9ef")
_POOL_213 = _pool("2.13.1", "f77a5060d6936a9144023584232f9de3f2248f1abfe156e9d31795f18770674f")

# Version of the connector -> its contents, and the two that its pom names. A new row: `make test ARGS="-k connector"`.
_KNOWN: Mapping[tuple[int, int, int], tuple[str, Jar, Jar]] = {
    (4, 0, 0): ("33a3b8b04df4a2e43c9d5bf8ca5972936a1ac662f2714e014d00ef6f27468bf3", _CLIENTS_390, _POOL_212),
    (4, 0, 1): ("a9c5366a61087e7e7ff903c3dc160e80b33d2ea04d365e0795cc4a58befc3a16", _CLIENTS_391, _POOL_212),
    (4, 0, 2): ("faa232c017b0cb4480c14643eb82abf6d0cac4b4d032059bf999b9246d045eb6", _CLIENTS_391, _POOL_212),
    (4, 0, 3): ("6591c1556daee42a76e0bce3307c6b924df890142354e84ab38b546bbab27f89", _CLIENTS_391, _POOL_212),
    (4, 0, 4): ("b2f7b3a4fbf292b5bf10bd4dd6af301eded9c9985b16239b407401d66dbc8a25", _CLIENTS_391, _POOL_212),
    (4, 1, 0): ("a335b885043bbe0d553ab70738418a45eb4cda94a28718e4b62a347046c03723", _CLIENTS_391, _POOL_2121),
    (4, 1, 1): ("9c1ce986f548e6b1dcb0e2dfe2f253a0bc58f2232a32a0c9c6c674dd25a8570c", _CLIENTS_391, _POOL_2121),
    (4, 1, 2): ("1dce8c690aea67bba8942eaa0280aa5dbc16e0c7c64bd0b1777b919b36d7ab2e", _CLIENTS_391, _POOL_2121),
    (4, 1, 3): ("cb31ffd9c8f5527dba061db8af671d295562092e4f3f5ff42fc249fab8a8fde6", _CLIENTS_391, _POOL_2121),
    (4, 2, 0): ("64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705", _CLIENTS_392, _POOL_213),
}


@dataclass(frozen=True, slots=True)
class Connector:
    """The connector for a Spark: `version`, the files that it takes, and whether it is of Spark's own minor.

    `title`: for people. S3A's jars are one of these, too (`airflow_ft.spark.session.s3a`).
    """

    spark: str
    version: str
    jars: tuple[Jar, ...]
    same_minor: bool
    title: str = "Kafka connector"

    def __str__(self) -> str:
        return f"{self.jars[0].artifact} {self.version} for Spark {self.spark}"


def choose(spark: str) -> Connector:
    """The newest connector that is not newer than this version of Spark.

    A Spark that is newer than the table gets the newest one of all. ConfigurationError for one before 4.0.
    """
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", spark)
    wanted = tuple(int(part or 0) for part in match.groups()) if match else (0, 0, 0)
    found = max((version for version in _KNOWN if version <= wanted), default=None)
    if found is None:
        raise ConfigurationError(
            f"no known Kafka connector works with Spark {spark}.",
            code="spark_unfit",
            remedy="Install pyspark 4.0 or newer, or set SPARK_HOME to such a Spark.",
            version=spark,
        )
    sha256, clients, pool = _KNOWN[found]
    version = ".".join(map(str, found))
    jars = (Jar("org.apache.spark", ARTIFACT, version, sha256), _TOKENS, clients, pool)
    return Connector(spark, version, jars, found[:2] == wanted[:2])


def spark_version(home: Path) -> str:
    """The version of the Spark in this folder; ConfigurationError when there is none."""
    for jar in sorted(home.glob("jars/spark-core_*.jar")):
        if match := re.fullmatch(r"spark-core_[\d.]+-(.+)\.jar", jar.name):
            return match[1]
    raise ConfigurationError(
        f"{home / 'jars'} has no spark-core jar, so this Spark is incomplete.",
        code="spark_unfit",
        remedy="Reinstall pyspark (`pip install --force-reinstall pyspark`), or correct SPARK_HOME.",
        path=str(home),
    )


def installed_version() -> str:
    """Return the version of the Spark that a driver gets on this machine; "": there is none."""
    with suppress(ConfigurationError):
        return spark_version(spark_home())
    return ""


def given(home: Path, jars: Iterable[str], packages: Iterable[str], artifact: str = "spark-sql-kafka") -> str | None:
    """The jar or package that brings a connector, or that this Spark has; None where one has to be chosen."""
    own = map(str, home.glob(f"jars/{artifact}*.jar"))
    return next((name for name in (*jars, *packages, *own) if artifact in name.rpartition("/")[2]), None)


def folder() -> Path:
    """Return where fetched connectors lie."""
    return private.own_folder() / "connectors"


def repositories(conf: Mapping[str, str]) -> tuple[str, ...]:
    """The Maven repositories, as Spark names them: `spark.jars.repositories`, then $DEFAULT_ARTIFACT_REPOSITORY."""
    named = listed(conf.get("spark.jars.repositories", ""))
    return (*named, os.environ.get("DEFAULT_ARTIFACT_REPOSITORY") or CENTRAL)


def lacking(connector: Connector) -> list[Jar]:
    """The files that are not there yet, or are not what they should be."""
    return [jar for jar in connector.jars if not _is_whole(folder() / jar.file, jar)]


def fetch(connector: Connector, conf: Mapping[str, str]) -> list[str]:
    """The connector's files; what is lacking is fetched, whole or not at all. Safe beside others that do the same.

    Raises StageError when no repository gives one of them, or the folder cannot be written to.
    """
    where = folder()
    wanted = lacking(connector)
    if wanted:
        log.info("%s: fetching %s", connector.title, ", ".join(jar.file for jar in wanted))
        try:
            where.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=where, prefix=".") as private:
                for jar in wanted:
                    part = Path(private) / jar.file
                    _ask(jar, repositories(conf), connector, part)
                    part.chmod(0o644)
                    part.replace(where / jar.file)
        except OSError as error:
            raise StageError(
                f"the {connector.title} cannot be stored in {where}: {error.strerror or type(error).__name__}.",
                code="folder_not_writable",
                remedy=f"Make {where} writable, or {_by_hand(connector)}",
                path=str(where),
            ) from error
    if not connector.same_minor:
        log.warning("%s: %s is the newest known one, but untested with this Spark", connector.title, connector)
    log.info("%s: %s, from %s", connector.title, connector, where)
    return [str(where / jar.file) for jar in connector.jars]


def reachable(connector: Connector, jars: Sequence[Jar], conf: Mapping[str, str]) -> None:
    """Asks the repositories for these files without reading them; StageError when none has one of them."""
    for jar in jars:
        _ask(jar, repositories(conf), connector, None)


def _is_whole(file: Path, jar: Jar) -> bool:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest() == jar.sha256
    except OSError:
        return False


def _ask(jar: Jar, places: Sequence[str], connector: Connector, target: Path | None) -> None:
    """From the first repository that has it; into `target`, or only to know that it is there."""
    refused = []
    for place in places:
        shown = _without_login(place)
        try:
            with _open(f"{place.rstrip('/')}/{jar.path}", "GET" if target else "HEAD") as answer:
                if target is None:
                    return
                with target.open("wb") as file:
                    shutil.copyfileobj(answer, file)
                    file.flush()
                    os.fsync(file.fileno())
            if _is_whole(target, jar):
                return
            refused.append(f"{shown}: the file has another checksum")
        except urllib.error.HTTPError as error:
            refused.append(f"{shown}: status {error.code}")
        except urllib.error.URLError as error:
            refused.append(f"{shown}: {error.reason}")
        except (http.client.HTTPException, ssl.SSLError, TimeoutError, ConnectionError, ValueError) as error:
            refused.append(f"{shown}: {type(error).__name__}")
    raise StageError(
        f"Spark's {connector.title} ({connector}) is missing, and no repository delivers {jar.file}"
        f" ({'; '.join(refused)}).",
        code="dependency_unreachable",
        remedy="Let this machine reach a repository (spark.jars.repositories in spark_conf names others), or "
        + _by_hand(connector),
        file=jar.file,
        repositories=[_without_login(place) for place in places],
        folder=str(folder()),
    )


def _by_hand(connector: Connector) -> str:
    files = ", ".join(jar.file for jar in connector.jars)
    return f"put {files} into a folder and name it in [airflow_ft] spark_jars, or in jars= of the pipeline."


def _open(url: str, method: str) -> http.client.HTTPResponse:
    """A login in the URL goes as a header, to that host alone."""
    parts = urlsplit(url)
    request = urllib.request.Request(_without_login(url), method=method)  # noqa: S310 # as the user has configured
    if parts.username is not None:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(login.encode()).decode()}")
    # Repositories are what the administrator names, a folder (file:) among them.
    answer: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=_TIMEOUT)  # noqa: S310
    return answer


def _without_login(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
