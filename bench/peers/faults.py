"""Faults of a peer's worker just before a tool's effect: frozen until the task ended elsewhere, or killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.peers.engine import PeerEngine, register
from bench.peers.peers import StoreKind, Takeover
from bench.peers.program import EngineFailedError, Program, Victim, read_effects, read_victim
from bench.peers.programs.agent import STEPS
from bench.peers.stores import Store, accepts, free_ports
from bench.processes import AVAILABLE
from devstack.options import HOST

VICTIM_SECONDS: Final = 60.0
TAKEOVER_SECONDS: Final = 240.0
QUIET_SECONDS: Final = 3.0
"""How long the woken worker must make no effect before the effects are counted."""
POLL_SECONDS: Final = 0.01
TASK: Final = "task"


@dataclass(slots=True)
class Outcome:
    """`repeated`: effects beyond the ten. `takeover_seconds`: from the signal to the first effect elsewhere."""

    repeated: int
    takeover_seconds: float


async def run_fault(engine: PeerEngine, folder: Path, fault: str, lease_seconds: int) -> Outcome:
    """Runs one task with the fault `freeze` or `kill`. Raises EngineFailedError."""
    takeover = engine.peer.takeover
    async with engine.stores.open(engine.peer.store, folder) as store, AsyncExitStack() as opened:
        workers = await _start_workers(engine, store, folder, opened, fault, lease_seconds)
        workers.first.submit([TASK])
        victim = await _stopped_victim(folder, fault)
        workers.part_from_victim()
        try:
            if takeover is Takeover.RESTART:
                await engine.start(store, folder, opened)
            elif takeover is Takeover.CALL and workers.second is not None:
                workers.second.submit([TASK], is_resumed=True)
            await _poll(f"{engine.title} to finish the task elsewhere", TAKEOVER_SECONDS, lambda: _is_over(folder))
            if fault == "freeze":
                os.kill(victim.pid, signal.SIGCONT)
                await _quiet(folder)
        finally:
            with suppress(ProcessLookupError):  # it has ended, as it should after a kill
                os.kill(victim.pid, signal.SIGKILL)
    effects = read_effects(folder)
    elsewhere = min(effect.at for effect in effects if effect.pid != victim.pid and effect.at > victim.at)
    return Outcome(repeated=len(effects) - STEPS, takeover_seconds=elsewhere - victim.at)


@dataclass(frozen=True, slots=True)
class _Workers:
    """The worker that gets the task, and a second one where both run before the fault.

    `part_from_victim`: closes the engine's connections to a stopped worker, as the health check of a balancer does.
    """

    first: Program
    second: Program | None
    part_from_victim: Callable[[], None] = lambda: None


async def _start_workers(
    engine: PeerEngine, store: Store, folder: Path, opened: AsyncExitStack, fault: str, lease_seconds: int
) -> _Workers:
    is_called = engine.peer.store is StoreKind.RESTATE
    ports = free_ports(2) if is_called else [0, 0]
    if engine.peer.takeover is Takeover.RESTART:
        del ports[1]
    programs = [
        await engine.start(store, folder, opened, port=port, fault=fault, lease_seconds=lease_seconds) for port in ports
    ]
    if not is_called:
        return _Workers(programs[0], programs[1] if len(programs) > 1 else None)
    await _poll("both workers to serve", VICTIM_SECONDS, lambda: all(map(accepts, ports)))
    balancer = Balancer(ports, lambda: int(read_victim(folder) is not None))
    await register(store, await opened.enter_async_context(balancer.serving()))
    return _Workers(programs[0], programs[1], balancer.close_connections)


async def _stopped_victim(folder: Path, fault: str) -> Victim:
    await _poll("a worker to come to the step of the fault", VICTIM_SECONDS, lambda: read_victim(folder) is not None)
    victim = read_victim(folder)
    assert victim is not None, "the poll waited for it"
    if fault == "freeze" and AVAILABLE:
        await _poll("the worker to freeze", VICTIM_SECONDS, lambda: is_frozen(victim.pid))
    return victim


def is_frozen(pid: int) -> bool:
    """Returns whether all threads of the process are stopped. Needs /proc."""
    try:
        states = [file.read_text().rpartition(")")[2].split()[0] for file in Path(f"/proc/{pid}/task").glob("*/stat")]
    except (FileNotFoundError, ProcessLookupError):
        return False  # a thread has just ended
    return bool(states) and set(states) <= {"T", "t"}


def _is_over(folder: Path) -> bool:
    """Whether the last step's effect was made. Before its SIGCONT, a frozen worker cannot have made it."""
    return any(effect.step == STEPS for effect in read_effects(folder))


async def _quiet(folder: Path) -> None:
    """Waits until no effect was added for some seconds."""
    loop = asyncio.get_running_loop()
    count, since = len(read_effects(folder)), loop.time()
    while loop.time() - since < QUIET_SECONDS:
        await asyncio.sleep(POLL_SECONDS)
        if (now := len(read_effects(folder))) != count:
            count, since = now, loop.time()


async def _poll(what: str, seconds: float, holds: Callable[[], bool]) -> None:
    try:
        async with asyncio.timeout(seconds):
            while not holds():  # noqa: ASYNC110  another process makes the change
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        raise EngineFailedError(f"The bench waited {seconds:g} s for {what}, which did not happen.") from None


@dataclass(slots=True)
class Balancer:
    """A balancer of TCP connections. `choose` returns the index of the port for a new connection."""

    ports: Sequence[int]
    choose: Callable[[], int]
    _copies: set[asyncio.Task[None]] = field(default_factory=set)
    _clients: set[asyncio.StreamWriter] = field(default_factory=set)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[int]:
        """Yields the balancer's port."""
        server = await asyncio.start_server(self._accept, HOST, 0)
        try:
            yield int(server.sockets[0].getsockname()[1])
        finally:
            server.close()
            self.close_connections()
            copies = list(self._copies)
            for copy in copies:
                copy.cancel()
            await asyncio.gather(*copies, return_exceptions=True)

    def close_connections(self) -> None:
        """Closes the connections of all clients."""
        for client in self._clients:
            client.close()
        self._clients.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Connects a client with the chosen worker. Closes the connection where the worker does not answer."""
        try:
            back_reader, back_writer = await asyncio.open_connection(HOST, self.ports[self.choose()])
        except OSError:
            writer.close()
            return
        self._clients.add(writer)
        for source, target in ((reader, back_writer), (back_reader, writer)):
            copy = asyncio.create_task(_copy(source, target))
            self._copies.add(copy)
            copy.add_done_callback(self._copies.discard)


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        with suppress(OSError):  # either end is gone: so is the connection
            while data := await source.read(65_536):
                target.write(data)
                await target.drain()
    finally:
        target.close()
