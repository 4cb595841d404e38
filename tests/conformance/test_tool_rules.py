"""Rules on arguments at the tool service: allow, ask and deny, at the fence, over real databases and sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from services.tools.rules import trying
from services.tools.rules.book import FRESH_SECONDS, RuleBook
from services.tools.statements import SCHEMA
from tenure.domain.errors import InvalidRequest, NotFound
from tenure.domain.tool_rules import MAX_ARGUMENT_BYTES
from tenure.domain.tool_schemas import OWN_FORM
from tenure.domain.tools import Outcome, OutcomeStatus
from tenure.runtime.store.postgres import open_pool
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import tool_pb2
from tests.support.fix_tools import Grants, Outside, SharedService, StartTools, ToolClient, execute_request
from tests.support.patience import CALL_SECONDS
from tests.support.sweeps import first
from tests.support.tool_rules import ALLOW, ASK, DAY, DENY, approval, rule, set_rule


def verdict_of(outcome: Outcome) -> tuple[OutcomeStatus, str]:
    return outcome.status, outcome.detail


async def raw_outcome(tools: ToolClient, grants: Grants, arguments_json: str) -> tool_pb2.Outcome:
    request = execute_request(grants.claim(), "1.0", "append_record", arguments_json)
    [*_, last] = [event async for event in tools.stub.Execute(request, timeout=CALL_SECONDS)]
    outcome: tool_pb2.Outcome = last.outcome
    return outcome


EVER = Timestamp(seconds=1)
RAN = (OutcomeStatus.SUCCEEDED, "")
DENIED = (OutcomeStatus.NOT_ALLOWED, "RULE_DENIED")
FAILED = (OutcomeStatus.NOT_ALLOWED, "RULE_FAILED")
ASKED = (OutcomeStatus.NOT_ALLOWED, "NEEDS_APPROVAL")


async def test_a_rule_decides_by_arguments_and_labels(tools: ToolClient, grants: Grants, outside: Outside) -> None:
    when = "args.line.startsWith('x') && labels.env == 'test' && agent == 'helper' && tool == 'append_record'"
    await set_rule(tools, rule("no-x", DENY, when, reason="No x in tests."))
    owner = grants.claim(agent="helper", labels=(("env", "test"),))
    denied = await tools.outcome(owner, "1.0", "append_record", file="a", line="x1")
    assert verdict_of(denied) == DENIED
    assert denied.content == "The rule no-x denies this call. No x in tests. Nothing was done."
    assert verdict_of(await tools.outcome(owner, "1.1", "append_record", file="a", line="y")) == RAN
    other = grants.claim(agent="other", labels=(("env", "test"),))
    assert verdict_of(await tools.outcome(other, "1.0", "append_record", file="a", line="x2")) == RAN
    assert [line["line"] for line in outside.lines("a")] == ["y", "x2"]


async def test_a_denied_call_is_answered_from_its_record(tools: ToolClient, grants: Grants) -> None:
    await set_rule(tools, rule("none", DENY))
    owner = grants.claim()
    first = await tools.outcome(owner, "1.0", "append_record", file="a", line="x")
    await tools.stub.DeleteToolRule(admin_pb.DeleteToolRuleRequest(name="none"), timeout=CALL_SECONDS)
    assert await tools.outcome(owner, "1.0", "append_record", file="a", line="x") == first
    assert verdict_of(await tools.outcome(owner, "1.1", "append_record", file="a", line="x")) == RAN


async def test_a_tool_with_allow_rules_is_closed_otherwise(tools: ToolClient, grants: Grants) -> None:
    await set_rule(tools, rule("short", ALLOW, "size(args.line) < 3", reason="Lines are short."))
    owner = grants.claim()
    assert verdict_of(await tools.outcome(owner, "1.0", "append_record", file="a", line="ab")) == RAN
    denied = await tools.outcome(owner, "1.1", "append_record", file="a", line="abc")
    assert (verdict_of(denied), "Lines are short." in denied.content) == (DENIED, True)
    assert verdict_of(await tools.outcome(owner, "1.2", "append_record_unsafe", file="a", line="abc")) == RAN


async def test_a_rule_that_cannot_be_decided_denies(tools: ToolClient, grants: Grants, outside: Outside) -> None:
    await set_rule(tools, rule("odd", DENY, "args.nope > 3"))
    outcome = await tools.outcome(grants.claim(), "1.0", "append_record", file="a", line="x")
    assert verdict_of(outcome) == FAILED
    assert "The rule odd cannot be decided" in outcome.content
    twice = await raw_outcome(tools, grants, '{"file": "a", "line": "x", "line": "y"}')
    assert (twice.detail, "twice" in twice.content) == ("RULE_FAILED", True)
    assert outside.lines("a") == []


async def test_a_rule_reads_no_text_up_to_its_first_nul(tools: ToolClient, grants: Grants, outside: Outside) -> None:
    await set_rule(tools, rule("boss", ALLOW, "args.line == 'boss@acme.com'"))
    outcome = await raw_outcome(tools, grants, '{"file": "a", "line": "boss@acme.com\\u0000,evil@x.com"}')
    assert (outcome.detail, "NUL" in outcome.content) == ("RULE_FAILED", True)
    assert outside.lines("a") == []


async def test_a_number_that_no_tool_takes_is_undecided(tools: ToolClient, grants: Grants) -> None:
    """Its record has it all the same, and to write it out would take for ever."""
    assert (
        await raw_outcome(tools, grants, '{"file": "a", "line": 1e9999999}')
    ).status == tool_pb2.OUTCOME_STATUS_INVALID_ARGUMENTS
    tried = rule("each", ALLOW, count=1, per="args.line")
    request = admin_pb.TryToolRuleRequest(tool_rule=tried, since_time=EVER)
    answer = await tools.stub.TryToolRule(request, timeout=CALL_SECONDS)
    assert (answer.denied, "is too large" in answer.calls[0].reason) == (1, True)


async def test_an_approval_is_of_one_call(tools: ToolClient, grants: Grants, outside: Outside) -> None:
    await set_rule(tools, rule("ask", ASK, reason="A person looks at it."))
    owner = grants.claim()
    asked = await tools.outcome(owner, "1.0", "append_record", file="a", line="x")
    assert (verdict_of(asked), "A person looks at it." in asked.content) == (ASKED, True)
    assert await tools.fence(owner) == {}
    approvals = (approval("1.0", "append_record", file="a", line="x"),)
    later = grants.claim(owner.task_id, epoch=11, approvals=approvals)
    assert verdict_of(await tools.outcome(later, "1.0", "append_record", file="a", line="other")) == ASKED
    assert verdict_of(await tools.outcome(later, "1.1", "append_record", file="a", line="x")) == ASKED
    assert verdict_of(await tools.outcome(later, "1.0", "append_record", file="a", line="x")) == RAN
    assert [line["line"] for line in outside.lines("a")] == ["x"]


async def test_a_deny_comes_before_an_approval(tools: ToolClient, grants: Grants) -> None:
    await set_rule(tools, rule("ask", ASK))
    await set_rule(tools, rule("never", DENY, "args.line == 'x'"))
    owner = grants.claim(approvals=(approval("1.0", "append_record", file="a", line="x"),))
    assert verdict_of(await tools.outcome(owner, "1.0", "append_record", file="a", line="x")) == DENIED


async def test_amounts_are_added_exactly(tools: ToolClient, grants: Grants, outside: Outside) -> None:
    await set_rule(tools, rule("money", ALLOW, sum_of="args.line", limit="0.30", window=366 * DAY))
    owner = grants.claim()
    for index in range(3):
        assert verdict_of(await tools.outcome(owner, f"1.{index}", "append_record", file="a", line="0.1")) == RAN
    denied = await tools.outcome(owner, "1.3", "append_record", file="a", line="0.01")
    assert verdict_of(denied) == DENIED
    assert "0.00 is left, and this call needs 0.01" in denied.content
    assert verdict_of(await tools.outcome(owner, "1.4", "append_record", file="a", line="-1")) == FAILED
    assert len(outside.lines("a")) == 3


async def test_calls_are_counted_apart_for_each_value(tools: ToolClient, grants: Grants) -> None:
    await set_rule(tools, rule("each", ALLOW, count=1, per="args.line"))
    owner = grants.claim()
    given = [("1.0", "ann", RAN), ("1.1", "ann", DENIED), ("1.2", "bob", RAN), ("1.3", "bob", DENIED)]
    for call_id, line, expected in given:
        assert verdict_of(await tools.outcome(owner, call_id, "append_record", file="a", line=line)) == expected


async def test_rules_read_what_the_tool_receives(tool_service: StartTools, grants: Grants, outside: Outside) -> None:
    """A model may give the arguments as it was shown them, or in the tool's own form: to a rule they are one."""
    tools = await tool_service(module="tests.foreign_tools")
    await set_rule(tools, rule("no-x", DENY, "has(args.line) && args.line == 'x'"))
    await set_rule(tools, rule("once", ALLOW, per="args.line", count=1, sum_of="args.delay_ms", limit="5"))
    owner = grants.claim()

    async def called(call_id: str, line: str, *, wrapped: bool) -> tuple[OutcomeStatus, str]:
        own = {"file": "a", "line": line, "delay_ms": 3}
        return verdict_of(
            await tools.outcome(owner, call_id, "append_record", **({"arguments": own} if wrapped else own))
        )

    for number, wrapped in enumerate((True, False)):
        assert await called(f"1.{number}", "x", wrapped=wrapped) == DENIED
        assert await called(f"2.{number}", f"y{number}", wrapped=wrapped) == RAN
        assert await called(f"3.{number}", f"y{number}", wrapped=not wrapped) == DENIED
    assert [line["line"] for line in outside.lines("a")] == ["y0", "y1"]
    tried = rule("y", DENY, "args.line.startsWith('y')")
    answer = await tools.stub.TryToolRule(
        admin_pb.TryToolRuleRequest(tool_rule=tried, since_time=EVER), timeout=CALL_SECONDS
    )
    assert (answer.allowed, answer.denied) == (2, 4)


