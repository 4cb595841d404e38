"""Kept content: written in parts under the fence, under a name that is its digest, and read again as it is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tenure.domain.errors import InvalidRequest, NotFound, StaleEpoch, WrongState
from tenure.domain.texts import CONTENT_MISMATCH, MAX_PART_BYTES, KeptContent, kept_as
from tenure.v1 import tool_service_pb2 as pb
from tests.support.fix_tools import Grants, Outside, Owner, StartTools, ToolClient
from tests.support.patience import CALL_SECONDS

CONTENT = os.urandom(2 * MAX_PART_BYTES + 7)
KEPT = kept_as(CONTENT)
PARTS = range(0, len(CONTENT), MAX_PART_BYTES)


async def send(tools: ToolClient, owner: Owner, at: int, content: bytes = CONTENT, **more: Any) -> Any:
    stated = kept_as(content)
    fields = {
        "digest": stated.digest,
        "size_bytes": stated.size_bytes,
        "offset": at,
        "part": content[at : at + MAX_PART_BYTES],
        **more,
    }
    return await tools.stub.KeepContent(pb.KeepContentRequest(token=owner.token, **fields), timeout=CALL_SECONDS)


async def keep(tools: ToolClient, owner: Owner, content: bytes = CONTENT) -> KeptContent:
    for offset in range(0, len(content), MAX_PART_BYTES):
        answer = await send(tools, owner, offset, content)
    return KeptContent(answer.kept.path, answer.kept.digest, answer.kept.size_bytes)


async def read(tools: ToolClient, owner: Owner, path: str = KEPT.path) -> bytes:
    content = b""
    while True:
        request = pb.ReadContentRequest(token=owner.token, path=path, offset=len(content))
        part = (await tools.stub.ReadContent(request, timeout=CALL_SECONDS)).part
        if not part:
            return content
        content += part


async def test_content_is_kept_in_parts(tools: ToolClient, grants: Grants, outside: Outside) -> None:
    owner = grants.claim()
    answers = [await send(tools, owner, offset) for offset in PARTS]
    assert [answer.HasField("kept") for answer in answers] == [False, False, True]
    path = outside.workspace(owner) / KEPT.path
    assert path.read_bytes() == CONTENT
    assert await read(tools, owner) == CONTENT
    assert list(path.parent.iterdir()) == [path], "nothing unfinished stays"
    again = await send(tools, owner, PARTS[-1])
    assert again.kept.path == KEPT.path, "the answer to the last part was lost"
    assert await keep(tools, owner) == KEPT


async def test_another_replica_goes_on(tool_service: StartTools, grants: Grants) -> None:
    first, second = await tool_service(), await tool_service()
    owner = grants.claim()
    for number, offset in enumerate(PARTS):
        await send((first, second)[number % 2], owner, offset)
    assert await read(second, owner) == CONTENT


async def test_a_stale_claim_writes_nothing(tools: ToolClient, grants: Grants, outside: Outside) -> None:
    old = grants.claim()
    new = grants.claim(old.task_id, epoch=old.epoch + 1)
    await send(tools, old, 0)
    assert await keep(tools, new, b"newer") == kept_as(b"newer")
    for offset in PARTS:
        with pytest.raises(StaleEpoch):
            await send(tools, old, offset)
    with pytest.raises(StaleEpoch):
        await read(tools, old, kept_as(b"newer").path)
    assert not (outside.workspace(new) / KEPT.path).exists()
    listed = await tools.stub.ListRefusedCalls(pb.ListRefusedCallsRequest(task_id=old.task_id), timeout=CALL_SECONDS)
    assert {call.method for call in listed.refused_calls} == {"KeepContent"}


async def test_closed_fence_refuses_content(tools: ToolClient, grants: Grants) -> None:
    owner = grants.claim()
    await tools.fence(owner, close=True)
    with pytest.raises(StaleEpoch):
        await keep(tools, owner, b"late")


async def test_parts_with_another_digest_are_refused(tools: ToolClient, grants: Grants, outside: Outside) -> None:
    owner = grants.claim()
    with pytest.raises(WrongState) as refused:
        await send(tools, owner, 0, b"text", part=b"tent")
    assert refused.value.reason == CONTENT_MISMATCH
    assert list((outside.workspace(owner) / "outputs").iterdir()) == []
    assert await keep(tools, owner, b"text") == kept_as(b"text")
    await send(tools, owner, 0)
    (unfinished,) = (outside.workspace(owner) / "outputs").glob(".tenure-*")
    unfinished.write_bytes(b"a program was here")
    with pytest.raises(WrongState) as cut_short:
        await send(tools, owner, PARTS[1])
    assert cut_short.value.reason == CONTENT_MISMATCH
    await send(tools, owner, 0)
    (unfinished,) = (outside.workspace(owner) / "outputs").glob(".tenure-*")
    unfinished.write_bytes(b"x" * MAX_PART_BYTES)
    await send(tools, owner, PARTS[1])
    with pytest.raises(WrongState):
        await send(tools, owner, PARTS[2])
    assert await keep(tools, owner) == KEPT


async def test_no_part_is_written_without_those_before_it(
    tool_service: StartTools, grants: Grants, outside: Outside
) -> None:
    """Only the first part looks for room: without it, parts of many contents would fill the disk."""
    tools = await tool_service(workspace_bytes=MAX_PART_BYTES)
    owner = grants.claim()
    for offset in PARTS[1:]:
        with pytest.raises(WrongState) as refused:
            await send(tools, owner, offset)
        assert refused.value.reason == CONTENT_MISMATCH
    assert list((outside.workspace(owner) / "outputs").iterdir()) == []


async def test_part_of_kept_content_is_accepted_again(tools: ToolClient, grants: Grants) -> None:
    """Another writer of the same content was faster."""
    owner = grants.claim()
    await keep(tools, owner)
    answers = [await send(tools, owner, offset) for offset in PARTS[1:]]
    assert [answer.kept.path for answer in answers] == ["", KEPT.path]


async def test_full_workspace_refuses_content(tool_service: StartTools, grants: Grants) -> None:
    tools = await tool_service(workspace_bytes=MAX_PART_BYTES)
    with pytest.raises(WrongState) as refused:
        await keep(tools, grants.claim())
    assert refused.value.reason == "WORKSPACE_LIMIT"


async def test_no_link_leads_out(tools: ToolClient, grants: Grants, outside: Outside, tmp_path: Path) -> None:
    owner = grants.claim()
    outputs = outside.workspace(owner) / "outputs"
    outputs.mkdir(parents=True)
    secret = tmp_path / "secret"
    secret.write_text("secret")
    name = KEPT.path.split("/")[1]
    (outputs / name).symlink_to(secret)
    with pytest.raises(WrongState):
        await read(tools, owner)
    (outputs / f".tenure-{name}").symlink_to(secret)
    assert await keep(tools, owner) == KEPT
    assert secret.read_text() == "secret"
    assert await read(tools, owner) == CONTENT


async def test_missing_content_is_not_found(tools: ToolClient, grants: Grants) -> None:
    owner = grants.claim()
    with pytest.raises(NotFound):
        await read(tools, owner)
    await tools.outcome(owner, "1.0", "write_file", path="f", content="text")
    for path in ("../f", "outputs/../../f", "/etc/passwd"):
        with pytest.raises(InvalidRequest):
            await read(tools, owner, path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"digest": "sha256:00"},
        {"digest": ""},
        {"size_bytes": 0},
        {"size_bytes": 17 * 1024 * 1024},
        {"offset": -1},
        {"offset": 1},
        {"part": b""},
        {"part": b"x" * (MAX_PART_BYTES + 1)},
    ],
)
async def test_an_invalid_part_is_refused(tools: ToolClient, grants: Grants, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        await send(tools, grants.claim(), 0, b"text", **wrong)
