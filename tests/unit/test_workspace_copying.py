"""Lists, reads and copies, by both ways in, while a program does what it can to lead them astray."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import Mock

import pytest

from services.tools.builtin import files
from services.tools.builtin.files import file_tools
from services.tools.builtin.outputs import output_tools
from services.tools.builtin.python import python_tools
from services.tools.calls.records import pack_outcome
from services.tools.sandbox import Sandbox, SandboxLimits
from services.tools.sandbox.permissions import DIRECTORY
from services.tools.tool import CallContext, Tool, ToolAnswer, ToolFailure
from services.tools.workspace import beneath
from services.tools.workspace.bounds import Bounds
from services.tools.workspace.copying import CopyStopped, copy_workspace
from services.tools.workspace.directories import Workspaces, entered, write_file
from services.tools.workspace.reading import OpenFile, list_page
from services.tools.workspace.removal import empty_some
from services.tools.workspace.requests import FileRequests
from tenure.domain.errors import InvalidRequest, Unavailable, WrongState
from tenure.domain.tools import Outcome, OutcomeStatus
from tests.support.descriptors import open_below
from tests.support.patience import PATIENCE_SECONDS
from tests.support.small_disk import SmallDisk

SECRET = b"not for agents"
A_STEP = 20
"""Entries that one step of a removal takes."""
# A directory and a file are swapped for links out of the workspace and back, all the time.
SWAPPER = """
import os, sys
os.chdir(sys.argv[1])
while True:
    os.rename("dir", "d"); os.rename("to-dir", "dir"); os.rename("dir", "to-dir"); os.rename("d", "dir")
    os.rename("file", "f"); os.rename("to-file", "file"); os.rename("file", "to-file"); os.rename("f", "file")
