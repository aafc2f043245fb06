"""What PyMySQL's connection lacks: our own stream for LOAD DATA LOCAL, and MariaDB's bulk execution."""

from __future__ import annotations

import ssl
import struct
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

import pymysql
from pymysql.connections import Connection, MySQLResult
from pymysql.constants import CLIENT
from pymysql.cursors import Cursor

if TYPE_CHECKING:
    _PlainConnection = Connection[Cursor]  # the stubs are generic, the class is not
else:
    _PlainConnection = Connection

# Of MariaDB's extended capabilities. Greeting and response have room for them where MySQL's have zeros; that they are
# meant is said by the absence of CLIENT_MYSQL, which is the bit that PyMySQL knows as LONG_PASSWORD.
# https://mariadb.com/docs/server/reference/clientserver-protocol/1-connecting/connection
_BULK_OPERATIONS = 1 << 2
_STMT_PREPARE, _STMT_CLOSE, _STMT_BULK_EXECUTE = 0x16, 0x19, 0xFA
_SEND_TYPES = 128


class _Result(MySQLResult):
    """Answers the server's request for a local file with our own stream, never with a file that the server names."""

    def _read_load_local_packet(self, first_packet: Any) -> None:
        connection: Any = self.connection
        stream = connection.stream
        connection.stream = None
        if stream is None:
            connection._force_close()
            raise pymysql.err.OperationalError(2013, "the server asked for a file that nobody offered")
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
            raise pymysql.err.OperationalError(2014, "the server did not answer the end of the rows")
        self._read_ok_packet(answer)  # type: ignore[attr-defined]


class WireConnection(_PlainConnection):
    """PyMySQL's connection with our result: its own would read the file whose name the server sends.

    With `bulk` it says that it knows MariaDB's bulk protocol, to a server that offers it: `can_bulk`. Where TLS is only
    preferred, nothing is verified: its context is made once, without reading the system's certificates, which takes
    20 ms a connection.
    """

    stream: Iterable[bytes | memoryview] | None = None
    packet_bytes: int = 1 << 20
    can_bulk: bool = False

    def __init__(self, *, bulk: bool, **arguments: Any) -> None:
        self._wants_bulk = bulk
        self._greeting: bytes | None = None
        self._responding = False
        super().__init__(**arguments)

    def _create_ssl_ctx(self, sslp: Any) -> ssl.SSLContext:
        if sslp == {}:
            return _unverified()
        made: ssl.SSLContext = super()._create_ssl_ctx(sslp)  # type: ignore[misc]
        return made

    def _read_query_result(self, unbuffered: bool = False) -> int:
        self._result = None
        result: Any = _Result(self)
        result.read()
        self._result = result
        if result.server_status is not None:
            self.server_status = result.server_status
        return int(result.affected_rows or 0)

    # --- MariaDB's bulk protocol ----------------------------------------------------------------------------------

    def _read_packet(self, *arguments: Any) -> Any:
        packet = super()._read_packet(*arguments)  # type: ignore[no-untyped-call]
        if self._greeting is None:
            self._greeting = bytes(packet.get_all_data())
        return packet

    def _request_authentication(self) -> None:
        self._responding = self._wants_bulk and _offers_bulk(self._greeting or b"")
        if self._responding:
            self.client_flag: int = self.client_flag & ~CLIENT.LONG_PASSWORD
        try:
            super()._request_authentication()  # type: ignore[misc]
        finally:
            self._responding = False

    def write_packet(self, payload: bytes) -> None:
        """Sends a packet; a response to the greeting (or a request for TLS) with our capability filled in."""
        if self._responding and len(payload) >= 32 and payload[9:32] == bytes(23):
            payload = payload[:28] + struct.pack("<I", _BULK_OPERATIONS) + payload[32:]
            self.can_bulk = True
        super().write_packet(payload)

    def prepare(self, sql: str) -> int:
        """COM_STMT_PREPARE of a statement that returns no rows; the server's number of it."""
        self._command(_STMT_PREPARE, sql.encode())
        answer = self._read_packet().get_all_data()
        number, columns, parameters = struct.unpack_from("<IHH", answer, 1)
        for count in (parameters, columns):  # each with an end of its own
            for _ in range(count + 1 if count else 0):
                self._read_packet()
        return int(number)

    def execute_bulk(self, number: int, types: bytes, rows: bytes | memoryview) -> int:
        """COM_STMT_BULK_EXECUTE with the parameters of at least one row; the affected rows of all."""
        self._command(_STMT_BULK_EXECUTE, b"".join((struct.pack("<IH", number, _SEND_TYPES), types, rows)))
        return self._read_query_result()

    def _command(self, code: int, data: bytes) -> None:
        self._execute_command(code, data)  # type: ignore[attr-defined]

    def forget(self, number: int) -> None:
        """COM_STMT_CLOSE, which is not answered."""
        self._command(_STMT_CLOSE, struct.pack("<I", number))


def _offers_bulk(greeting: bytes) -> bool:
    """Whether a server's first packet is MariaDB's, and offers bulk execution."""
    after_version = greeting.find(b"\0", 1) + 1
    capabilities = after_version + 4 + 8 + 1  # behind the connection's number, the first part of the salt and a zero
    if after_version == 0 or len(greeting) < capabilities + 18:
        return False
    (low,) = struct.unpack_from("<H", greeting, capabilities)
    (extended,) = struct.unpack_from("<I", greeting, capabilities + 14)
    return not low & CLIENT.LONG_PASSWORD and bool(extended & _BULK_OPERATIONS)


@cache
def _unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
