"""A relay that makes a server seem far away, or slow to answer: whatever is sent arrives later."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager


@contextmanager
def far_away(address: str, delay_s: float) -> Iterator[str]:
    """An address behind which the other one is, so many seconds away in each direction."""
    host, _, port = address.rpartition(":")
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_accept, args=(server, (host, int(port)), delay_s), daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        # Wakes the thread; closing alone would leave it waiting.
        server.shutdown(socket.SHUT_RDWR)


def _accept(server: socket.socket, target: tuple[str, int], delay_s: float) -> None:
    while True:
        try:
            near, _ = server.accept()
        except OSError:
            return
        far = socket.create_connection(target)
        for ends in ((near, far), (far, near)):
            threading.Thread(target=_pump, args=(*ends, delay_s), daemon=True).start()


def _pump(source: socket.socket, target: socket.socket, delay_s: float) -> None:
    with closing(target):
        try:
            while data := source.recv(65536):
                time.sleep(delay_s)
                target.sendall(data)
        except OSError:
            return
