"""Own tools over sockets: the caller runs the call, and the tool service keeps record and fence."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import grpc
import pytest

from tenure.domain.errors import InvalidRequest, LimitReached, StaleEpoch, TryLater
from tenure.domain.tools import EffectClass, Outcome, OutcomeStatus
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import tool_pb2
from tenure.v1 import tool_service_pb2 as pb
from tenure.wire.common import EFFECT_CLASSES, OUTCOME_STATUSES, duration, refusal_to_domain
from tenure.wire.token import read_claims
from tenure.wire.tool import outcome_to_domain
from tests.support.fix_tools import Grants, Owner, StartTools, ToolClient, appear
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS
from tests.support.sweeps import first

SCHEMA = json.dumps({"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]})
NEXT_EPOCH = 11


def own_request(
    owner: Owner,
    effect: EffectClass = EffectClass.KEYED,
    *,
    name: str = "send_letter",
    timeout: float = 60.0,
    outcome: pb.OwnOutcome | None = None,
    arguments: str = '{"to": "Ada"}',
    **fields: Any,
) -> pb.ExecuteRequest:
    definition = tool_pb2.ToolDefinition(
        name=name,
        input_schema_json=SCHEMA,
        timeout=duration(timeout),
        output_limit_bytes=1024,
        effect_class=EFFECT_CLASSES.to_wire(effect),
    )
    return pb.ExecuteRequest(
        token=owner.token,
        call_id="1.0",
        tool=name,
        arguments_json=arguments,
        own_tool=definition,
        own_outcome=outcome,
        **fields,
    )


def came_to(attempt: int, content: str = "sent", status: OutcomeStatus = OutcomeStatus.SUCCEEDED) -> pb.OwnOutcome:
    return pb.OwnOutcome(call_attempt=attempt, status=OUTCOME_STATUSES.to_wire(status), content=content)


class Caller:
    """A worker's stream with one call, under tag 1."""

    def __init__(self, tools: ToolClient, request: pb.ExecuteRequest) -> None:
        self.call = tools.stub.ExecuteStream()
        self._request = request
        self._events: list[pb.TaggedExecuteEvent] = []

    async def send(self) -> Caller:
        await self.call.write(pb.ExecuteStreamRequest(calls=[pb.TaggedExecute(tag=1, call=self._request)]))
        return self

    async def event(self, kind: str) -> Any:
        """The next event of this kind."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                while self._events:
                    event = self._events.pop(0)
                    if event.WhichOneof("event") == kind:
                        return getattr(event, kind)
                    assert event.WhichOneof("event") not in {"outcome", "refusal"}, event
                frame = await self.call.read()
                assert frame is not grpc.aio.EOF
                self._events += frame.events

    async def ordered(self, attempt: int) -> None:
        """Waits for the order to run this attempt."""
        order = await self.event("run_here")
        assert order.call_attempt == attempt
        assert order.idempotency_key == f"{read_claims(self._request.token).task_id}/1.0"

    async def outcome(self) -> Outcome:
        return outcome_to_domain(await self.event("outcome"))

    async def refusal(self) -> Exception:
        return refusal_to_domain(await self.event("refusal"))

    async def say(self, outcome: pb.OwnOutcome) -> None:
        tagged = pb.TaggedOwnOutcome(tag=1, outcome=outcome)
        await self.call.write(pb.ExecuteStreamRequest(outcomes=[tagged]))

    def break_off(self) -> None:
        self.call.cancel()


async def called(tools: ToolClient, request: pb.ExecuteRequest) -> Caller:
    return await Caller(tools, request).send()


async def record(tools: ToolClient, owner: Owner) -> tool_pb2.CallRecord:
    found: tool_pb2.CallRecord = (await tools.fence(owner))["1.0"]
    return found


async def test_the_caller_runs_the_call_and_its_outcome_is_recorded(tools: ToolClient, grants: Grants) -> None:
    owner = grants.claim()
    caller = await called(tools, own_request(owner))
    await caller.ordered(1)
    assert (await record(tools, owner)).state == tool_pb2.CALL_STATE_STARTED
    await caller.say(came_to(1, "sent as 7"))
    outcome = await caller.outcome()
    assert (outcome.status, outcome.content, outcome.call_attempt) == (OutcomeStatus.SUCCEEDED, "sent as 7", 1)
    repeated = await called(tools, own_request(owner))
    assert (await repeated.outcome()).content == "sent as 7"
    kept = await record(tools, owner)
    assert (kept.state, kept.effect_class) == (tool_pb2.CALL_STATE_FINISHED, tool_pb2.EFFECT_CLASS_KEYED)


@pytest.mark.parametrize("effect", [EffectClass.PURE, EffectClass.IDEMPOTENT, EffectClass.KEYED])
async def test_a_newer_owner_runs_the_call_again_with_the_same_key(
    tools: ToolClient, grants: Grants, effect: EffectClass
) -> None:
    """It does not wait for the former worker, whose late outcome is refused and changes nothing."""
    old = grants.claim()
    frozen = await called(tools, own_request(old, effect))
    await frozen.ordered(1)
    new = grants.claim(old.task_id, epoch=NEXT_EPOCH)
    caller = await called(tools, own_request(new, effect))
    await caller.ordered(2)
    assert isinstance(await frozen.refusal(), StaleEpoch)
    late = await called(tools, own_request(old, effect, outcome=came_to(1, "of the former worker")))
    assert isinstance(await late.refusal(), StaleEpoch)
    assert (await record(tools, new)).call_attempt == 2
    await caller.say(came_to(2, "of the new worker"))
    assert (await caller.outcome()).content == "of the new worker"


async def test_an_unsafe_call_of_a_former_owner_is_in_doubt(tools: ToolClient, grants: Grants) -> None:
    """A late outcome of the former worker does not end the doubt; a person's resolution does."""
    old = grants.claim()
    frozen = await called(tools, own_request(old, EffectClass.UNSAFE))
    await frozen.ordered(1)
    new = grants.claim(old.task_id, epoch=NEXT_EPOCH)
    doubted = await (await called(tools, own_request(new, EffectClass.UNSAFE))).outcome()
    assert (doubted.status, doubted.call_attempt) == (OutcomeStatus.IN_DOUBT, 1)
    await frozen.say(came_to(1))
    assert isinstance(await frozen.refusal(), StaleEpoch)
    (one,) = (await tools.stub.ListInDoubtCalls(admin_pb.ListInDoubtCallsRequest(), timeout=CALL_SECONDS)).calls
    assert (one.call.acts_elsewhere, one.call.runner_gone) == (True, False)
    no_proof = tool_pb2.CallResolution(call_attempt=1, reason="looked", actor="ada")
    no_proof.decision.did_not_happen.runner_proven_gone = True
    unproven = await called(tools, own_request(new, EffectClass.UNSAFE, resolution=no_proof))
    assert (await unproven.outcome()).status is OutcomeStatus.IN_DOUBT
    stated = tool_pb2.CallResolution(call_attempt=1, reason="looked", actor="ada")
    stated.decision.did_not_happen.runner_is_gone = True
    again = await called(tools, own_request(new, EffectClass.UNSAFE, resolution=stated))
    await again.ordered(2)
    await again.say(came_to(2))
    assert (await again.outcome()).status is OutcomeStatus.SUCCEEDED


