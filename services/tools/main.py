"""The tool service's process: commands, settings and composition.

tenure serve tools            serves
tenure serve tools migrate    migrates the database and ends
tenure serve tools config     checks the config file and ends
tenure serve tools sandbox    prints the parts of this machine's sandbox, tries to escape from it, and ends

After a restore (docs/restore.md):

tenure serve tools list-records       prints the call records of all tasks, for the ledger to compare
tenure serve tools doubt-lost-calls   reads what the ledger found, and puts the calls whose records were lost in doubt
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

from services.tools.builtin.python import PYTHON_LANE
from services.tools.calls.accept_ruled import RuledAccepts
from services.tools.calls.caller_runs import CallerRuns
from services.tools.calls.closing import CallForgetter, ClosingTimes, FenceCloser
from services.tools.calls.effect_keys import EffectSweep
from services.tools.calls.executing import Executor, RemoteCallFollower
from services.tools.calls.restoring import doubt_lost_calls, list_records
from services.tools.calls.running import CallWriters, Runner, RunnerLimits
from services.tools.calls.runs import RunningCalls, StopReason
from services.tools.calls.start_and_finish import finish_batcher, start_batcher
from services.tools.calls.stops import StopKeeper, StopView
from services.tools.edge import ReadEdges
from services.tools.inspection import forbid_inspection
from services.tools.output import OutputStore
from services.tools.pins import ToolPins
from services.tools.programs import open_sandbox, refusing_server, show_sandbox
from services.tools.registry import ToolRegistry
from services.tools.rules.book import RuleBook
from services.tools.rules.changes import RuleChanges
from services.tools.runners.identity import own_identity
from services.tools.runners.liveness import Liveness, LivenessTimes, RunnerName
from services.tools.runners.proof import DeathProver, FormerLives
from services.tools.sandbox import Sandbox, SandboxEscaped, SandboxUnavailable
from services.tools.servicer import SERVICE, ToolServicer
from services.tools.settings import ToolsSettings
from services.tools.statements import MIGRATIONS, SCHEMA, SESSION_SETTINGS
from services.tools.toolbox import lanes_of, open_file_requests, open_toolbox, threads
from services.tools.workspace.directories import Workspaces
from services.tools.workspace.sweep import WorkspaceSweep
from tenure.domain.access import Role
from tenure.domain.fencing import Audience
from tenure.runtime.expressions import Expressions
from tenure.runtime.process import Duties, Process
from tenure.runtime.rpc.server import RpcServer
from tenure.runtime.security.audit import RefusalLog, log_refusals
from tenure.runtime.security.process_security import Security
from tenure.runtime.security.signing import Verifier
from tenure.runtime.service import instance_id, run_service, serve
from tenure.runtime.settings import ConfigurationError
from tenure.runtime.store.dedicated_connection import DedicatedConnection
from tenure.runtime.store.postgres import Pool, PoolOptions, open_pool, startup_guard
from tenure.runtime.store.sql import Rights, migrate
from tenure.validators import longest_request, validate
from tenure.wire.access import access_rules
from tenure.wire.audit import target_of
from tenure.wire.token import TokenChecker

Command = Callable[[Process, ToolsSettings], Awaitable[None]]
RENEWAL_SILENCE_SECONDS: Final = 60.0
"""The longest silence of the renewal duty. Its connection's deadline ends a renewal that Postgres does not answer."""

SILENCE_SECONDS: Final = 120.0
"""The longest silence of a duty that runs transactions. Each statement is given up after seconds."""

REMOVAL_SILENCE_SECONDS: Final = 900.0
"""The longest silence of the workspace sweep: it removes some files, or lists all workspaces, on a slow disk."""


def main(read_edges: ReadEdges) -> int:
    """Runs a command and returns the exit code."""
    forbid_inspection()
    composing = partial(compose, read_edges=read_edges, environment=os.environ)
    checking = partial(check_config, read_edges=read_edges, environment=os.environ)
    commands: dict[str, Command] = {
        "migrate": migrate_only,
        "config": checking,
        "sandbox": show_sandbox,
        "list-records": print_records,
        "doubt-lost-calls": put_in_doubt,
    }
    return run_service("tools", ToolsSettings, os.environ, composing, arguments=sys.argv[1:], commands=commands)


