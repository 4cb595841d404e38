"""People list and read a task's files: what is there, byte by byte, and nothing that is elsewhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tenure.domain.errors import InvalidRequest, NotFound, OutOfRange, WrongState
from tenure.v1 import task_service_pb2 as tasks_pb
from tenure.v1 import workspace_pb2
from tests.support.fix_tools import Grants, Outside, StartTools, ToolClient
from tests.support.patience import CALL_SECONDS

KINDS = {
    workspace_pb2.FILE_KIND_FILE: "file",
    workspace_pb2.FILE_KIND_DIRECTORY: "directory",
    workspace_pb2.FILE_KIND_LINK: "link",
    workspace_pb2.FILE_KIND_OTHER: "other",
}


async def listed(tools: Any, task_id: str, path: str = "", *, page_size: int = 0) -> Any:
    files, request = [], tasks_pb.ListFilesRequest(task_id=task_id, path=path, page_size=page_size)
    while True:
        page = await tools.stub.ListFiles(request, timeout=CALL_SECONDS)
        files += page.files
        request.page_token = page.next_page_token
        if not request.page_token:
            return files


async def read(tools: Any, task_id: str, path: str, *, offset: int = 0, version: str = "") -> Any:
    request = tasks_pb.ReadFileRequest(task_id=task_id, path=path, offset=offset, version=version)
    parts = [part async for part in tools.stub.ReadFile(request, timeout=CALL_SECONDS)]
    return parts[0].header, b"".join(part.content for part in parts[1:])


@pytest.fixture
def workspace(grants: Grants, outside: Outside) -> Path:
    path: Path = outside.workspace(grants.claim())
    path.mkdir(parents=True)
    return path


async def test_pages_list_every_file_once(tools: ToolClient, workspace: Path) -> None:
    for path in ("b/deep/er", "b-", "a", "b/x"):
        (workspace / path).mkdir(parents=True)
    for path in ("b/deep/er/file", "b-/file", "a/1", "a/2", "z"):
        (workspace / path).write_text(path)
    (workspace / "link").symlink_to("/etc/passwd")
    os.mkfifo(workspace / "pipe")
    for path in (".tenure-1.0", "b/.tenure-1.1"):
        (workspace / path).write_text("half of a file that is being written")
    result = await listed(tools, workspace.name)
    seen = [(file.path, KINDS[file.kind]) for file in result]
    assert seen == [
        ("a", "directory"),
        ("a/1", "file"),
        ("a/2", "file"),
        ("b", "directory"),
        ("b/deep", "directory"),
        ("b/deep/er", "directory"),
        ("b/deep/er/file", "file"),
        ("b/x", "directory"),
        ("b-", "directory"),
        ("b-/file", "file"),
        ("link", "link"),
        ("pipe", "other"),
        ("z", "file"),
    ]
    assert next(file.link_target for file in result if file.path == "link") == "/etc/passwd"
    assert next(file.size_bytes for file in result if file.path == "b/deep/er/file") == 14
    for page_size in (1, 2, 5):
        assert await listed(tools, workspace.name, page_size=page_size) == result
    assert [file.path for file in await listed(tools, workspace.name, "b/deep", page_size=1)] == ["er", "er/file"]


async def test_page_token_survives_removal_of_its_file(tools: ToolClient, workspace: Path) -> None:
    for number in range(6):
        (workspace / f"{number}").write_text("x")
    request = tasks_pb.ListFilesRequest(task_id=workspace.name, page_size=3)
    page = await tools.stub.ListFiles(request, timeout=CALL_SECONDS)
    (workspace / "2").unlink()
    (workspace / "2a").write_text("x")
    request.page_token = page.next_page_token
    page = await tools.stub.ListFiles(request, timeout=CALL_SECONDS)
    assert [file.path for file in page.files] == ["2a", "3", "4"]


async def test_first_page_has_the_usage(tool_service: StartTools, workspace: Path) -> None:
    tools = await tool_service(workspace_bytes=1_000_000, workspace_files=10)
    (workspace / "file").write_bytes(b"x" * 100_000)
    page = await tools.stub.ListFiles(tasks_pb.ListFilesRequest(task_id=workspace.name), timeout=CALL_SECONDS)
    assert (page.usage.max_bytes, page.usage.max_files, page.usage.used_files) == (1_000_000, 10, 1)
    assert 100_000 <= page.usage.used_bytes < 200_000


async def test_file_name_that_is_not_utf8_is_listed_and_not_readable(tools: ToolClient, workspace: Path) -> None:
    Path(os.fsdecode(os.fsencode(workspace) + b"/bad\xff\x1b[31m")).write_text("x")
    (file,) = await listed(tools, workspace.name)
    assert (file.path, file.unreadable_name) == ("bad\ufffd\x1b[31m", True)
    with pytest.raises(NotFound) as refused:
        await read(tools, workspace.name, file.path)
    assert refused.value.reason == "FILE_NOT_FOUND"


async def test_a_file_is_read_byte_by_byte_from_any_offset(tools: ToolClient, workspace: Path) -> None:
    content = os.urandom(700_001)
    (workspace / "dir").mkdir()
    (workspace / "dir" / "binary").write_bytes(content)
    (workspace / "empty").write_bytes(b"")
    header, whole = await read(tools, workspace.name, "dir/binary")
    assert (header.size_bytes, whole) == (len(content), content)
    for offset in (1, 262_144, 700_000, 700_001):
        again, rest = await read(tools, workspace.name, "dir/binary", offset=offset, version=header.version)
        assert (again, rest) == (header, content[offset:])
    assert (await read(tools, workspace.name, "empty"))[1] == b""
    with pytest.raises(OutOfRange):
        await read(tools, workspace.name, "dir/binary", offset=700_002)


async def test_changed_file_ends_the_read(tools: ToolClient, workspace: Path) -> None:
    (workspace / "file").write_bytes(b"x" * 1000)
    header, _ = await read(tools, workspace.name, "file")
    os.utime(workspace / "file", ns=(1, 1))
    with pytest.raises(WrongState) as refused:
        await read(tools, workspace.name, "file", offset=10, version=header.version)
    assert refused.value.reason == "FILE_CHANGED"
    big = workspace / "big"
    big.write_bytes(b"x" * 8_000_000)  # more than the stream's windows hold, so that it is being read still
    call = tools.stub.ReadFile(tasks_pb.ReadFileRequest(task_id=workspace.name, path="big"), timeout=CALL_SECONDS)
    got = 0

    async def read_on() -> None:
        nonlocal got
        async for part in call:
            got += len(part.content)
            if part.HasField("header"):
                with big.open("ab") as file:
                    file.write(b"more")

    with pytest.raises(WrongState) as refused:
        await read_on()
    assert refused.value.reason == "FILE_CHANGED"
    assert got < 8_000_000


async def test_only_regular_files_of_the_workspace_are_read(tools: ToolClient, workspace: Path) -> None:
    (workspace.parent / "secret").write_text("not for agents")
    (workspace / "dir").mkdir()
    (workspace / "file").write_text("x")
    (workspace / "link").symlink_to("file")
    (workspace / "linked").symlink_to("..")
    os.mkfifo(workspace / "pipe")
    refused = {
        "dir": WrongState,
        "link": WrongState,
        "linked/secret": WrongState,
        "pipe": WrongState,
        "../secret": InvalidRequest,
        "/etc/hostname": InvalidRequest,
        "dir/../file": InvalidRequest,
        "no": NotFound,
    }
    for path, error in refused.items():
        with pytest.raises(error):
            await read(tools, workspace.name, path)
        with pytest.raises(error):
            await listed(tools, workspace.name, path if path != "dir" else "file")


async def test_files_of_other_tenants_are_not_found(
    tools: ToolClient, grants: Grants, workspace: Path, outside: Outside
) -> None:
    (workspace / "file").write_text("x")
    other = ToolClient(tools.address, "somebody-else")
    assert await listed(other, workspace.name) == []
    with pytest.raises(NotFound):
        await read(other, workspace.name, "file")
    await other.close()
    unknown = grants.claim().task_id
    assert await listed(tools, unknown) == []
    assert not (outside.workspaces / "somebody-else").exists()
    assert not (workspace.parent / unknown).exists()
