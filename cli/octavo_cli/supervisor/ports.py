"""Finds ports for the services that have well-known ones."""

from __future__ import annotations

import socket
from contextlib import closing, suppress

import psutil

from octavo_common.errors import FailedPrecondition


class PortInUse(FailedPrecondition):
    """Another program listens where a service should."""

    code = "PORT_IN_USE"


def is_free(host: str, port: int) -> bool:
    """True when a server could listen there now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def choose(host: str, first: int, count: int, *, variable: str, what: str, taken: set[int]) -> list[int]:
    """``count`` ports for services of one kind, and put them into ``taken``.

    The first service gets ``first`` itself or PortInUse is raised, further ones the next free ports; 0 is any free one.
    """
    chosen: list[int] = []
    port = first
    while len(chosen) < count:
        if first == 0:
            port = _any_free(host, taken)
        elif port > 65535:
            raise PortInUse(f"there are not {count} free ports from {first} on", hint=f"set {variable}")
        if port not in taken and is_free(host, port):
            chosen.append(port)
            taken.add(port)
        elif not chosen and first != 0:
            raise PortInUse(
                f"port {port} for the {what} is in use{_by_whom(port)}",
                hint=f"stop that program or choose another port with {variable}=N (0 takes any free one)",
            )
        port += 1
    return chosen


def _any_free(host: str, taken: set[int]) -> int:
    while True:
        with closing(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)) as probe:
            probe.bind((host, 0))
            port: int = probe.getsockname()[1]
        if port not in taken:
            return port


def _by_whom(port: int) -> str:
    with suppress(psutil.Error, PermissionError):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
                if connection.pid is None:
                    break
                return f" by {psutil.Process(connection.pid).name()} (pid {connection.pid})"
    return ""
