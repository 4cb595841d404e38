"""A server in the sandbox: one process for each task that uses it, with the task's files and no others."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self

import mcp_types as types

from services.tools.mcp.connection import HeldConnection, McpSession, Open
from services.tools.mcp.delivery_errors import (
    CallNotSent,
    full_message_of,
    message_of,
    problem_of,
)
from services.tools.mcp.settings import REACH_SECONDS
from services.tools.source_facts import SourceFact
from services.tools.tool import CallContext
from tenure.domain.retry import RetryPolicy
from tenure.runtime import metrics
from tenure.runtime.process import heed_cancellation, rest, resting

# A server that all tasks share: linked to all the time, and asked again for its tools whenever they change.

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
        self._link: McpSession | None = None
        self._linked, self._wanted = asyncio.Event(), asyncio.Event()
        self._held: set[HeldConnection] = set()
        self.problem = "it was not reached yet"

    async def link(self, _context: CallContext) -> McpSession:
        """The link that there is, or the next one. Raises CallNotSent when there is none for a while."""
        try:
            async with asyncio.timeout(self._times.reach_seconds):
                while self._link is None or self._link.ended.is_set():
                    self._linked.clear()
                    self._wanted.set()
                    await self._linked.wait()
        except TimeoutError:
            raise CallNotSent(self.problem) from None
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
        held = HeldConnection(self.name, self._open, self._times.linger_seconds)
        self._held.add(held)
        try:
            link = await held.link()
            await self._serve(link)
            ended = "it does not react" if link.hangs else "the connection ended"
        except Exception as error:  # noqa: BLE001  whatever a server does, it is told and tried again
            written = "; what its program wrote is in the log" if getattr(error, "__notes__", ()) else ""
            self._fact.lost(f"{full_message_of(error)}{written}")
            self.problem = message_of(error)
            return problem_of(error)
        else:
            self._fact.lost(ended)
            self.problem = ended
            return ended
        finally:
            self._link = None
            held.let_go()
            self._held = {one for one in self._held if not one.is_gone}

    async def _serve(self, link: McpSession) -> None:
        while not link.ended.is_set():
            link.changed.clear()
            self._listed(await link.list_tools())
            self._set_link(link)
            with resting():  # calls notice a server that does not react
                await first_of(link.ended, link.changed)
            if not link.ended.is_set():
                await rest(_CALM_SECONDS)

    def _set_link(self, link: McpSession) -> None:
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


_SWEEPS_AN_IDLE_TIME: Final = 4

OpenFor = Callable[[str, str], Open]
"""How a server of this tenant's task is opened; with "" for the task, one that has no files."""


@dataclass(slots=True)
class _TaskServer:
    """`epoch`: the newest that used it. `waiting`: so many calls will be made on it as soon as it has started."""

    held: HeldConnection
    used_at: float
    epoch: int
    waiting: int = 0

    @property
    def is_idle(self) -> bool:
        return not self.waiting and self.held.current is not None and self.held.current.idle.is_set()


