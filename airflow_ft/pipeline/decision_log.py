"""Opens the decision log that the configuration or a DAG names, and what delivery needs beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from airflow_ft.clients.buckets import resolve_with
from airflow_ft.clients.foreign_connections import refuse_misspelt, require_text
from airflow_ft.clients.postgres import LIBPQ, libpq_parameters
from airflow_ft.pipeline import settings
from airflow_ft.pipeline.connections import task_connections
from airflow_ft.pipeline.metrics import Counters
from airflow_ft.pipeline.templates import require_value
from airflow_ft.protocol.arguments import check_text, is_template, shown, wrong
from airflow_ft.protocol.connections import connection_of_type
from airflow_ft.protocol.errors import ConfigurationError, SinkAccessError, StoreUnavailableError
from airflow_ft.store.url import parse_url

if TYPE_CHECKING:
    from airflow_ft.protocol.connections import ConnectionInfo, ConnectionResolver
    from airflow_ft.protocol.participant import ParticipantFactory
    from airflow_ft.store.decision_log import DecisionLog


def store_url(setting: str | None = None, connections: ConnectionResolver = task_connections) -> str:
    """The URL of the decision log; it may contain a password and must not be logged.

    `setting` is a URL, "conn:<connection id>" or a connection id; None: `[airflow_ft] store`. A log in a bucket is
    reached by the same `connections` from now on.
    """
    resolve_with(connections)
    text = (setting or settings.store()).strip()
    if "://" in text:
        return text
    conn_id = text.removeprefix("conn:")
    try:
        connection = connection_of_type("postgres", conn_id, connections)
    except SinkAccessError as error:
        raise StoreUnavailableError(
            f"the decision log cannot be reached: {error.what}",
            code=error.code,
            remedy="Set `store` to the id of a connection, or to a URL such as sqlite:////data/ft.db. If"
            f" {conn_id!r} is the right connection: {error.remedy}",
            conn_id=conn_id,
        ) from error
    return _postgres_url(connection)


def check_store(setting: str | None) -> str | None:
    """Return the `store` of an operator or a command line. ConfigurationError: it has a password, or is no text."""
    check_text("store", setting, optional=True)
    if isinstance(setting, str) and "://" in setting and _holds_password(setting):
        raise ConfigurationError(
            "`store` has a password, but Airflow shows the arguments of tasks, and `ps` those of commands.",
            code="password_visible",
            remedy="Give an Airflow connection (conn:<connection id>), or write the URL into [airflow_ft] store or the"
            " variable AIRFLOW__AIRFLOW_FT__STORE.",
            argument="store",
        )
    if isinstance(setting, str) and setting and not setting.strip():
        raise wrong("store", shown(setting), "Give a URL, or the id of a connection, or leave store out.")
    if isinstance(setting, str) and "://" in setting and not is_template(setting):
        parse_url(setting)
    return setting


def rendered_store(written: str | None, given: str | None) -> str | None:
    """Return `check_store` of a rendered argument. ConfigurationError if it has no value: the default log is another
    one.
    """
    require_value("store", written, given)
    return check_store(given)


def _holds_password(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:  # its text may quote the password; `parse_url` refuses the URL
        return False
    parameters = {name.lower() for name, _ in parse_qsl(parts.query)}
    return bool(parts.password) or not parameters.isdisjoint(("password", "sslpassword"))


def _postgres_url(connection: ConnectionInfo) -> str:
    if connection.conn_type not in ("postgres", "postgresql"):
        raise ConfigurationError(
            f"the decision log cannot use a connection of type {connection.conn_type!r}.",
            code="connection_invalid",
            remedy="Give a connection of type postgres, or a sqlite:/// URL.",
            participant=connection.conn_id,
            fields=["conn_type"],
            conn_type=connection.conn_type,
        )
    try:
        require_text(connection)  # `quote` would fail with an error that holds the password
        refuse_misspelt(connection, (*LIBPQ, "application_name", "airflow_ft_schema"))
    except SinkAccessError as error:
        raise ConfigurationError(
            error.what, code=error.code, remedy=error.remedy, participant=connection.conn_id, **error.fields
        ) from None
    login = quote(connection.login, safe="")
    if connection.password:
        login += ":" + quote(connection.password, safe="")
    host = quote(connection.host or "localhost", safe=":[]")
    address = f"{login}@{host}" if login else host
    if connection.port:
        address += f":{connection.port}"
    parameters = libpq_parameters(connection.extra)
    if label := connection.extra.get("application_name"):
        parameters["application_name"] = str(label)
    if schema := connection.extra.get("airflow_ft_schema"):
        parameters["schema"] = str(schema)
    query = f"?{urlencode(parameters, quote_via=quote)}" if parameters else ""
    return f"postgresql://{address}/{quote(connection.schema, safe='')}{query}"


def open_configured_store(
    setting: str | None = None, connections: ConnectionResolver = task_connections
) -> DecisionLog:
    """Opens the decision log (see `store_url`), with Airflow's metrics as its meter; the caller closes it."""
    from airflow_ft.pipeline.options import warn_of_unknown_options
    from airflow_ft.store import open_store

    warn_of_unknown_options()
    store = open_store(store_url(setting, connections))
    store.meter = Counters()
    return store


def find_configured_store(setting: str | None, connections: ConnectionResolver) -> DecisionLog | None:
    """As `open_configured_store`, for read-only use: see `airflow_ft.store.find_store`."""
    from airflow_ft.store import find_store

    return find_store(store_url(setting, connections))


def participant_factory(connections: ConnectionResolver = task_connections) -> ParticipantFactory:
    """Opens the participants of stored plans over Airflow's connections and the write-ahead log."""
    from airflow_ft.sinks.shared import Opener

    return Opener(connections)