async def migrate_only(_process: Process, settings: ToolsSettings) -> None:
    """Migrates the database, and gives the service's role its rights."""
    await migrate(settings.postgres_dsn, MIGRATIONS)
    if settings.service_role:
        await Rights.of("services.tools").give(settings.postgres_dsn, settings.service_role)


async def print_records(process: Process, settings: ToolsSettings) -> None:
    """Prints a line of JSON for each task, with its calls."""
    pool = await process.open(open_pool(settings.postgres_dsn, service="tools", schema=SCHEMA))
    async for task in list_records(pool):
        sys.stdout.write(f"{json.dumps(task)}\n")


async def put_in_doubt(process: Process, settings: ToolsSettings) -> None:
    """Reads findings of the ledger from standard input. Raises ConfigurationError for anything else."""
    pool = await process.open(open_pool(settings.postgres_dsn, service="tools", schema=SCHEMA))
    try:
        count = await doubt_lost_calls(pool, sys.stdin)
    except ValueError as error:
        raise ConfigurationError([str(error)]) from error
    sys.stdout.write(f"put in doubt: {count}\n")


async def check_config(
    process: Process, settings: ToolsSettings, read_edges: ReadEdges, environment: Mapping[str, str]
) -> None:
    """Composes all tools as for serving, without a connection to a source.

    Raises ConfigurationError.
    """
    edges = read_edges(settings, environment)
    no_sandbox = SandboxUnavailable("the command `config` does not open a sandbox")
    await open_toolbox(process, settings, edges.unconnected(), no_sandbox, RunningCalls())


async def compose(
    process: Process, settings: ToolsSettings, read_edges: ReadEdges, environment: Mapping[str, str]
) -> None:
    """Opens all parts and serves. `environment`: the values of the config file's `${NAME}`."""
    await serve(process, await assemble(process, settings, read_edges, environment))


async def assemble(
    process: Process, settings: ToolsSettings, read_edges: ReadEdges, environment: Mapping[str, str]
) -> RpcServer:
    """Opens all parts, dependencies first, and returns the server."""
    security = Security.load(settings.common, Role.TOOLS, settings.listen, access_rules)
    edges = read_edges(settings, environment)
    try:
        sandbox = await open_sandbox(process, settings, edges.programs)
    except SandboxEscaped as escaped:
        return refusing_server(security, settings, escaped, process)
    await migrate(settings.postgres_dsn, MIGRATIONS, allowed=settings.migrate == "auto")
    pool = await process.open(
        open_pool(
            settings.postgres_dsn,
            service="tools",
            schema=SCHEMA,
            options=PoolOptions(min_size=4, settings=SESSION_SETTINGS),
        )
    )
    await startup_guard(pool, allow_unsafe=settings.allow_unsafe_postgres)
    tokens = TokenChecker(
        Verifier(settings.verifying_keys_file), Audience.TOOLS, settings.common.tls.installation, keeps_tools=True
    )
    runs = RunningCalls()
    pins = ToolPins(pool)
    registry = await open_toolbox(process, settings, edges, sandbox, runs, pins)
    tools = Offered(registry, pins, lanes_of(settings, edges), sandbox)
    return await _service(process, settings, security, pool, tools, runs, tokens)


class Offered(NamedTuple):
    """The tools, their pins, how many calls run at once, by lane, and the sandbox of their programs."""

    registry: ToolRegistry
    pins: ToolPins
    lanes: Mapping[str, int]
    sandbox: Sandbox | SandboxUnavailable


