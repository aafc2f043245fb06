"""What is delivered into: every strategy alone, and plans over several systems."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MYSQL_FAMILY = ("mariadb", "mysql")
STORES = ("sqlite", "postgres")
ICEBERG = ("iceberg", "sqlcatalog")
"""Iceberg's REST catalog; a SQL catalog in a file, which is no server."""
APPENDING = (*ICEBERG, "paimon", "hive")
"""Systems whose rows have no keys. Paimon is a folder, and no server."""
HIVE = ("adopted", "divided")
"""Tables without other partition columns, whose files are those of the log; tables that divide each checkpoint."""
NEWEST = ("redis", "hbase", "cassandra", *APPENDING)
"""These come only when they are named: the servers of all systems at once take too much memory."""


@dataclass(frozen=True)
class Target:
    """`sinks`: name -> (server, strategy); each is a connection, and so a participant, of its own."""

    name: str
    sinks: Mapping[str, tuple[str, str]]

    @property
    def servers(self) -> frozenset[str]:
        """The servers that its rows go into."""
        return frozenset(server for server, _ in self.sinks.values())

    @property
    def is_newest(self) -> bool:
        """Whether it is one of those that come only when they are named."""
        return not self.servers.isdisjoint(NEWEST)

    def at_once(self, sink: str) -> bool:
        """Whether a reader sees a checkpoint's rows in this sink all at once."""
        return self.sinks[sink] == ("redis", "atomic") or self.sinks[sink][0] in APPENDING

    def table(self, sink: str, pipeline: str) -> str:
        """The table of a sink on a MySQL server: of this pipeline if it is written by key, else of its strategy."""
        strategy = self.sinks[sink][1]
        return f"rows_upsert_{pipeline.replace('-', '_')}" if strategy == "upsert" else f"rows_{strategy}"

    def topic(self, sink: str) -> str:
        """The topic of a sink: of this target alone, so that what holds up its readers holds up no others."""
        return f"{self.name.replace(' ', '')}-{sink}".replace("+", ".").replace("(", "-").replace(")", "")


def _single(server: str, strategy: str) -> Target:
    return Target(f"{server} {strategy}", {"a": (server, strategy)})


_ALONE = [
    *(_single(server, strategy) for server in MYSQL_FAMILY for strategy in ("local", "xa", "upsert")),
    _single("kafka", "transaction"),
    _single("kafka", "held"),
]
_MIXES = [
    Target("local + transaction", {"a": ("mariadb", "local"), "b": ("kafka", "transaction")}),
    Target("local + held", {"a": ("mysql", "local"), "b": ("kafka", "held")}),
    Target("local + xa", {"a": ("mariadb", "local"), "b": ("mysql", "xa")}),
    Target("xa + xa", {"a": ("mariadb", "xa"), "b": ("mysql", "xa")}),
    Target("xa + held", {"a": ("mysql", "xa"), "b": ("kafka", "held")}),
    Target(
        "all of them",
        {
            "a": ("mariadb", "local"),
            "b": ("mysql", "xa"),
            "c": ("mysql", "upsert"),
            "d": ("kafka", "transaction"),
            "e": ("kafka", "held"),
        },
    ),
]
_NAMED = [
    _single("redis", "upsert"),
    _single("redis", "atomic"),
    _single("hbase", "upsert"),
    _single("cassandra", "upsert"),
    *(_single(server, "commit") for server in (*ICEBERG, "paimon")),
    *(_single("hive", how) for how in HIVE),
]
TARGETS: Mapping[str, Target] = {target.name: target for target in [*_ALONE, *_MIXES, *_NAMED]}
BY_DEFAULT = [target for target in TARGETS.values() if not target.is_newest]


def targets_of(system: str) -> list[str]:
    """The names of the targets of one of the newest systems alone; Iceberg has two catalogs."""
    servers = ICEBERG if system == "iceberg" else (system,)
    return [name for name, target in TARGETS.items() if target.servers <= {*servers}]
