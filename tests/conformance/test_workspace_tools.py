"""Files and programs share a task's workspace, and nothing gets out of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from services.tools.sandbox import Detection
from tenure.domain.texts import kept_as
from tenure.domain.tools import OutcomeStatus
from tests.support.fix_tools import Grants, Outside, StartTools, ToolClient
from tests.support.images import png
from tests.support.sweeps import first

SECRET = "not for agents"


async def test_files_are_written_read_and_listed(tools: ToolClient, grants: Grants, outside: Outside) -> None:
    owner = grants.claim()
    assert (await tools.outcome(owner, "1.0", "list_files")).content == "There are no files."
    written = await tools.outcome(owner, "1.1", "write_file", path="a/b/note.txt", content="Grüße")
    assert written.content == "Wrote 7 bytes to a/b/note.txt."
    assert (await tools.outcome(owner, "1.2", "read_file", path="./a//b/note.txt")).content == "Grüße"
    await tools.outcome(owner, "1.3", "write_file", path="a/b/note.txt", content="")
    (outside.workspace(owner) / "a/.tenure-1.0").write_text("half of a file that is being written")
    assert (await tools.outcome(owner, "1.4", "list_files")).content == "a/\na/b/\na/b/note.txt (0 bytes)"
    assert (await tools.outcome(owner, "1.5", "list_files", path="a/b")).content == "note.txt (0 bytes)"
    missing = await tools.outcome(owner, "1.6", "read_file", path="nothing")
    assert (missing.status, missing.content) == (OutcomeStatus.FAILED, "'nothing': No such file or directory.")


async def test_tasks_do_not_see_each_others_files(tools: ToolClient, grants: Grants) -> None:
    one, other = grants.claim(), grants.claim()
    await tools.outcome(one, "1.0", "write_file", path="f", content="x")
    assert (await tools.outcome(other, "1.0", "list_files")).content == "There are no files."


@pytest.mark.parametrize(
    "path",
    ["../secret", "/etc/hostname", "a/../../secret", "link", "linked/secret", "dir", "pipe", ".", "a\0b", "x/" * 40],
)
async def test_no_path_leads_out_of_the_workspace(
    tools: ToolClient, grants: Grants, outside: Outside, tmp_path: Path, path: Any
) -> None:
    owner = grants.claim()
    workspace = outside.workspace(owner)
    (workspace / "dir").mkdir(parents=True)
    (workspace.parent / "secret").write_text(SECRET)
    (workspace / "link").symlink_to("../secret")
    (workspace / "linked").symlink_to("..")
    os.mkfifo(workspace / "pipe")
    read = await tools.outcome(owner, "1.0", "read_file", path=path)
    assert read.status is OutcomeStatus.FAILED
    assert SECRET not in read.content
    written = await tools.outcome(owner, "1.1", "write_file", path=path, content="overwritten")
    listed = await tools.outcome(owner, "1.2", "list_files", path=path)
    assert "secret" not in listed.content or listed.status is OutcomeStatus.FAILED
    deleted = await tools.outcome(owner, "1.3", "delete_file", path=path if path != "." else "../.")
    assert deleted.status is OutcomeStatus.SUCCEEDED or deleted.detail == "BAD_PATH" or "irectory" in deleted.content
    assert (workspace.parent / "secret").read_text() == SECRET
    # A link or a pipe is replaced by the file, never followed.
    assert written.status is (OutcomeStatus.SUCCEEDED if path in {"link", "pipe"} else OutcomeStatus.FAILED)


async def test_a_workspace_that_is_a_link_is_not_entered(
    tools: ToolClient, grants: Grants, outside: Outside, tmp_path: Path
) -> None:
    owner = grants.claim()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    outside.workspace(owner).parent.mkdir(parents=True)
    outside.workspace(owner).symlink_to(elsewhere)
    outcome = await tools.outcome(owner, "1.0", "write_file", path="f", content="x")
    assert outcome.status is OutcomeStatus.FAILED
    assert list(elsewhere.iterdir()) == []


async def test_programs_and_file_tools_work_on_the_same_files(
    tools: ToolClient, grants: Grants, sandbox_detection: Detection
) -> None:
    owner = grants.claim()
    await tools.outcome(owner, "1.0", "write_file", path="in.txt", content="6 7")
    code = (
        "import os, pathlib\n"
        "a, b = map(int, open('in.txt').read().split())\n"
        "os.makedirs('out', exist_ok=True)\n"
        "pathlib.Path('out/answer.txt').write_text(str(a * b))\n"
        "open('in.txt', 'a').write(' used')\n"
    )
    outcome = await tools.outcome(owner, "1.1", "execute_python", code=code)
    assert (outcome.status, outcome.content) == (OutcomeStatus.SUCCEEDED, "[no output]")
    assert (await tools.outcome(owner, "1.2", "read_file", path="out/answer.txt")).content == "42"
    await tools.outcome(owner, "1.3", "write_file", path="out/answer.txt", content="43")
    await tools.outcome(owner, "1.4", "write_file", path="out/new.txt", content="44")
    code = "print(open('out/answer.txt').read(), open('out/new.txt').read(), open('in.txt').read())"
    assert (await tools.outcome(owner, "1.5", "execute_python", code=code)).content == "43 44 6 7 used"


async def test_program_failure_is_an_outcome(tools: ToolClient, grants: Grants, sandbox_detection: Detection) -> None:
    owner = grants.claim()
    failed = await tools.outcome(owner, "1.0", "execute_python", code="print('before')\n1 / 0")
    assert (failed.status, failed.detail) == (OutcomeStatus.FAILED, "NONZERO")
    assert failed.content.startswith("before\n[stderr]\nTraceback")
    assert "ZeroDivisionError" in failed.content
    code = "print('x', flush=True)\nwhile True: pass"
    slow = await tools.outcome(owner, "1.1", "execute_python", code=code, timeout_seconds=2)
    assert (slow.status, slow.detail) == (OutcomeStatus.TIMED_OUT, "TIMEOUT")
    assert slow.content.startswith("x\n")
    greedy = await tools.outcome(owner, "1.2", "execute_python", code="x = bytearray(1 << 40)")
    assert greedy.status is OutcomeStatus.FAILED


async def test_full_workspace_refuses_files(tool_service: StartTools, grants: Grants, outside: Outside) -> None:
    tools = await tool_service(workspace_bytes=64 * 1024)
    owner = grants.claim()
    await tools.outcome(owner, "1.0", "write_file", path="f", content="x" * 60_000)
    outcome = await tools.outcome(owner, "1.1", "write_file", path="g", content="x" * 60_000)
    assert (outcome.status, outcome.detail) == (OutcomeStatus.FAILED, "WORKSPACE_LIMIT")


@pytest.mark.parametrize("path", first([".", "down"]))
async def test_files_can_be_deleted_where_programs_cannot_start(
    tool_service: StartTools, grants: Grants, outside: Outside, sandbox_detection: Detection, path: str
) -> None:
    """Deeper than can be counted, or far beyond the bound: the program that would clear it up is not started."""
    tools = await tool_service(workspace_bytes=64 * 1024)
    owner = grants.claim()
    workspace = outside.workspace(owner)
    (workspace / "/".join(["down"] * 70)).mkdir(parents=True)
    (workspace / "large").write_bytes(b"x" * (200_000 if path == "." else 10))
    refused = await tools.outcome(owner, "1.0", "execute_python", code="print('ran')")
    assert (refused.status, refused.detail) == (OutcomeStatus.FAILED, "WORKSPACE_LIMIT")
    deleted = await tools.outcome(owner, "1.1", "delete_file", path=path)
    assert deleted.status is OutcomeStatus.SUCCEEDED
    assert [file.name for file in workspace.iterdir()] == ([] if path == "." else ["large"])
    again = await tools.outcome(owner, "1.2", "delete_file", path=path)
    assert (again.status, again.content) == (deleted.status, deleted.content)
    assert (await tools.outcome(owner, "1.3", "execute_python", code="print('ran')")).content == "ran"


async def test_a_full_workspace_accepts_only_new_versions(
    tool_service: StartTools, grants: Grants, outside: Outside
) -> None:
    tools = await tool_service(workspace_files=3)
    owner = grants.claim()
    await tools.outcome(owner, "1.0", "write_file", path="a/b/f", content="x")
    outcome = await tools.outcome(owner, "1.1", "write_file", path="g", content="x")
    assert (outcome.status, outcome.detail) == (OutcomeStatus.FAILED, "WORKSPACE_LIMIT")
    again = await tools.outcome(owner, "1.2", "write_file", path="a/b/f", content="y")
    assert again.status is OutcomeStatus.SUCCEEDED
    assert (outside.workspace(owner) / "a/b/f").read_text() == "y"


async def test_reading_an_image_shows_it_and_keeps_a_copy(tools: ToolClient, grants: Grants, outside: Outside) -> None:
    owner, picture = grants.claim(), png(64, 48)
    workspace = outside.workspace(owner)
    workspace.mkdir(parents=True)
    (workspace / "plot.png").write_bytes(picture)
    (workspace / "broken.png").write_bytes(picture[:-1])
    read = await tools.outcome(owner, "1.0", "read_file", path="plot.png")
    [image] = read.images
    assert (image.kept, image.media_type, image.width, image.height) == (kept_as(picture), "image/png", 64, 48)
    assert read.content == (
        f"[image (image/png), {len(picture)} bytes, 64 x 48 pixels: kept in the workspace's file {image.kept.path}]"
    )
    (workspace / "plot.png").write_bytes(b"another")
    assert (workspace / image.kept.path).read_bytes() == picture
    again = await tools.outcome(owner, "1.1", "read_file", path=image.kept.path)
    assert again.images == read.images
    broken = await tools.outcome(owner, "1.2", "read_file", path="broken.png")
    assert (broken.status, broken.images) == (OutcomeStatus.SUCCEEDED, ())
    assert broken.content.startswith("�PNG")
    assert broken.content.endswith("\n[not shown as an image: it is a PNG image that is damaged or ends too soon]")