async def _service(
    process: Process,
    settings: ToolsSettings,
    security: Security,
    pool: Pool,
    tools: Offered,
    runs: RunningCalls,
    tokens: TokenChecker,
) -> RpcServer:
    """Composes the server: the connections, the runner's life, the writers under it, the runner, the executor."""
    limits = RunnerLimits(tools.lanes, settings.max_accepted, drain_seconds=settings.drain_seconds)
    output_store = OutputStore(Workspaces(settings.workspace_root), settings.workspace_bounds)
    times = LivenessTimes(
        settings.runner_ttl_seconds, settings.runner_renew_interval_seconds, settings.runner_margin_seconds
    )
    kept = PoolOptions(settings=SESSION_SETTINGS)
    living, accepting, starting, finishing = [
        await process.open(DedicatedConnection(settings.postgres_dsn, service="tools", schema=SCHEMA, options=kept))
        for _ in range(4)
    ]
    who, former = RunnerName(instance_id(), own_identity(settings.machine_id)), FormerLives(runs.unfinished)
    liveness = await process.open(Liveness(living, who, times, former, partial(runs.stop_all, StopReason.LAPSED)))
    stops = StopView()
    starts, finishes = start_batcher(starting, liveness, stops), finish_batcher(finishing)
    writers = CallWriters(starts, finishes)
    runner = Runner(pool, runs, liveness, writers, output_store, limits, stops, tools.registry, process.stopping)
    if isinstance(tools.sandbox, Sandbox):
        tools.sandbox.on_slot_lost(partial(runner.shrink_lane, PYTHON_LANE))
    follower = RemoteCallFollower(pool)
    book, expressions = RuleBook(pool), await process.open(Expressions())
    ruled = RuledAccepts(pool, book, expressions, stops)
    removal_thread = await process.open(threads("removal", 1))
    duties = await process.open(Duties())
    executor = Executor(
        accepting,
        liveness,
        runner,
        follower,
        stops,
        ruled,
        lambda run: duties.start("write ruled accepts", run, silence_seconds=SILENCE_SECONDS),
    )
    stop_keeper = StopKeeper(pool, runs, stops)
    closing = FenceCloser(pool, runs, ClosingTimes(wait_seconds=settings.close_wait_seconds))
    sweep = WorkspaceSweep(pool, settings.workspace_root, removal_thread, settings.workspace_sweep_interval_seconds)
    duties.start("sweep workspaces", sweep.run, silence_seconds=REMOVAL_SILENCE_SECONDS)
    duties.start("sweep effects", EffectSweep(pool).run, silence_seconds=SILENCE_SECONDS)
    duties.start("renew runner", liveness.renew, silence_seconds=RENEWAL_SILENCE_SECONDS)
    duties.start("watch trust window", liveness.watch, silence_seconds=SILENCE_SECONDS)
    duties.start("prove runners gone", DeathProver(pool, former, who.identity).run, silence_seconds=SILENCE_SECONDS)
    for name, batcher in (("accepts", executor.accepts), ("starts", starts), ("finishes", finishes)):
        duties.start(f"write {name}", batcher.run, silence_seconds=SILENCE_SECONDS)
    duties.start("read rules", book.poll, silence_seconds=SILENCE_SECONDS)
    duties.start("follow calls elsewhere", follower.poll, silence_seconds=SILENCE_SECONDS)
    duties.start("watch closed fences", closing.watch, silence_seconds=SILENCE_SECONDS)
    duties.start("follow stops", stop_keeper.follow, silence_seconds=SILENCE_SECONDS)
    await process.open(runner)
    server = RpcServer(
        settings.listen,
        security=security,
        validate=validate,
        longest_request=longest_request,
        stopping=process.stopping,
        audit=await process.open(RefusalLog(target_of, log_refusals).opened()),
        limiter=settings.limit.limiter(),
    )
    server.add(
        SERVICE,
        ToolServicer(
            tokens,
            tools.registry,
            tools.pins,
            executor,
            closing,
            CallForgetter(pool, closing, sweep),
            await open_file_requests(process, settings),
            pool,
            server.stopping,
            CallerRuns(follower),
            stop_keeper,
            RuleChanges(pool, book, expressions),
        ),
    )
    return server
