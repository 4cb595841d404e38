"""A server in the sandbox: one process for each task that uses it, with the task's files and no others."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

from services.tools.mcp.fates import NothingDone, problem_of, whole_words_of, words_of
from services.tools.mcp.held import HeldLink, Open
from services.tools.mcp.link import Link
from services.tools.mcp.shared_server import AGAIN, LinkTimes, Listed
from services.tools.source_facts import SourceFact
from services.tools.tool import CallContext
from tenure.runtime import metrics
from tenure.runtime.duties import heed_cancellation, rest

_log: Final = logging.getLogger(__name__)
_SWEEPS_AN_IDLE_TIME: Final = 4

OpenFor = Callable[[str, str], Open]
"""How a server of this tenant's task is opened; with "" for the task, one that has no files."""


@dataclass(slots=True)
class _TaskServer:
    """`epoch`: the newest that used it. `waiting`: so many calls will be made on it as soon as it has started."""

    held: HeldLink
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
        self._ending: set[HeldLink] = set()
        self._is_outdated = False
        self._changed = asyncio.Event()
        """There may be room now: a server has started, has become idle or is gone."""

    async def link(self, context: CallContext) -> Link:
        """The task's own server, started if need be. Raises NothingDone when there is none for a while."""
        try:
            async with asyncio.timeout(self._times.reach_seconds):
                return await self._link(context)
        except TimeoutError:
            raise NothingDone(f"all {self._most} servers of it are busy, or it does not start in time") from None

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
            self._hear_changes()
            self._end_idle()
            if self._is_outdated and (problem := await self._ask_for_tools()) is not None:
                heed_cancellation()
                facts = {"server": self.name, "error": problem}
                _log.warning("an MCP server in the sandbox cannot be asked again for its tools", extra=facts)

    def _hear_changes(self) -> None:
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

    async def _link(self, context: CallContext) -> Link:
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
                raise NothingDone(words_of(error)) from error
            if not link.ended.is_set():
                server.used_at = asyncio.get_running_loop().time()
                return link
            self._forget(task_id, server)

    async def _started(self, server: _TaskServer) -> Link:
        server.waiting += 1
        try:
            return await server.held.link()
        finally:
            server.waiting -= 1
            self._changed.set()  # heard once the caller has begun its call, or was stopped

    def _start(self, context: CallContext) -> _TaskServer:
        opening = self._open_for(context.tenant, context.task_id)
        held = HeldLink(self.name, opening, self._times.linger_seconds, self._changed.set)
        server = _TaskServer(held, asyncio.get_running_loop().time(), context.epoch)
        self._servers[context.task_id] = server
        held.when_gone(self._gone)
        self._tell()
        return server

    def _forget(self, task_id: str, server: _TaskServer) -> None:
        """One that has ended by itself, unless there is another by now."""
        if self._servers.get(task_id) is server:
            self._let_go(task_id)

    def _let_go(self, task_id: str) -> HeldLink:
        held = self._servers.pop(task_id).held
        held.let_go()
        self._ending.add(held)
        return held

    def _gone(self, held: HeldLink) -> None:
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
            self._fact.lost(whole_words_of(error))
            return problem_of(error)
        self._is_outdated = False
        self._fact.linked()
        return None

    def _tell(self) -> None:
        metrics.gauge("tenure_tool_source_processes", len(self._servers) + len(self._ending), source=self.name)
