"""Measures steps of agents without a model and a tool, next to their statements alone; and with the real worker.

The statements are recorded while the code of both services runs them in transactions that are rolled back. Then they
run again with the same values: no rules, no gRPC and no tokens, only the round trips of a step, one after another.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any, Final

from bench.data_path import PROCESSES, DataPath, HeldTask, TaskMaker
from bench.null_agent import ANSWER_BYTES, NOT_SET_UP, NullAgent, answered, beginning, dotted_text, finished, intent_of
from bench.processes import CpuMeter
from bench.report import Section
from bench.run import ROUNDS, Options
from bench.worker_steps import measure_worker_steps
from services.checkpoint.commit.committing import commit_batch
from services.checkpoint.commit.prepared import prepare
from services.checkpoint.prices import PriceList
from services.checkpoint.queries import SCHEMA as LEDGER_SCHEMA
from services.checkpoint.queries import SESSION_SETTINGS as LEDGER_SETTINGS
from services.tools.calls.accept_new import accept_new_calls
from services.tools.calls.records import CallKey, CallRequest, pack_outcome
from services.tools.calls.start_and_finish import OutcomeMark, finish_calls
from services.tools.calls.stops import StopView
from services.tools.statements import SCHEMA as TOOLS_SCHEMA
from services.tools.statements import SESSION_SETTINGS as TOOLS_SETTINGS
from services.worker.ledger_client import LedgerClient
from services.worker.tools_client import ToolsClient
from tenure.domain.access import Role
from tenure.domain.fencing import Audience
from tenure.domain.tools import EffectClass, Outcome, OutcomeStatus
from tenure.runtime.process import Duties
from tenure.runtime.security.signing import Verifier
from tenure.runtime.store.dedicated_connection import DedicatedConnection
from tenure.runtime.store.postgres import Connection, PoolOptions
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.wire.token import TokenChecker

_OUTCOME: Final = Outcome(OutcomeStatus.FAILED, "There is no search service here.", detail=NOT_SET_UP, call_attempt=1)


class _RollBack(Exception):  # noqa: N818  it ends a transaction whose statements are recorded
    """Ends a transaction without its writes."""


@dataclass(slots=True)
class _Statement:
    """A statement with its values. `is_read`: the code waited for its rows."""

    text: bytes
    parameters: Any
    is_read: bool = False


@dataclass(slots=True)
class _Rows:
    rows: Any
    statement: _Statement

    async def fetchall(self) -> list[Any]:
        self.statement.is_read = True
        rows: list[Any] = await self.rows.fetchall()
        return rows

    async def fetchone(self) -> Any:
        self.statement.is_read = True
        return await self.rows.fetchone()


@dataclass(slots=True)
class _Recorder:
    """Replaces the connection of a service's code: runs each statement and records it."""

    connection: Connection
    statements: list[_Statement] = field(default_factory=list)

    @property
    def backend_pid(self) -> int:
        return self.connection.backend_pid

    async def execute(self, query: bytes, params: Any = None) -> _Rows:
        self.statements.append(_Statement(query, params))
        return _Rows(await self.connection.execute(query, params), self.statements[-1])

    def take(self) -> list[_Statement]:
        """Returns the statements since the last call."""
        statements, self.statements = self.statements, []
        return statements


_Write = tuple[DedicatedConnection, list[_Statement]]
"""One transaction of a service, on its connection."""


