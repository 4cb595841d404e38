"""A session stream that ends while its first answer is on its way."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress

import grpc
import pytest

from tenure.v1 import coordinator_service_pb2 as pb
from tenure.v1.coordinator_service_pb2_grpc import CoordinatorServiceStub
from tests.support.fix_coordinator import Fleet
from tests.support.patience import CALL_SECONDS
from tests.support.sweeps import first

STREAMS = 200


HELLO = pb.SessionRequest(hello=pb.Hello(worker_id="w", session_secret=bytes(32)))


@pytest.mark.parametrize("second", first([HELLO, None]), ids=["refused", "closed"])
async def test_a_stream_that_ends_at_once_gets_its_status(fleet: Fleet, second: pb.SessionRequest | None) -> None:
    """While the initial metadata is part of a write in flight, gRPC refuses a status: the worker would wait in vain."""
    replica = await fleet.coordinator()

    async def code() -> grpc.StatusCode:
        hello = pb.Hello(worker_id=f"worker-{uuid.uuid4()}", queues=["q"], session_secret=bytes(32))
        call = stub.Session(timeout=CALL_SECONDS)
        await call.write(pb.SessionRequest(hello=hello))
        if second is not None:
            await call.write(second)
        await call.done_writing()
        with suppress(grpc.aio.AioRpcError):
            async for _answer in call:
                pass
        return await call.code()

    async with grpc.aio.insecure_channel(replica.address) as channel:
        stub = CoordinatorServiceStub(channel)
        codes = await asyncio.gather(*(code() for _ in range(STREAMS)))
    expected = grpc.StatusCode.OK if second is None else grpc.StatusCode.INVALID_ARGUMENT
    assert set(codes) == {expected}
    assert not [line for line in replica.lines if line["level"] == "ERROR"]
