"""Fails the test whose event loop ends with open connections.

Python reports such a connection when the garbage collector finds it, minutes later and in a test that never had it.
"""

from __future__ import annotations

import asyncio
import warnings
from asyncio.selector_events import BaseSelectorEventLoop


def pytest_configure() -> None:
    close = BaseSelectorEventLoop.close

    def close_and_look(self: BaseSelectorEventLoop) -> None:
        left = [] if self.is_closed() else _open_transports(self)
        close(self)
        if left:
            warnings.warn(f"the event loop ends with open connections: {left}", ResourceWarning, stacklevel=2)

    BaseSelectorEventLoop.close = close_and_look  # type: ignore[method-assign, assignment]


def _open_transports(loop: asyncio.AbstractEventLoop) -> list[str]:
    """Returns the connections whose sockets are open: asyncio has no public list of them."""
    transports = list(vars(loop)["_transports"].values())
    return [f"{each!r} to {each.get_extra_info('peername')}" for each in transports if vars(each)["_sock"] is not None]
