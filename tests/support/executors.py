"""The tool service's own parts in this process, over a real database: a replica without sockets.

async with executor_over(dsn, folder) as executor: outcome = await last_outcome(executor, job)
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from services.tools.calls.accept_ruled import RuledAccepts
from services.tools.calls.executing import ExecuteJob, Executor, RemoteCallFollower
from services.tools.calls.running import CallWriters, Runner, RunnerLimits
from services.tools.calls.runs import RunningCalls
from services.tools.calls.start_and_finish import finish_batcher, start_batcher
from services.tools.calls.stops import StopView
from services.tools.output import OutputStore
from services.tools.rules.book import RuleBook
from services.tools.runners.liveness import Liveness, LivenessTimes, RunnerName
from services.tools.runners.proof import FormerLives
from services.tools.statements import SCHEMA, SESSION_SETTINGS
from services.tools.tool import GENERAL_LANE
from services.tools.workspace.bounds import Bounds
from services.tools.workspace.directories import Workspaces
from tenure.domain.tools import Outcome
from tenure.runtime.expressions import Expressions
from tenure.runtime.process import Duties
from tenure.runtime.store.dedicated_connection import DedicatedConnection
from tenure.runtime.store.postgres import PoolOptions, open_pool


@asynccontextmanager
async def executor_over(
    dsn: str, folder: Path, *, lane: int = 4, expressions: Expressions | None = None
) -> AsyncIterator[Executor]:
    """Yields a replica. `lane`: how many calls it runs at once."""
    async with AsyncExitStack() as stack:
        options = PoolOptions(settings=SESSION_SETTINGS)
        pool = await stack.enter_async_context(open_pool(dsn, service="tools", schema=SCHEMA, options=options))
        living, accepting, starting, finishing = [
            await stack.enter_async_context(DedicatedConnection(dsn, service="tools", schema=SCHEMA, options=options))
            for _ in range(4)
        ]
        runs, stops = RunningCalls(), StopView()
        times = LivenessTimes(ttl_seconds=600)
        life = Liveness(living, RunnerName("here"), times, FormerLives(runs.unfinished), _no_lapse)
        liveness = await stack.enter_async_context(life)
        starts, finishes = start_batcher(starting, liveness, stops), finish_batcher(finishing)
        output_store = OutputStore(Workspaces(folder), Bounds(10**6, 100))
        limits = RunnerLimits({GENERAL_LANE: lane})
        runner = Runner(pool, runs, liveness, CallWriters(starts, finishes), output_store, limits, stops)
        follower = RemoteCallFollower(pool, poll_seconds=0.02)
        expressions = await stack.enter_async_context(expressions or Expressions())
        ruled = RuledAccepts(pool, RuleBook(pool), expressions, stops)
        duties = await stack.enter_async_context(Duties())
        executor = Executor(
            accepting, liveness, runner, follower, stops, ruled, lambda run: duties.start("ruled accepts", run)
        )
        for name, batcher in (("accepts", executor.accepts), ("starts", starts), ("finishes", finishes)):
            duties.start(name, batcher.run)
        duties.start("follow", follower.poll)
        await stack.enter_async_context(runner)
        yield executor


async def last_outcome(executor: Executor, job: ExecuteJob) -> Outcome:
    """Returns the outcome of a call."""
    *_, last = [event async for event in executor.execute(job)]
    assert isinstance(last, Outcome)
    return last


async def _no_lapse() -> None:
    """The life of a test is long enough."""
