"""Ends the sandboxes of a service that died, whatever their programs did to outlive it.

The kernel kills a program when its parent dies, and takes that back when another thread than the first becomes a new
program: nothing inside can be kept from it. This process holds a descriptor of each sandbox's first process, and kills
them when nobody can send it any more on the socket that is its stdin. It is run with -I -S and an empty environment.
"""

from __future__ import annotations

import os
import select
import signal
import socket

READY = b"ready"
_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def guard(channel: socket.socket) -> None:
    """Take descriptors of processes until nobody can send any more, and kill those that have not ended by then."""
    held: set[int] = set()
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor in held:  # it has ended
                poll.unregister(descriptor)
                held.discard(descriptor)
                os.close(descriptor)
                continue
            word, received, _, _ = socket.recv_fds(channel, 1, 1)
            if not word:
                return kill(held)
            for process in received:
                held.add(process)
                poll.register(process, select.POLLIN)


def kill(held: set[int]) -> None:
    """SIGKILL for the first process of a namespace takes all others along."""
    for process in held:
        try:
            signal.pidfd_send_signal(process, signal.SIGKILL)
        except ProcessLookupError:
            continue


def main() -> None:
    """Outlive what is sent to all processes of a service: they are stopped in no order."""
    for number in _STOPPING:
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=0) as channel:
        channel.send(READY)
        guard(channel)


if __name__ == "__main__":
    main()
