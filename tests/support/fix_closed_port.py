"""A TCP port of this machine without a listener, for the whole of a test: a connection to it is refused at once."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest


@pytest.fixture
def closed_port() -> Iterator[int]:
    """Held by a socket that does not listen: a port that was only free once is soon another test's server."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
