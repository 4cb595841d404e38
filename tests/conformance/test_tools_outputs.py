"""The tool record_output: what it reads itself, what it refuses, and the digests for a close-out."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import pytest

from tenure.domain.outputs import OutputState, TaskOutput
from tenure.domain.tools import OutcomeStatus
from tenure.v1 import tool_service_pb2
from tests.support.fix_tools import Grants, Outside, ToolClient
from tests.support.patience import CALL_SECONDS

SECRET = "not for agents"
DIGEST = f"sha256:{hashlib.sha256(b'text').hexdigest()}"


async def test_a_file_is_read_by_the_tool_service(tools: ToolClient, grants: Grants) -> None:
    owner = grants.claim()
    await tools.outcome(owner, "1.0", "write_file", path="a/note.md", content="text")
    made = await tools.outcome(owner, "1.1", "record_output", kind="note", path="./a//note.md", description="mine")
    assert made.status is OutcomeStatus.SUCCEEDED
    assert made.output == TaskOutput("note", "workspace:a/note.md", OutputState.RECORDED, DIGEST, 4, "mine")
    await tools.outcome(owner, "1.2", "delete_file", path="a")
    again = await tools.outcome(owner, "1.1", "record_output", kind="note", path="./a//note.md", description="mine")
    assert again.output == made.output, "a repeat gets the recorded outcome"


async def test_a_uri_is_recorded_as_it_is_stated(tools: ToolClient, grants: Grants) -> None:
    made = await tools.outcome(
        grants.claim(), "1.0", "record_output", kind="row", uri="db:orders/7", digest="sha256:00112233", size_bytes=9
    )
    assert made.output == TaskOutput("row", "db:orders/7", OutputState.STATED, "sha256:00112233", 9)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"path": "a", "uri": "db:a"},
        {"path": "missing"},
        {"path": "dir"},
        {"path": "link"},
        {"path": "pipe"},
        {"path": "../secret"},
        {"path": "."},
        {"path": "f", "digest": DIGEST},
        {"uri": "workspace:f"},
        {"uri": "no scheme"},
        {"uri": "db:a", "size_bytes": -1},
        {"uri": "db:a", "description": "\0"},
        {"kind": "", "uri": "db:a"},
    ],
)
async def test_invalid_output_is_refused(
    tools: ToolClient, grants: Grants, outside: Outside, arguments: dict[str, Any]
) -> None:
    owner = grants.claim()
    workspace = outside.workspace(owner)
    (workspace / "dir").mkdir(parents=True)
    (workspace / "f").write_text("text")
    (workspace.parent / "secret").write_text(SECRET)
    (workspace / "link").symlink_to("../secret")
    os.mkfifo(workspace / "pipe")
    refused = await tools.outcome(owner, "1.0", "record_output", **{"kind": "note", **arguments})
    assert refused.status in {OutcomeStatus.FAILED, OutcomeStatus.INVALID_ARGUMENTS}
    assert refused.output is None


async def test_digests_are_of_the_claims_own_files(tools: ToolClient, grants: Grants) -> None:
    owner, other = grants.claim(), grants.claim()
    await tools.outcome(owner, "1.0", "write_file", path="f", content="text")
    paths = ["f", "missing", "../f", "."]
    for token, files in ((owner.token, [("f", DIGEST, 4)]), (other.token, [])):
        request = tool_service_pb2.DigestFilesRequest(token=token, paths=paths)
        response = await tools.stub.DigestFiles(request, timeout=CALL_SECONDS)
        assert [(file.path, file.digest, file.size_bytes) for file in response.files] == files
