"""Which process listens at a port, as the kernel tells it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from devstack.listening import listens

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says which process has a socket")


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_listening_process_is_distinguished(family: socket.AddressFamily, host: str) -> None:
    with socket.socket(family) as ours, subprocess.Popen(["sleep", "60"], start_new_session=True) as other:
        ours.bind((host, 0))
        port = ours.getsockname()[1]
        try:
            assert not listens(os.getpid(), port), "bound is not listening"
            ours.listen()
            assert listens(os.getpid(), port)
            assert not listens(other.pid, port)
            assert not listens(os.getpid(), port + 1)
        finally:
            other.kill()


def test_a_child_in_the_session_listens_for_its_leader() -> None:
    listener = "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)"
    leader = ["sh", "-c", f'{sys.executable} -c "{listener}; sys.stdin.read()"; true']
    with subprocess.Popen(leader, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as shell:
        assert shell.stdout is not None
        port = int(shell.stdout.readline())
        assert listens(shell.pid, port)
        assert not listens(os.getpid(), port)
