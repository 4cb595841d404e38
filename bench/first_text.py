"""Measures the time to the first text of a model call: directly at the provider, and through a model runner."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from time import monotonic, perf_counter
from typing import Final

from bench.figures import Section, at_most
from bench.options import Options
from bench.samples import percentile
from devstack import Stack
from services.worker.interrupts import TrustGate
from services.worker.model_runner import RunnerModels
from services.worker.models import CallEvents, ClaimedAttempt, DirectModels, Models
from tenure.domain.access import DEFAULT_INSTALLATION
from tenure.domain.fencing import Claims
from tenure.domain.models import ANTHROPIC
from tenure.model_providers.anthropic_models import AnthropicProvider
from tenure.model_providers.client import ModelClient, ModelRequest
from tenure.runtime.request_context import DEFAULT_TENANT
from tenure.runtime.rpc_client import open_channel
from tenure.runtime.signing import Signer
from tenure.v1 import token_pb2
from tenure.wire.token import sign_task_claims

TIMEOUT_SECONDS: Final = 60.0
EPOCH: Final = (1 << 40) + 1


async def add_first_texts(section: Section, stack: Stack, model: str, options: Options) -> None:
    """Adds both times and their difference. Calls of both ways take turns, one call at a time."""
    signer = Signer.load(stack.layout.signing_key)
    trust = TrustGate()
    trust.begin(monotonic(), 24 * 3600.0)
    provider = AnthropicProvider(
        api_key="none",
        base_url=stack.model_url,
        silence_seconds=TIMEOUT_SECONDS,
        prompt_caching=True,
        counts_tokens=False,
    )
    runners = [runner.address for runner in stack.replicas("models")]
    async with (
        ModelClient({ANTHROPIC: provider}, timeout_seconds=TIMEOUT_SECONDS) as client,
        open_channel(runners) as channel,
    ):
        ways: dict[str, Models] = {
            "direct": DirectModels(client),
            "model runner": RunnerModels(channel, trust, timeout_seconds=TIMEOUT_SECONDS),
        }
        took: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(options.choose(smoke=2, quick=100, full=300)):
            for name, models in ways.items():
                took[name].append(await _first_text(models, signer, model))
    for name, seconds in took.items():
        section.add_latencies(f"{name}: first text", seconds)
    added = percentile(took["model runner"], 0.5) - percentile(took["direct"], 0.5)
    section.add("added to the first text, p50", 1000 * added, "ms", bound=at_most(5.0))


async def _first_text(models: Models, signer: Signer, model: str) -> float:
    """Makes a call of a task of its own, and returns the seconds until its first text."""
    first: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    began = perf_counter()

    def on_text(_block: int, _text: str) -> None:
        if not first.done():
            first.set_result(perf_counter() - began)

    request = ModelRequest(model, [{"role": "user", "content": "measure"}], 4096)
    call = models.call(ClaimedAttempt(_token(signer), 1, 1), request, CallEvents(on_text, _ignore, _ignore))
    await call.answer()
    return await first


def _token(signer: Signer) -> Callable[[], token_pb2.FencingToken]:
    """Returns the token of a task that only the model runner hears of."""
    claims = Claims(
        f"tasks/{uuid.uuid4()}", DEFAULT_TENANT, EPOCH, str(uuid.uuid4()), "bench", installation=DEFAULT_INSTALLATION
    )
    token = sign_task_claims(signer, claims, datetime.now(UTC))
    return lambda: token


def _ignore() -> None:
    """Hears nothing."""