class BareSteps:
    """Runs the steps of a batch of tasks. Its tasks must be unused, and can be used only once."""

    def __init__(self, dsn: str, tokens: TokenChecker) -> None:
        self._tokens = tokens
        self._runner_id = uuid.uuid4()
        self._ledger = DedicatedConnection(
            dsn,
            service="bench",
            schema=LEDGER_SCHEMA,
            options=PoolOptions(settings=LEDGER_SETTINGS),
            keep_after_errors=True,
        )
        self._tools = DedicatedConnection(
            dsn,
            service="bench",
            schema=TOOLS_SCHEMA,
            options=PoolOptions(settings=TOOLS_SETTINGS),
            keep_after_errors=True,
        )

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._ledger.close()
        await self._tools.close()

    async def steps_per_second(self, tasks: Sequence[HeldTask], steps: int) -> float:
        """Runs this many steps of all tasks, each write for all tasks together."""
        beginning_write, *writes = await self._record(tasks, steps)
        await _replay(beginning_write)
        began = perf_counter()
        for write in writes:
            await _replay(write)
        return len(tasks) * steps / (perf_counter() - began)

    async def _record(self, tasks: Sequence[HeldTask], steps: int) -> list[_Write]:
        writes: list[_Write] = []
        with suppress(_RollBack):
            async with self._ledger.transaction() as of_ledger, self._tools.transaction() as of_tools:
                ledger, tools, stops = _Recorder(of_ledger), _Recorder(of_tools), StopView()
                await stops.refresh(of_tools)

                async def commit(requests: list[pb.CommitRequest]) -> None:
                    await self._commit(ledger, tasks, requests)
                    writes.append((self._ledger, ledger.take()))

                await commit([beginning(task) for task in tasks])
                for number in range(1, steps + 1):
                    calls = [self._call(task) for task in tasks]
                    await commit([answered(task, intent_of(task), dotted_text(task.step)) for task in tasks])
                    await accept_new_calls(tools, calls, [True] * len(calls), self._runner_id, stops)
                    writes.append((self._tools, tools.take()))
                    await finish_calls(tools, [OutcomeMark(call.key, 1, pack_outcome(_OUTCOME)) for call in calls])
                    writes.append((self._tools, tools.take()))
                    is_last = number == steps
                    await commit([finished(task, intent_of(task), _OUTCOME, last=is_last) for task in tasks])
                raise _RollBack
        return writes

    async def _commit(self, ledger: _Recorder, tasks: Sequence[HeldTask], requests: Sequence[pb.CommitRequest]) -> None:
        commits = [prepare(request, self._tokens, validated=True) for request in requests]
        results, _ = await commit_batch(ledger, commits, PriceList())
        for task, result in zip(tasks, results, strict=True):
            if isinstance(result, Exception):
                raise result
            task.acknowledged(result)

    def _call(self, task: HeldTask) -> CallRequest:
        intent = intent_of(task)
        claims = self._tokens.check(task.token)
        key = CallKey(uuid.UUID(task.task_id), intent.call_id)
        return CallRequest(key, claims, intent.tool, EffectClass.PURE, intent.arguments_json.encode())


async def _replay(write: _Write) -> None:
    connection, statements = write
    async with connection.transaction() as transaction:
        for statement in statements:
            rows = await transaction.execute(statement.text, statement.parameters)
            if statement.is_read:
                await rows.fetchall()


AGENTS: Final = 32
STEPS: Final = 10
MAX_SECONDS: Final = 8.0
HOW: Final = (
    f"{AGENTS} agents at once, each a task of {STEPS} steps, driven by this process over the worker's commit and "
    f"tool streams. A step: one commit with an answer of {ANSWER_BYTES} bytes, its usage and an intent; one "
    "recorded call of a tool that does nothing; one commit with the outcome and the reservation of the next "
    f"model call. Bare: the same statements with the same values, those of {AGENTS} tasks in a transaction, one "
    f"after another, no service. {ROUNDS} rounds in which the two take turns; figures are medians."
)


@dataclass(frozen=True, slots=True)
class NullAgents:
    """The data path with the tool service, and the agent that runs on it."""

    path: DataPath
    maker: TaskMaker
    agent: NullAgent