"""


@pytest.fixture(params=["resolve", "walk"])
def workspaces(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspaces:
    if request.param == "resolve" and beneath.opener() is not beneath.resolve:
        pytest.skip("this machine does not resolve paths itself")
    way = getattr(beneath, request.param)
    monkeypatch.setattr(beneath, "opener", lambda: way)
    return Workspaces(tmp_path / "root")


@pytest.fixture
def source(workspaces: Workspaces) -> Path:
    return workspaces.directory("default", "source")


@pytest.fixture
def copy(workspaces: Workspaces, tmp_path: Path) -> Callable[..., Path]:
    def copied(task_id: str = "copy", bounds: Bounds | None = None, stopped: Event | None = None) -> Path:
        copy_workspace(
            workspaces, tmp_path / "root", "default", "source", task_id, bounds or Bounds(), stopped or Event()
        )
        return tmp_path / "root" / "default" / task_id

    return copied


@contextmanager
def racing(source: Path, outside: Path) -> Iterator[None]:
    outside.mkdir()
    (outside / "file").write_bytes(SECRET)
    (source / "dir").mkdir()
    for path in (source / "dir" / "file", source / "file"):
        path.write_bytes(b"mine")
    (source / "to-dir").symlink_to(outside)
    (source / "to-file").symlink_to(outside / "file")
    program = subprocess.Popen([sys.executable, "-c", SWAPPER, str(source)])
    try:
        yield
    finally:
        program.kill()
        program.wait()


def contents(top: Path) -> set[bytes]:
    """Of all regular files."""
    return {path.read_bytes() for path in top.rglob("*") if path.is_file() and not path.is_symlink()}


def test_racing_programs_cannot_redirect_a_copy(
    workspaces: Workspaces, source: Path, copy: Callable[..., Path], tmp_path: Path
) -> None:
    seen: set[bytes] = set()
    ends_at = time.monotonic() + PATIENCE_SECONDS
    with racing(source, tmp_path / "outside"):
        for number in range(60):
            top = copy(f"copy-{number}")
            seen |= contents(top)
            assert not list((tmp_path / "outside").glob(".*"))
            assert time.monotonic() < ends_at
        for _ in range(300):
            with workspaces.existing("default", "source") as workspace:
                for path in (("dir", "file"), ("file",)):
                    with suppress(OSError, ToolFailure):
                        file = OpenFile(workspace, path)
                        seen.add(file.part(0))
                        file.close()
                with suppress(OSError):
                    list_page(workspace, ("dir",), (), 10)
                with suppress(OSError):
                    parent = beneath.open_beneath(("dir",), DIRECTORY, workspace)
                    write_file("written", b"new", parent, workspace, temporary=".tenure-x")
                    os.close(parent)
    assert seen <= {b"mine", b"new"}
    assert b"mine" in seen
    assert sorted(path.name for path in (tmp_path / "outside").iterdir()) == ["file"]
    assert (tmp_path / "outside" / "file").read_bytes() == SECRET


def test_a_copy_is_complete_or_not_there(source: Path, copy: Callable[..., Path], tmp_path: Path) -> None:
    for number in range(30):
        (source / f"{number}").write_bytes(b"x" * 4096)
    stopped = Event()
    stopped.set()
    with pytest.raises(CopyStopped):
        copy(stopped=stopped)
    for bounds in (Bounds(max_bytes=20 * 4096), Bounds(max_files=20)):
        with pytest.raises(WrongState):
            copy(bounds=bounds)
    assert sorted(path.name for path in (tmp_path / "root" / "default").iterdir()) == ["source"]
    assert len(list(copy().iterdir())) == 30


def test_a_tree_that_is_too_deep_is_not_copied(source: Path, copy: Callable[..., Path]) -> None:
    inner = source
    for _ in range(70):
        inner /= "d"
    inner.mkdir(parents=True)
    with pytest.raises(WrongState, match="deep"):
        copy()
    assert open_below(source) == []


def test_file_names_longer_than_any_path_stay_together(source: Path, copy: Callable[..., Path]) -> None:
    (source / "first").write_text("x")
    here = os.open(source, os.O_RDONLY)
    top = os.dup(here)
    for _ in range(20):
        os.mkdir("d" * 250, dir_fd=here)
        inner = os.open("d" * 250, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    for name in ("one", "other"):
        os.link("first", name, src_dir_fd=top, dst_dir_fd=here)
    os.unlink("first", dir_fd=top)
    os.close(top)
    os.close(here)
    current = os.open(copy(), os.O_RDONLY)
    for _ in range(20):
        inner = os.open("d" * 250, os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = inner
    inodes = {os.stat(name, dir_fd=current).st_ino for name in ("one", "other")}
    os.close(current)
    assert len(inodes) == 1


async def opened(file_requests: FileRequests, path: str) -> object:
    return await anext(file_requests.read("default", "source", path, 0, ""))


@pytest.mark.skipif(sys.platform != "linux", reason="leases are Linux's")
def test_file_under_a_lease_is_reported(source: Path, copy: Callable[..., Path], tmp_path: Path) -> None:
    former = signal.signal(signal.SIGIO, signal.SIG_IGN)  # how the kernel asks for a lease
    try:
        with (source / "leased").open("w") as file:
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            with pytest.raises(WrongState, match="lease") as refused:
                copy()
            file_requests = FileRequests(tmp_path / "root", Bounds(), ThreadPoolExecutor(1), ThreadPoolExecutor(1))
            with pytest.raises(WrongState, match="lease") as unread:
                asyncio.run(opened(file_requests, "leased"))
    finally:
        signal.signal(signal.SIGIO, former)
    assert (refused.value.reason, unread.value.reason) == ("WORKSPACE_UNREADABLE", "WORKSPACE_UNREADABLE")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is closed to root")
def test_unreadable_file_is_reported(source: Path, copy: Callable[..., Path]) -> None:
    (source / "closed").write_text("x")
    (source / "closed").chmod(0)
    with pytest.raises(WrongState) as refused:
        copy()
    assert (refused.value.reason, "closed" in refused.value.message) == ("WORKSPACE_UNREADABLE", True)
    source.chmod(0)
    with pytest.raises(WrongState) as refused:
        copy()
    source.chmod(0o755)
    assert refused.value.reason == "WORKSPACE_UNREADABLE"


def test_full_disk_is_reported_and_the_copy_removed(
    workspaces: Workspaces, source: Path, copy: Callable[..., Path], tmp_path: Path
) -> None:
    source.rmdir()
    with SmallDisk.mounted(tmp_path / "root" / "default", size_mib=4) as disk:
        if disk is None:
            pytest.skip("nothing can be mounted here")
        source.mkdir()
        (source / "file").write_bytes(b"x" * 3_000_000)
        with pytest.raises(Unavailable) as refused:
            copy()
        assert refused.value.reason == "STORAGE_FULL"
        assert [path.name for path in disk.folder.iterdir()] == ["source"]
        tools = {tool.name: tool for tool in file_tools(workspaces)}
        context = CallContext("default", "source", "1.0", "key", 1, lambda _text: None)
        with pytest.raises(ToolFailure) as failed:
            asyncio.run(ran(tools["write_file"], context, {"path": "file", "content": "y" * 3_000_000}))
        assert failed.value.detail == "STORAGE_FULL"
        assert {path.name: path.stat().st_size for path in source.iterdir()} == {"file": 3_000_000}


def test_large_removals_take_steps_and_report_failures(
    workspaces: Workspaces, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete = next(tool for tool in file_tools(workspaces) if tool.name == "delete_file")
    context = CallContext("default", "source", "1.0", "key", 1, lambda _text: None)
    monkeypatch.setattr(files, "empty_some", partial(empty_some, most=A_STEP))
    for number in range(A_STEP + 1):
        (source / str(number)).touch()
    with monkeypatch.context() as patched:
        patched.setattr(files, "_MAX_STEPS", 1)
        with pytest.raises(ToolFailure) as failed:
            asyncio.run(ran(delete, context, {"path": "."}))
    assert failed.value.detail == "NOT_ALL_DELETED"
    for number in range(A_STEP):
        (source / str(number)).touch()
    assert asyncio.run(ran(delete, context, {"path": "."})).content == "The workspace is empty."
    assert list(source.iterdir()) == []


def test_a_directory_that_vanishes_ends_no_listing(
    workspaces: Workspaces, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = next(tool for tool in file_tools(workspaces) if tool.name == "list_files")
    context = CallContext("default", "source", "1.0", "key", 1, lambda _text: None)
    (source / "gone").mkdir()
    (source / "stays").write_text("x")

    def entered_late(workspace: int, names: tuple[str, ...]) -> Any:
        if names == ("gone",):
            (source / "gone").rmdir()
        return entered(workspace, names)

    monkeypatch.setattr(files, "entered", entered_late)
    assert asyncio.run(ran(listing, context, {})).content == "gone/\nstays (1 bytes)"


def test_a_listing_has_one_line_for_each_name(workspaces: Workspaces, source: Path) -> None:
    listing = next(tool for tool in file_tools(workspaces) if tool.name == "list_files")
    context = CallContext("default", "source", "1.0", "key", 1, lambda _text: None)
    for name in (b"a\nb", b"bad\xff\x1b[31m", "caf\u00e9 \u00df".encode()):
        Path(os.fsdecode(os.fsencode(source) + b"/" + name)).write_text("x")
    assert asyncio.run(ran(listing, context, {})).content.splitlines() == [
        "a\\nb [escaped name] (1 bytes)",
        "bad\\xff\\x1b[31m [escaped name] (1 bytes)",
        "caf\u00e9 \u00df (1 bytes)",
    ]


def test_a_name_that_no_file_can_have_is_refused(source: Path, tmp_path: Path) -> None:
    file_requests = FileRequests(tmp_path / "root", Bounds(), ThreadPoolExecutor(1), ThreadPoolExecutor(1))
    with pytest.raises(InvalidRequest) as refused:
        asyncio.run(opened(file_requests, "x" * 300))
    assert refused.value.reason == "BAD_PATH"


@pytest.mark.parametrize("name", ["read_file", "write_file", "list_files", "delete_file"])
def test_half_a_surrogate_in_a_path_is_refused(workspaces: Workspaces, name: str) -> None:
    tool = next(tool for tool in file_tools(workspaces) if tool.name == name)
    context = CallContext("default", "source", "1.0", "key", 1, lambda _text: None)
    with pytest.raises(ToolFailure, match="whole characters") as refused:
        asyncio.run(ran(tool, context, {"path": "a/\ud800", "content": "x"}))
    assert refused.value.detail == "BAD_PATH"


@pytest.mark.parametrize("name", ["read_file", "write_file", "list_files", "delete_file", "execute_python"])
def test_a_disk_without_room_for_the_workspace_is_an_outcome(
    workspaces: Workspaces, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    sandbox = Mock(spec=Sandbox)
    tools = {tool.name: tool for tool in (*file_tools(workspaces), *python_tools(sandbox, workspaces, SandboxLimits()))}
    context = CallContext("default", "another", "1.0", "key", 1, lambda _text: None)
    monkeypatch.setattr(os, "mkdir", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    with pytest.raises(ToolFailure) as failed:
        asyncio.run(ran(tools[name], context, {"path": "f", "content": "x", "code": "pass"}))
    assert failed.value.detail == "STORAGE_FULL"


def test_whole_numbers_may_be_written_with_a_point(workspaces: Workspaces, source: Path) -> None:
    """4.0 and 1e1 are integers in JSON Schema."""
    (source / "f").write_text("0123456789abcdef")
    context = CallContext("default", "source", "1.0", "key", 1, lambda _text: None)
    tools = {tool.name: tool for tool in (*file_tools(workspaces), *output_tools(workspaces))}
    read = asyncio.run(ran(tools["read_file"], context, {"path": "f", "offset": 4.0, "limit": 1e1}))
    assert read.content.startswith("456789abcd\n")
    stated = {"kind": "report", "uri": "https://example.org/", "size_bytes": 5.0}
    recorded = asyncio.run(ran(tools["record_output"], context, stated))
    assert pack_outcome(Outcome(OutcomeStatus.SUCCEEDED, recorded.content, output=recorded.output))


async def ran(tool: Tool, context: CallContext, arguments: dict[str, Any]) -> ToolAnswer:
    return await tool.run(context, arguments)
