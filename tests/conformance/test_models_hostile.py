"""Requests that no worker sends: they are refused with a typed error, and nothing is written or sent."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from tenure.domain.errors import InvalidRequest, LimitReached, PermissionDenied, TenureError, Unauthenticated
from tenure.domain.fencing import LEASE_PREFIX, Audience, Claims
from tenure.v1 import model_service_pb2 as pb
from tenure.v1 import tool_pb2
from tenure.wire.token import sign_claims
from tests.conformance.test_models_calls import SLOW, slow
from tests.support.fix_models import HELLO, ModelRunnerClient, StartModels, generate_request
from tests.support.fix_simulator import SimulatorControl
from tests.support.fix_tools import Grants
from tests.support.patience import CALL_SECONDS

DEEP = '{"role":"user","content":[' + '{"a":' * 300 + "1" + "}" * 300 + "]}"
PROMPTS: dict[str, dict[str, Any]] = {
    "no message": {"messages_json": []},
    "no JSON": {"messages_json": ["{"]},
    "no object": {"messages_json": ["[]"]},
    "not a number": {"messages_json": ['{"role":"user","content":"x","n":NaN}']},
    "half a surrogate": {"messages_json": ['{"role":"user","content":"\\ud800"}']},
    "too deep": {"messages_json": [DEEP]},
    "deeper than a parser": {"messages_json": ["[" * 200_000]},
    "no role": {"messages_json": ['{"content":"x"}']},
    "no content": {"messages_json": ['{"role":"user","content":[]}']},
    "content of numbers": {"messages_json": ['{"role":"user","content":[1]}']},
    "second message": {"messages_json": [HELLO, "null"]},
    "no model": {"model": ""},
    "long model": {"model": "m" * 201},
    "long system": {"system": "s" * (1024 * 1024 + 1)},
    "schema": {"tools": [tool_pb2.ToolDefinition(name="t", input_schema_json="{")]},
    "name of a tool": {"tools": [tool_pb2.ToolDefinition(name="a b", input_schema_json="{}")]},
}


async def test_invalid_prompts_are_refused(
    runner: ModelRunnerClient, grants: Grants, simulator: SimulatorControl, models_database: Any
) -> None:
    owner = grants.claim()
    for prompt in PROMPTS.values():
        with pytest.raises(InvalidRequest):
            await runner.generate(owner, **prompt).ended()
        counted = pb.CountInputTokensRequest(token=owner.token, prompt=generate_request(owner, **prompt).prompt)
        with pytest.raises(InvalidRequest):
            await runner.stub.CountInputTokens(counted, timeout=CALL_SECONDS)
    for field, value in {"step": 0, "attempt_number": -1, "max_output_tokens": 0, "priority": 77}.items():
        request = generate_request(owner)
        setattr(request, field, value)
        with pytest.raises(InvalidRequest):
            await runner.send(request).ended()
    assert simulator.calls() == []
    assert await models_database("select count(*) from generations where task_id = %s", owner.task_id) == [(0,)]


async def test_a_request_larger_than_a_message_is_refused(
    runner: ModelRunnerClient, grants: Grants, simulator: SimulatorControl
) -> None:
    large = json.dumps({"role": "user", "content": "x" * (34 * 1024 * 1024)})
    with pytest.raises(TenureError):
        await runner.generate(grants.claim(), messages_json=[large]).ended()
    fits = json.dumps({"role": "user", "content": "x" * (5 * 1024 * 1024)})
    assert (await runner.generate(grants.claim(), messages_json=[fits]).ended()).WhichOneof("part")
    assert len(simulator.calls()) <= 1


async def test_forged_token_is_refused(runner: ModelRunnerClient, grants: Grants) -> None:
    broken = grants.claim()
    broken.token.signature = b"x" * 64
    with pytest.raises(Unauthenticated):
        await runner.generate(broken).ended()
    with pytest.raises(PermissionDenied) as refused:
        await runner.send(_request_with(grants, LEASE_PREFIX + "a", Audience.MODELS)).ended()
    assert refused.value.reason == "WRONG_RESOURCE"
    with pytest.raises(PermissionDenied) as refused:
        await runner.send(_request_with(grants, "tasks/x", Audience.TOOLS)).ended()
    assert refused.value.reason == "WRONG_AUDIENCE"


def _request_with(grants: Grants, resource: str, audience: Audience) -> pb.GenerateRequest:
    claims = Claims(resource, "default", 10, "c", "worker-1", None, (audience,), "tenure")
    request = generate_request(grants.claim())
    request.token.CopyFrom(sign_claims(grants.signer, claims, datetime.now(UTC)))
    return request


async def test_more_calls_than_the_runner_makes_are_refused(
    model_runner: StartModels, grants: Grants, simulator: SimulatorControl
) -> None:
    slow(simulator, 30_000)
    runner = await model_runner(max_calls=1)
    owner = grants.claim()
    await runner.generate(owner, **SLOW).speaking()
    with pytest.raises(LimitReached) as refused:
        await runner.generate(grants.claim(), **SLOW).ended()
    assert refused.value.reason == "TOO_MANY_CALLS"
    await runner.generate(owner, **SLOW).speaking()  # a join takes no slot
    assert len(simulator.running()) == 1


async def test_the_provider_counts_a_prompt(
    runner: ModelRunnerClient, grants: Grants, simulator: SimulatorControl
) -> None:
    owner = grants.claim()
    request = pb.CountInputTokensRequest(token=owner.token, prompt=generate_request(owner).prompt)
    counted = await runner.stub.CountInputTokens(request, timeout=CALL_SECONDS)
    assert counted.input_tokens > 0
