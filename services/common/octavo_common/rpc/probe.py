"""Asks a server for its health: `python -m octavo_common.rpc.probe host:port`. Exit code 0 when it serves.

One call of grpc.health.v1.Health/Check in bare HTTP/2 frames. A channel for each question would start and end grpc's
threads, here and every few seconds; one that stays open would keep them awake. No grpc is imported.
"""

from __future__ import annotations

import asyncio
import struct
import sys
from contextlib import suppress

TIMEOUT_S = 2.0

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _GOAWAY = 0, 1, 3, 4, 7
_END_STREAM, _END_HEADERS = 0x1, 0x4
# No peer sends longer ones before it was told that it may.
_MAX_FRAME_BYTES = 16 * 1024
# Messages: a flag, the length, and the protobuf. HealthCheckRequest() is empty; field 1 of the answer is its status.
_REQUEST = b"\0" + struct.pack("!I", 0)
_SERVING = b"\0" + struct.pack("!I", 2) + b"\x08\x01"


async def serves(address: str) -> bool:
    """True when the health service of the server at ``address`` (host:port) answers SERVING in time."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            try:
                writer.write(_question(address))
                return await _answer(reader) == _SERVING
            finally:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()
    except (OSError, EOFError, ValueError):  # TimeoutError is an OSError
        return False


def _question(address: str) -> bytes:
    # HPACK without its compression: 0x83 and 0x86 are POST and http of the static table, 4, 1 and 31 the numbers of the
    # names :path, :authority and content-type there; 0x00 brings a name along.
    headers = (
        b"\x83\x86"
        + (b"\x04" + _string("/grpc.health.v1.Health/Check"))
        + (b"\x01" + _string(address))
        + (b"\x0f\x10" + _string("application/grpc"))
        + (b"\x00" + _string("te") + _string("trailers"))
    )
    return (
        _PREFACE
        + _frame(_SETTINGS, 0, 0, b"")
        + _frame(_HEADERS, _END_HEADERS, 1, headers)
        + _frame(_DATA, _END_STREAM, 1, _REQUEST)
    )


async def _answer(reader: asyncio.StreamReader) -> bytes:
    """The answer's message; what was there of it if the call ended without one."""
    message = b""
    while True:
        head = await reader.readexactly(9)
        length, kind, flags = int.from_bytes(head[:3]), head[3], head[4]
        if length > _MAX_FRAME_BYTES:
            raise ValueError("not a peer that speaks HTTP/2")
        payload = await reader.readexactly(length)
        if kind == _DATA:
            message += payload
        if kind in (_RST_STREAM, _GOAWAY) or (kind in (_DATA, _HEADERS) and flags & _END_STREAM):
            return message


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def _string(text: str) -> bytes:
    # Lengths up to 126 are one octet, and no address is longer than a host's name may be in practice.
    encoded = text.encode()
    if len(encoded) > 126:
        raise ValueError(f"{text} is too long for an address")
    return bytes((len(encoded),)) + encoded


if __name__ == "__main__":
    sys.exit(not asyncio.run(serves(sys.argv[1])))
