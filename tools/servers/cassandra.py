"""Cassandra: one node, from the jars that tools/bootstrap.sh copies."""

import secrets
import shutil
import socket
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from tools.servers.base import Options, Server, ServerError, installed
from tools.servers.processes import free_port

_FIRST_PASSWORD = "cassandra"  # of a new cluster
_EXPORTED = [
    *(f"java.base/{package}" for package in ("jdk.internal.misc", "jdk.internal.ref", "sun.nio.ch")),
    "java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "java.rmi/sun.rmi.registry",
    "java.rmi/sun.rmi.server",
    "java.sql/java.sql",
]
_OPENED = [
    *(
        f"java.base/java.{package}"
        for package in ("io", "lang", "lang.module", "net", "nio", "util", "util.concurrent")
    ),
    *(f"java.base/jdk.internal.{package}" for package in ("loader", "math", "module", "ref", "reflect", "util.jar")),
    "java.base/sun.nio.ch",
    "jdk.management/com.sun.management.internal",
]
_LOGGING = (
    '<configuration><appender name="out" class="ch.qos.logback.core.ConsoleAppender"><encoder>'
    "<pattern>%d %-5level %logger{20} %msg%n</pattern></encoder></appender>"
    '<root level="WARN"><appender-ref ref="out"/></root></configuration>'
)


class Cassandra(Server):
    """A node of its own cluster, which asks for a login; options are those of cassandra.yaml."""

    name = "cassandra"
    heap: ClassVar[str] = "384m"
    user: ClassVar[str] = "cassandra"
    defaults: ClassVar[Options] = {
        "num_tokens": 1,
        "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
        "endpoint_snitch": "SimpleSnitch",
        "commitlog_sync": "group",
        "commitlog_sync_group_window": "2ms",
        "commitlog_segment_size": "16MiB",
        "authenticator": "PasswordAuthenticator",
        "authorizer": "CassandraAuthorizer",
        "credentials_validity": "0ms",
        # At 0 ms a node reads its tables of roles for each cell that it writes: that took most of its time.
        "permissions_validity": "500ms",
        "roles_validity": "500ms",
        "memtable_allocation_type": "heap_buffers",
        "memtable_heap_space": "64MiB",
        "disk_access_mode": "mmap_index_only",
        "auto_snapshot": "false",
        "concurrent_reads": 8,
        "concurrent_writes": 8,
        "concurrent_compactors": 1,
        "key_cache_size": "8MiB",
        "file_cache_size": "32MiB",
        "networking_cache_size": "16MiB",
        "uuid_sstable_identifiers_enabled": "true",
    }

    def __init__(self, folder: Path, port: int | None = None, options: Options | None = None) -> None:
        super().__init__(folder, port, options)
        self._ports = {name: free_port() for name in ("storage", "ssl_storage", "jmx")}

    @property
    def password(self) -> str:
        """Made at random for each data folder and kept beside it."""
        path = self.folder / "password"
        if not path.exists():
            self._prepare_folder()
            self._write(path, secrets.token_hex(12))
        return path.read_text()

    def _programs(self) -> Path:
        return installed("cassandra", Path("jars/cassandra"))

    def _initialise(self, data: Path) -> None:
        """It makes what it needs."""

    def _command(self, data: Path) -> Sequence[str]:
        java = shutil.which("java")
        if java is None:
            raise ServerError("there is no java: run tools/bootstrap.sh cassandra")
        conf = self.folder / "conf"
        self._make(conf)
        storage = f"{self.host}:{self._ports['storage']}"
        seeds = (
            f'[{{class_name: org.apache.cassandra.locator.SimpleSeedProvider, parameters: [{{seeds: "{storage}"}}]}}]'
        )
        settings: dict[str, str | int] = {
            "cluster_name": f"test-{uuid.uuid5(uuid.NAMESPACE_URL, str(self.folder)).hex[:8]}",
            "data_file_directories": f'["{data}/data"]',
            **{f"{each}_directory": f'"{data}/{each}"' for each in ("commitlog", "saved_caches", "hints", "cdc_raw")},
            "listen_address": self.host,
            "rpc_address": self.host,
            "native_transport_port": self.port,
            "storage_port": self._ports["storage"],
            "ssl_storage_port": self._ports["ssl_storage"],
            "seed_provider": seeds,
            **self.defaults,
            **self.options,
        }
        yaml = self._write(conf / "cassandra.yaml", "".join(f"{name}: {value}\n" for name, value in settings.items()))
        logback = self._write(conf / "logback.xml", _LOGGING)
        properties = {
            "logback.configurationFile": logback,
            "cassandra.config": f"file://{yaml}",
            "cassandra.storagedir": data,
            "cassandra-foreground": "yes",
            "cassandra.jmx.local.port": self._ports["jmx"],
            "cassandra.superuser_setup_delay_ms": 0,
            "cassandra.auth_bcrypt_gensalt_log2_rounds": 4,
            "cassandra.skip_wait_for_gossip_to_settle": 0,
            "cassandra.ring_delay_ms": 100,
            "java.io.tmpdir": self.folder / "tmp",
            "java.net.preferIPv4Stack": "true",
        }
        memory = [f"-Xms{self.heap}", f"-Xmx{self.heap}", "-Xss384k", "-XX:MaxDirectMemorySize=128m"]
        return [
            java, *memory, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData",
            *(f"--add-exports={each}=ALL-UNNAMED" for each in _EXPORTED),
            *(f"--add-opens={each}=ALL-UNNAMED" for each in _OPENED),
            *(f"-D{name}={value}" for name, value in properties.items()),
            "-cp", f"{conf}:{self._programs()}/*", "org.apache.cassandra.service.CassandraDaemon",
        ]  # fmt: skip

    def _answers(self) -> bool:
        with socket.socket() as probe:
            if probe.connect_ex((self.host, self.port)) != 0:
                return False
        return self._takes(self.password) or self._takes(_FIRST_PASSWORD)

    def _takes(self, password: str) -> bool:
        """Whether it takes this password of its user, who gets ours then. It refuses all until it has that user."""
        from cassandra.auth import PlainTextAuthProvider
        from cassandra.cluster import Cluster, NoHostAvailable

        login = PlainTextAuthProvider(self.user, password)
        cluster = Cluster([self.host], self.port, auth_provider=login, protocol_version=5)
        try:
            session = cluster.connect()
            if password != self.password:
                session.execute(f"ALTER ROLE {self.user} WITH PASSWORD = '{self.password}'")
            return True
        except NoHostAvailable:
            return False
        finally:
            cluster.shutdown()
