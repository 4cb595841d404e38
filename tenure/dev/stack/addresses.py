"""Which ports the stack's services get."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection
from typing import Final

HOST: Final = "127.0.0.1"
USUAL_PORTS: Final = {
    "gateway": 8470,
    "coordinator": 8471,
    "checkpoint": 8472,
    "tools": 8473,
    "worker-1": 8474,
    "worker-2": 8475,
    "simulator": 8476,
}
# Below the range that Linux (32768) and macOS (49152) take for outgoing connections: one of those would sooner or later
# sit on the port of a service that is being started again.
FREE_PORTS: Final = range(20_000, 32_000)
TRIES: Final = 200


def choose_address(name: str, *, usual: bool, avoid: Collection[str] = ()) -> str:
    """host:port that nobody listens on now: the usual port when it is wanted and free, else any. OSError: all taken."""
    wanted = [USUAL_PORTS[name]] if usual and name in USUAL_PORTS else []
    for port in (*wanted, *random.sample(FREE_PORTS, TRIES)):
        address = f"{HOST}:{port}"
        if address not in avoid and _is_free(port):
            return address
    raise OSError(f"no free port among {TRIES} of {FREE_PORTS.start} to {FREE_PORTS.stop} on {HOST}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do: a connection that lingers is no owner.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