@pytest.mark.parametrize("effect", [EffectClass.KEYED, EffectClass.UNSAFE])
async def test_a_broken_stream_is_joined_by_the_same_worker(
    tools: ToolClient, grants: Grants, effect: EffectClass
) -> None:
    owner = grants.claim()
    broken = await called(tools, own_request(owner, effect))
    await broken.ordered(1)
    broken.break_off()
    again = await called(tools, own_request(owner, effect))
    await again.ordered(1)
    await again.say(came_to(1))
    assert (await again.outcome()).status is OutcomeStatus.SUCCEEDED


@pytest.mark.parametrize("effect", first([EffectClass.UNSAFE, EffectClass.KEYED]))
async def test_another_replica_takes_the_call_of_the_same_worker_over(
    tool_service: StartTools, grants: Grants, effect: EffectClass
) -> None:
    first, second = await tool_service(), await tool_service()
    owner = grants.claim()
    broken = await called(first, own_request(owner, effect))
    await broken.ordered(1)
    broken.break_off()
    again = await called(second, own_request(owner, effect))
    await again.ordered(2)
    await again.say(came_to(1, "of the attempt before"))
    await again.ordered(2)  # the same order again: the outcome must name the newest attempt
    await again.say(came_to(2))
    assert (await again.outcome()).content == "sent"
    assert await first.terminate() == 0


