"""A tool service is killed at every moment of a call; another one is asked for the same call.

What counts is the file outside of the system: how often the effect truly happened.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from services.tools.sandbox import Detection
from tenure.domain.errors import StaleEpoch, Unavailable
from tenure.domain.tools import OutcomeStatus
from tenure.v1 import tool_pb2, tool_service_pb2
from tests.support.fix_tools import Grants, Outside, StartTools, execute_request
from tests.support.patience import PATIENCE_SECONDS

KEYED, UNSAFE = "append_record", "append_record_unsafe"
DONE, DOUBT = OutcomeStatus.SUCCEEDED, OutcomeStatus.IN_DOUBT


@pytest.mark.faults
@pytest.mark.parametrize(
    ("moment", "tool", "status", "call_attempt", "effects"),
    [
        ("after_accept", KEYED, DONE, 2, 1),
        ("after_accept", UNSAFE, DONE, 2, 1),
        ("after_first_write", KEYED, DONE, 2, 1),
        ("after_first_write", UNSAFE, DONE, 2, 1),
        ("before_effect", KEYED, DONE, 2, 1),
        ("before_effect", UNSAFE, DOUBT, 1, 0),
        ("after_effect", KEYED, DONE, 2, 1),
        ("after_effect", UNSAFE, DOUBT, 1, 1),
        ("after_outcome", KEYED, DONE, 1, 1),
        ("after_outcome", UNSAFE, DONE, 1, 1),
    ],
)
@pytest.mark.parametrize("next_epoch", [10, 11])
async def test_an_effect_happens_at_most_once_at_every_moment(
    tool_service: StartTools,
    grants: Grants,
    outside: Outside,
    moment: str,
    tool: Any,
    status: Any,
    call_attempt: int,
    effects: int,
    next_epoch: int,
) -> None:
    dying = await tool_service(failpoints=f"tools.{moment}=kill9")
    owner = grants.claim(epoch=10)
    with pytest.raises(Unavailable):
        await dying.outcome(owner, "1.0", tool, file="a", line="x")
    await dying.ended()
    tools = await tool_service()
    asking = owner if next_epoch == 10 else grants.claim(owner.task_id, epoch=next_epoch)
    outcome = await tools.outcome(asking, "1.0", tool, file="a", line="x")
    assert (outcome.status, outcome.call_attempt) == (status, call_attempt)
    assert len(outside.lines("a")) == effects
    assert await tools.outcome(asking, "1.0", tool, file="a", line="x") == outcome
    assert len(outside.lines("a")) == effects


@pytest.mark.faults
@pytest.mark.parametrize(("moment", "call_attempt"), [("before_accept", 1), ("before_start", 2)])
async def test_an_unmarked_call_of_any_class_is_run(
    tool_service: StartTools, grants: Grants, outside: Outside, moment: str, call_attempt: int
) -> None:
    dying = await tool_service(failpoints=f"tools.{moment}=kill9")
    owner = grants.claim()
    record = {"file": "a", "line": "x"}
    calls = {
        "1.0": (UNSAFE, record),
        "1.1": (KEYED, record),
        "1.2": ("write_file", {"path": "f", "content": "x"}),
        "1.3": ("list_files", {}),
    }
    begun = [dying.begin(owner, call_id, tool, **arguments) for call_id, (tool, arguments) in calls.items()]
    await dying.ended()
    assert all(isinstance(each, Unavailable) for each in await asyncio.gather(*begun, return_exceptions=True))
    tools = await tool_service()
    for call_id, (tool, arguments) in calls.items():
        outcome = await tools.outcome(owner, call_id, tool, **arguments)
        assert outcome.status is DONE
        assert outcome.call_attempt <= call_attempt  # those that the dead one had not yet taken in begin with 1
    assert sorted(line["key"][-3:] for line in outside.lines("a")) == ["1.0", "1.1"]


@pytest.mark.faults
@pytest.mark.parametrize("tool", [KEYED, UNSAFE])
async def test_a_first_write_whose_answer_is_lost_leaves_no_doubt(
    tool_service: StartTools, grants: Grants, outside: Outside, tool: str
) -> None:
    tools = await tool_service(failpoints="tools.after_first_write=1#error(UNAVAILABLE)")
    outcome = await tools.outcome(grants.claim(), "1.0", tool, file="a", line="x")
    assert (outcome.status, outcome.call_attempt) == (DONE, 2)
    assert len(outside.lines("a")) == 1


@pytest.mark.faults
async def test_a_start_that_was_given_up_is_settled_without_a_caller(
    tool_service: StartTools, grants: Grants, outside: Outside
) -> None:
    errors = "->".join(["1#error(UNAVAILABLE)"] * 30)  # for longer than a batch is repeated
    tools, other = await tool_service(failpoints=f"tools.after_first_write={errors}"), await tool_service()
    owner = grants.claim()
    with pytest.raises(Unavailable):
        await tools.outcome(owner, "1.0", KEYED, file="a", line="x")
    outcome = await other.outcome(owner, "1.0", KEYED, file="a", line="x")
    assert outcome.status is DONE
    assert len(outside.lines("a")) == 1


@pytest.mark.faults
async def test_a_start_that_a_newer_claim_overtook_is_settled(
    tool_service: StartTools, grants: Grants, outside: Outside, tools_database: Any
) -> None:
    """The answer of the first write was lost and its repeat is refused: the mark would keep the newer owner waiting."""
    failpoints = "tools.after_first_write=1#error(UNAVAILABLE);tools.before_accept=2#sleep(15000)"
    tools, other = await tool_service(failpoints=failpoints), await tool_service()
    owner = grants.claim()
    overtaken = tools.begin(owner, "1.0", KEYED, file="a", line="x")
    async with asyncio.timeout(PATIENCE_SECONDS):  # not by Fence, which would compete with the first write
        while await tools_database("select state from calls") != [("STARTED",)]:
            await asyncio.sleep(0.02)
    newer = grants.claim(owner.task_id, epoch=owner.epoch + 1)
    outcome = await other.outcome(newer, "1.0", KEYED, file="a", line="x")
    with pytest.raises(StaleEpoch):
        await overtaken
    assert (outcome.status, outcome.call_attempt) == (DONE, 2)
    assert len(outside.lines("a")) == 1


@pytest.mark.faults
@pytest.mark.parametrize(
    ("moment", "status", "call_attempt", "effects"),
    [("before_withdraw", DOUBT, 1, 0), ("after_withdraw", DONE, 3, 1)],
)
async def test_a_service_killed_while_it_takes_a_late_mark_back(
    tool_service: StartTools,
    grants: Grants,
    outside: Outside,
    moment: str,
    status: Any,
    call_attempt: int,
    effects: int,
) -> None:
    """The effect was never begun: no caller knows before that is recorded."""
    dying = await tool_service(failpoints=f"tools.before_effect=1#sleep(1200);tools.{moment}=kill9")
    owner = grants.claim()
    with pytest.raises(Unavailable):
        await dying.outcome(owner, "1.0", UNSAFE, file="a", line="x")
    await dying.ended()
    outcome = await (await tool_service()).outcome(owner, "1.0", UNSAFE, file="a", line="x")
    assert (outcome.status, outcome.call_attempt) == (status, call_attempt)
    assert len(outside.lines("a")) == effects


@pytest.mark.faults
@pytest.mark.parametrize("moment", ["before_effect", "after_effect"])
async def test_pure_and_idempotent_calls_are_run_again(
    tool_service: StartTools, grants: Grants, outside: Outside, moment: str
) -> None:
    dying = await tool_service(failpoints=f"tools.{moment}=kill9")
    owner = grants.claim()
    with pytest.raises(Unavailable):
        await dying.outcome(owner, "1.0", "write_file", path="f", content="x")
    await dying.ended()
    dying = await tool_service(failpoints=f"tools.{moment}=2#kill9")
    written = await dying.outcome(owner, "1.0", "write_file", path="f", content="x")
    assert (written.status, written.call_attempt) == (DONE, 2)
    with pytest.raises(Unavailable):
        await dying.outcome(owner, "1.1", "read_file", path="f")
    await dying.ended()
    read = await (await tool_service()).outcome(owner, "1.1", "read_file", path="f")
    assert (read.content, read.call_attempt) == ("x", 2)


@pytest.mark.parametrize(("tool", "status", "effects"), [(KEYED, DONE, 1), (UNSAFE, DOUBT, 0)])
async def test_a_runner_killed_in_the_middle_of_an_effect(
    tool_service: StartTools, grants: Grants, outside: Outside, tool: Any, status: Any, effects: int
) -> None:
    dying = await tool_service()
    owner = grants.claim()
    arguments = {"file": "a", "line": "x", "delay_ms": 1000}
    call = dying.begin(owner, "1.0", tool, **arguments)
    await dying.started(owner)
    await dying.kill()
    with pytest.raises(Unavailable):
        await call
    outcome = await (await tool_service()).outcome(owner, "1.0", tool, **arguments)
    assert outcome.status is status
    assert len(outside.lines("a")) == effects


@pytest.mark.faults
async def test_those_who_joined_a_dead_runners_call_get_it_run_again(
    tool_service: StartTools, grants: Grants, outside: Outside
) -> None:
    dying, other = await tool_service(), await tool_service()
    owner = grants.claim()
    arguments = {"file": "a", "line": "x", "delay_ms": 1000}
    call = dying.begin(owner, "1.0", KEYED, **arguments)
    await dying.started(owner)
    joined = [other.begin(owner, "1.0", KEYED, **arguments) for _ in range(3)]
    await dying.kill()
    with pytest.raises(Unavailable):
        await call
    outcomes = await asyncio.gather(*joined)
    assert {(outcome.status, outcome.call_attempt) for outcome in outcomes} == {(DONE, 2)}
    assert len(outside.lines("a")) == 1


@pytest.mark.faults
async def test_a_close_settles_the_calls_of_a_dead_runner(
    tool_service: StartTools, grants: Grants, outside: Outside
) -> None:
    dying = await tool_service()
    owner = grants.claim()
    for call_id, tool in (("1.0", KEYED), ("1.1", UNSAFE)):
        dying.begin(owner, call_id, tool, file="a", line="x", delay_ms=20_000)
    await dying.started(owner, 2)
    await dying.kill()
    calls = await (await tool_service()).fence(owner, close=True)
    assert {call.state for call in calls.values()} == {tool_pb2.CALL_STATE_IN_DOUBT}
    assert outside.lines("a") == []


@pytest.mark.faults
async def test_a_killed_service_takes_its_programs_along(
    tool_service: StartTools, grants: Grants, outside: Outside, sandbox_detection: Detection
) -> None:
    if sandbox_detection.missing:
        pytest.skip("no sandbox on this machine")
    dying = await tool_service()
    owner = grants.claim()
    code = (
        "import time, pathlib\nrun = pathlib.Path('run')\nrun.open('a').write('x')\n"
        "if run.read_text() == 'x':\n    time.sleep(600)\nprint('done')"
    )
    dying.begin(owner, "1.0", "execute_python", code=code)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (outside.workspace(owner) / "run").exists():
            await asyncio.sleep(0.02)
    (program,) = await asyncio.to_thread(programs_of, dying.process.pid)
    await dying.kill()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while Path(f"/proc/{program}").exists():
            await asyncio.sleep(0.02)
    outcome = await (await tool_service()).outcome(owner, "1.0", "execute_python", code=code)
    assert (outcome.content, outcome.call_attempt) == ("done", 2)
    assert (outside.workspace(owner) / "run").read_text() == "xx"


@pytest.mark.faults
async def test_a_stopping_service_gives_its_calls_back(
    tool_service: StartTools, grants: Grants, outside: Outside
) -> None:
    stopping = await tool_service(drain_seconds=0.1)
    owner = grants.claim()
    arguments = {"file": "a", "line": "x", "delay_ms": 20_000}
    stream_free = stopping.stub.ExecuteStream()
    request = {"1.0": KEYED, "1.1": UNSAFE}
    for tag, (call_id, tool) in enumerate(request.items()):
        await stream_free.write(framed(tag, owner, call_id, tool, arguments))
    await stopping.started(owner, 2)
    assert await stopping.terminate() == 0
    tools = await tool_service(failpoints="tools.before_accept=sleep(300)")  # as on a busy machine
    calls = await tools.fence(owner)
    assert {call.state for call in calls.values()} == {tool_pb2.CALL_STATE_STARTED}
    assert (await tools.outcome(owner, "1.1", UNSAFE, **arguments)).status is DOUBT
    # Its runner said good-bye, so no caller has to wait until it is known to be dead.
    again = tools.begin(owner, "1.0", KEYED, **arguments)
    await tools.started_in_attempt(owner, "1.0", 2)
    again.cancel()
    assert outside.lines("a") == []


def framed(tag: Any, owner: Any, call_id: Any, tool: Any, arguments: Any) -> Any:
    call = execute_request(owner, call_id, tool, json.dumps(arguments))
    return tool_service_pb2.ExecuteStreamRequest(calls=[tool_service_pb2.TaggedExecute(tag=tag, call=call)])


def programs_of(pid: Any) -> Any:
    """The processes right below the service that are bubblewrap."""
    results = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                command = (entry / "cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(stat[1]) == pid and b"bwrap" in command.split(b"\0")[0]:
                results.append(int(entry.name))
    return results
