"""Measures how many model calls are paid twice while workers are killed, frozen and drained.

The provider counts: the simulator's own record of the requests that it received. Both ways run in one measurement: the
direct way, in which a worker calls the provider itself, and the model runner.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Final

from bench.figures import Section
from bench.options import Options
from bench.streamed_agents import (
    FROZEN_SECONDS,
    STEPS,
    StreamedAgents,
    WatchedText,
    WorkerFaults,
    write_scenario,
)
from devstack import Stack, StackOptions
from devstack.simulator.call_log import BILLED
from tenure.client import Client

WAYS: Final = {"the direct way": False, "the model runner": True}
WORKERS: Final = 4
PAUSE_SECONDS: Final = 3.0
ENDED_SECONDS: Final = 180.0
"""In which the last tasks end, on a loaded machine."""

SETTLED_SECONDS: Final = 90.0
POLL_SECONDS: Final = 0.5
REPORT_SECONDS: Final = 2
HOW: Final = (
    "A development stack with {workers} workers and the simulator as the provider, {agents} agents at once for "
    "{seconds:,.0f} s each way, each with {steps} answers of {answer:g} s that are streamed to a watcher. Every "
    "{pause:g} s on average a random worker is killed (SIGKILL) and started again, frozen for {frozen:g} s (SIGSTOP), "
    "or drained (SIGTERM) and started again; both ways get the faults of one seed. The counts are the provider's: a "
    "request is repeated if the provider had received one for the same step of the same task before. Tokens: what the "
    "provider billed, and what the ledger says when all tasks have ended. Text: what a watcher saw of answers in whose "
    "middle a worker took the task over."
)


@dataclass(frozen=True, slots=True)
class ProviderRecord:
    """The requests that the provider received. `billed`: the tokens of all of them."""

    requests: int
    repeated: int
    left: int
    billed: int

    @classmethod
    def of(cls, calls: Sequence[dict[str, Any]]) -> ProviderRecord:
        """Reads the simulator's record. `left`: requests whose client went away before the end of the answer."""
        steps = Counter(step_of(call) for call in calls)
        return cls(
            requests=len(calls),
            repeated=len(calls) - len(steps),
            left=sum(call["ending"] == "abandoned" for call in calls),
            billed=sum(call[name] for call in calls for name in BILLED),
        )


def step_of(call: dict[str, Any]) -> str:
    """Returns the task and the step of a recorded request: its attempt is TASK/STEP/NUMBER."""
    return str(call["attempt"]).rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one way."""

    record: ProviderRecord
    ledger_tokens: int
    tasks: int
    faults: str
    watched: Sequence[WatchedText]


async def measure(options: Options) -> list[Section]:
    """Returns the counts of both ways."""
    agents = options.choose(smoke=2, quick=20, full=50)
    seconds = options.choose(smoke=4.0, quick=90.0, full=600.0)
    answer_seconds = options.choose(smoke=1.0, quick=5.0, full=5.0)
    pause_seconds = options.choose(smoke=1.0, quick=PAUSE_SECONDS, full=PAUSE_SECONDS)
    how = HOW.format(
        workers=WORKERS,
        agents=agents,
        seconds=seconds,
        steps=STEPS,
        answer=answer_seconds,
        pause=pause_seconds,
        frozen=FROZEN_SECONDS,
    )
    section = Section("Model calls under faults", how)
    for way, has_runner in WAYS.items():
        options.tell(f"model calls: {way}")
        folder = options.folder / f"model-calls-{int(has_runner)}"
        folder.mkdir()
        stack_options = _stack_options(folder, answer_seconds, agents, has_runner=has_runner)
        outcome = await _run(stack_options, agents, seconds, pause_seconds)
        _add(section, way, outcome)
    return [section]


def _stack_options(folder: Path, answer_seconds: float, agents: int, *, has_runner: bool) -> StackOptions:
    return StackOptions(
        data_dir=folder / "stack",
        workers=WORKERS,
        slots=agents,
        scenario_files=(write_scenario(folder, answer_seconds),),
        model_runner=has_runner,
        environment={
            "gateway": {"TENURE_GATEWAY_LIMIT_CALLS_PER_SECOND": "10000"},
            "models": {"TENURE_MODELS_REPORT_SECONDS": str(REPORT_SECONDS)},
        },
    )


async def _run(stack_options: StackOptions, agents: int, seconds: float, pause_seconds: float) -> Outcome:
    async with Stack(stack_options) as stack, Client(stack.gateway_address) as client:
        streamed = StreamedAgents(client, stack_options.default_model)
        faults = WorkerFaults(stack.workers, pause_seconds)
        async with faults.running(seconds), asyncio.timeout(seconds + ENDED_SECONDS):
            await streamed.run(agents, seconds)
        record, ledger_tokens = await _settled(stack, client, streamed.task_ids)
        return Outcome(record, ledger_tokens, len(streamed.task_ids), faults.summary, streamed.watched)


async def _settled(stack: Stack, client: Client, task_ids: Sequence[str]) -> tuple[ProviderRecord, int]:
    """Returns the provider's record and the tokens of the ledger, when late reports have corrected the bills."""
    until = monotonic() + SETTLED_SECONDS
    while True:
        record = ProviderRecord.of(recorded_calls(stack.layout.model_log))
        tokens = sum([await _tokens(client, task_id) for task_id in task_ids])
        if tokens == record.billed or monotonic() > until:
            return record, tokens
        await asyncio.sleep(POLL_SECONDS)


async def _tokens(client: Client, task_id: str) -> int:
    usage = (await client.get(task_id)).usage
    return sum(int(getattr(usage, name)) for name in BILLED)


def recorded_calls(log: Path) -> list[dict[str, Any]]:
    """Returns the recorded model calls. Counting a prompt is none."""
    calls = [json.loads(line) for line in log.read_text().splitlines()]
    return [call for call in calls if call["endpoint"] == "messages"]


def _add(section: Section, way: str, outcome: Outcome) -> None:
    record, watched = outcome.record, outcome.watched
    section.add(f"{way}: tasks that ended", outcome.tasks, "", note=outcome.faults)
    section.add(f"{way}: model requests that the provider received", record.requests, "")
    section.add(f"{way}: of these repeated", record.repeated, "")
    section.add(f"{way}: of these broken off by the client", record.left, "")
    section.add(f"{way}: tokens that the provider billed", record.billed, "")
    section.add(f"{way}: tokens in the ledger, beyond these", outcome.ledger_tokens - record.billed, "")
    pauses = [pause for each in watched for pause in each.pauses]
    section.add(f"{way}: takeovers in the middle of a watched text", len(pauses), "")
    section.add(f"{way}: watched texts that began again", sum(each.replaced for each in watched), "")
    section.add(f"{way}: watched texts with a hole", sum(each.holes for each in watched), "")
    if pauses:
        section.add_latencies(f"{way}: a watched text stands still at a takeover", pauses)
