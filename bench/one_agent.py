"""Measures a step of one agent alone, next to the wall floor: three messages and three durable transactions.

`python -m bench.one_agent` is the other end of those messages: a gRPC server that returns each message of a stream. It
prints its port, and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final

import grpc

from bench.data_path import DataPath, HeldTask
from bench.null_agent import NullAgent
from bench.processes import CpuMeter
from bench.report import Section, percentile
from bench.run import Options
from bench.steps import STEPS, null_agents
from tenure.runtime.store.postgres import BoundedConnection, pool_connection

METHOD: Final = "/bench.Echo/Stream"
HOST: Final = "127.0.0.1"


class _Echo(grpc.GenericRpcHandler):
    def service(self, handler_call_details: Any) -> Any:  # noqa: ARG002  gRPC's interface
        """Returns the only handler, whatever the method."""
        return grpc.stream_stream_rpc_method_handler(_echo)


async def _echo(messages: AsyncIterator[bytes], _context: object) -> AsyncIterator[bytes]:
    async for message in messages:
        yield message


async def _serve(tell: Callable[[str], None]) -> None:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_Echo(),))
    port = server.add_insecure_port(f"{HOST}:0")
    await server.start()
    tell(str(port))
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)


ROUND_TRIPS: Final = 3
MESSAGE: Final = b"." * 2400
_TABLE: Final = "create table if not exists public.bench_floor (id int primary key, n int not null)"
_ROW: Final = "insert into public.bench_floor values (1, 0) on conflict do nothing"
_UPDATE: Final = "update public.bench_floor set n = n + 1 where id = 1"


@dataclass(frozen=True, slots=True)
class WallFloor:
    """A stream to a server that only returns messages, and a connection to the Postgres of a data path."""

    stream: Any
    connection: BoundedConnection

    async def step(self) -> float:
        """Returns the seconds of three stream round trips and three transactions with one update each."""
        began = perf_counter()
        for _ in range(ROUND_TRIPS):
            await self.stream.write(MESSAGE)
            assert await self.stream.read() == MESSAGE, "the server returned another message"
            async with self.connection.transaction():
                await self.connection.execute(_UPDATE)
        return perf_counter() - began


@asynccontextmanager
async def wall_floor(path: DataPath) -> AsyncIterator[WallFloor]:
    """Yields a floor beside a running data path."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.one_agent", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        port = int(await process.stdout.readline())
        async with grpc.aio.insecure_channel(f"{HOST}:{port}") as channel, pool_connection(path.pool) as connection:
            await connection.execute(_TABLE)
            await connection.execute(_ROW)
            stream: Any = channel.stream_stream(METHOD)()
            yield WallFloor(stream, connection)
            await stream.done_writing()
    finally:
        process.stdin.close()
        await process.wait()


ROUNDS: Final = 7
HOW: Final = (
    f"One agent, one task of {STEPS} steps after another; a step is that of the 32 agents. The wall floor: "
    f"{ROUND_TRIPS} round trips on a gRPC stream to a process that returns each message, and after each a transaction "
    f"with one update, on the same Postgres. Tasks and as many floors take turns in {ROUNDS} rounds."
)


@dataclass(slots=True)
class _Rounds:
    """Seconds of all steps and floors, the ratio of their p50 in each round, and µs a step by process."""

    steps: list[float] = field(default_factory=list)
    floors: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    cpu: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, steps: list[float], floors: list[float], used: Mapping[str, float]) -> None:
        self.steps += steps
        self.floors += floors
        self.ratios.append(percentile(steps, 0.5) / percentile(floors, 0.5))
        for name, seconds in used.items():
            self.cpu[name].append(seconds * 1e6 / len(steps))


async def measure(options: Options) -> list[Section]:
    """Returns latencies and processor time of a step, and its ratio to the floor."""
    options.tell("one agent: starting Postgres, checkpoint and tools")
    path = DataPath(options.folder / "one-agent", "checkpoint", "tools")
    count = options.choose(smoke=1, quick=15, full=60)
    rounds = _Rounds()
    async with path, null_agents(path) as agents, wall_floor(path) as floor:
        await _steps(agents.agent, await agents.maker.held(options.choose(smoke=1, quick=20, full=20)))
        for number in range(1, options.choose(smoke=1, quick=ROUNDS, full=ROUNDS) + 1):
            options.tell(f"one agent: round {number}")
            tasks = await agents.maker.held(count)
            steps, floors, used = [], [], dict.fromkeys([*path.pids(), "driver"], 0.0)
            for task in tasks:
                meter = CpuMeter(path.pids(), own="driver")
                meter.start()
                steps += await _steps(agents.agent, [task])
                for name, value in meter.used_seconds().items():
                    used[name] += value
                floors += [await floor.step() for _ in range(STEPS)]
            rounds.add(steps, floors, used)
    return [_section(rounds)]


async def _steps(agent: NullAgent, tasks: list[HeldTask]) -> list[float]:
    """Runs one task after another. Returns the seconds of each step."""
    seconds = []
    for task in tasks:
        await agent.begin(task)
        seconds += [await agent.step(task, last=number == STEPS) for number in range(1, STEPS + 1)]
    return seconds


def _section(rounds: _Rounds) -> Section:
    section = Section("One agent alone, no model, no tool", HOW)
    section.add_latencies("a step", rounds.steps)
    section.add_latencies("the wall floor of a step", rounds.floors)
    section.add_rounds("a step against the wall floor, p50", rounds.ratios, "times", is_compared=True)
    for name, values in rounds.cpu.items():
        section.add_rounds(f"CPU of {name}", values, "µs a step")
    return section


if __name__ == "__main__":
    asyncio.run(_serve(lambda line: print(line, flush=True)))