@pytest.mark.parametrize("effect", first([EffectClass.UNSAFE, EffectClass.KEYED]))
async def test_an_outcome_is_delivered_to_a_restarted_service(
    tool_service: StartTools, grants: Grants, effect: EffectClass
) -> None:
    """The tool ended while no service ran: the worker sends the call again, with the outcome."""
    killed = await tool_service()
    owner = grants.claim()
    await (await called(killed, own_request(owner, effect))).ordered(1)
    await killed.kill()
    tools = await tool_service()
    outcome = await (await called(tools, own_request(owner, effect, outcome=came_to(1)))).outcome()
    assert (outcome.status, outcome.call_attempt) == (OutcomeStatus.SUCCEEDED, 1)


@pytest.mark.faults
async def test_a_run_goes_on_through_a_restart_of_the_service(tool_service: StartTools, grants: Grants) -> None:
    """UNSAFE, and not in doubt: the worker that runs it holds the claim."""
    killed = await tool_service()
    owner = grants.claim()
    await (await called(killed, own_request(owner, EffectClass.UNSAFE))).ordered(1)
    await killed.kill()
    caller = await called(await tool_service(), own_request(owner, EffectClass.UNSAFE))
    await caller.ordered(2)
    await caller.say(came_to(2))
    assert (await caller.outcome()).status is OutcomeStatus.SUCCEEDED


async def test_start_is_withdrawn_when_its_caller_has_left(
    tool_service: StartTools, grants: Grants, tmp_path: Any
) -> None:
    """The start is withdrawn: a newer owner's UNSAFE call runs, and is not in doubt."""
    marked = tmp_path / "marked"
    tools = await tool_service(failpoints=f"tools.before_effect=1#touch({marked})->1#wait({tmp_path}/go)")
    owner = grants.claim()
    leaving = await called(tools, own_request(owner, EffectClass.UNSAFE))
    await appear(marked)
    leaving.break_off()
    await record(tools, owner)  # by the same connection: what broke off came before
    (tmp_path / "go").touch()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await record(tools, owner)).state != tool_pb2.CALL_STATE_ACCEPTED:
            await asyncio.sleep(0.02)
    new = grants.claim(owner.task_id, epoch=NEXT_EPOCH)
    caller = await called(tools, own_request(new, EffectClass.UNSAFE))
    await caller.ordered(3)
    await caller.say(came_to(3))
    assert (await caller.outcome()).status is OutcomeStatus.SUCCEEDED


@pytest.mark.parametrize(
    ("effect", "status"),
    [(EffectClass.KEYED, OutcomeStatus.CANCELLED), (EffectClass.UNSAFE, OutcomeStatus.IN_DOUBT)],
)
async def test_closed_fence_ends_a_call_with_its_outcome(
    tools: ToolClient, grants: Grants, effect: EffectClass, status: OutcomeStatus
) -> None:
    owner = grants.claim()
    caller = await called(tools, own_request(owner, effect))
    await caller.ordered(1)
    closed = await tools.fence(owner, close=True)
    assert closed["1.0"].state in {tool_pb2.CALL_STATE_FINISHED, tool_pb2.CALL_STATE_IN_DOUBT}
    assert (await caller.outcome()).status is status


