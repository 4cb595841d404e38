"""The reaper: a process that kills the sandboxes of a tool service that died, whatever their programs did to survive.

The death signal (PR_SET_PDEATHSIG) is not enough: the kernel clears it when a thread other than the first calls execve,
and no program in a sandbox can be kept from doing so. The reaper therefore holds a pidfd of the first process in each
sandbox. The service sends these pidfds on the socket that is the reaper's stdin. When the last other end of the socket
is closed, the service is dead and the reaper kills the processes. It runs with -I -S and an empty environment.
"""

from __future__ import annotations

import os
import select
import signal
import socket

READY = b"ready"
_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def serve(channel: socket.socket) -> None:
    """Receives pidfds until the other end of the channel is closed, then kills the processes that still run."""
    held: set[int] = set()
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor in held:  # a pidfd is readable once its process has ended
                poll.unregister(descriptor)
                held.discard(descriptor)
                os.close(descriptor)
                continue
            message, received, _, _ = socket.recv_fds(channel, 1, 1)
            if not message:
                return kill(held)
            for process in received:
                held.add(process)
                poll.register(process, select.POLLIN)


def kill(held: set[int]) -> None:
    """Kills the first process of each sandbox; the kernel then kills all other processes of its pid namespace."""
    for process in held:
        try:
            signal.pidfd_send_signal(process, signal.SIGKILL)
        except ProcessLookupError:
            continue


def main() -> None:
    """Ignores the signals that stop a service: they may reach all of its processes, and in any order."""
    for number in _STOPPING:
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=0) as channel:
        channel.send(READY)
        serve(channel)


if __name__ == "__main__":
    main()
