"""What a model runner holds of calls: responses count while they arrive, and afterwards the record alone is kept."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

from services.models.admission import LimitedCall
from services.models.reading import RunReader
from services.models.rules import Attempt, BeginCall, GenerationRow, ModelCallState
from services.models.runs import GenerationRun, RunBounds, Runs, RunWriters
from services.models.store import AdmittedRequest
from services.models.work import CallWork, ModelCallKey
from tenure.domain.errors import LimitReached
from tenure.domain.fencing import Fence
from tenure.domain.retry import FailureClass
from tenure.domain.stops import Subject
from tenure.domain.task import Priority
from tenure.model_providers.client import ModelAnswer, ModelCall, ModelRequest
from tenure.model_providers.vendor_calls import VendorCall
from tenure.model_providers.vendor_stream import VendorBody
from tenure.v1 import token_pb2
from tests.support.patience import PATIENCE_SECONDS

LIMITED = LimitedCall("task", "tenant", "m", Priority.NORMAL, 1, 1)
HALF = b'{"id": "' + os.urandom(20_000).hex().encode()
REST = os.urandom(20_000).hex().encode() + b'"}'


class Provider:
    """A permit whose provider sends half a response, and the rest when `goes_on` is set."""

    is_moving = False

    def __init__(self) -> None:
        self.has_sent, self.goes_on = asyncio.Event(), asyncio.Event()

    async def answer(self, _request: ModelRequest, call: ModelCall) -> ModelAnswer:
        assert isinstance(call, VendorCall)
        call.content_type = "application/json"
        call.observe(HALF)
        self.has_sent.set()
        await self.goes_on.wait()
        call.observe(REST)
        call.observe_end()
        return ModelAnswer((), "", call.usage, "m", "", 0.0)

    def close(self, *_: Any) -> None: ...


class Record:
    """A batcher that records every end."""

    async def submit(self, _mark: Any) -> bool:
        return True


def runs_of(*, kept_seconds: float) -> Runs:
    nothing: Any = None
    writers = RunWriters(cast("Any", Record()), cast("Any", Record()))
    bounds = RunBounds(max_calls=10, max_bytes=len(HALF), kept_seconds=kept_seconds)
    stops = cast("Any", SimpleNamespace(covers=lambda _: False))
    return Runs(nothing, writers, nothing, uuid4(), lambda _: None, bounds, stops)


def begun(runs: Runs, provider: Provider) -> GenerationRun:
    key, attempt = ModelCallKey(uuid4(), Attempt(1, 1)), Attempt(1, 1)
    request = ModelRequest("m", [], 1, vendor=VendorBody("/responses", "", {}))
    work = CallWork(request, token_pb2.FencingToken(), LIMITED, Subject("tenant"), permit=cast("Any", provider))
    row = GenerationRow(Fence(1, "c"), attempt, ModelCallState.SENT, uuid4(), begun_epoch=1, sent_at=datetime.now(UTC))
    runs.begin(AdmittedRequest(key, "tenant", cast("Any", None), work), BeginCall(row, joined=False))
    run = runs.find(key)
    assert run is not None
    return run


async def body_of(run: GenerationRun, began: asyncio.Event | None = None) -> bytes:
    body = b""
    async for message in RunReader(run, 1).messages(joined=True):
        for part in message.bundle.parts or (message,):
            if part.HasField("vendor_part"):
                assert part.vendor_part.offset in {0, len(body)}
                body += part.vendor_part.data
        if body and began is not None:
            began.set()
    return body


async def test_response_counts_while_it_is_held() -> None:
    runs, provider, began = runs_of(kept_seconds=3600), Provider(), asyncio.Event()
    assert runs.refuse_new(replace(LIMITED, input_bytes=2 * len(HALF))) is None, "a lone call has its place"
    run = begun(runs, provider)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await provider.has_sent.wait()
        refusal = runs.refuse_new(LIMITED)
        assert isinstance(refusal, LimitReached)
        assert refusal.reason == "TOO_MANY_CALLS"
        early = asyncio.create_task(body_of(run, began))
        await began.wait()
        provider.goes_on.set()
        await run.over.wait()
        late = await body_of(run)
        assert (await early, late) == (HALF + REST, HALF + REST)
    assert (run.call.held_bytes, run.work.request.vendor) == (0, None)
    await stopped(begun(runs, Provider()), runs.refuse_new(LIMITED) is not None)


async def test_forgotten_end_does_not_count() -> None:
    runs, provider = runs_of(kept_seconds=0.0), Provider()
    run = begun(runs, provider)
    provider.goes_on.set()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while runs.find(run.key) is not None:
            await asyncio.sleep(0)
    await stopped(begun(runs, Provider()), runs.refuse_new(replace(LIMITED, input_bytes=len(HALF) // 2)) is None)


async def stopped(other: GenerationRun, held: bool) -> None:
    """Stops a call that runs beside the one in question."""
    other.stop(FailureClass.INTERRUPTED)
    await other.over.wait()
    assert held
