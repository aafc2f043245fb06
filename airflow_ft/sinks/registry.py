"""Registry of the systems that rows can be delivered into: ours and other distributions', by their entry points.

A system is a package, whose parts are modules that are imported when they are needed; or one module that has what they
have:

| part | has |
| --- | --- |
| `participant` | `open_participant(plan, connection, wal)`; see `airflow_ft.protocol.participant.Participant` |
| `requirements` | `required(pipeline, plan, connection)`: what must be there before rows are delivered |
| | `schema_problems(plan, connection, schemas)`: would it take such rows? |
| `doctor` | `examine(pipeline, plan, connection, rows, installation)`: checks of `airflow ft doctor` beyond |
| | the requirements |
| `setup` | `create(pipeline, plan, connection)` and `describe(...)`: what `airflow ft setup` makes |
| `proposal` | `propose(plan, connection, columns)`: a table for such columns, for `airflow ft setup --tables` |
| `lineage` | `dataset(settings, connection)`: what assets and OpenLineage call the place; `columns(settings, given)` |
| | `place(settings, connection)`: one text for one place, where the dataset's URI has several for it |
| `verify` | `verify(delivered, plan, connection, wal)`: what `airflow ft verify` compares |

Only `participant` has to be there. The entry point is `kind = package.module:SYSTEM` in the group `airflow_ft.sinks`,
and `SYSTEM` a `System`; the module that holds it imports nothing heavy, since parsing a DAG imports it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.connections import ConnectionInfo, connection_of_type
from airflow_ft.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow_ft.protocol.connections import ConnectionResolver
    from airflow_ft.protocol.model import ParticipantPlan, Promise
    from airflow_ft.protocol.sink_spec import SinkSpec

GROUP = "airflow_ft.sinks"
_PARTS = {
    "participant": ("open_participant",),
    "requirements": ("required", "schema_problems"),
    "doctor": ("examine",),
    "setup": ("create",),
    "proposal": ("propose",),
    "lineage": ("dataset",),
    "verify": ("verify",),
}
_OURS = "airflow-ft"


def _none(_: ParticipantPlan) -> str:
    return ""


def _no_more(_: SinkSpec) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to deliver into a system: what it promises, how rows enter, and when a reader sees them (for people).

    `has_branches`: several processes can load a checkpoint (`airflow_ft.protocol.participant.Branching`).
    """

    promise: Promise
    enters: str
    visible: str
    has_branches: bool = False


@dataclass(frozen=True, slots=True)
class System:
    """A kind of sink.

    `kind` is what plans call it, `title` what people do. `package` holds its parts, and `strategies` has the default
    first. `clients` are the packages that have to be installed, as pip calls them or as `import` does. `extra` is the
    extra of airflow-ft that installs them ("": pip gets `clients`). `lacking` returns packages that are not installed
    and that only some of its sinks need, by the extra of airflow-ft that installs each. `preload` are modules for the
    process that forks tasks, or processes of the conformance kit. `connects`: Airflow connections name its
    participants. Otherwise `conn_id` returns the connection that a participant needs, by default an empty one ("").
    `conn_type` is their type, for remedies. `place` is the setting of a sink that says where its rows go ("": lineage
    does not know). `by_key`: with each strategy a row replaces the row with its key, so two sinks of a pipeline cannot
    have one place. `key`: the setting of a sink with which its newest row of a key counts ("": there is none).
    `shares`: its sinks have a setting `shared`, without which two pipelines cannot deliver into one place
    (`airflow_ft.protocol.sharing`).
    """

    kind: str
    title: str
    package: str
    strategies: Mapping[str, Strategy] = field(default_factory=dict)
    clients: Sequence[str] = ()
    extra: str = ""
    lacking: Callable[[SinkSpec], Mapping[str, str]] = _no_more
    preload: Sequence[str] = ()
    connects: bool = True
    conn_id: Callable[[ParticipantPlan], str] = _none
    conn_type: str = ""
    place: str = ""
    by_key: bool = False
    key: str = ""
    shares: bool = False

    def part(self, name: str) -> Any:
        """The module that has this part; None where the system has none of that name.

        Raises as `require_clients` does if the module imports a client that is not installed.
        """
        module = f"{self.package}.{name}"
        try:
            return import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module:
                self.require_clients(error)
                raise
        whole = import_module(self.package)
        is_one = not hasattr(whole, "__path__")
        return whole if is_one and any(hasattr(whole, each) for each in _PARTS[name]) else None

    def connection(self, plan: ParticipantPlan, connections: ConnectionResolver) -> ConnectionInfo:
        """Return how a participant of it is reached; raises as `connections` does."""
        conn_id = plan.name if self.connects else self.conn_id(plan)
        return connection_of_type(self.conn_type, conn_id, connections) if conn_id else ConnectionInfo(plan.name, "")

    def called(self, plan: ParticipantPlan) -> str:
        """Return the name of a participant in messages."""
        return f"{'connection' if self.connects else 'sink'} {plan.name}"

    def target(self, sink: SinkSpec) -> str | None:
        """Return the place of a sink: its attribute, or else its setting. None: unknown.

        An attribute may still contain Jinja.
        """
        if not self.place:
            return None
        found = getattr(sink, self.place, None)
        if not isinstance(found, str):
            with suppress(ConfigurationError):  # a setting still contains Jinja
                found = sink.settings().get(self.place)
        return found if isinstance(found, str) else None

    def require_clients(self, cause: ImportError | None = None) -> None:
        """ConfigurationError when a client is not installed."""
        require_clients([self], cause)

    def missing_clients(self) -> list[str]:
        """Clients that are not installed."""
        return [client for client in self.clients if not _is_installed(client)]

    def installed_by(self) -> str:
        """Return what to give to pip for its clients, quoted for a shell."""
        return _installed_by([self])


