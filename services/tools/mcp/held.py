"""A link, open in a task of its own: what opens it must close it, and calls come from everywhere."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

from services.tools.mcp.fates import NothingDone, words_of
from services.tools.mcp.link import CONNECT_SECONDS, Link

_log: Final = logging.getLogger(__name__)
OPEN_SECONDS: Final = CONNECT_SECONDS + 15.0
Open = Callable[[], AbstractAsyncContextManager[Link]]


class HeldLink:
    """Opens at once. At its end, or when it is let go, it waits for the calls under way, `linger_seconds` at most.

    `tell_idle` is called whenever it is open and without calls from now on.
    """

    def __init__(
        self, server: str, open_link: Open, linger_seconds: float, tell_idle: Callable[[], None] = lambda: None
    ) -> None:
        self._server, self._open, self._linger_seconds = server, open_link, linger_seconds
        self._tell_idle = tell_idle
        self._opened: asyncio.Future[Link] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._hold(), name=f"link to {server}")

    @property
    def current(self) -> Link | None:
        """The link, once it is open."""
        is_open = self._opened.done() and self._opened.exception() is None
        return self._opened.result() if is_open else None

    @property
    def is_gone(self) -> bool:
        """Whether all of it is closed."""
        return self._task.done()

    async def link(self) -> Link:
        """When it is open. Raises what kept it from opening, and NothingDone when that does not even fail in time.

        Opening has a deadline of its own; what it had opened by then is closed after that, in the server's own time.
        """
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                return await asyncio.shield(self._opened)
        except TimeoutError:
            if self._opened.done():
                raise  # that of opening
            raise NothingDone(f"it was neither linked to nor given up within {OPEN_SECONDS:g} s") from None

    def let_go(self) -> None:
        """No further call will come."""
        if self.current is not None:
            self.current.ended.set()
        else:
            self._task.cancel()

    def cancel(self) -> None:
        """End it, whatever is under way."""
        self._task.cancel()

    def when_gone(self, tell: Callable[[HeldLink], None]) -> None:
        """Once, when all of it is closed."""
        self._task.add_done_callback(lambda _: tell(self))

    async def close(self) -> None:
        """At once, whatever is under way, and to its end."""
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _hold(self) -> None:
        try:
            async with self._open() as link:
                self._opened.set_result(link)
                link.tell_idle = self._tell_idle
                self._tell_idle()
                await self._attend(link)
        except Exception as error:  # noqa: BLE001  told to who waits for the link, or what ended it
            if not self._opened.done():
                self._opened.set_exception(error)
                self._opened.exception()  # nobody may be waiting
            else:
                _log.debug("a link was lost: %s", words_of(error), extra={"server": self._server})
        finally:
            if not self._opened.done():
                self._opened.set_exception(NothingDone("its link was closed"))
                self._opened.exception()

    async def _attend(self, link: Link) -> None:
        try:
            watching = asyncio.create_task(link.watch())
            try:
                await link.ended.wait()
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
            if not link.hangs:
                async with asyncio.timeout(self._linger_seconds):
                    await link.idle.wait()
        except TimeoutError:
            _log.debug("calls were still under way at the end of a link", extra={"server": self._server})
        finally:
            link.ended.set()
