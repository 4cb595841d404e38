"""Measures a thousand watchers on one gateway, by gRPC and by HTTP: memory, processor time, and the time from a commit
to its event.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import aiohttp
import yaml

from bench.figures import Section, at_most
from bench.options import Options
from bench.process_use import ProcessUse, memory_by_kind
from devstack import Stack, StackOptions
from tenure.client import Client
from tenure.v1 import admin_service_pb2, task_pb2
from tenure.v1 import task_service_pb2 as api

CLIENTS: Final = 20
STEPS: Final = 1000
AMPLE: Final = task_pb2.Limits(max_tokens=10**12, max_steps=2 * STEPS)
"""No task ends while it is watched: its streams would end with it."""
SUBMITS_AT_ONCE: Final = 8
SLOW_SECONDS: Final = 20.0
BUSY_SECONDS: Final = 2.0
STARTING_SECONDS: Final = 120.0
SETTLING_SECONDS: Final = 5.0
MAX_P99_MS: Final = 1000.0
WATCHED: Final = ("gateway", "checkpoint", "worker")
HOW: Final = (
    f"Watchers of {CLIENTS} clients in one process on one gateway: most of them on a task of their own, whose steps "
    f"take {SLOW_SECONDS:g} s, the others all on one task, whose steps take {BUSY_SECONDS:g} s. An answer is streamed "
    "in pieces of 80 characters. The time is from an entry's recorded_at, when its transaction began, to its receipt. "
    "Without live text, then with it; then the same by server-sent events, each watcher with a connection of its own. "
    "All streams are opened at once, and each sends the history of its task first; the figures of that time are apart. "
    "Memory: of the gateway and the checkpoint service, beyond that without watchers, divided by the watchers."
)


@dataclass(slots=True)
class Watchers:
    """Streams. `delays`: the seconds from commit to event, and `opening` those while streams still caught up with their
    task's history; `open`: those that have caught up, all after `opening_seconds`; `pieces`: of live text.
    """

    delays: list[float] = field(default_factory=list)
    opening: list[float] = field(default_factory=list)
    pieces: int = 0
    open: int = 0
    opening_seconds: float = 0.0

    async def watch(self, client: Client, task_id: str, *, live: bool) -> None:
        """Receives the events of a task until it is cancelled. Entries from before the watch do not count."""
        began, caught_up = time.time(), False
        async for event in client.watch(task_id, live=live):
            self.pieces += event.HasField("delta")
            if event.HasField("entry") and (recorded := event.entry.record_time.ToNanoseconds() / 1e9) > began:
                caught_up = self._note(recorded, caught_up)

    async def watch_by_http(self, session: aiohttp.ClientSession, url: str) -> None:
        """The same by server-sent events. `url`: of the events of the task."""
        began, caught_up = time.time(), False
        async with session.get(url) as response:
            response.raise_for_status()
            async for line in response.content:
                if not line.startswith(b"data: "):
                    continue
                if line.startswith(b'data: {"kind":"live_text"'):
                    self.pieces += 1
                elif (recorded := _recorded_at(line)) > began:
                    caught_up = self._note(recorded, caught_up)
        raise RuntimeError(f"the stream {url} ended")

    def _note(self, recorded: float, caught_up: bool) -> bool:
        """Notes a new entry. The first one of a stream says that the stream has sent the whole history."""
        self.delays.append(time.time() - recorded)
        self.open += not caught_up
        return True


def _recorded_at(line: bytes) -> float:
    """Returns the time in the beginning of an entry: parsing the whole entry would measure this process."""
    _, _, time_text = line[:400].partition(b'"recorded_at":"')
    return datetime.fromisoformat(time_text[:27].decode()).timestamp() if time_text else 0.0


@dataclass(slots=True)
class _Bench:
    stack: Stack
    clients: list[Client]
    own: list[str]
    shared: str
    sharing: int
    settling: float
    session: aiohttp.ClientSession

    @property
    def count(self) -> int:
        return len(self.own) + self.sharing

    def _by_grpc(self, watchers: Watchers, number: int, task_id: str, live: bool) -> Coroutine[Any, Any, None]:
        return watchers.watch(self.clients[number % len(self.clients)], task_id, live=live)

    def _by_http(self, watchers: Watchers, _number: int, task_id: str, live: bool) -> Coroutine[Any, Any, None]:
        url = f"{self.stack.http_url}/v1/tasks/{task_id}/events?live={str(live).lower()}"
        return watchers.watch_by_http(self.session, url)

    @asynccontextmanager
    async def watching(self, *, live: bool, by_http: bool) -> AsyncIterator[Watchers]:
        """Opens all streams, and cancels them at the end of the block."""
        watchers = Watchers()
        watch: Callable[..., Coroutine[Any, Any, None]] = self._by_http if by_http else self._by_grpc
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            running = [
                group.create_task(watch(watchers, number, task_id, live))
                for number, task_id in enumerate([*self.own, *[self.shared] * self.sharing])
            ]
            async with asyncio.timeout(STARTING_SECONDS):
                while watchers.open < self.count:  # noqa: ASYNC110  1,000 streams open meanwhile
                    await asyncio.sleep(0.1)
            watchers.opening_seconds = time.monotonic() - began
            await asyncio.sleep(self.settling)
            watchers.opening = list(watchers.delays)
            watchers.delays.clear()
            yield watchers
            for one in running:
                one.cancel()

    async def all_running(self) -> None:
        """Waits until a worker has every task."""
        async with asyncio.timeout(STARTING_SECONDS):
            client, request = self.clients[0], admin_service_pb2.ListQueuesRequest()
            while (await client.admin.ListQueues(request)).queues:  # noqa: ASYNC110  workers take the tasks
                await asyncio.sleep(0.2)


async def measure(options: Options) -> list[Section]:
    """Returns the figures without and with live text."""
    section = Section("A thousand watchers on one gateway", HOW)
    own, sharing = options.choose(smoke=(4, 2), quick=(300, 100), full=(900, 100))
    seconds = options.choose(smoke=3.0, quick=20.0, full=60.0)
    options.tell("watchers: starting the stack")
    async with _bench(options, own, sharing) as bench:
        before = memory_by_kind(bench.stack)
        for live, by_http in ((False, False), (True, False), (False, True), (True, True)):
            what = f"{bench.count:,} watchers{' by HTTP' if by_http else ''}{' with live text' if live else ''}"
            options.tell(f"watchers: {what}")
            use = ProcessUse(bench.stack)
            async with bench.watching(live=live, by_http=by_http) as watchers:
                use.start()
                pieces_before = watchers.pieces
                await asyncio.sleep(seconds)
                used, memory = use.seconds(), memory_by_kind(bench.stack)
                delays, pieces = list(watchers.delays), watchers.pieces - pieces_before
            section.add(f"{what}: entries", len(delays) / seconds, "/s")
            if live:
                section.add(f"{what}: pieces of live text", pieces / seconds, "/s")
            section.add(f"{what}: all have caught up after", watchers.opening_seconds, "s")
            if watchers.opening:
                section.add_latencies(f"{what}: commit to event while the streams catch up", watchers.opening)
            section.add_latencies(f"{what}: commit to event", delays, bound=at_most(MAX_P99_MS))
            for kind in WATCHED:
                section.add(f"{what}: CPU of {kind}", 100 * used.get(kind, 0.0) / seconds, "% of a core")
            for kind in memory.keys() & {"gateway", "checkpoint"}:
                kib = (memory[kind] - before[kind]) / bench.count
                section.add(f"{what}: memory of {kind}", kib, "KiB a watcher")
    return [section]


@asynccontextmanager
async def _bench(options: Options, own: int, sharing: int) -> AsyncIterator[_Bench]:
    """Starts the stack, its tasks and the clients."""
    smoke_share = options.choose(smoke=0.05, quick=1.0, full=1.0)
    folder = options.folder / "watchers-scenarios"
    folder.mkdir()
    files = tuple(
        _scenario(folder / f"watched-{name}.yaml", seconds * smoke_share)
        for name, seconds in (("own", SLOW_SECONDS), ("shared", BUSY_SECONDS))
    )
    stack_options = StackOptions(
        data_dir=options.folder / "watchers",
        workers=2,
        slots=512,
        scenario_files=files,
        http=True,
        environment={
            "gateway": {
                "TENURE_GATEWAY_LIMIT_CALLS": "64",
                "TENURE_GATEWAY_LIMIT_CALLS_PER_SECOND": "10000",
                "TENURE_GATEWAY_LIMIT_CLIENT_PERCENT": "100",
            }
        },
    )
    async with Stack(stack_options) as stack, AsyncExitStack() as opened:
        connector = aiohttp.TCPConnector(limit=0)
        session = await opened.enter_async_context(
            aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None), read_bufsize=2**20)
        )
        clients = [await opened.enter_async_context(Client(stack.gateway_address)) for _ in range(CLIENTS)]
        limit = asyncio.Semaphore(SUBMITS_AT_ONCE)

        async def submit(model: str) -> str:
            async with limit:
                request = api.SubmitTaskRequest(
                    spec=task_pb2.TaskSpec(agent=task_pb2.AgentSpec(model=model), limits=AMPLE)
                )
                return (await clients[0].submit("be watched", request=request)).task_id

        task_ids = await asyncio.gather(*(submit("sim-watched-own") for _ in range(own)))
        settling = options.choose(smoke=0.5, quick=SETTLING_SECONDS, full=SETTLING_SECONDS)
        bench = _Bench(stack, clients, list(task_ids), await submit("sim-watched-shared"), sharing, settling, session)
        await bench.all_running()
        yield bench


def _scenario(path: Path, seconds: float) -> Path:
    milliseconds = int(seconds * 1000)
    turn = {
        "text": "{{turn}}".ljust(2400, "."),
        "latency_ms": milliseconds,
        "first_token_ms": milliseconds // 10,
        "calls": [{"name": "list_files", "arguments": {"path": "."}}],
        "repeat": STEPS,
    }
    path.write_text(yaml.safe_dump([turn, {"text": "Done."}]))
    return path