def require_clients(
    systems: Iterable[System], cause: ImportError | None = None, more: Mapping[str, str] | None = None
) -> None:
    """Raise one ConfigurationError for all clients of these systems that are not installed.

    `more`: other packages that are not installed, by the extra of airflow-ft that installs each.
    """
    lacking, more = {each.kind: each for each in systems if each.missing_clients()}.values(), more or {}
    if packages := [*(client for each in lacking for client in each.missing_clients()), *more.values()]:
        raise ConfigurationError(
            f"packages for {', '.join([*(each.title for each in lacking), *more])} are not installed here:"
            f" {', '.join(packages)}.",
            code="package_missing",
            remedy=f"Run `pip install {_installed_by(lacking, more)}` where DAGs are parsed and where tasks run.",
            packages=packages,
            extras=_extras(lacking, more),
        ) from cause


def _installed_by(systems: Collection[System], more: Iterable[str] = ()) -> str:
    """Return what to give to pip for the clients of these systems and for `more` extras, quoted for a shell."""
    ours = [f"airflow-ft[{','.join(extras)}]"] if (extras := _extras(systems, more)) else []
    return shlex.join([*ours, *(client for each in systems if not each.extra for client in each.clients)])


def _extras(systems: Collection[System], more: Iterable[str]) -> list[str]:
    return [*(each.extra for each in systems if each.extra), *more]


def _is_installed(client: str) -> bool:
    client = re.split(r"[\s\[<>=!~;@]", client, maxsplit=1)[0]  # without extras and versions
    looks: Sequence[Callable[[str], object]] = (find_spec, metadata.distribution)
    for look in looks:
        with suppress(ModuleNotFoundError):  # by `distribution`; by `find_spec` if the package around it is missing
            if look(client) is not None:
                return True
    return False


def system(kind: str) -> System:
    """The system that plans call `kind`; ConfigurationError when none is installed, or it cannot be imported."""
    # Ours first: to look at all distributions takes some 20 ms, and each task of a pipeline asks.
    entry = _ours().get(kind) or _all().get(kind)
    if entry is None:
        installed = ", ".join(sorted(_all())) or "none"
        raise ConfigurationError(
            f"no installed distribution has sinks of kind {kind!r}. Installed kinds: {installed}.",
            code="sink_kind_unknown",
            remedy=f"Install here the distribution whose entry points {GROUP!r} name {kind!r}.",
            kind=kind,
            kinds=sorted(_all()),
        )
    return _load(entry)


def systems() -> list[System]:
    """All that are installed, by kind; raises as `system` does, and for a kind that two distributions offer."""
    return [_load(entry) for _, entry in sorted(_all().items())]


def own_systems() -> list[System]:
    """Return the sinks that come with this distribution."""
    return [_load(entry) for _, entry in sorted(_ours().items())]


@cache
def _ours() -> Mapping[str, metadata.EntryPoint]:
    try:
        found = metadata.distribution(_OURS).entry_points
    except metadata.PackageNotFoundError:  # a bare folder on the path: `system` says what is missing
        return {}
    return {entry.name: entry for entry in found.select(group=GROUP)}


@cache
def _all() -> Mapping[str, metadata.EntryPoint]:
    found: dict[str, metadata.EntryPoint] = {}
    for entry in metadata.entry_points(group=GROUP):
        other = found.setdefault(entry.name, entry)
        if other.value != entry.value:
            raise ConfigurationError(
                f"two distributions offer sinks of kind {entry.name!r}: {_offer_text(other)} and {_offer_text(entry)}.",
                code="sink_kind_conflict",
                remedy="Uninstall one of them.",
                kind=entry.name,
                offers=[_offer_text(other), _offer_text(entry)],
            )
    return found


@cache
def _load(entry: metadata.EntryPoint) -> System:
    try:
        found = entry.load()
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"sinks of kind {entry.name!r} cannot be imported from {_offer_text(entry)}: {error}",
            code="sink_kind_broken",
            remedy="Reinstall that distribution, or remove it.",
            kind=entry.name,
            offer=_offer_text(entry),
        ) from error
    if not isinstance(found, System) or found.kind != entry.name:
        raise ConfigurationError(
            f"the entry point {entry.name!r} is not a System of that kind: {_offer_text(entry)}.",
            code="sink_kind_broken",
            remedy=f"Let it name an `airflow_ft.sinks.registry.System` with kind={entry.name!r}.",
            kind=entry.name,
            offer=_offer_text(entry),
        )
    return found


def _offer_text(entry: metadata.EntryPoint) -> str:
    return f"{entry.value} of {entry.dist.name}" if entry.dist is not None else entry.value
