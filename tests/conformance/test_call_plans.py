"""Plans: a person approves later calls at once, and the first write of each call uses the plan up."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Sequence
from typing import Any

import pytest

from tenure.domain.tools import Outcome, OutcomeStatus, PlannedCalls
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import tool_pb2, tool_service_pb2
from tenure.wire.call_plans import plan_to_wire
from tenure.wire.tool import outcome_to_domain
from tests.support.fix_tools import Grants, Outside, Owner, StartTools, ToolClient, execute_request
from tests.support.patience import CALL_SECONDS
from tests.support.sweeps import first
from tests.support.tool_rules import ASK, DENY, rule, set_rule

RAN = (OutcomeStatus.SUCCEEDED, "")
ASKED = (OutcomeStatus.NOT_ALLOWED, "NEEDS_APPROVAL")
DENIED = (OutcomeStatus.NOT_ALLOWED, "RULE_DENIED")
BEGUN = float(int(time.time()))


def plan(count: int = 5, **fields: Any) -> PlannedCalls:
    times = {"approve_time": BEGUN, "end_time": BEGUN + 86_400}
    whole = {"plan_id": "task/w1", "tool": "append_record", "approved_by": "user/ann", **times, **fields}
    return PlannedCalls(count=count, **whole)


async def asked_call(tools: ToolClient, owner: Owner, call_id: str, **arguments: Any) -> tuple[OutcomeStatus, str]:
    """A call about which its task asks a person first."""
    outcome = await outcome_of(tools, owner, call_id, **arguments)
    return outcome.status, outcome.detail


async def outcome_of(tools: ToolClient, owner: Owner, call_id: str, **arguments: Any) -> Outcome:
    request = execute_request(owner, call_id, "append_record", json.dumps({"file": "a", "line": "x", **arguments}))
    request.needs_approval = True
    [*_, last] = [event async for event in tools.stub.Execute(request, timeout=CALL_SECONDS)]
    return outcome_to_domain(last.outcome)


async def plans_used(tools: ToolClient, owner: Owner) -> dict[str, str]:
    request = admin_pb.ListCallsRequest(task_id=owner.task_id)
    calls = (await tools.stub.ListCalls(request, timeout=CALL_SECONDS)).calls
    return {call.record.call_id: call.plan_id for call in calls}


async def test_call_that_needs_an_approval_runs_by_a_plan(tools: ToolClient, grants: Grants, outside: Outside) -> None:
    bare = grants.claim()
    assert await asked_call(tools, bare, "1.0") == ASKED
    assert await tools.fence(bare) == {}, "nothing is recorded"
    owner = grants.claim(plans=(plan(2, same=("args.line",), same_values=('"x"',)),))
    assert await asked_call(tools, owner, "1.0") == RAN
    assert await asked_call(tools, owner, "1.0") == RAN, "a repeat of the call uses nothing"
    assert await asked_call(tools, owner, "1.1", line="y") == ASKED
    assert await asked_call(tools, owner, "1.2") == RAN
    used_up = await outcome_of(tools, owner, "1.3")
    assert "The plan of an earlier approval allows 2 calls" in used_up.content
    assert await plans_used(tools, owner) == {"1.0": "task/w1", "1.2": "task/w1"}
    assert [line["line"] for line in outside.lines("a")] == ["x", "x"]


async def test_plan_permits_by_expression_until_its_end(tools: ToolClient, grants: Grants) -> None:
    owner = grants.claim(plans=(plan(when="size(args.line) < 3"),))
    assert await asked_call(tools, owner, "1.0", line="ab") == RAN
    assert await asked_call(tools, owner, "1.1", line="abc") == ASKED
    broken = grants.claim(plans=(plan(plan_id="task/w2", when="args.nothing == 1"), plan(plan_id="task/w3")))
    assert await asked_call(tools, broken, "1.0") == RAN, "a plan that cannot be decided denies nothing"
    over = grants.claim(plans=(plan(end_time=BEGUN - 1, approve_time=BEGUN - 9),))
    assert await asked_call(tools, over, "1.0") == ASKED


async def test_plan_answers_a_rule_that_asks_but_no_deny(tools: ToolClient, grants: Grants) -> None:
    await set_rule(tools, rule("ask", ASK, "args.line != 'z'"))
    await set_rule(tools, rule("never", DENY, "args.line == 'no'"))
    owner = grants.claim(plans=(plan(1),))
    assert await asked_call(tools, owner, "1.0", line="no") == DENIED
    free = await tools.outcome(owner, "1.1", "append_record", file="a", line="z")
    assert (free.status, free.detail) == RAN
    first = await tools.outcome(owner, "1.2", "append_record", file="a", line="x")
    second = await tools.outcome(owner, "1.3", "append_record", file="a", line="x")
    assert [(one.status, one.detail) for one in (first, second)] == [RAN, ASKED]
    assert await plans_used(tools, owner) == {"1.0": "", "1.1": "", "1.2": "task/w1"}


async def race(replicas: Sequence[ToolClient], grants: Grants) -> list[tuple[OutcomeStatus, str]]:
    """Fifty tasks of a tree, of whose calls a plan permits five, over all replicas."""
    owners = [grants.claim(plans=(plan(5, sum_of="args.line", limit="1000"),)) for _ in range(50)]
    calls = [asked_call(replicas[place % 2], owner, "1.0", line="200") for place, owner in enumerate(owners)]
    return await asyncio.gather(*calls)


async def test_racing_callers_never_exceed_a_plan(tool_service: StartTools, grants: Grants, outside: Outside) -> None:
    outcomes = await race([await tool_service(), await tool_service()], grants)
    assert (outcomes.count(RAN), outcomes.count(ASKED)) == (5, 45)
    assert len(outside.lines("a")) == 5


@pytest.mark.faults
@pytest.mark.parametrize("mutation", ["bound_counted", "bound_locked"])
async def test_race_for_a_plan_shows_a_missing_guard(tool_service: StartTools, grants: Grants, mutation: str) -> None:
    both = {"mutation": mutation, "failpoints": "tools.bounds_locked=1#sleep(3000)"}
    replicas = [await tool_service(**both), await tool_service(**both)]
    assert (await race(replicas, grants)).count(RAN) > 5


async def counted(tools: ToolClient, planned: PlannedCalls, *, end: bool = False) -> tool_pb2.CountedPlan:
    request = tool_service_pb2.CountPlannedCallsRequest(plans=[plan_to_wire(planned)], end=end)
    (one,) = (await tools.stub.CountPlannedCalls(request, timeout=CALL_SECONDS)).plans
    assert isinstance(one, tool_pb2.CountedPlan)
    return one


def figures(plan: tool_pb2.CountedPlan) -> tuple[int, int, str, str]:
    return plan.calls, plan.calls_left, plan.total, plan.total_left


async def test_ended_plan_counts_no_call_of_any_claim(tools: ToolClient, grants: Grants) -> None:
    limited = plan(5, sum_of="args.line", limit="10.50")
    assert figures(await counted(tools, limited)) == (0, 5, "0", "10.50")
    owner = grants.claim(plans=(limited,))
    assert await asked_call(tools, owner, "1.0", line="4.25") == RAN
    assert figures(await counted(tools, limited)) == (1, 4, "4.25", "6.25")
    ended = await counted(tools, limited, end=True)
    assert figures(ended) == (1, 0, "4.25", "0")
    assert await asked_call(tools, owner, "1.1", line="1") == ASKED
    later = grants.claim(owner.task_id, epoch=11, plans=(limited,))
    assert await asked_call(tools, later, "1.1", line="1") == ASKED
    assert (
        "The plan of an earlier approval was ended early." in (await outcome_of(tools, later, "1.1", line="1")).content
    )
    assert await asked_call(tools, later, "1.0", line="4.25") == RAN, "the counted call goes on"
    assert await counted(tools, limited, end=True) == await counted(tools, limited) == ended
    other = grants.claim(plans=(plan(1, plan_id="task/w2"), limited))
    assert await asked_call(tools, other, "1.0", line="1") == RAN, "another plan is in force"


async def race_with_end(
    replicas: Sequence[ToolClient], grants: Grants, within: float | None = None
) -> tuple[int, int, int]:
    """Twenty callers and the end of their plan, which begins after the first answer, or `within` this time.

    Returns what the plan had counted when its end was answered, what it has counted at last, and how many calls ran.
    """
    shared = plan(40, plan_id=f"task/{uuid.uuid4().hex}")
    owners = [grants.claim(plans=(shared,)) for _ in range(20)]
    calls = [asyncio.create_task(asked_call(replicas[at % 2], owner, "1.0")) for at, owner in enumerate(owners)]
    await asyncio.wait(calls, timeout=within, return_when=asyncio.FIRST_COMPLETED)
    ended = await counted(replicas[1], shared, end=True)
    late = await asyncio.gather(*(asked_call(replicas[0], owner, "1.1") for owner in owners[:5]))
    assert set(late) == {ASKED}
    outcomes = await asyncio.gather(*calls)
    return ended.calls, (await counted(replicas[0], shared)).calls, outcomes.count(RAN)


async def test_no_call_is_counted_after_the_end_of_a_plan(tool_service: StartTools, grants: Grants) -> None:
    replicas = [await tool_service(failpoints="tools.bounds_locked=1#sleep(1000)") for _ in range(2)]
    at_end, at_last, ran = await race_with_end(replicas, grants)
    assert at_end == at_last == ran > 0


@pytest.mark.faults
async def test_race_with_the_end_shows_a_missing_lock(tool_service: StartTools, grants: Grants) -> None:
    both = {"mutation": "bound_locked", "failpoints": "tools.bounds_locked=1#sleep(3000)"}
    replicas = [await tool_service(**both), await tool_service(**both)]
    at_end, at_last, _ = await race_with_end(replicas, grants, within=1.5)
    assert at_end < at_last


@pytest.mark.parametrize("failpoint", first(["tools.bounds_locked", "tools.after_ruled_accept", "tools.after_effect"]))
async def test_kill_and_takeover_keep_what_a_plan_counted(
    tool_service: StartTools, grants: Grants, outside: Outside, failpoint: str
) -> None:
    first, second = await tool_service(failpoints=f"{failpoint}=kill9"), await tool_service()
    owner = grants.claim(plans=(plan(1),))
    lost = asyncio.create_task(asked_call(first, owner, "1.0"))
    await first.ended()
    await asyncio.gather(lost, return_exceptions=True)
    later = grants.claim(owner.task_id, epoch=11, plans=(plan(1),))
    assert await asked_call(second, later, "1.0") == RAN
    assert await asked_call(second, later, "1.1") == ASKED
    assert len({json.dumps(line) for line in outside.lines("a")}) == 1