@asynccontextmanager
async def null_agents(path: DataPath) -> AsyncIterator[NullAgents]:
    """Yields an agent with streams to the services of a running data path."""
    async with (
        path.channel("checkpoint") as ledger_channel,
        path.channel("tools") as tools_channel,
        task_maker(path) as maker,
        Duties() as duties,
    ):
        ledger, tools = LedgerClient(ledger_channel), ToolsClient(tools_channel)
        duties.start("commit stream", ledger.run)
        duties.start("tool stream", tools.run)
        yield NullAgents(path, maker, NullAgent(ledger, tools))


@asynccontextmanager
async def task_maker(path: DataPath) -> AsyncIterator[TaskMaker]:
    """Yields a maker of tasks. With TLS, their tokens name the worker of the certificate."""
    async with (
        path.channel("checkpoint") as worker,
        path.channel("checkpoint", Role.GATEWAY) as gateway,
        path.channel("checkpoint", Role.COORDINATOR) as coordinator,
    ):
        claims = {"holder": PROCESSES[Role.WORKER]} if path.tls else {}
        yield TaskMaker(worker, path.signer, gateway=gateway, coordinator=coordinator, **claims)


async def measure_null_steps(options: Options) -> Section:
    """Returns rate, latencies and processor time of steps."""
    section = Section("Agent steps, no model, no tool", HOW)
    options.tell("steps: starting Postgres, checkpoint and tools")
    most_seconds = options.choose(smoke=0.5, quick=MAX_SECONDS, full=MAX_SECONDS)
    async with DataPath(options.folder / "null-steps", "checkpoint", "tools") as path, null_agents(path) as agents:
        await run_steps(agents.agent, await agents.maker.held(AGENTS), most_seconds)
        rates, bare, latencies, used = [], [], [], []
        for number in range(1, options.rounds + 1):
            options.tell(f"steps without a model: round {number} of {options.rounds}")
            bare.append(await _bare(path, agents.maker, options.choose(smoke=1, quick=3, full=8)))
            tasks = await agents.maker.held(options.choose(smoke=1, quick=3, full=8) * AGENTS)
            meter = CpuMeter(path.pids(), own="driver")
            meter.start()
            began = perf_counter()
            seconds = await run_steps(agents.agent, tasks, most_seconds)
            rates.append(len(seconds) / (perf_counter() - began))
            used.append({name: value * 1e6 / len(seconds) for name, value in meter.used_seconds().items()})
            latencies += seconds
    section.add_rounds("bare Postgres", bare, "/s")
    section.add_rounds("steps", rates, "/s")
    shares = [100 * rate / base for rate, base in zip(rates, bare, strict=True)]
    section.add_rounds("steps: share of bare", shares, "%", is_compared=True)
    section.add_latencies("a step", latencies)
    for name in used[0]:
        section.add_rounds(f"CPU of {name}", [cpu[name] for cpu in used], "µs a step")
    return section


async def _bare(path: DataPath, maker: TaskMaker, batches: int) -> float:
    """Returns the steps per second of the statements alone, over some batches of new tasks."""
    tokens = TokenChecker(Verifier(path.layout.verifying_keys), Audience.CHECKPOINT)
    async with aclosing(BareSteps(path.dsn, tokens)) as steps:
        return median([await steps.steps_per_second(await maker.held(AGENTS), STEPS) for _ in range(batches)])


async def run_steps(agent: NullAgent, tasks: list[HeldTask], most_seconds: float) -> list[float]:
    """Runs the tasks, `AGENTS` at once, until all end or the time is over. Returns the seconds of each step."""
    waiting, latencies, ends_at = deque(tasks), [], perf_counter() + most_seconds

    async def work() -> None:
        while waiting:
            task = waiting.popleft()
            await agent.begin(task)
            for number in range(1, STEPS + 1):
                if perf_counter() > ends_at:
                    return
                latencies.append(await agent.step(task, last=number == STEPS))

    await asyncio.gather(*(work() for _ in range(AGENTS)))
    return latencies


async def measure(options: Options) -> list[Section]:
    """Returns two sections: the model client costs many times what Tenure does."""
    return [await measure_null_steps(options), await measure_worker_steps(options)]
