"""Many readers of one call: each gets all of the text, and a piece costs nothing for readers that are behind."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from uuid import uuid4

from services.models.admission import LimitedCall
from services.models.ends import stopped_end
from services.models.reading import RunReader
from services.models.rules import Attempt, BeginCall, GenerationRow, ModelCallState
from services.models.runs import GenerationRun
from services.models.work import CallWork, ModelCallKey
from tenure.domain.fencing import Fence
from tenure.domain.retry import FailureClass
from tenure.domain.stops import Subject
from tenure.domain.task import Priority
from tenure.model_providers.client import ModelRequest
from tenure.v1 import token_pb2
from tests.support.patience import PATIENCE_SECONDS

READERS = 200
PIECES = 20_000


def new_run() -> GenerationRun:
    attempt = Attempt(1, 1)
    limited = LimitedCall("task", "tenant", "m", Priority.NORMAL, 1, 1)
    work = CallWork(ModelRequest("m", [], 1), token_pb2.FencingToken(), limited, Subject("tenant"))
    row = GenerationRow(Fence(1, "c"), attempt, ModelCallState.SENT, uuid4(), begun_epoch=1, sent_at=datetime.now(UTC))
    return GenerationRun(ModelCallKey(uuid4(), attempt), work, BeginCall(row, joined=False))


async def text_of(run: GenerationRun, *, slowly: bool) -> str:
    text = ""
    async for message in RunReader(run, 1).messages(joined=True):
        for part in message.bundle.parts or (message,):
            if part.HasField("text"):
                assert part.text.offset == len(text)
                text += part.text.text
        if slowly:
            await asyncio.sleep(0.01)
    return text


async def test_all_readers_get_the_whole_text() -> None:
    run = new_run()
    reading = [asyncio.create_task(text_of(run, slowly=index % 2 == 0)) for index in range(READERS)]
    await asyncio.sleep(0)
    for piece in range(PIECES):
        run.call.on_text(0, f"{piece} ")
        if piece % 1000 == 0:
            await asyncio.sleep(0.001)
    run.conclude(stopped_end(1, FailureClass.LOST))
    async with asyncio.timeout(PATIENCE_SECONDS):
        texts = set(await asyncio.gather(*reading))
    assert texts == {"".join(f"{piece} " for piece in range(PIECES))}
    assert not run.readers


async def test_slow_reader_is_notified_once() -> None:
    run = new_run()
    reading = asyncio.create_task(text_of(run, slowly=False))
    await asyncio.sleep(0)
    assert len(run.readers) == 1
    run.call.on_text(0, "a")
    assert not run.readers, "no piece costs anything until it has read this one"
    run.call.on_text(0, "b")
    run.conclude(stopped_end(1, FailureClass.LOST))
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await reading == "ab"