async def test_repeat_of_an_effect_takes_nothing_of_a_bound(
    tool_service: StartTools, grants: Grants, outside: Outside, tmp_path: Path
) -> None:
    """A call that another one's effect answers does not run, so a rule does not count it."""
    file = tmp_path / "tools.json"
    key = {"arguments": ["/line"], "scope": "task"}
    file.write_text(json.dumps({"built_in": {"append_record": {"effect_key": key}}}))
    tools = await tool_service(config_file=file, sandbox_bubblewrap="/nonexistent/bwrap")
    await set_rule(tools, rule("two", ALLOW, count=2))
    owner = grants.claim()
    again = (OutcomeStatus.SUCCEEDED, "ALREADY_HAPPENED")
    given = [("1.0", "x", RAN), ("1.1", "x", again), ("1.2", "y", RAN), ("1.3", "z", DENIED)]
    for call_id, line, expected in given:
        assert verdict_of(await tools.outcome(owner, call_id, "append_record", file="a", line=line)) == expected
    assert [line["line"] for line in outside.lines("a")] == ["x", "y"]


async def test_an_expression_reads_what_was_counted(tools: ToolClient, grants: Grants) -> None:
    when = "used.count < 2 || args.line == 'last'"
    await set_rule(tools, rule("some", ALLOW, when, count=3))
    owner = grants.claim()
    lines = {"1.0": ("x", RAN), "1.1": ("x", RAN), "1.2": ("x", DENIED), "1.3": ("last", RAN), "1.4": ("last", DENIED)}
    for call_id, (line, expected) in lines.items():
        assert verdict_of(await tools.outcome(owner, call_id, "append_record", file="a", line=line)) == expected


