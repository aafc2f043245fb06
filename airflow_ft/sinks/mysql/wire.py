"""Extensions of PyMySQL's connection: our own stream for LOAD DATA LOCAL, and prepared statements."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterable
from functools import cache
from typing import Any

import pymysql
from pymysql.connections import Connection, MySQLResult
from pymysql.constants import COMMAND, CR

_SENDS_PASSWORD = (b"mysql_clear_password", b"dialog")
"""Plugins that send the password in clear text to any server. MySQL's own client refuses the first one, too."""

_STMT_PREPARE, _STMT_EXECUTE, _STMT_CLOSE = 0x16, 0x17, 0x19

_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 300_000}
"""TCP options: the system ends the connection five minutes after the server has vanished.

TCP_USER_TIMEOUT (ms) limits how long keepalives and sent bytes wait, and overrides TCP_KEEPCNT (tcp(7)). It also ends a
connection to a server that lives but does not read for as long, such as with a stalled disk: so it is not shorter.
"""


class _Result(MySQLResult):
    """Answers the server's request for a local file with our own stream, never with a file that the server names."""

    def _read_load_local_packet(self, first_packet: Any) -> None:
        connection: Any = self.connection
        stream = connection.stream
        connection.stream = None
        if stream is None:
            connection._force_close()
            raise pymysql.err.OperationalError(2013, "the server asked for a file that it was not offered")
        size = connection.packet_bytes
        try:
            for chunk in stream:
                view = memoryview(chunk).cast("B")
                for start in range(0, len(view), size):
                    connection.write_packet(bytes(view[start : start + size]))
        except BaseException:
            # The empty packet would end the file and load the part that was sent: cut the connection instead.
            connection._force_close()
            raise
        connection.write_packet(b"")
        answer = connection._read_packet()
        if not answer.is_ok_packet():
            connection._force_close()
            raise pymysql.err.OperationalError(2014, "the server did not answer after the last row")
        self._read_ok_packet(answer)  # type: ignore[attr-defined]


_Connection: Any = Connection  # its stubs lack most of what is used here


class WireConnection(_Connection):  # type: ignore[misc]
    """PyMySQL's connection with our result: its own would read the file whose name the server sends.

    Where TLS is only preferred, nothing is verified: its context is made once, without reading the system's
    certificates, which takes 20 ms a connection.
    """

    stream: Iterable[bytes | memoryview] | None = None
    packet_bytes: int = 1 << 20

    def _create_ssl_ctx(self, sslp: Any) -> ssl.SSLContext:
        if sslp == {}:
            return _unverified()
        made: ssl.SSLContext = super()._create_ssl_ctx(sslp)
        return made

    def _process_auth(self, plugin_name: bytes, *given: Any) -> Any:
        is_verified = self.unix_socket or (self._secure and self.ctx.verify_mode is not ssl.CERT_NONE)
        if plugin_name in _SENDS_PASSWORD and not is_verified:
            plugin = plugin_name.decode()
            what = f"the server asks for a clear-text password ({plugin}), but TLS does not verify the server"
            raise pymysql.err.OperationalError(CR.CR_AUTH_PLUGIN_ERR, what)
        return super()._process_auth(plugin_name, *given)

    def wait_for_answers(self, seconds: float) -> None:
        """From now on wait up to `seconds` for each answer, but notice within five minutes that the server vanished."""
        self._read_timeout = self._write_timeout = seconds
        if not self.unix_socket:
            for name, value in _ALIVE.items():
                if option := getattr(socket, name, None):  # some systems lack some of them
                    self._sock.setsockopt(socket.IPPROTO_TCP, option, value)

    def _read_query_result(self, unbuffered: bool = False) -> int:
        self._result = None
        result: Any = _Result(self)
        result.read()
        self._result = result
        if result.server_status is not None:
            self.server_status = result.server_status
        return int(result.affected_rows or 0)

    # --- prepared statements --------------------------------------------------------------------------------------

    def prepare(self, sql: str) -> int:
        """COM_STMT_PREPARE of a statement that returns no rows; the server's number of it."""
        self._command(_STMT_PREPARE, sql.encode())
        answer = self._read_packet().get_all_data()
        number, columns, parameters = struct.unpack_from("<IHH", answer, 1)
        for count in (parameters, columns):  # each with an end of its own
            for _ in range(count + 1 if count else 0):
                self._skip_packet()
        return int(number)

    def send_execute(self, number: int, nulls: bytes, types: bytes, values: bytes | memoryview) -> int:
        """COM_STMT_EXECUTE, to be answered (`receive`). `types` are of all parameters, or empty: as in the last one."""
        head = struct.pack("<IBI", number, 0, 1)
        return self._command(_STMT_EXECUTE, b"".join((head, nulls, b"\1" if types else b"\0", types, values)))

    def send_query(self, sql: bytes) -> int:
        """COM_QUERY of a statement that returns no rows, to be answered (`receive`)."""
        return self._command(COMMAND.COM_QUERY, sql)

    def receive(self, sent: int) -> int:
        """Reads the answer to the oldest statement that was sent and not answered; the affected rows.

        `sent` is what sending it returned: answers come in the order of the statements, each with numbers of its own.
        """
        self._next_seq_id = sent
        return self._read_query_result()

    def forget(self, number: int) -> None:
        """COM_STMT_CLOSE, which is not answered."""
        self._command(_STMT_CLOSE, struct.pack("<I", number))

    def _command(self, code: int, data: bytes) -> int:
        """Sends a command; the number that the first packet of its answer will have."""
        self._execute_command(code, data)
        return int(self._next_seq_id)

    def _skip_packet(self) -> None:
        """Reads a packet that is not needed: a statement has thousands, which `_read_packet` takes its time for."""
        low, high, sequence = struct.unpack("<HBB", self._read_bytes(4))
        self._read_bytes(low + (high << 16))
        self._next_seq_id = (sequence + 1) % 256


@cache
def _unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