@pytest.mark.parametrize(
    ("effect", "status"),
    [(EffectClass.KEYED, OutcomeStatus.TIMED_OUT), (EffectClass.UNSAFE, OutcomeStatus.IN_DOUBT)],
)
async def test_silent_caller_times_out(
    tools: ToolClient, grants: Grants, effect: EffectClass, status: OutcomeStatus
) -> None:
    caller = await called(tools, own_request(grants.claim(), effect, timeout=0.2))
    await caller.ordered(1)
    assert (await caller.outcome()).status is status


async def test_a_caller_reports_a_timeout_on_another_stream(tools: ToolClient, grants: Grants) -> None:
    owner, timeout_seconds = grants.claim(), 0.2
    request = own_request(owner, EffectClass.UNSAFE, timeout=timeout_seconds)
    broken = await called(tools, request)
    await broken.ordered(1)
    broken.break_off()
    await asyncio.sleep(timeout_seconds + 0.5)
    again = await called(tools, request)
    await again.ordered(1)
    await again.say(came_to(1, "stopped at its timeout"))
    assert (await again.outcome()).content == "stopped at its timeout"


async def test_call_of_a_caller_that_left_can_be_taken_over(
    tools: ToolClient, grants: Grants, tools_database: Any
) -> None:
    """No caller is connected after the timeout: the call has no outcome, and the next request runs the call again."""
    owner = grants.claim()
    leaving = await called(tools, own_request(owner, timeout=0.2))
    await leaving.ordered(1)
    leaving.break_off()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await tools_database("select runner_id from calls where task_id = %s", owner.task_id))[0][0] is not None:
            await asyncio.sleep(0.02)
    assert (await record(tools, owner)).state == tool_pb2.CALL_STATE_STARTED
    caller = await called(tools, own_request(owner))
    await caller.ordered(2)


async def test_invalid_own_calls_are_refused(tools: ToolClient, grants: Grants) -> None:
    owner = grants.claim()

    async def refused(request: pb.ExecuteRequest) -> Exception:
        return await (await called(tools, request)).refusal()

    async def outcome(request: pb.ExecuteRequest, owner: Owner) -> Outcome:
        return await (await called(tools, request)).outcome()

    taken = await outcome(own_request(owner, name="append_record"), owner)
    assert (taken.status, taken.detail) == (OutcomeStatus.INVALID_ARGUMENTS, "TOOL_NAME_TAKEN")
    built_in = await outcome(own_request(grants.claim(), name="built-in__mine"), owner)
    assert built_in.detail == "TOOL_NAME_TAKEN"
    limited = grants.claim(tools=("read_file",))
    assert (await outcome(own_request(limited), limited)).status is OutcomeStatus.NOT_ALLOWED
    allowed = grants.claim(tools=("send_letter",))
    await (await called(tools, own_request(allowed))).ordered(1)
    unfit = await outcome(own_request(grants.claim(), arguments='{"to": 7}'), owner)
    assert unfit.status is OutcomeStatus.INVALID_ARGUMENTS
    request = own_request(owner)
    request.own_tool.input_schema_json = '{"type": "nothing"}'
    assert "own_tool.input_schema_json" in str(await refused(request))
    request = own_request(owner)
    request.own_tool.name = "another"
    assert "own_tool.name" in str(await refused(request))
    request = own_request(owner)
    request.own_outcome.CopyFrom(came_to(1, status=OutcomeStatus.CANCELLED))
    assert "own_outcome.status" in str(await refused(request))
    with pytest.raises(InvalidRequest, match="ExecuteStream"):
        await anext(aiter(tools.stub.Execute(own_request(owner), timeout=CALL_SECONDS)))


