"""Measures the cost of mutual TLS, identities and tokens that name services, against a data path without them."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from time import perf_counter
from typing import Final

from bench.commit_loads import closed_loop
from bench.data_path import DataPath
from bench.figures import Section, over
from bench.held_tasks import HeldTask
from bench.null_steps import AGENTS, NullAgents, null_agents, run_steps
from bench.options import Options

WRITERS: Final = 64
ROUNDS: Final = 5
MIN_PERCENT: Final = 85.0
HOW: Final = (
    "Two data paths at once, each with Postgres, a checkpoint and a tool service: one without TLS, the other "
    "with mutual TLS, a certificate for each process, and tokens that name their services, installation and worker. "
    f"Commits of 5 KB by {WRITERS} writers on the commit stream; steps of {AGENTS} agents without model and tool. "
    f"The paths take turns in {ROUNDS} rounds; figures are medians, and a share compares both in one round."
)


@dataclass(slots=True)
class _Variant:
    """A data path with its agents, the tasks that its writers commit to, and the rates of each round."""

    agents: NullAgents
    written: list[HeldTask] = field(default_factory=list)
    commits: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)

    async def measure(self, seconds: float, tasks: int) -> None:
        """Runs one round."""
        run = await closed_loop(self.agents.agent.ledger.commit, self.written, seconds)
        self.commits.append(run.per_second)
        held = await self.agents.maker.held(tasks)
        began = perf_counter()
        latencies = await run_steps(self.agents.agent, held, 10 * seconds)
        self.steps.append(len(latencies) / (perf_counter() - began))


async def measure(options: Options) -> list[Section]:
    """Returns rates of commits and steps on both paths, and the shares."""
    section = Section("The cost of TLS, identities and bound tokens", HOW)
    seconds = options.choose(smoke=0.05, quick=1.0, full=4.0)
    tasks = AGENTS * options.choose(smoke=1, quick=2, full=6)
    async with AsyncExitStack() as opened:
        options.tell("secured: starting both paths")
        paths = [
            await opened.enter_async_context(DataPath(options.folder / name, "checkpoint", "tools", tls=tls))
            for name, tls in (("open", False), ("secured", True))
        ]
        variants = []
        for path in paths:
            agents = await opened.enter_async_context(null_agents(path))
            variants.append(_Variant(agents, await agents.maker.held(WRITERS)))
        for number in range(options.choose(smoke=0, quick=ROUNDS, full=ROUNDS) + 1):
            options.tell(f"secured: round {number}")
            for variant in variants if number % 2 else reversed(variants):
                await variant.measure(seconds, tasks)
    plain, secured = variants
    for what in ("commits", "steps"):
        rates: list[tuple[float, float]] = list(zip(getattr(plain, what), getattr(secured, what), strict=True))
        kept = rates[1:] or rates  # the first round warms up
        section.add_rounds(f"{what}, open", [rate for rate, _ in kept], "/s")
        section.add_rounds(f"{what}, secured", [rate for _, rate in kept], "/s")
        shares = [100 * rate / base for base, rate in kept]
        section.add_rounds(f"{what}: share of open", shares, "%", bound=over(MIN_PERCENT))
    return [section]
