"""A server that all tasks share: linked to all the time, and asked again for its tools whenever they change."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self

import mcp_types as types

from services.tools.mcp.fates import NothingDone, problem_of, whole_words_of, words_of
from services.tools.mcp.held import HeldLink, Open
from services.tools.mcp.link import Link
from services.tools.mcp.settings import REACH_SECONDS
from services.tools.source_facts import SourceFact
from services.tools.tool import CallContext
from tenure.domain.retry import RetryPolicy
from tenure.runtime.duties import heed_cancellation, rest, resting

_log: Final = logging.getLogger(__name__)
AGAIN: Final = RetryPolicy(initial_seconds=0.5, factor=2.0, cap_seconds=30.0)
_STEADY_SECONDS: Final = 60.0
"""A link that lasted so long was no failure."""

_CALM_SECONDS: Final = 0.5
"""Between two lists: a server that tells changes all the time is not asked all the time."""

_HURRIED_SECONDS: Final = 1.0
"""No longer is waited before the next try while a call waits for it."""

Listed = Callable[[list[types.Tool]], None]


@dataclass(frozen=True, slots=True)
class LinkTimes:
    """`reach_seconds`: how long a call waits for a link. `linger_seconds`: how long a link that has ended waits for the
    calls under way on it.
    """

    reach_seconds: float
    linger_seconds: float

    @classmethod
    def of_calls(cls, timeout_seconds: float) -> Self:
        """Of a server whose calls may take so long."""
        return cls(REACH_SECONDS, timeout_seconds + 5.0)


class SharedServer:
    """The duty `run`, and `link` for calls. `listed` is told the tools each time they were asked for."""

    def __init__(self, fact: SourceFact, open_link: Open, listed: Listed, times: LinkTimes) -> None:
        self.name, self._fact = fact.name, fact
        self._open, self._listed, self._times = open_link, listed, times
        self._link: Link | None = None
        self._linked, self._wanted = asyncio.Event(), asyncio.Event()
        self._held: set[HeldLink] = set()
        self.problem = "it was not reached yet"

    async def link(self, _context: CallContext) -> Link:
        """The link that there is, or the next one. Raises NothingDone when there is none for a while."""
        try:
            async with asyncio.timeout(self._times.reach_seconds):
                while self._link is None or self._link.ended.is_set():
                    self._linked.clear()
                    self._wanted.set()
                    await self._linked.wait()
        except TimeoutError:
            raise NothingDone(self.problem) from None
        return self._link

    async def run(self) -> None:
        """For ever."""
        clock = asyncio.get_running_loop().time
        failures = 0
        while True:
            began = clock()
            problem = await self._once()
            heed_cancellation()
            failures = 1 if clock() - began > _STEADY_SECONDS else failures + 1
            facts = {"server": self.name, "failures": failures, "error": problem}
            _log.warning("an MCP server is not linked to, and will be again", extra=facts)
            await self._pause(AGAIN.wait_seconds(failures, random.random()))

    async def _pause(self, wait_seconds: float) -> None:
        """Cut short by a call that waits."""
        hurried_seconds = min(wait_seconds, _HURRIED_SECONDS)
        await rest(hurried_seconds)
        with suppress(TimeoutError), resting():
            async with asyncio.timeout(wait_seconds - hurried_seconds):
                await self._wanted.wait()
        self._wanted.clear()

    async def _once(self) -> str:
        """One link to its end; why it ended, for the log. `problem` is for the model."""
        held = HeldLink(self.name, self._open, self._times.linger_seconds)
        self._held.add(held)
        try:
            link = await held.link()
            await self._serve(link)
            ended = "it does not react" if link.hangs else "the connection ended"
        except Exception as error:  # noqa: BLE001  whatever a server does, it is told and tried again
            written = "; what its program wrote is in the log" if getattr(error, "__notes__", ()) else ""
            self._fact.lost(f"{whole_words_of(error)}{written}")
            self.problem = words_of(error)
            return problem_of(error)
        else:
            self._fact.lost(ended)
            self.problem = ended
            return ended
        finally:
            self._link = None
            held.let_go()
            self._held = {one for one in self._held if not one.is_gone}

    async def _serve(self, link: Link) -> None:
        while not link.ended.is_set():
            link.changed.clear()
            self._listed(await link.list_tools())
            self._set_link(link)
            with resting():  # calls notice a server that does not react
                await first_of(link.ended, link.changed)
            if not link.ended.is_set():
                await rest(_CALM_SECONDS)

    def _set_link(self, link: Link) -> None:
        if self._link is not link:
            _log.info("linked to an MCP server", extra={"server": self.name})
            self._linked.set()
        self._link = link
        self._fact.linked()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(held.close() for held in self._held))


async def first_of(*events: asyncio.Event) -> None:
    """Wait until one of them is set."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waiting:
            one.cancel()