async def test_beyond_its_bound_a_rule_may_ask(tools: ToolClient, grants: Grants) -> None:
    await set_rule(tools, rule("first", ALLOW, count=1, beyond=ASK))
    owner = grants.claim(approvals=(approval("1.2", "append_record", file="a", line="x"),))
    for call_id, expected in (("1.0", RAN), ("1.1", ASKED), ("1.2", RAN)):
        assert verdict_of(await tools.outcome(owner, call_id, "append_record", file="a", line="x")) == expected


async def test_a_wrong_rule_has_the_line_of_its_fault(tools: ToolClient) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await set_rule(tools, rule("bad", DENY, "args.line == 'x' && labels.team == 7", count=1, per="args"))
    text = str(refused.value)
    assert "tool_rule.when: ERROR: <input>:1:33" in text
    assert "tool_rule.bounds.per" in text
    assert (await tools.stub.ListToolRules(admin_pb.ListToolRulesRequest(), timeout=CALL_SECONDS)).tool_rules == []


async def test_rules_are_listed_and_tried_without_effect(tools: ToolClient, grants: Grants) -> None:
    owner = grants.claim()
    for index, line in enumerate(("x", "y", "x")):
        await tools.outcome(owner, f"1.{index}", "append_record", file="a", line=line)
    tried = rule("x-once", ALLOW, "args.line == 'x'", count=1)
    request = admin_pb.TryToolRuleRequest(tool_rule=tried, since_time=EVER)
    answer = await tools.stub.TryToolRule(request, timeout=CALL_SECONDS)
    assert (answer.allowed, answer.to_approve, answer.denied, answer.more) == (1, 0, 2, False)
    assert [(call.task_id, call.call_id) for call in answer.calls] == [(owner.task_id, "1.1"), (owner.task_id, "1.2")]
    assert (await tools.stub.ListToolRules(admin_pb.ListToolRulesRequest(), timeout=CALL_SECONDS)).tool_rules == []
    kept = await set_rule(tools, tried)
    assert (kept.version, kept.changed_by) == (1, "user/ann")
    [listed] = (await tools.stub.ListToolRules(admin_pb.ListToolRulesRequest(), timeout=CALL_SECONDS)).tool_rules
    assert listed == kept
    with pytest.raises(NotFound):
        await tools.stub.TryToolRule(admin_pb.TryToolRuleRequest(name="other", since_time=EVER), timeout=CALL_SECONDS)