class TaskServers:
    """The duty `run`, and `link` for calls. At most `most` processes; one that was idle for so long ends."""

    def __init__(
        self, fact: SourceFact, open_for: OpenFor, listed: Listed, times: LinkTimes, most: int, idle_seconds: float
    ) -> None:
        self.name, self._fact = fact.name, fact
        self._open_for, self._listed, self._times = open_for, listed, times
        self._most, self._idle_seconds = most, idle_seconds
        self._servers: dict[str, _TaskServer] = {}
        self._ending: set[HeldConnection] = set()
        self._is_outdated = False
        self._changed = asyncio.Event()
        """There may be room now: a server has started, has become idle or is gone."""

    async def link(self, context: CallContext) -> McpSession:
        """The task's own server, started if need be. Raises CallNotSent when there is none for a while."""
        try:
            async with asyncio.timeout(self._times.reach_seconds):
                return await self._link(context)
        except TimeoutError:
            raise CallNotSent(f"all {self._most} servers of it are busy, or it does not start in time") from None

    async def run(self) -> None:
        """Ask which tools it has, however often that has to be tried, and again when they change; end what is idle."""
        failures = 0
        while (problem := await self._ask_for_tools()) is not None:
            heed_cancellation()
            failures += 1
            facts = {"server": self.name, "failures": failures, "error": problem}
            _log.warning("an MCP server does not start in the sandbox", extra=facts)
            await rest(AGAIN.wait_seconds(failures, random.random()))
        while True:
            await rest(self._idle_seconds / _SWEEPS_AN_IDLE_TIME)
            self._watch_changes()
            self._end_idle()
            if self._is_outdated and (problem := await self._ask_for_tools()) is not None:
                heed_cancellation()
                facts = {"server": self.name, "error": problem}
                _log.warning("an MCP server in the sandbox cannot be asked again for its tools", extra=facts)

    def _watch_changes(self) -> None:
        """A task's server that says its tools have changed is no source for others: what it lists may come from the
        task's files. It is a reason to ask one without files again.
        """
        for server in self._servers.values():
            link = server.held.current
            if link is not None and link.changed.is_set():
                link.changed.clear()
                self._is_outdated = True

    def _end_idle(self) -> None:
        before = asyncio.get_running_loop().time() - self._idle_seconds
        for task_id, server in list(self._servers.items()):
            if server.is_idle and server.used_at < before:
                self._let_go(task_id)

    def end_task(self, task_id: str, epoch: int) -> None:
        """The task has ended: so does its server, whatever it does, unless a newer epoch uses it."""
        server = self._servers.get(task_id)
        if server is not None and server.epoch <= epoch:
            self._let_go(task_id).cancel()

    def task_ids(self) -> list[str]:
        """The tasks that have a server here."""
        return list(self._servers)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        held = [*self._ending, *(server.held for server in self._servers.values())]
        await asyncio.gather(*(one.close() for one in held))

    async def _link(self, context: CallContext) -> McpSession:
        task_id = context.task_id
        while True:
            server = self._servers.get(task_id)
            if server is None:
                await self._make_room()
                server = self._servers.get(task_id) or self._start(context)
            server.epoch = max(server.epoch, context.epoch)
            try:
                link = await self._started(server)
            except Exception as error:
                self._forget(task_id, server)
                facts = {"server": self.name, "error": problem_of(error)}
                _log.warning("an MCP server of a task does not start in the sandbox", extra=facts)
                raise CallNotSent(message_of(error)) from error
            if not link.ended.is_set():
                server.used_at = asyncio.get_running_loop().time()
                return link
            self._forget(task_id, server)

    async def _started(self, server: _TaskServer) -> McpSession:
        server.waiting += 1
        try:
            return await server.held.link()
        finally:
            server.waiting -= 1
            self._changed.set()  # heard once the caller has begun its call, or was stopped

    def _start(self, context: CallContext) -> _TaskServer:
        opening = self._open_for(context.tenant, context.task_id)
        held = HeldConnection(self.name, opening, self._times.linger_seconds, self._changed.set)
        server = _TaskServer(held, asyncio.get_running_loop().time(), context.epoch)
        self._servers[context.task_id] = server
        held.when_gone(self._gone)
        self._tell()
        return server

    def _forget(self, task_id: str, server: _TaskServer) -> None:
        """One that has ended by itself, unless there is another by now."""
        if self._servers.get(task_id) is server:
            self._let_go(task_id)

    def _let_go(self, task_id: str) -> HeldConnection:
        held = self._servers.pop(task_id).held
        held.let_go()
        self._ending.add(held)
        return held

    def _gone(self, held: HeldConnection) -> None:
        self._ending.discard(held)
        self._servers = {task_id: one for task_id, one in self._servers.items() if one.held is not held}
        self._changed.set()
        self._tell()

    async def _make_room(self) -> None:
        """The one that was idle longest makes it; while none is, it is waited for."""
        while len(self._servers) + len(self._ending) >= self._most:
            idle = [(server.used_at, task_id) for task_id, server in self._servers.items() if server.is_idle]
            if idle and not self._ending:
                self._let_go(min(idle)[1])
            self._changed.clear()
            await self._changed.wait()

    async def _ask_for_tools(self) -> str | None:
        """Of a server without files; what went wrong."""
        try:
            async with self._open_for("", "")() as link:
                self._listed(await link.list_tools())
        except Exception as error:  # noqa: BLE001  whatever a server does, it is told and tried again
            self._fact.lost(full_message_of(error))
            return problem_of(error)
        self._is_outdated = False
        self._fact.linked()
        return None

    def _tell(self) -> None:
        metrics.gauge("tenure_tool_source_processes", len(self._servers) + len(self._ending), source=self.name)
