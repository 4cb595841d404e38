"""An engine as the rounds and the faults use it, the engines of the peers, and the rounds in which they take turns.

Each engine starts for its turn on an empty store and ends after it, so that nothing of the others runs meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Final, Protocol

from bench.peers.environment import Environment
from bench.peers.peers import Peer, StoreKind
from bench.peers.program import EngineFailedError, Program, read_effects, step_seconds
from bench.peers.programs.agent import STEPS
from bench.peers.results import ALONE, AT_ONCE, Result, Sample
from bench.peers.stores import Store, Stores, free_ports
from bench.processes import CpuMeter
from bench.run import Options
from devstack.options import HOST

REGISTER_SECONDS: Final = 30.0
POLL_SECONDS: Final = 0.05
_OWN: Final = "bench"


class Running(Protocol):
    """An engine that runs, with a worker for so many tasks at once."""

    async def run(self, count: int) -> Sample:
        """Runs new tasks of ten steps to their end."""
        ...


class Engine(Protocol):
    """An engine that is compared. `name` and `title` are for the report."""

    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str: ...

    def running(self, folder: Path, at_once: int) -> Any:
        """An asynchronous context manager that yields the `Running` engine, on an empty store."""
        ...


@dataclass(frozen=True, slots=True)
class PeerEngine:
    """A peer, on stores of this run."""

    peer: Peer
    environment: Environment
    stores: Stores

    @property
    def name(self) -> str:
        return self.peer.name

    @property
    def title(self) -> str:
        return self.peer.title

    @asynccontextmanager
    async def running(self, folder: Path, at_once: int) -> AsyncIterator[Running]:
        """Yields the engine with one program."""
        async with self.stores.open(self.peer.store, folder) as store, AsyncExitStack() as opened:
            port = free_ports(1)[0] if self.peer.store is StoreKind.RESTATE else 0
            program = await self.start(store, folder, opened, at_once=at_once, port=port)
            if port:
                await register(store, port)
            yield RunningPeer(program, store, folder, at_once)

    async def start(
        self,
        store: Store,
        folder: Path,
        opened: AsyncExitStack,
        *,
        at_once: int = 1,
        port: int = 0,
        fault: str = "",
        lease_seconds: int = 0,
    ) -> Program:
        """Starts a program, which ends with `opened`."""
        arguments = ["--store", store.where, "--at-once", str(at_once), "--port", str(port), "--fault", fault]
        arguments += ["--lease-seconds", str(lease_seconds)]
        program = Program(self.environment.python, self.peer.name, folder, arguments)
        opened.push_async_callback(program.stop)
        await program.start()
        return program


@dataclass(slots=True)
class RunningPeer:
    """A peer that runs."""

    program: Program
    store: Store
    folder: Path
    at_once: int
    _submitted: int = 0

    async def run(self, count: int) -> Sample:
        """Runs tasks; the rate counts from their submit to the last one's durable end."""
        tasks = [f"task-{self._submitted + number}" for number in range(count)]
        self._submitted += count
        meter = CpuMeter({"worker": self.program.pid, **self.store.pids}, own=_OWN)
        written = self.store.written_bytes()
        meter.start()
        began = perf_counter()
        await self.program.run(tasks)
        seconds = perf_counter() - began
        cpu = without_own(meter.used_seconds())
        written = self.store.written_bytes() - written
        latencies = step_seconds(read_effects(self.folder), tasks)
        return Sample(self.at_once, count * STEPS, seconds, latencies, cpu, written)


def without_own(used: Mapping[str, float]) -> dict[str, float]:
    """Returns the processor time without that of the bench, which only waits."""
    return {name: seconds for name, seconds in used.items() if name != _OWN}


async def register(store: Store, port: int) -> None:
    """Registers the program's services at the Restate server. Raises EngineFailedError."""
    request = urllib.request.Request(
        f"{store.admin_url}/deployments",
        data=json.dumps({"uri": f"http://{HOST}:{port}"}).encode(),
        headers={"content-type": "application/json"},
    )
    last: Sequence[str] = ["no answer"]
    try:
        async with asyncio.timeout(REGISTER_SECONDS):
            while True:
                try:
                    await asyncio.to_thread(_send, request)
                except (urllib.error.URLError, OSError) as error:
                    last = [str(error)]
                    await asyncio.sleep(POLL_SECONDS)
                else:
                    return
    except TimeoutError:
        raise EngineFailedError(f"The Restate server does not accept the agent's service: {last[0]}") from None


def _send(request: urllib.request.Request) -> None:
    with urllib.request.urlopen(request, timeout=10) as response:
        response.read()


WARM_UP_TASKS: Final = {ALONE: 3, AT_ONCE: 2 * AT_ONCE}


async def run_rounds(engines: Sequence[Engine], results: Mapping[str, Result], options: Options) -> None:
    """Adds the samples to the results. An engine that fails gets an error and has no further turn."""
    rounds = options.choose(smoke=1, quick=3, full=5)
    for number in range(rounds):
        turn = number % len(engines)
        for engine in [*engines[turn:], *engines[:turn]]:
            result = results[engine.name]
            if result.error:
                continue
            options.tell(f"round {number + 1} of {rounds}: {engine.title}")
            try:
                for at_once in (ALONE, AT_ONCE):
                    folder = options.folder / f"{engine.name}_{number}_{at_once}"
                    folder.mkdir()
                    result.samples.append(await _measure(engine, folder, at_once, options))
            except EngineFailedError as error:
                result.error = str(error)
                options.tell(f"{engine.title} failed: {error}")


async def _measure(engine: Engine, folder: Path, at_once: int, options: Options) -> Sample:
    running: Running
    async with engine.running(folder, at_once) as running:
        warm_up = await running.run(
            options.choose(smoke=at_once, quick=WARM_UP_TASKS[at_once], full=WARM_UP_TASKS[at_once])
        )
        seconds = options.choose(smoke=0.2, quick=1.5, full=5.0)
        return await running.run(task_count(warm_up.rate, seconds, at_once))


def task_count(rate: float, seconds: float, at_once: int) -> int:
    """Returns how many tasks take about so many seconds at `rate` steps/s, in whole sets of those at once."""
    sets = round(rate * seconds / STEPS / at_once)
    return max(1, sets) * at_once
