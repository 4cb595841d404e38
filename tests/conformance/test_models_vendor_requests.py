"""Requests of the vendors' libraries at a model runner: passed on, joined and recorded as they are, and paid once."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

import pytest

from tenure.domain.errors import InvalidRequest, StaleEpoch, WrongState
from tenure.v1 import model_service_pb2 as pb
from tenure.wire.model_service import MAX_BODY_BYTES
from tests.support.fix_models import ModelRunnerClient, ReadCall, StartModels
from tests.support.fix_simulator import SimulatorControl
from tests.support.fix_tools import Grants, Owner
from tests.support.patience import PATIENCE_SECONDS
from tests.support.sweeps import first

MESSAGES: Final = [{"role": "user", "content": "Say hello."}]
BODIES: Final[dict[str, dict[str, Any]]] = {
    "/v1/messages?beta=true": {"messages": MESSAGES, "max_tokens": 500},
    "/chat/completions": {"messages": MESSAGES, "max_completion_tokens": 500},
    "/responses?api-version=preview": {"input": "Say hello.", "max_output_tokens": 500},
}
USAGE: Final = {"stream_options": {"include_usage": True}}
PATHS: Final = pytest.mark.parametrize("path", BODIES)
STREAMS: Final = pytest.mark.parametrize("stream", [True, False])
SLOW: Final = "sim-slow"


def request_of(
    owner: Owner, path: str = "/v1/messages?beta=true", *, step: int = 1, stream: bool = True, **members: Any
) -> pb.GenerateRequest:
    body = {"model": "sim-hello", **BODIES[path], "stream": stream, **members}
    body |= USAGE if stream and path == "/chat/completions" else {}
    sent = pb.VendorRequest(path=path, body=json.dumps(body).encode())
    return pb.GenerateRequest(
        token=owner.token, step=step, attempt_number=1, vendor_request=sent, max_output_tokens=500
    )


def output(call: ReadCall) -> bool:
    return len(call.body) > 1000


@STREAMS
@PATHS
async def test_response_is_passed_on_and_its_usage_read(
    runner: ModelRunnerClient, grants: Grants, simulator: SimulatorControl, path: str, stream: bool
) -> None:
    owner = grants.claim()
    call = runner.send(request_of(owner, path, stream=stream))
    end = await call.ended()
    assert end.HasField("vendor_end"), end
    (billed,) = simulator.calls("chat" if "chat" in path else "responses" if "responses" in path else "messages")
    assert (billed["attempt"], billed["stream"]) == (f"{owner.task_id}/1/1", stream)
    assert end.vendor_end.usage.output_tokens == billed["output_tokens"]
    assert end.vendor_end.usage.input_tokens == billed["input_tokens"]
    assert not end.vendor_end.compressed_body
    assert end.vendor_end.provider_request_id
    part = next(part.vendor_part for part in call.parts if part.HasField("vendor_part"))
    assert part.content_type.startswith("text/event-stream" if stream else "application/json")
    if not stream:
        assert json.loads(call.body)["usage"]
    else:
        assert call.body.startswith((b"event: ", b"data: "))


@PATHS
async def test_next_owner_joins_from_the_beginning(
    runner: ModelRunnerClient, grants: Grants, simulator: SimulatorControl, path: str
) -> None:
    simulator.order_fault(latency_ms=1500, count=10)
    owner = grants.claim()
    first = await runner.send(request_of(owner, path, model=SLOW)).has(output)
    had = first.body
    await first.disconnect()
    second = runner.send(request_of(grants.claim(owner.task_id, epoch=11), path, model=SLOW))
    end = await second.ended()
    assert second.state.joined
    assert second.body.startswith(had)
    assert len(second.body) > len(had)
    assert end.HasField("vendor_end")
    assert len(simulator.calls() + simulator.calls("chat") + simulator.calls("responses")) == 1


@pytest.mark.parametrize("stream", first([True, False]))
async def test_record_of_another_replica_has_the_same_bytes(
    model_runner: StartModels, grants: Grants, simulator: SimulatorControl, stream: bool
) -> None:
    runner = await model_runner()
    owner = grants.claim()
    first = runner.send(request_of(owner, stream=stream))
    end = await first.ended()
    await runner.process.kill()
    recorded = (await model_runner()).send(request_of(grants.claim(owner.task_id, epoch=11), stream=stream))
    assert await recorded.ended() == end
    assert recorded.body == first.body
    assert recorded.state.kind == pb.GenerationState.KIND_FINISHED
    assert len(simulator.calls()) == 1


async def test_another_request_of_an_attempt_is_refused(
    runner: ModelRunnerClient, grants: Grants, simulator: SimulatorControl
) -> None:
    """While the call runs, and after its end. The refusal says what to do, and nothing is sent."""
    simulator.order_fault(latency_ms=1200, count=10)
    owner = grants.claim()
    call = await runner.send(request_of(owner, model=SLOW)).has(output)
    for ended in (False, True):
        for other in (
            request_of(owner, model=SLOW, temperature=0.5),
            request_of(owner, "/responses?api-version=preview", model=SLOW),
        ):
            with pytest.raises(WrongState, match="in a step") as refused:
                await runner.send(other).ended()
            assert refused.value.reason == "REQUEST_DIFFERS"
        with pytest.raises(WrongState, match="another request"):
            await runner.generate(owner, model=SLOW).ended()
        assert ended or (await call.ended()).HasField("vendor_end")
    assert len(simulator.calls()) == 1


async def test_stale_claim_sends_joins_and_cancels_nothing(
    runner: ModelRunnerClient, grants: Grants, simulator: SimulatorControl
) -> None:
    simulator.order_fault(latency_ms=1200, count=10)
    stale = grants.claim()
    call = await runner.send(request_of(grants.claim(stale.task_id, epoch=11), model=SLOW)).has(output)
    for step in (1, 2):
        with pytest.raises(StaleEpoch):
            await runner.send(request_of(stale, model=SLOW, step=step)).ended()
        with pytest.raises(StaleEpoch):
            await runner.cancel(stale, step)
    assert (await call.ended()).HasField("vendor_end")
    assert len(simulator.calls()) == 1


async def test_cancelled_request_has_the_stated_usage(
    runner: ModelRunnerClient, grants: Grants, simulator: SimulatorControl
) -> None:
    simulator.order_fault(latency_ms=60_000, count=10)
    owner = grants.claim()
    await runner.send(request_of(owner, model=SLOW)).has(output)
    cancelled = await runner.cancel(owner)
    assert cancelled.failure.error_class == "INTERRUPTED"
    async with asyncio.timeout(PATIENCE_SECONDS):  # the simulator writes a call down when it sees the connection end
        while simulator.running():
            await asyncio.sleep(0.05)
    (billed,) = simulator.calls()
    assert cancelled.failure.usage.input_tokens == billed["input_tokens"]
    assert cancelled.failure.usage.output_tokens > 0


async def test_cancel_after_the_end_has_the_usage(
    runner: ModelRunnerClient, grants: Grants, simulator: SimulatorControl
) -> None:
    owner = grants.claim()
    end = await runner.send(request_of(owner)).ended()
    assert (await runner.cancel(owner)).vendor_end == end.vendor_end
    assert len(simulator.calls()) == 1


@pytest.mark.parametrize(("scenario", "error_class"), [("error-400", "INVALID_REQUEST"), ("error-529", "OVERLOADED")])
async def test_refusal_is_a_failure_with_its_status(
    runner: ModelRunnerClient, grants: Grants, scenario: str, error_class: str
) -> None:
    end = await runner.send(request_of(grants.claim(), model=f"sim-{scenario}")).ended()
    assert end.failure.error_class == error_class
    assert end.failure.status_code == int(scenario.removeprefix("error-"))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/models", b"{}"),
        ("/v1/messages", b"not JSON"),
        ("/v1/messages", b"[1]"),
        ("/v1/messages", b'{"model": 7}'),
        ("/responses", b'{"model": "sim-hello", "input": ' + b"[" * 450 + b"]" * 450 + b"}"),
        ("/v1/messages", b'{"model": "openai/gpt-5"}'),
    ],
)
async def test_request_of_no_vendor_is_refused(
    runner: ModelRunnerClient, grants: Grants, path: str, body: bytes
) -> None:
    request = request_of(grants.claim())
    request.vendor_request.MergeFrom(pb.VendorRequest(path=path, body=body))
    with pytest.raises(InvalidRequest, match="vendor_request"):
        await runner.send(request).ended()


async def test_largest_body_fits_into_a_message(
    runner: ModelRunnerClient, grants: Grants, simulator: SimulatorControl
) -> None:
    """With its token. The request of a larger one would get no answer but that of gRPC."""
    request = request_of(grants.claim())
    request.vendor_request.body += b" " * (MAX_BODY_BYTES - len(request.vendor_request.body))
    assert (await runner.send(request).ended()).HasField("vendor_end")
    assert len(simulator.calls()) == 1
