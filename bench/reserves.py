"""Measures reserve and settle of many agents that share one budget, against as many with budgets of their own."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Final

from bench.commit_loads import Commit, Run
from bench.data_path import DataPath
from bench.figures import Section
from bench.held_tasks import HeldTask, TaskMaker
from bench.options import ROUNDS, Options
from services.worker.ledger_client import LedgerClient
from tenure.runtime.postgres import connection as pool_connection
from tenure.runtime.process import Duties
from tenure.runtime.rpc_client import open_channel
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2, task_pb2

AGENTS: Final = (1, 10, 100)
MODEL: Final = "claude-opus-4-8"
AMPLE: Final = task_pb2.Limits(max_tokens=10**12, max_nano_usd=10**15, max_steps=10**6)
HOW: Final = (
    "Each agent reserves tokens and money for a model call and settles it with the answer, with one commit in flight; "
    "no cap is reached. Under one root all agents change one row of budgets; independent agents have a row each. The "
    f"two variants take turns in {ROUNDS} rounds; figures are medians, ratios are within a round."
)


@dataclass(slots=True)
class _Rounds:
    """The results of each variant, one for each round."""

    runs: defaultdict[tuple[int, str], list[Run]] = field(default_factory=lambda: defaultdict(list))

    def per_second(self, agents: int, variant: str) -> list[float]:
        return [run.per_second for run in self.runs[agents, variant]]


async def measure(options: Options) -> list[Section]:
    """Returns the rate of reserved and settled calls, and the latency of a reserve."""
    async with AsyncExitStack() as opened:
        options.tell("reserves: starting Postgres and the checkpoint service")
        path = await opened.enter_async_context(DataPath(options.folder / "reserves", "checkpoint"))
        channel = await opened.enter_async_context(open_channel(path.address("checkpoint")))
        ledger = LedgerClient(channel)
        duties = await opened.enter_async_context(Duties())
        duties.start("commit stream", ledger.run)
        maker = TaskMaker(channel, path.signer)
        variants = {}
        for agents in AGENTS:
            variants[agents, "one root"] = await _one_root(path, maker, agents)
            variants[agents, "independent"] = await maker.held(agents, AMPLE)
        rounds, seconds = _Rounds(), options.choose(smoke=0.05, quick=0.6, full=4.0)
        for number in range(1, options.rounds + 1):
            options.tell(f"reserves: round {number} of {options.rounds}")
            for key, tasks in variants.items():
                rounds.runs[key].append(await _spend(ledger.commit, tasks, seconds))
        return [_section(rounds)]


async def _one_root(path: DataPath, maker: TaskMaker, agents: int) -> list[HeldTask]:
    """Returns tasks that share the budget of the first one, by an update of their root in the database."""
    tasks = await maker.held(agents, AMPLE)
    statement = "update tasks set root_task_id = %b::text::uuid where task_id = any(%b::text[]::uuid[])"
    async with pool_connection(path.pool) as connection, connection.transaction():
        await connection.execute(statement, [tasks[0].task_id, [task.task_id for task in tasks]])
    return tasks


async def _spend(commit: Commit, tasks: list[HeldTask], seconds: float) -> Run:
    """Lets each task reserve and settle in a loop. The latencies are those of the reserves."""
    run, began = Run(), perf_counter()

    async def work(task: HeldTask) -> None:
        while (started_at := perf_counter()) - began < seconds:
            response = await commit(task.commit([], reserve=_reserve(task.step)))
            assert response.reserve.HasField("granted"), response.reserve.denied.reason
            run.latencies.append(perf_counter() - started_at)
            task.acknowledged(response)
            task.acknowledged(await commit(task.commit([_answer(task.step)])))
            task.step += 1

    await asyncio.gather(*(work(task) for task in tasks))
    run.seconds = perf_counter() - began
    return run


def _reserve(step: int) -> pb.Reserve:
    return pb.Reserve(
        step=step, attempt_number=1, model=MODEL, input_tokens=1000, max_output_tokens=1000, min_output_tokens=1
    )


def _answer(step: int) -> ledger_pb2.NewEntry:
    usage = task_pb2.TokenUsage(input_tokens=900, output_tokens=100)
    message = ledger_pb2.AssistantMessage(attempt_number=1, content_json="[]", stop_reason="end_turn", usage=usage)
    return ledger_pb2.NewEntry(step=step, body=ledger_pb2.EntryBody(assistant_message=message))


def _section(rounds: _Rounds) -> Section:
    section = Section("Model calls reserved and settled", HOW)
    for agents in AGENTS:
        shared, independent = rounds.per_second(agents, "one root"), rounds.per_second(agents, "independent")
        section.add_rounds(f"{agents} under one root", shared, "/s")
        section.add_rounds(f"{agents} independent", independent, "/s")
        ratios = [100 * one / other for one, other in zip(shared, independent, strict=True)]
        section.add_rounds(f"{agents}: one root, share of independent", ratios, "%")
        for variant in ("one root", "independent"):
            medians = [1000 * median(run.latencies) for run in rounds.runs[agents, variant]]
            section.add_rounds(f"{agents} {variant}: latency of a reserve", medians, "ms")
    return section
