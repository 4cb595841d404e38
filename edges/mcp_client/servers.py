"""Keeps the sessions of servers for calls.

SharedServer: one session for all tasks, kept open all the time. The server lists its tools again when they change.
TaskServers: a server in the sandbox, one process for each task that uses it, with the files of that task only.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self

from edges.mcp_client.connection import HeldConnection, McpSession, Open
from edges.mcp_client.delivery_errors import CallNotSent, full_message_of, message_of, problem_of
from edges.mcp_client.settings import REACH_SECONDS, McpServer
from edges.mcp_client.tool_lists import ListedTools
from services.tools.source_facts import SourceStatus
from services.tools.tool import CallContext
from tenure.domain.retry import RetryPolicy
from tenure.runtime.observability import metrics
from tenure.runtime.process import heed_cancellation, rest, resting

_log: Final = logging.getLogger(__name__)
RECONNECT: Final = RetryPolicy(initial_seconds=0.5, factor=2.0, cap_seconds=30.0)
_STEADY_SECONDS: Final = 60.0
"""A session that lasted this long resets the count of failures."""

_LIST_PAUSE_SECONDS: Final = 0.5
"""The pause between two lists of tools, for a server that reports changes all the time."""

_URGENT_SECONDS: Final = 1.0
"""The longest pause before the next attempt while a call waits for the server."""

Listed = Callable[[ListedTools], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class LinkTimes:
    """The time limits of a server's sessions.

    reach_seconds: how long a call waits for a session.
    linger_seconds: how long an ended session waits for its calls under way.
    start_seconds: how long a session may take to open.
    """

    reach_seconds: float
    linger_seconds: float
    start_seconds: float = 30.0

    @classmethod
    def of(cls, settings: McpServer) -> Self:
        """Returns the limits of a server."""
        return cls(REACH_SECONDS, settings.timeout_seconds + 5.0, settings.start_seconds)


class SharedServer:
    """A server that all tasks share: the duty `run` keeps its session, and `link` gives the session to calls.

    Calls `listed` with the tools each time the server has listed them.
    """

    def __init__(self, fact: SourceStatus, open_link: Open, listed: Listed, times: LinkTimes) -> None:
        self.name, self._fact = fact.name, fact
        self._open, self._listed, self._times = open_link, listed, times
        self._session: McpSession | None = None
        self._connected, self._wanted = asyncio.Event(), asyncio.Event()
        self._held: set[HeldConnection] = set()
        self.problem = "no connection has been opened yet"

    async def link(self, _context: CallContext) -> McpSession:
        """Returns the open session, or waits for the next one. Raises CallNotSent after `reach_seconds` without one."""
        try:
            async with asyncio.timeout(self._times.reach_seconds):
                while self._session is None or self._session.ended.is_set():
                    self._connected.clear()
                    self._wanted.set()
                    await self._connected.wait()
        except TimeoutError:
            raise CallNotSent(self.problem) from None
        return self._session

    async def run(self) -> None:
        """Opens a session, serves it to its end and opens the next one, for ever."""
        clock = asyncio.get_running_loop().time
        failures = 0
        while True:
            began = clock()
            problem = await self._once()
            heed_cancellation()
            failures = 1 if clock() - began > _STEADY_SECONDS else failures + 1
            extra = {"server": self.name, "failures": failures, "error": problem}
            _log.warning("an MCP server is not connected: connecting again after a pause", extra=extra)
            await self._pause(RECONNECT.wait_seconds(failures, random.random()))

    async def _pause(self, wait_seconds: float) -> None:
        """Waits before the next attempt. A waiting call shortens the pause."""
        urgent_seconds = min(wait_seconds, _URGENT_SECONDS)
        await rest(urgent_seconds)
        with suppress(TimeoutError), resting():
            async with asyncio.timeout(wait_seconds - urgent_seconds):
                await self._wanted.wait()
        self._wanted.clear()

    async def _once(self) -> str:
        """Serves one session to its end. Returns why it ended, for the log; `problem` has the text for the model."""
        times = self._times
        held = HeldConnection(self.name, self._open, times.linger_seconds, start_seconds=times.start_seconds)
        self._held.add(held)
        try:
            session = await held.link()
            await self._serve(session)
            ended = "the server does not respond" if session.hangs else "the connection ended"
        except Exception as error:  # noqa: BLE001  a server may fail in any way; reported, then retried
            hint = "; the log has the stderr of its program" if getattr(error, "__notes__", ()) else ""
            self._fact.lost(f"{full_message_of(error)}{hint}")
            self.problem = message_of(error)
            return problem_of(error)
        else:
            self._fact.lost(ended)
            self.problem = ended
            return ended
        finally:
            self._session = None
            held.retire()
            self._held = {other for other in self._held if not other.is_closed}

    async def _serve(self, session: McpSession) -> None:
        while not session.ended.is_set():
            session.changed.clear()
            await self._listed(await session.list_tools())
            self._set_session(session)
            with resting():  # calls notice a server that does not respond
                await first_of(session.ended, session.changed)
            if not session.ended.is_set():
                await rest(_LIST_PAUSE_SECONDS)

    def _set_session(self, session: McpSession) -> None:
        if self._session is not session:
            _log.info("connected to an MCP server", extra={"server": self.name})
            self._connected.set()
        self._session = session
        self._fact.linked()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(held.close() for held in self._held))


async def first_of(*events: asyncio.Event) -> None:
    """Waits until one of the events is set."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for waiter in waiting:
            waiter.cancel()


