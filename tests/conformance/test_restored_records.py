"""After a restore: what ledger and tool service know of each other, and calls that must not run again unseen."""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tenure.domain.tools import OutcomeStatus
from tenure.v1 import ledger_pb2, tool_pb2
from tests.support.fix_checkpoint import Checkpoint, MakeCheckpoint, Owner
from tests.support.fix_tools import Grants, Outside, StartTools
from tests.support.fix_tools import Owner as ToolsOwner
from tests.support.forked import run_program

UNSAFE = "append_record_unsafe"
KEYED = "append_record"
ARGUMENTS = {"file": "a", "line": "x"}
ToolsDatabase = Callable[..., Awaitable[list[Any]]]


async def serve(service: str, command: str, dsn: str, given: str = "", code: int = 0) -> tuple[str, str]:
    """What `tenure serve SERVICE COMMAND` prints."""
    prefix = f"TENURE_{service.upper()}"
    own = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    files = {f"{prefix}_VERIFYING_KEYS_FILE": "unused", "TENURE_TOOLS_WORKSPACE_ROOT": "unused"}
    environment = {**own, **files, f"{prefix}_POSTGRES_DSN": dsn}
    program = [sys.executable, "-P", "-m", "tenure.serve", service, command]
    ended, out, err = await run_program(program, environment=environment, stdin=given.encode())
    assert ended == code, err.decode()
    return out.decode(), err.decode()


async def compared(ledger_dsn: str, tools_dsn: str) -> tuple[str, list[tuple[str, str, str]]]:
    """The findings as lines, and of each: kind, task and call."""
    records, _ = await serve("tools", "list-records", tools_dsn)
    lines, _ = await serve("checkpoint", "compare-records", ledger_dsn, records)
    findings = [json.loads(line) for line in lines.splitlines()]
    return lines, [(each["finding"], each["task_id"], each["call_id"]) for each in findings]


def intent(call_id: str, tool: str) -> ledger_pb2.NewEntry:
    call = ledger_pb2.ToolIntent(call_id=call_id, tool=tool, arguments_json=json.dumps(ARGUMENTS))
    return ledger_pb2.NewEntry(step=1, body=ledger_pb2.EntryBody(tool_intent=call))


def defined() -> ledger_pb2.NewEntry:
    tools = [
        tool_pb2.ToolDefinition(name=UNSAFE, effect_class=tool_pb2.EFFECT_CLASS_UNSAFE),
        tool_pb2.ToolDefinition(name=KEYED, effect_class=tool_pb2.EFFECT_CLASS_KEYED),
    ]
    return ledger_pb2.NewEntry(body=ledger_pb2.EntryBody(tools_defined=ledger_pb2.ToolsDefined(tools=tools)))


async def owned(ledger: Checkpoint, grants: Grants, *entries: ledger_pb2.NewEntry) -> tuple[Owner, ToolsOwner]:
    """A claim at both services, with these entries in the ledger."""
    owner = await ledger.claim((await ledger.create()).task_id)
    await owner.commit(*entries)
    task_id, claims = owner.task.task_id, owner.claims
    return owner, grants.claim(task_id, epoch=claims.epoch, claim_id=claims.claim_id)


async def test_a_call_whose_record_is_lost_does_not_run_again(
    checkpoint: MakeCheckpoint,
    tool_service: StartTools,
    grants: Grants,
    outside: Outside,
    tools_dsn: str,
    tools_database: ToolsDatabase,
) -> None:
    """The tool service's database is of a moment before the calls. One of them may be repeated, the other must not."""
    ledger, tools = await checkpoint(), await tool_service()
    owner, claim = await owned(ledger, grants, defined(), intent("1.0", UNSAFE), intent("1.1", KEYED))
    task_id = owner.task.task_id
    await tools.outcome(claim, "1.0", UNSAFE, **ARGUMENTS)
    await tools_database("delete from tools.calls")
    await tools_database("delete from tools.fences")
    lines, findings = await compared(ledger.dsn, tools_dsn)
    lost = [("LOST_RECORD", task_id, "1.0"), ("LOST_RECORD", task_id, "1.1")]
    assert findings == [("IN_FLIGHT", task_id, ""), *lost]
    assert (await serve("tools", "doubt-lost-calls", tools_dsn, lines))[0] == "put in doubt: 1\n"
    assert (await serve("tools", "doubt-lost-calls", tools_dsn, lines))[0] == "put in doubt: 0\n"
    outcome = await tools.outcome(claim, "1.0", UNSAFE, **ARGUMENTS)
    assert outcome.status is OutcomeStatus.IN_DOUBT
    assert "restored" in outcome.content
    assert (await tools.outcome(claim, "1.1", KEYED, **ARGUMENTS)).status is OutcomeStatus.SUCCEEDED
    assert [line["key"].rpartition("/")[2] for line in outside.lines("a")] == ["1.0", "1.1"]
    assert (await compared(ledger.dsn, tools_dsn))[1] == [("IN_FLIGHT", task_id, "")]


@pytest.mark.faults
async def test_calls_that_an_older_ledger_does_not_know_are_listed(
    checkpoint: MakeCheckpoint, tool_service: StartTools, grants: Grants, tools_dsn: str
) -> None:
    ledger, tools = await checkpoint(), await tool_service()
    owner, claim = await owned(ledger, grants, defined(), intent("1.0", KEYED))
    for call_id in ("1.0", "1.1"):
        await tools.outcome(claim, call_id, KEYED, **ARGUMENTS)
    later = grants.claim(str(uuid.uuid4()))
    await tools.outcome(later, "1.0", UNSAFE, **ARGUMENTS)
    ended, its_claim = await owned(ledger, grants, defined())
    await tools.outcome(its_claim, "1.0", KEYED, **ARGUMENTS)
    await ended.end()
    _, findings = await compared(ledger.dsn, tools_dsn)
    task_id = owner.task.task_id
    assert set(findings) == {
        ("IN_FLIGHT", task_id, ""),
        ("UNKNOWN_CALL", task_id, "1.1"),
        ("UNKNOWN_TASK", later.task_id, "1.0"),
    }


async def test_the_generation_is_raised_far_above_the_present_one(checkpoint: MakeCheckpoint) -> None:
    ledger = await checkpoint()
    ((before,),) = await ledger.query("select generation from ledger.epochs")
    assert await serve("checkpoint", "raise-generation", ledger.dsn)
    ((after,),) = await ledger.query("select generation from ledger.epochs")
    assert after == before + 1000


@pytest.mark.faults
async def test_malformed_lines_are_refused(checkpoint: MakeCheckpoint, tools_dsn: str) -> None:
    ledger = await checkpoint()
    _, err = await serve("checkpoint", "compare-records", ledger.dsn, '{"task_id": "x"}\n', code=2)
    assert "not a line of `tenure serve tools list-records`" in err
    _, err = await serve("tools", "doubt-lost-calls", tools_dsn, "nonsense\n", code=2)
    assert "not a line of `tenure serve checkpoint compare-records`" in err
    first, second = (json.dumps({"task_id": str(uuid.UUID(int=n)), "tenant": "t", "calls": []}) for n in (1, 2))
    for lines in (f"{second}\n{first}\n", f"{first}\n{first}\n"):
        _, err = await serve("checkpoint", "compare-records", ledger.dsn, lines, code=2)
        assert "not those of one" in err