async def test_calls_of_other_tools_are_not_tried(
    tools: ToolClient, grants: Grants, shared_tool_service: SharedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two calls are tried at most. A call with arguments that no rule reads is denied, as at the fence."""
    owner, large = grants.claim(), "x" * MAX_ARGUMENT_BYTES
    for index in range(3):
        await tools.outcome(owner, f"1.{index}", "append_record", file="a", line="x")
    await tools.outcome(owner, "2.0", "append_record_unsafe", file="a", line=large)
    monkeypatch.setattr(trying, "MAX_CALLS", 2)
    denied = [await tried(shared_tool_service, grants, pattern) for pattern in ("append_record_unsafe", "*_unsafe")]
    assert denied == [(0, 1, False)] * 2
    assert await tried(shared_tool_service, grants, "append*") == (2, 0, True)
    assert await tried(shared_tool_service, grants, "append_record") == (2, 0, True)
    assert await tried(shared_tool_service, grants, "append_re_ord*") == (0, 0, False), "_ stands for itself"


async def tried(service: SharedService, grants: Grants, pattern: str) -> tuple[int, int, bool]:
    """Returns how many calls of the tools a rule would have allowed and denied, and whether there are more."""
    request = admin_pb.TryToolRuleRequest(tool_rule=rule("r", ALLOW, "args.file == 'a'", pattern), since_time=EVER)
    async with open_pool(service.dsn, service="tools", schema=SCHEMA) as pool:
        response = await trying.try_rule(pool, lambda _tool, _tenant: OWN_FORM, grants.tenant, request)
    return response.allowed, response.denied, response.more


async def race(replicas: Sequence[ToolClient], grants: Grants) -> list[tuple[OutcomeStatus, str]]:
    """Fifty callers of a tool of which five calls may run, over all replicas."""
    await set_rule(replicas[0], rule("five", ALLOW, "used.count < 100", count=5, sum_of="args.line", limit="1000"))
    await asyncio.sleep(FRESH_SECONDS)
    calls = [
        replicas[number % 2].outcome(grants.claim(), "1.0", "append_record", file="a", line="200")
        for number in range(50)
    ]
    return [verdict_of(outcome) for outcome in await asyncio.gather(*calls)]


async def test_racing_callers_never_exceed_a_bound(tool_service: StartTools, grants: Grants, outside: Outside) -> None:
    outcomes = await race([await tool_service(), await tool_service()], grants)
    assert (outcomes.count(RAN), outcomes.count(DENIED)) == (5, 45)
    assert len(outside.lines("a")) == 5


@pytest.mark.faults
@pytest.mark.parametrize("mutation", ["bound_counted", "bound_locked"])
async def test_a_race_shows_a_missing_guard(tool_service: StartTools, grants: Grants, mutation: str) -> None:
    """Each replica reads the counter before the other one writes it."""
    both = {"mutation": mutation, "failpoints": "tools.bounds_locked=1#sleep(3000)"}
    replicas = [await tool_service(**both), await tool_service(**both)]
    assert (await race(replicas, grants)).count(RAN) > 5


async def test_a_new_deny_holds_at_the_other_replica(tool_service: StartTools, grants: Grants) -> None:
    one, other = [await tool_service(), await tool_service()]
    await set_rule(one, rule("some", ALLOW))
    await asyncio.sleep(FRESH_SECONDS)
    assert verdict_of(await other.outcome(grants.claim(), "1.0", "append_record", file="a", line="x")) == RAN
    for index in range(10):  # each change holds at once: no replica looks again in between
        made = rule("some", DENY if index % 2 else ALLOW)
        await set_rule(one, made)
        expected = DENIED if index % 2 else RAN
        outcome = await other.outcome(grants.claim(), "1.0", "append_record", file="a", line="x")
        assert verdict_of(outcome) == expected


async def test_a_call_that_never_ran_is_given_back(tool_service: StartTools, grants: Grants) -> None:
    tools = await tool_service(max_running=1)
    await set_rule(tools, rule("two", ALLOW, count=2, tool="append_record*"))
    holder, waiter = grants.claim(), grants.claim()
    held = tools.begin(holder, "1.0", "append_record", file="a", line="x", delay_ms=3000)
    await tools.started(holder)
    tools.begin(waiter, "1.0", "append_record", file="a", line="x")
    async with asyncio.timeout(CALL_SECONDS):
        while "1.0" not in await tools.fence(waiter):
            await asyncio.sleep(0.02)
    third = grants.claim()
    assert verdict_of(await tools.outcome(third, "1.0", "append_record", file="a", line="x")) == DENIED
    assert (await tools.fence(waiter, close=True))["1.0"].state == 4, "NOT_RUN"
    assert verdict_of(await held) == RAN
    assert verdict_of(await tools.outcome(third, "1.1", "append_record", file="a", line="x")) == RAN
    assert verdict_of(await tools.outcome(third, "1.2", "append_record", file="a", line="x")) == DENIED


@pytest.mark.parametrize(
    "failpoint",
    first(["tools.before_ruled_accept", "tools.bounds_locked", "tools.after_ruled_accept", "tools.after_effect"]),
)
async def test_a_killed_replica_counts_a_call_once(
    tool_service: StartTools, grants: Grants, outside: Outside, failpoint: str
) -> None:
    first, second = await tool_service(failpoints=f"{failpoint}=kill9"), await tool_service()
    await set_rule(second, rule("one", ALLOW, count=1))
    await asyncio.sleep(FRESH_SECONDS)
    owner = grants.claim()
    lost = first.begin(owner, "1.0", "append_record", file="a", line="x")
    await first.ended()
    await asyncio.gather(lost, return_exceptions=True)
    assert verdict_of(await second.outcome(owner, "1.0", "append_record", file="a", line="x")) == RAN
    assert verdict_of(await second.outcome(owner, "1.1", "append_record", file="a", line="x")) == DENIED
    assert {json.dumps(line) for line in outside.lines("a")} == {json.dumps(outside.lines("a")[0])}


async def test_all_old_counters_are_deleted(tools_dsn: str, tools_database: Any) -> None:
    await tools_database(
        "insert into rule_counters (tenant, rule, subject, window_seconds, begins_at, ends_at)"
        " select 'old', 'r', n::text::bytea, 1, now() - interval '9 days', now() - interval '8 days'"
        "   from generate_series(1, 1001) n"
    )
    async with open_pool(tools_dsn, service="tools", schema=SCHEMA) as pool:
        await RuleBook(pool).forget_counters()
    assert await tools_database("select count(*) from rule_counters where tenant = 'old'") == [(0,)]
