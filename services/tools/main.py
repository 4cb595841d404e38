"""The tool service's process: settings and composition.

python -m services.tools            serve
python -m services.tools migrate    bring the database up to date and end
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from services.tools.builtin.files import file_tools
from services.tools.builtin.python import PYTHON_LANE, python_tools
from services.tools.builtin.records import record_tools
from services.tools.builtin.search import SEARCH_LANE, search_tools
from services.tools.builtin.waiting import waiting_tools
from services.tools.closing import Closing, ClosingTimes
from services.tools.executing import Executor
from services.tools.finish import finish_batcher
from services.tools.following import Follower
from services.tools.forgetting import Forgetting
from services.tools.liveness import LifeTimes, Liveness
from services.tools.output import OutputKeeper
from services.tools.registry import Registry
from services.tools.runner import Runner, RunnerLimits, Writers
from services.tools.runs import Runs, Stop
from services.tools.sandbox import Sandbox, SandboxLimits, SandboxSettings, SandboxUnavailable
from services.tools.servicer import ToolServicer
from services.tools.start import start_batcher
from services.tools.statements import MIGRATIONS, SCHEMA
from services.tools.tool import GENERAL_LANE
from services.tools.workspace import Workspaces
from services.tools.workspace_sweep import WorkspaceSweep
from tenure.runtime.duties import Duties
from tenure.runtime.kept_connection import KeptConnection
from tenure.runtime.migrations import migrate
from tenure.runtime.postgres import Pool, PoolOptions, open_pool, startup_guard
from tenure.runtime.rpc_server import RpcServer
from tenure.runtime.service import CommonSettings, instance_id, run_service, serve
from tenure.runtime.settings import Address, Secret, group, setting
from tenure.runtime.signing import Verifier
from tenure.v1.tool_service_pb2_grpc import add_ToolServiceServicer_to_server
from tenure.validators import validate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tenure.runtime.process import Process

_log: Final = logging.getLogger(__name__)
SERVICE: Final = "tenure.v1.ToolService"
_SEARCH_THREADS: Final = 8
_PROGRAM_OUTPUT_BYTES: Final = 1024 * 1024  # of each stream; the model is shown less, all of it is in the workspace
_RECORD_THREADS: Final = 8


@dataclass(frozen=True, kw_only=True)
class Settings:
    """TENURE_TOOLS_…"""

    listen: Address = setting("where to serve", default=Address("127.0.0.1:8473"))
    postgres_dsn: Secret = setting("DSN of the database; the service keeps to the schema `tools`")
    verifying_keys_file: Path = setting("public keys of the coordinators' fencing tokens")
    migrate: str = setting("what to do when the database is behind", default="check", choices=("check", "auto"))
    allow_unsafe_postgres: bool = setting("accept a Postgres that may lose what it acknowledged", default=False)
    workspace_root: Path = setting("directory of the tasks' files, shared by all replicas")
    records_dir: Path | None = setting("where append_record writes; without it the tool is not set up", default=None)
    search_url: str = setting("JSON endpoint of web_search; without it the tool is not set up", default="")
    max_running: int = setting("effects at once, besides programs and searches", default=64, minimum=1, maximum=1024)
    max_accepted: int = setting("calls running or waiting for a place", default=4096, minimum=1)
    runner_ttl_seconds: float = setting("how long without renewal until this runner counts as dead", default=5.0)
    runner_margin_seconds: float = setting("how much earlier it stops by itself", default=1.0, minimum=0.1)
    runner_renew_interval_seconds: float = setting("how often it renews", default=1.0, minimum=0.1)
    close_wait_seconds: float = setting("how long closing a fence waits for what it stops", default=3.0, minimum=0.1)
    drain_seconds: float = setting("how long calls may run on when the process is told to stop", default=10.0)
    sandbox_slots: int = setting("agents' programs at once", default=8, minimum=1, maximum=1024)
    sandbox_first_uid: int = setting("first uid of the sandboxes, when the service is root", default=61_000)
    sandbox_bubblewrap: Path | None = setting("bubblewrap's path, when it is not on PATH", default=None)
    sandbox_require_cgroup: bool = setting("refuse a machine that cannot limit a program as a whole", default=False)
    workspace_bytes: int = setting("the most a task's files may take", default=512 * 1024 * 1024, minimum=1)
    workspace_sweep_interval_seconds: float = setting(
        "how often directories of pruned tasks are looked for", default=60.0, minimum=0.1, maximum=86_400.0
    )
    python_wall_seconds: float = setting("the longest an agent's program may take", default=10.0, minimum=0.1)
    common: CommonSettings = group(CommonSettings)

    def problems(self) -> Iterator[str]:
        """Relations between the settings."""
        longest = self.runner_ttl_seconds - self.runner_margin_seconds
        if 2 * self.runner_renew_interval_seconds > longest:
            yield (
                "TENURE_TOOLS_RUNNER_RENEW_INTERVAL_SECONDS must leave room for a lost renewal: twice of it in "
                f"{longest:g} s (TTL less margin)"
            )


def main() -> int:
    """The exit code."""
    return run_service(
        "tools", Settings, os.environ, compose, arguments=sys.argv[1:], commands={"migrate": migrate_only}
    )


async def migrate_only(_process: Process, settings: Settings) -> None:
    """Bring the database up to date."""
    await migrate(settings.postgres_dsn, MIGRATIONS)


async def compose(process: Process, settings: Settings) -> None:
    """Everything, in the order of dependency."""
    await migrate(settings.postgres_dsn, MIGRATIONS, allowed=settings.migrate == "auto")
    pool = await process.open(
        open_pool(settings.postgres_dsn, service="tools", schema=SCHEMA, options=PoolOptions(min_size=4))
    )
    await startup_guard(pool, allow_unsafe=settings.allow_unsafe_postgres)
    verifier = Verifier(settings.verifying_keys_file)
    registry = await _registry(process, settings)
    server = await _service(process, settings, pool, registry, verifier)
    await serve(process, server)


async def _registry(process: Process, settings: Settings) -> Registry:
    workspaces = Workspaces(settings.workspace_root)
    limits = SandboxLimits(
        wall_seconds=settings.python_wall_seconds,
        cpu_seconds=settings.python_wall_seconds,
        workspace_bytes=settings.workspace_bytes,
        output_bytes=_PROGRAM_OUTPUT_BYTES,
    )
    search_threads = await process.open(_threads("search", _SEARCH_THREADS))
    record_threads = await process.open(_threads("records", _RECORD_THREADS))
    return Registry(
        [
            *python_tools(await _sandbox(process, settings), workspaces, limits),
            *file_tools(workspaces, limits.workspace_bytes),
            *search_tools(settings.search_url, search_threads),
            *record_tools(settings.records_dir, record_threads),
            *waiting_tools(),
        ]
    )


async def _sandbox(process: Process, settings: Settings) -> Sandbox | SandboxUnavailable:
    """A machine without a sandbox still serves the other tools."""
    sandbox_settings = SandboxSettings(
        slots=settings.sandbox_slots,
        first_uid=settings.sandbox_first_uid,
        require_cgroup=settings.sandbox_require_cgroup,
        bubblewrap=settings.sandbox_bubblewrap,
    )
    try:
        return await process.open(await Sandbox.open(sandbox_settings))
    except SandboxUnavailable as unavailable:
        _log.warning("execute_python will not run anything: %s", unavailable)
        return unavailable


async def _service(
    process: Process, settings: Settings, pool: Pool, registry: Registry, verifier: Verifier
) -> RpcServer:
    """The writers first, then the life they write under, then who runs, then who accepts."""
    lanes = {GENERAL_LANE: settings.max_running, PYTHON_LANE: settings.sandbox_slots, SEARCH_LANE: _SEARCH_THREADS}
    limits = RunnerLimits(lanes, settings.max_accepted, settings.drain_seconds)
    runs = Runs()
    keeper = OutputKeeper(Workspaces(settings.workspace_root), settings.workspace_bytes)
    times = LifeTimes(
        settings.runner_ttl_seconds, settings.runner_renew_interval_seconds, settings.runner_margin_seconds
    )
    living, accepting, starting, finishing = [
        await process.open(KeptConnection(settings.postgres_dsn, service="tools", schema=SCHEMA)) for _ in range(4)
    ]
    liveness = await process.open(Liveness(living, instance_id(), times, partial(runs.stop_all, Stop.LAPSED)))
    starts, finishes = start_batcher(starting, liveness), finish_batcher(finishing)
    runner = Runner(pool, runs, registry, liveness, Writers(starts, finishes), keeper, limits)
    follower = Follower(pool)
    executor = Executor(accepting, liveness, runner, follower)
    closing = Closing(pool, runs, ClosingTimes(wait_seconds=settings.close_wait_seconds))
    removal_thread = await process.open(_threads("removal", 1))
    sweep = WorkspaceSweep(pool, settings.workspace_root, removal_thread, settings.workspace_sweep_interval_seconds)
    duties = await process.open(Duties())
    duties.start("sweep workspaces", sweep.run)
    duties.start("renew runner", liveness.renew)
    duties.start("watch trust window", liveness.watch)
    for name, batcher in (("accepts", executor.accepts), ("starts", starts), ("finishes", finishes)):
        duties.start(f"write {name}", batcher.run)
    duties.start("follow calls elsewhere", follower.poll)
    duties.start("watch closed fences", closing.watch)
    await process.open(runner)
    server = RpcServer(settings.listen, validate=validate, stopping=process.stopping)
    server.add(
        SERVICE,
        add_ToolServiceServicer_to_server,
        ToolServicer(verifier, registry, executor, closing, Forgetting(pool, closing, sweep), pool, server.stopping),
    )
    return server


@asynccontextmanager
async def _threads(name: str, count: int) -> AsyncIterator[ThreadPoolExecutor]:
    """Threads of their own for what may block long: the shared ones stay free for what does not."""
    threads = ThreadPoolExecutor(count, thread_name_prefix=name)
    try:
        yield threads
    finally:
        await asyncio.to_thread(threads.shutdown, wait=False, cancel_futures=True)