async def test_an_outcome_that_is_too_large_failed(tools: ToolClient, grants: Grants) -> None:
    caller = await called(tools, own_request(grants.claim()))
    await caller.ordered(1)
    await caller.say(came_to(1, "x" * 1025))
    outcome = await caller.outcome()
    assert (outcome.status, outcome.detail) == (OutcomeStatus.FAILED, "OUTPUT_TOO_LARGE")
    assert "1025 bytes" in outcome.content


async def test_stopping_service_returns_try_later(tool_service: StartTools, grants: Grants) -> None:
    """The run goes on: it is not the outcome of the call."""
    tools = await tool_service(drain_seconds=0)
    owner = grants.claim()
    caller = await called(tools, own_request(owner, EffectClass.UNSAFE))
    await caller.ordered(1)
    assert await tools.terminate() == 0
    with pytest.raises(TryLater):
        await caller.outcome()
    next_caller = await called(await tool_service(), own_request(owner, EffectClass.UNSAFE))
    await next_caller.ordered(2)


async def test_full_service_accepts_the_outcome_of_its_call(tool_service: StartTools, grants: Grants) -> None:
    """Otherwise each call would count until its timeout, and no outcome would ever be recorded."""
    tools = await tool_service(max_accepted=1)
    caller = await called(tools, own_request(grants.claim()))
    await caller.ordered(1)
    other = await called(tools, own_request(grants.claim()))
    assert isinstance(await other.refusal(), LimitReached)
    await caller.say(came_to(1))
    assert (await caller.outcome()).status is OutcomeStatus.SUCCEEDED


async def test_tenant_leaves_room_for_others_and_other_calls(tool_service: StartTools, grants: Grants) -> None:
    """Calls of own tools may run for hours."""
    tools = await tool_service(max_accepted=5)
    callers = [await called(tools, own_request(grants.claim())) for _ in range(2)]
    for caller in callers:
        await caller.ordered(1)
    refused = await (await called(tools, own_request(grants.claim()))).refusal()
    assert isinstance(refused, LimitReached)
    assert refused.reason == "TOO_MANY_CALLS"
    owner = grants.claim()
    request = pb.ExecuteRequest(token=owner.token, call_id="1.0", tool="list_files", arguments_json="{}")
    assert (await (await called(tools, request)).outcome()).status is OutcomeStatus.SUCCEEDED
    await (await called(tools, own_request(grants.claim(tenant="other")))).ordered(1)
    for caller in callers:
        await caller.say(came_to(1))
        assert (await caller.outcome()).status is OutcomeStatus.SUCCEEDED
    await (await called(tools, own_request(grants.claim()))).ordered(1)


@pytest.mark.parametrize("effect", [EffectClass.KEYED, EffectClass.UNSAFE])
async def test_no_caller_speaks_for_a_tool_of_the_service(
    tool_service: StartTools, grants: Grants, tmp_path: Any, effect: EffectClass
) -> None:
    """An owner that calls a tool of the service its own can neither forge the outcome of the call nor end its run."""
    marked = tmp_path / "marked"
    tools = await tool_service(failpoints=f"tools.after_effect=1#touch({marked})->sleep(1000)")
    owner = grants.claim()
    arguments = '{"file": "f", "line": "x"}'
    name = "append_record" if effect is EffectClass.KEYED else "append_record_unsafe"
    forged = own_request(owner, effect, name=name, arguments=arguments, outcome=came_to(1, "forged"))
    request = pb.ExecuteRequest(token=owner.token, call_id="1.0", tool=name, arguments_json=arguments)
    caller = await called(tools, request)
    await appear(marked)
    assert (await (await called(tools, forged)).outcome()).content != "forged"
    outcome = await caller.outcome()
    assert (await record(tools, owner)).outcome.content == outcome.content
    assert outcome.content != "forged"
