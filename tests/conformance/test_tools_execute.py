"""Execute over a real database and real sockets: one run, one record, one answer."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tenure.domain.access import DEFAULT_INSTALLATION
from tenure.domain.errors import AlreadyExists, InvalidRequest, LimitReached, PermissionDenied, Unauthenticated
from tenure.domain.fencing import Claims
from tenure.domain.tools import OutcomeStatus
from tenure.v1 import tool_pb2, tool_service_pb2
from tenure.wire.token import sign_task_claims
from tests.support.fix_tools import Grants, Outside, Owner, StartTools, ToolClient, execute_request, offered
from tests.support.patience import CALL_SECONDS

ALL_TOOLS = [
    "append_record",
    "append_record_unsafe",
    "ask_user",
    "delete_file",
    "execute_python",
    "list_files",
    "read_file",
    "record_output",
    "request_approval",
    "spawn_sub_agents",
    "wait_external",
    "web_search",
    "write_file",
]


async def test_call_is_executed_once_and_its_events_are_sent(
    tools: ToolClient, grants: Grants, outside: Outside
) -> None:
    owner = grants.claim()
    events = await tools.events(owner, "1.0", "append_record", file="a", line="x")
    assert [event.WhichOneof("event") for event in events] == ["started", "outcome"]
    assert (events[0].started.call_attempt, events[0].started.joined) == (1, False)
    assert outside.lines("a") == [{"key": f"{owner.task_id}/1.0", "epoch": owner.epoch, "line": "x"}]


async def test_a_repeat_is_answered_from_the_record(tools: ToolClient, grants: Grants, outside: Outside) -> None:
    owner = grants.claim()
    first = await tools.outcome(owner, "1.0", "append_record_unsafe", file="a", line="x")
    events = await tools.events(owner, "1.0", "append_record_unsafe", file="a", line="x")
    assert [event.WhichOneof("event") for event in events] == ["outcome"]
    assert await tools.outcome(owner, "1.0", "append_record_unsafe", file="a", line="x") == first
    assert len(outside.lines("a")) == 1


async def test_repeats_of_a_running_call_join_it(
    tool_service: StartTools, grants: Grants, outside: Outside, tmp_path: Path
) -> None:
    tools = await tool_service(failpoints=f"tools.after_effect=wait({tmp_path}/go)")
    request = execute_request(grants.claim(), "1.0", "append_record_unsafe", json.dumps({"file": "a", "line": "x"}))
    calls = [tools.stub.Execute(request, timeout=CALL_SECONDS) for _ in range(8)]
    first = await asyncio.gather(*(call.read() for call in calls))
    assert sum(not event.started.joined for event in first) == 1
    (tmp_path / "go").touch()
    last = await asyncio.gather(*(call.read() for call in calls))
    assert len({event.outcome.SerializeToString() for event in last}) == 1
    assert len(outside.lines("a")) == 1


async def test_disconnect_does_not_stop_a_call(tools: ToolClient, grants: Grants, outside: Outside) -> None:
    owner = grants.claim()
    call = tools.stub.Execute(
        execute_request(owner, "1.0", "append_record_unsafe", '{"file": "a", "line": "x", "delay_ms": 300}'),
        timeout=CALL_SECONDS,
    )
    assert (await call.read()).HasField("started")
    call.cancel()
    outcome = await tools.outcome(owner, "1.0", "append_record_unsafe", file="a", line="x", delay_ms=300)
    # Asked with the same bytes in another order of spaces it would be another call; these are the same.
    assert outcome.status is OutcomeStatus.SUCCEEDED
    assert len(outside.lines("a")) == 1


async def test_a_call_id_cannot_be_used_for_another_call(tools: ToolClient, grants: Grants, outside: Outside) -> None:
    owner = grants.claim()
    await tools.outcome(owner, "1.0", "append_record", file="a", line="x")
    for tool, line in (("append_record", "y"), ("append_record_unsafe", "x")):
        with pytest.raises(AlreadyExists) as caught:
            await tools.outcome(owner, "1.0", tool, file="a", line=line)
        assert caught.value.reason == "CALL_ID_REUSED"
    assert len(outside.lines("a")) == 1


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("append_record", "{}", "'file' is a required property"),
        ("append_record", '{"file": "../up", "line": "x"}', "file: '../up' does not match"),
        ("append_record", '{"file": "a", "line": "x", "more": 1}', "'more' was unexpected"),
        ("append_record", "[1]", "must be a JSON object"),
        ("append_record", '{"file": NaN}', "must be a JSON object"),
        ("append_record", '{"a":' * 2000, "must be a JSON object"),
        ("make_coffee", "{}", "There is no tool named 'make_coffee'. Tools it may use: append_record,"),
        ("nul\0tool", "{}", "There is no tool named"),
    ],
)
async def test_arguments_that_do_not_fit_are_a_readable_outcome(
    tools: ToolClient, grants: Grants, tool: str, arguments: Any, words: str
) -> None:
    request = execute_request(grants.claim(), "1.0", tool, arguments)
    for _ in range(2):
        events = [event async for event in tools.stub.Execute(request, timeout=CALL_SECONDS)]
        assert [event.WhichOneof("event") for event in events] == ["outcome"]
        assert events[0].outcome.status == 4
        assert words in events[0].outcome.content


async def test_only_allowed_tools_are_listed_and_run(tools: ToolClient, grants: Grants, outside: Outside) -> None:
    for allowed, expected in ((None, ALL_TOOLS), ((), []), (("read_file", "unknown"), ["read_file"])):
        owner = grants.claim(tools=allowed)
        answer = await tools.stub.ListTools(tool_service_pb2.ListToolsRequest(token=owner.token), timeout=CALL_SECONDS)
        assert [tool.name for tool in answer.tools] == expected
        outcome = await tools.outcome(owner, "1.0", "append_record", file="a", line="x")
        assert outcome.status is (OutcomeStatus.SUCCEEDED if allowed is None else OutcomeStatus.NOT_ALLOWED)
    assert len(outside.lines("a")) == 1


async def test_each_tenant_has_records_of_its_own(tools: ToolClient, grants: Grants, outside: Outside) -> None:
    for tenant in ("acme", "other"):
        await tools.outcome(grants.claim(tenant=tenant), "1.0", "append_record", file="a", line=tenant)
    assert {tenant: [one["line"] for one in outside.lines("a", tenant)] for tenant in ("acme", "other", "default")} == {
        "acme": ["acme"],
        "other": ["other"],
        "default": [],
    }


async def test_records_need_the_setting(tool_service: StartTools, grants: Grants) -> None:
    tools, owner = await tool_service(records_dir=""), grants.claim()
    assert (await tools.outcome(owner, "1.0", "append_record", file="a", line="x")).status.name == "INVALID_ARGUMENTS"
    assert not [tool for tool in await offered(tools, "default") if tool.definition.name.startswith("append")]


async def test_every_tool_has_a_complete_definition(tools: ToolClient, grants: Grants) -> None:
    answer = await tools.stub.ListTools(
        tool_service_pb2.ListToolsRequest(token=grants.claim().token), timeout=CALL_SECONDS
    )
    for tool in answer.tools:
        assert tool.description
        schema = json.loads(tool.input_schema_json)
        Draft202012Validator.check_schema(schema)
        assert schema["type"] == "object"
        assert tool.effect_class != 0
        assert tool.timeout.seconds == (10 if tool.name == "execute_python" else 30)
        assert tool.output_limit_bytes > 0


async def test_forged_token_is_refused(tools: ToolClient, grants: Grants, outside: Outside) -> None:
    owner = grants.claim()
    owner.token.claims = grants.claim().token.claims
    with pytest.raises(Unauthenticated):
        await tools.outcome(owner, "1.0", "append_record", file="a", line="x")
    with pytest.raises(PermissionDenied) as refused:
        await tools.outcome(grants.claim("not-a-uuid"), "1.0", "append_record", file="a", line="x")
    assert refused.value.reason == "WRONG_RESOURCE"
    with pytest.raises(InvalidRequest):
        await tools.outcome(grants.claim(), "1", "append_record", file="a", line="x")
    assert outside.lines("a") == []


async def test_token_of_another_resource_is_refused(tools: ToolClient, grants: Grants, outside: Outside) -> None:
    claims = Claims("leases/backup", "default", 10, str(uuid.uuid4()), "worker-1", installation=DEFAULT_INSTALLATION)
    owner = Owner("backup", 10, sign_task_claims(grants.signer, claims, datetime.now(UTC)))
    for request in (
        tools.outcome(owner, "1.0", "append_record", file="a", line="x"),
        tools.fence(owner),
    ):
        with pytest.raises(PermissionDenied) as refused:
            await request
        assert refused.value.reason == "WRONG_RESOURCE"
    assert outside.lines("a") == []


async def test_calls_beyond_all_slots_are_refused_before_they_run(
    tool_service: StartTools, grants: Grants, outside: Outside, tmp_path: Path
) -> None:
    tools = await tool_service(max_accepted=1, failpoints=f"tools.before_effect=wait({tmp_path}/go)")
    owner = grants.claim()
    running = tools.begin(owner, "1.0", "append_record_unsafe", file="a", line="first")
    await tools.started(owner)
    with pytest.raises(LimitReached) as refused:
        await tools.outcome(owner, "1.1", "append_record", file="b", line="second")
    assert refused.value.reason == "TOO_MANY_CALLS"
    assert refused.value.retry_after_seconds
    (tmp_path / "go").touch()
    assert (await running).status is OutcomeStatus.SUCCEEDED
    assert outside.lines("b") == []
    assert set(await tools.fence(owner)) == {"1.0"}
    assert (await tools.outcome(owner, "1.1", "append_record", file="b", line="second")).status == "SUCCEEDED"


async def test_file_beyond_the_limit_is_read_in_part(tools: ToolClient, grants: Grants, outside: Outside) -> None:
    owner = grants.claim()
    await tools.outcome(owner, "1.0", "write_file", path="big.txt", content="ü" * 100_000)
    outcome = await tools.outcome(owner, "1.1", "read_file", path="big.txt")
    assert len(outcome.content.encode()) <= 64 * 1024
    assert outcome.content.startswith("üüü")
    assert outcome.content.endswith(" of 200000; continue with offset 65336]")


async def test_nul_and_invalid_utf8_are_output_like_any_other(
    tools: ToolClient, grants: Grants, outside: Outside
) -> None:
    owner = grants.claim()
    workspace = outside.workspace(owner)
    workspace.mkdir(parents=True)
    (workspace / "odd").write_bytes(b"a\0b\xff\xfe")
    outcome = await tools.outcome(owner, "1.0", "read_file", path="odd")
    assert outcome.content == "a\0b\ufffd\ufffd"
    assert await tools.outcome(owner, "1.0", "read_file", path="odd") == outcome


async def test_many_calls_of_many_tasks_are_each_executed_once(
    tools: ToolClient, grants: Grants, outside: Outside
) -> None:
    owners = [grants.claim() for _ in range(20)]
    calls = [(owner, f"1.{index}") for owner in owners for index in range(10)]
    outcomes = await asyncio.gather(
        *(tools.outcome(owner, call_id, "append_record_unsafe", file="many", line=call_id) for owner, call_id in calls)
    )
    assert {outcome.status for outcome in outcomes} == {OutcomeStatus.SUCCEEDED}
    assert sorted(line["key"] for line in outside.lines("many")) == sorted(
        f"{owner.task_id}/{call_id}" for owner, call_id in calls
    )


async def test_call_beyond_max_running_stays_accepted(
    tool_service: StartTools, grants: Grants, outside: Outside, tmp_path: Path
) -> None:
    tools = await tool_service(max_running=1, failpoints=f"tools.before_effect=wait({tmp_path}/go)")
    owner = grants.claim()
    first = tools.begin(owner, "1.0", "append_record", file="a", line="x")
    await tools.started(owner)
    second = tools.begin(owner, "1.1", "append_record", file="a", line="y")
    async with asyncio.timeout(CALL_SECONDS):
        while "1.1" not in (calls := await tools.fence(owner)):
            await asyncio.sleep(0.02)
    states = {call_id: call.state for call_id, call in calls.items()}
    assert states == {"1.0": tool_pb2.CALL_STATE_STARTED, "1.1": tool_pb2.CALL_STATE_ACCEPTED}
    (tmp_path / "go").touch()
    assert [(await call).status for call in (first, second)] == [OutcomeStatus.SUCCEEDED] * 2
    assert [line["line"] for line in outside.lines("a")] == ["x", "y"]


async def test_an_unsafe_call_is_accepted_before_it_is_started(
    tools: ToolClient, grants: Grants, tools_database: Callable[..., Awaitable[list[Any]]]
) -> None:
    owner = grants.claim()
    for call_id, tool in (("1.0", "append_record"), ("1.1", "append_record_unsafe")):
        await tools.outcome(owner, call_id, tool, file="a", line="x")
    query = "select call_id, started_at - accepted_at < interval '20 microseconds' from calls where task_id = %s"
    rows = await tools_database(f"{query} order by call_id", uuid.UUID(owner.task_id))
    assert rows == [("1.0", True), ("1.1", False)]