_SWEEPS_PER_IDLE_TIME: Final = 4

OpenFor = Callable[[str, str], Open]
"""Takes a tenant and a task id; returns what opens a session for that task. Task id "": a server without files."""


@dataclass(slots=True)
class _TaskServer:
    """The server process of one task.

    `epoch`: the newest that used it. `waiting`: how many calls wait for its start.
    """

    held: HeldConnection
    used_at: float
    epoch: int
    waiting: int = 0

    @property
    def is_idle(self) -> bool:
        return not self.waiting and self.held.current is not None and self.held.current.idle.is_set()


class TaskServers:
    """A server with one process per task: the duty `run` lists its tools and ends idle processes, `link` serves calls.

    At most `most` processes run. A process that was idle for `idle_seconds` ends.
    """

    def __init__(
        self, fact: SourceStatus, open_for: OpenFor, listed: Listed, times: LinkTimes, most: int, idle_seconds: float
    ) -> None:
        self.name, self._fact = fact.name, fact
        self._open_for, self._listed, self._times = open_for, listed, times
        self._most, self._idle_seconds = most, idle_seconds
        self._servers: dict[str, _TaskServer] = {}
        self._ending: set[HeldConnection] = set()
        self._is_outdated = False
        self._changed = asyncio.Event()
        """Set when a process may fit below the limit: a process has started, has become idle or has ended."""

    async def link(self, context: CallContext) -> McpSession:
        """Returns the session of the task's own server, which it starts if needed.

        Raises CallNotSent after a time limit.
        """
        try:
            async with asyncio.timeout(self._times.reach_seconds):
                return await self._link(context)
        except TimeoutError:
            raise CallNotSent(
                f"all {self._most} processes of it are busy, or a new process did not start in time"
            ) from None

    async def run(self) -> None:
        """Lists the tools until that succeeds, and again when they change. Ends idle processes."""
        failures = 0
        while (problem := await self._list_tools()) is not None:
            heed_cancellation()
            failures += 1
            extra = {"server": self.name, "failures": failures, "error": problem}
            _log.warning("an MCP server does not start in the sandbox", extra=extra)
            await rest(RECONNECT.wait_seconds(failures, random.random()))
        while True:
            await rest(self._idle_seconds / _SWEEPS_PER_IDLE_TIME)
            self._watch_changes()
            self._end_idle()
            if self._is_outdated and (problem := await self._list_tools()) is not None:
                heed_cancellation()
                extra = {"server": self.name, "error": problem}
                _log.warning("an MCP server in the sandbox could not list its changed tools", extra=extra)

    def _watch_changes(self) -> None:
        """Notes that a task's server reported changed tools.

        The list of that server is not used, because it may depend on the task's files. Instead a server without files
        lists the tools again.
        """
        for server in self._servers.values():
            session = server.held.current
            if session is not None and session.changed.is_set():
                session.changed.clear()
                self._is_outdated = True

    def _end_idle(self) -> None:
        idle_since = asyncio.get_running_loop().time() - self._idle_seconds
        for task_id, server in list(self._servers.items()):
            if server.is_idle and server.used_at < idle_since:
                self._retire(task_id)

    def end_task(self, task_id: str, epoch: int) -> None:
        """Ends the server of an ended task, also with calls under way, unless a newer epoch uses it."""
        server = self._servers.get(task_id)
        if server is not None and server.epoch <= epoch:
            self._retire(task_id).cancel()

    def task_ids(self) -> list[str]:
        """Returns the tasks that have a server process in this service."""
        return list(self._servers)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        connections = [*self._ending, *(server.held for server in self._servers.values())]
        await asyncio.gather(*(held.close() for held in connections))

    async def _link(self, context: CallContext) -> McpSession:
        task_id = context.task_id
        while True:
            server = self._servers.get(task_id)
            if server is None:
                await self._wait_for_room()
                server = self._servers.get(task_id) or self._start(context)
            server.epoch = max(server.epoch, context.epoch)
            try:
                session = await self._started(server)
            except Exception as error:
                self._forget(task_id, server)
                extra = {"server": self.name, "error": problem_of(error)}
                _log.warning("an MCP server of a task does not start in the sandbox", extra=extra)
                raise CallNotSent(message_of(error)) from error
            if not session.ended.is_set():
                server.used_at = asyncio.get_running_loop().time()
                return session
            self._forget(task_id, server)

    async def _started(self, server: _TaskServer) -> McpSession:
        server.waiting += 1
        try:
            return await server.held.link()
        finally:
            server.waiting -= 1
            self._changed.set()  # waiters run after the caller has begun its call or was cancelled

    def _start(self, context: CallContext) -> _TaskServer:
        opening = self._open_for(context.tenant, context.task_id)
        times = self._times
        held = HeldConnection(
            self.name, opening, times.linger_seconds, self._changed.set, start_seconds=times.start_seconds
        )
        server = _TaskServer(held, asyncio.get_running_loop().time(), context.epoch)
        self._servers[context.task_id] = server
        held.when_closed(self._on_closed)
        self._report_processes()
        return server

    def _forget(self, task_id: str, server: _TaskServer) -> None:
        """Removes a server that has ended by itself, unless the task has a new one."""
        if self._servers.get(task_id) is server:
            self._retire(task_id)

    def _retire(self, task_id: str) -> HeldConnection:
        held = self._servers.pop(task_id).held
        held.retire()
        self._ending.add(held)
        return held

    def _on_closed(self, held: HeldConnection) -> None:
        self._ending.discard(held)
        self._servers = {task_id: server for task_id, server in self._servers.items() if server.held is not held}
        self._changed.set()
        self._report_processes()

    async def _wait_for_room(self) -> None:
        """Waits until the limit allows one more process.

        Ends the server that has been idle longest, if there is one.
        """
        while len(self._servers) + len(self._ending) >= self._most:
            idle = [(server.used_at, task_id) for task_id, server in self._servers.items() if server.is_idle]
            if idle and not self._ending:
                self._retire(min(idle)[1])
            self._changed.clear()
            await self._changed.wait()

    async def _list_tools(self) -> str | None:
        """Starts a server without files and takes its list of tools. Returns the error, or None."""
        try:
            async with self._open_for("", "")() as session:
                await self._listed(await session.list_tools())
        except Exception as error:  # noqa: BLE001  a server may fail in any way; reported, then retried
            self._fact.lost(full_message_of(error))
            return problem_of(error)
        self._is_outdated = False
        self._fact.linked()
        return None

    def _report_processes(self) -> None:
        metrics.gauge("tenure_tool_source_processes", len(self._servers) + len(self._ending), source=self.name)
