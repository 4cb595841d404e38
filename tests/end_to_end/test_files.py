"""A task's files outlive its workers and the tool service, are had through the gateway, and go along with a fork."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tenure.v1 import task_pb2
from tests.end_to_end.command import tenure
from tests.end_to_end.installation import Installation

pytestmark = pytest.mark.usefixtures("sandbox_detection")
NOTES = "note 1\nnote 2\nnote 3\n"


async def test_files_outlive_a_worker_and_the_tool_service(own_installation: Installation, tmp_path: Path) -> None:
    install, address = own_installation, own_installation.stack.gateway_address
    task_id = await install.submit("sim-e2e-noting")
    await install.until(task_id, "tool_outcome", lambda entry: entry.step == 1)
    install.owner(await install.client.get(task_id)).kill()
    await install.until(task_id, "tool_outcome", lambda entry: entry.step == 2)
    install.stack.services["tools"].kill()
    await install.stack.services["tools"].restart()
    task = await install.ended(task_id)
    assert (task.state, task.result, task.claim_count) == (task_pb2.TASK_STATE_SUCCEEDED, NOTES.rstrip("\n"), 2)

    listed = await tenure("--json", "files", "list", task_id, address=address)
    assert [json.loads(line)["path"] for line in listed.out.splitlines()] == ["notes.txt"]
    assert (await tenure("files", "cat", task_id, "notes.txt", address=address)).out == NOTES
    got = await tenure("files", "get", task_id, "notes.txt", "-o", str(tmp_path / "notes"), address=address)
    assert (got.code, (tmp_path / "notes").read_text()) == (0, NOTES)
    missing = await tenure("files", "get", task_id, "no.txt", "-o", str(tmp_path / "none"), address=address)
    assert (missing.code, [path.name for path in tmp_path.iterdir()]) == (3, ["notes"])

    fork = await tenure("fork", task_id, "--step", "0", "--model", "sim-e2e-noting", address=address)
    forked = await install.ended(fork.out.split()[0])
    assert (forked.state, forked.result) == (task_pb2.TASK_STATE_SUCCEEDED, (NOTES + NOTES).rstrip("\n"))
    assert (await tenure("files", "cat", task_id, "notes.txt", address=address)).out == NOTES
    bare = await tenure("fork", task_id, "--step", "0", "--model", "sim-hello", "--without-files", address=address)
    await install.ended(bare.out.split()[0])
    empty = await tenure("files", "list", bare.out.split()[0], address=address)
    assert empty.out == "no files\n"
