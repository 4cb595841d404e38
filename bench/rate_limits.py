"""Measures 200 agents at the rate limit of one key: each for itself, and behind the limiter of the model runner."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Final
from uuid import uuid4

import yaml

from bench.figures import Section
from bench.options import Options
from devstack.simulator.rate_limits import RateLimits
from devstack.simulator.simulator import ModelSimulator
from services.models.admission import LimitedCall
from services.models.endpoints.routing import ModelEndpoint, ModelEndpoints
from services.models.endpoints.settings import EndpointSettings
from tenure.domain.budget import TokenUsage
from tenure.domain.models import ANTHROPIC
from tenure.domain.retry import MODEL_CALL_RETRY, FailureClass
from tenure.domain.task import Priority
from tenure.model_providers.anthropic_models import AnthropicProvider
from tenure.model_providers.client import ModelCall, ModelCallFailed, ModelClient, ModelRequest

AGENTS: Final = 200
TENANTS: Final = 4
MODEL: Final = "sim-limited"
REQUESTS_PER_MINUTE: Final = 600
OUTPUT_TOKENS: Final = 100
ANSWER_MS: Final = 2000
TIMEOUT_SECONDS: Final = 600.0
LIMITS: Final = {
    "of requests": RateLimits(requests_per_minute=REQUESTS_PER_MINUTE, output_tokens_per_minute=10_000_000),
    "of output": RateLimits(
        requests_per_minute=100 * REQUESTS_PER_MINUTE, output_tokens_per_minute=REQUESTS_PER_MINUTE * OUTPUT_TOKENS
    ),
}
HOW: Final = (
    f"{AGENTS} agents of {TENANTS} tenants call a model all the time, by the real client, at a simulator that limits "
    f"the key to {REQUESTS_PER_MINUTE} calls a minute, by requests or by output, with Anthropic's headers. An answer "
    "takes 2 s and has 100 tokens of output, of the 8,192 that the call reserves. A refused call is repeated by the "
    "worker's retry rule. The measurement begins a minute after the agents, when the buckets are empty. Each variant "
    "has a key of its own; both run at once."
)
Answering = Callable[[ModelRequest, ModelCall, LimitedCall], Awaitable[object]]


@dataclass(slots=True)
class _Agents:
    """The agents of one variant, and the answers that they got while they were measured."""

    answering: Answering
    is_measured: bool = False
    is_over: bool = False
    answered: dict[str, int] = field(default_factory=dict)
    refused: int = 0

    async def run(self, tenant: str) -> None:
        """Calls the model until the measurement is over."""
        call = LimitedCall(str(uuid4()), tenant, MODEL, Priority.NORMAL, 100, 8192)
        request = ModelRequest(MODEL, [{"role": "user", "content": "Go on."}], 8192)
        failures = 0
        while not self.is_over:
            try:
                await self.answering(request, ModelCall(lambda _block, _text: None, lambda: None), call)
            except ModelCallFailed as failure:
                is_refused = failure.error_class is FailureClass.RATE_LIMITED
                if not is_refused and failure.was_sent:  # all connect at once: a busy machine may miss some
                    raise
                failures += 1
                self.refused += is_refused and self.is_measured
                wait = MODEL_CALL_RETRY.wait_seconds(failures, random.random(), failure.retry_after_seconds)
                await asyncio.sleep(wait)
            else:
                failures = 0
                self.answered[tenant] = self.answered.get(tenant, 0) + self.is_measured


def _client(url: str, key: str) -> ModelClient:
    provider = AnthropicProvider(api_key=key, base_url=url, silence_seconds=TIMEOUT_SECONDS)
    return ModelClient({ANTHROPIC: provider}, timeout_seconds=TIMEOUT_SECONDS)


def _alone(client: ModelClient) -> Answering:
    async def answer(request: ModelRequest, call: ModelCall, _limited: LimitedCall) -> object:
        return await client.answer(request, call)

    return answer


def _limited(endpoints: ModelEndpoints) -> Answering:
    async def answer(request: ModelRequest, call: ModelCall, limited: LimitedCall) -> object:
        permit = endpoints.admit_now(limited) or await endpoints.admit(limited)
        failure: ModelCallFailed | None = None
        try:
            return await permit.answer(request, call)
        except ModelCallFailed as error:
            failure = error
            raise
        finally:
            permit.close(TokenUsage() if failure else call.usage, failure)

    return answer


async def measure(options: Options) -> list[Section]:
    """Returns the refusals and the throughput of each variant, for each kind of limit."""
    section = Section(f"{AGENTS} agents at the rate limit of a key", HOW)
    before, seconds = (
        options.choose(smoke=1.0, quick=60.0, full=60.0),
        options.choose(smoke=2.0, quick=60.0, full=180.0),
    )
    for name, limits in LIMITS.items():
        options.tell(f"rate_limits: the limit {name}, {before + seconds:.0f} s")
        await _measure(section, name, limits, options.folder, before, seconds)
    return [section]


async def _measure(
    section: Section, name: str, limits: RateLimits, folder: Path, before: float, seconds: float
) -> None:
    scenario = folder / "limited.yaml"
    scenario.write_text(yaml.safe_dump([{"text": "." * (4 * OUTPUT_TOKENS), "latency_ms": ANSWER_MS, "repeat": 50}]))
    async with ModelSimulator(scenario_files=[scenario], rate_limits=limits) as simulator:
        endpoint = ModelEndpoint(
            EndpointSettings(name="one", vendor=ANTHROPIC, rank=1), _client(simulator.url, "sk-shared")
        )
        async with (
            _client(simulator.url, "sk-alone") as client,
            ModelEndpoints([endpoint], longest_wait_seconds=10.0) as endpoints,
        ):
            variants = {"each for itself": _Agents(_alone(client)), "with the limiter": _Agents(_limited(endpoints))}
            await _play(list(variants.values()), before, seconds)
    for variant, agents in variants.items():
        answered = sum(agents.answered.values())
        share = answered / (REQUESTS_PER_MINUTE * seconds / 60.0)
        requests = max(1, answered + agents.refused)
        section.add(f"limit {name}, {variant}: used of the limit", share * 100, "%")
        section.add(f"limit {name}, {variant}: requests refused (429)", agents.refused, f"of {requests:,}")
        fewest, most = min(agents.answered.values(), default=0), max(agents.answered.values(), default=0)
        section.add(f"limit {name}, {variant}: answers of the tenant with fewest", fewest, f"of {most:,} at most")


async def _play(variants: Sequence[_Agents], before: float, seconds: float) -> None:
    """Runs the agents of all variants, and measures after a while."""
    tasks = [
        asyncio.create_task(agents.run(f"tenant-{number % TENANTS}")) for agents in variants for number in range(AGENTS)
    ]
    try:
        for pause, is_measured in ((before, True), (seconds, False)):
            await _watch(tasks, pause)
            for agents in variants:
                agents.is_measured = is_measured
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _watch(tasks: Sequence[asyncio.Task[None]], seconds: float) -> None:
    """Waits. Raises the error of an agent that ended."""
    until = monotonic() + seconds
    ended, _ = await asyncio.wait(tasks, timeout=max(0.0, until - monotonic()), return_when=asyncio.FIRST_COMPLETED)
    for task in ended:
        task.result()
