"""Which ports the stack's services get."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection, Iterator
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
    for port in _candidates(name, usual=usual):
        address = f"{HOST}:{port}"
        if address not in avoid and (held := _hold(port)) is not None:
            held.close()
            return address
    raise _all_taken()


class HeldAddresses:
    """The addresses of one stack: no other stack on this machine chooses them before `close`.

    A service listens seconds after its port was chosen, and not while it is started again. Without a hold two stacks
    that start at once choose the same ports, and the services of one then talk to those of the other.
    """

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def choose(self, name: str, *, usual: bool) -> str:
        """As `choose_address`, never the same address twice."""
        for port in _candidates(name, usual=usual):
            if (held := _hold(port)) is not None:
                self._held.append(held)
                return f"{HOST}:{port}"
        raise _all_taken()

    def close(self) -> None:
        """Others may choose the addresses again."""
        for held in self._held:
            held.close()
        self._held.clear()


def _candidates(name: str, *, usual: bool) -> Iterator[int]:
    if usual and name in USUAL_PORTS:
        yield USUAL_PORTS[name]
    yield from random.sample(FREE_PORTS, TRIES)


def _all_taken() -> OSError:
    return OSError(f"no free port among {TRIES} of {FREE_PORTS.start} to {FREE_PORTS.stop} on {HOST}")


def _hold(port: int) -> socket.socket | None:
    """None when another stack holds the port or somebody listens on it.

    The hold is the UDP port of the same number, which no service uses: it is exclusive, ends with the process at the
    latest, and leaves the TCP port to the service.
    """
    held = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        held.bind((HOST, port))
    except OSError:
        held.close()
        return None
    if not _nobody_listens(port):
        held.close()
        return None
    return held


def _nobody_listens(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do: a connection that lingers is no owner.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
