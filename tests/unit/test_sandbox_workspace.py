"""Handing a workspace over and measuring it, with what a hostile program leaves in it."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from services.tools.sandbox.permissions import add_rights_by_name
from services.tools.sandbox.workspace import MAX_DEPTH, Usage, hand_over, identity, measure, take_over
from services.tools.workspace.directories import Workspaces
from tests.support.descriptors import open_below

UID = 61_234
ANY_USER = 61_235

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "workspace"
    path.mkdir()
    return path


@root_only
def test_workspace_changes_its_owner(workspace: Path) -> None:
    (workspace / "folder").mkdir()
    (workspace / "folder" / "file").write_text("x")
    hand_over(workspace, UID)
    for path in (workspace, workspace / "folder", workspace / "folder" / "file"):
        assert (path.stat().st_uid, path.stat().st_gid) == (UID, UID)


@root_only
def test_a_link_out_of_it_is_not_followed(workspace: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("x")
    (workspace / "folder").symlink_to(outside)
    (workspace / "file").symlink_to(outside / "file")
    hand_over(workspace, UID)
    assert outside.stat().st_uid == 0
    assert (outside / "file").stat().st_uid == 0
    assert (workspace / "file").lstat().st_uid == UID


@root_only
def test_a_second_name_of_roots_file_is_not_given_away(workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("x")
    (workspace / "name").hardlink_to(tmp_path / "outside")
    hand_over(workspace, UID)
    assert (tmp_path / "outside").stat().st_uid == 0


@root_only
def test_a_file_renamed_during_the_walk_does_not_end_it(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file tool writes a file under a temporary name and renames it, while a program of the same task starts."""
    (workspace / "a").write_text("x")
    (workspace / "temporary").write_text("x")
    given: list[str] = []
    chown = os.chown

    def renamed_before(name: str, *arguments: int, **how: Any) -> None:
        given.append(name)
        if name == "temporary":
            (workspace / name).rename(workspace / "in place")
        chown(name, *arguments, **how)

    monkeypatch.setattr(os, "chown", renamed_before)
    usage = hand_over(workspace, UID)
    assert sorted(given) == ["a", "temporary"]
    assert (usage.entries, (workspace / "a").stat().st_uid) == (2, UID)


def test_a_workspace_that_is_a_link_is_refused(workspace: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(workspace)
    with pytest.raises(NotADirectoryError):
        identity(link)
    with pytest.raises(OSError, match="link"):
        measure(link)


def test_two_names_of_a_workspace_are_one_identity(workspace: Path) -> None:
    assert identity(workspace) == identity(workspace / ".." / workspace.name)


def test_a_tree_deeper_than_the_walk_is_measured_as_incomplete(workspace: Path) -> None:
    inner = workspace
    for _ in range(MAX_DEPTH + 5):
        inner /= "d"
    inner.mkdir(parents=True)
    assert not measure(workspace).complete
    assert open_below(workspace) == []


def test_usage_counts_disk_space_and_not_holes(workspace: Path) -> None:
    with (workspace / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    (workspace / "real").write_bytes(b"x" * 100_000)
    usage = measure(workspace)
    assert usage.entries == 2
    assert 100_000 <= usage.disk_bytes < 1_000_000


def test_a_file_of_several_names_takes_its_space_once(workspace: Path) -> None:
    (workspace / "file").write_bytes(b"x" * 100_000)
    once = measure(workspace).disk_bytes
    for number in range(5):
        (workspace / f"name-{number}").hardlink_to(workspace / "file")
    assert measure(workspace) == Usage(once, 6, complete=True)
    assert take_over(workspace, os.geteuid() if os.geteuid() == 0 else None).disk_bytes == once


def test_a_workspace_over_its_bound_may_only_shrink() -> None:
    before = Usage(disk_bytes=500, entries=5, complete=True)
    assert not Usage(500, 5, complete=True).exceeds(before, max_bytes=100, max_entries=100)
    assert Usage(501, 5, complete=True).exceeds(before, max_bytes=100, max_entries=100)
    assert Usage(100, 101, complete=True).exceeds(before, max_bytes=1000, max_entries=100)


def test_unknown_usage_exceeds_the_bound() -> None:
    before = Usage(5, 5, complete=False)
    assert Usage(5, 5, complete=False).exceeds(before, max_bytes=1000, max_entries=100)


@pytest.mark.parametrize("rights", [0, 0o300, 0o400])
def test_closed_directory_of_the_owner_is_counted(rights: int) -> None:
    with as_an_ordinary_user() as workspace:
        (workspace / "folder").mkdir()
        (workspace / "folder" / "file").write_bytes(b"x" * 100_000)
        (workspace / "folder").chmod(rights)
        workspace.chmod(rights)
        usage = measure(workspace)
    assert (usage.entries, usage.complete) == (2, True)
    assert usage.disk_bytes >= 100_000


def test_closed_directory_of_another_is_unknown() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make what belongs to another")
    with as_an_ordinary_user() as workspace:
        os.seteuid(0)
        (workspace / "folder").mkdir(mode=0)
        os.seteuid(ANY_USER)
        assert not measure(workspace).complete


@pytest.mark.parametrize("call", ["listdir", "stat"])
@pytest.mark.parametrize(("number", "complete"), [(errno.ENOENT, True), (errno.EACCES, False), (errno.EIO, False)])
def test_vanished_files_are_zero_and_unreadable_ones_unknown(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, complete: bool
) -> None:
    """A program may remove it, or close it again, between two looks."""
    (workspace / "file").touch()

    def fails(*_: object, **__: object) -> None:
        raise OSError(number, "")

    with monkeypatch.context() as patched:
        patched.setattr(os, call, fails)
        usage = measure(workspace)
    assert usage == Usage(0, 0, complete)


def test_link_instead_of_a_directory_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o500)
    (tmp_path / "link").symlink_to("theirs")
    with pytest.raises(OSError, match="link"):
        add_rights_by_name(str(tmp_path / "link"), None, 0o700)
    assert stat.S_IMODE((tmp_path / "theirs").stat().st_mode) == 0o500


def test_link_made_during_the_walk_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, mine, moved = tmp_path / "theirs", tmp_path / "mine", tmp_path / "moved"
    theirs.mkdir(mode=0o500)
    mine.mkdir(mode=0o300)
    really_open = os.open

    def open_and_swap(name: str, flags: int, *, dir_fd: int | None) -> int:
        descriptor = really_open(name, flags, dir_fd=dir_fd)
        mine.rename(moved)
        mine.symlink_to("theirs")
        return descriptor

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", open_and_swap)
        add_rights_by_name(str(mine), None, 0o700)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (theirs, moved)] == [0o500, 0o700]


def test_a_workspace_that_its_programs_closed_is_opened() -> None:
    with as_an_ordinary_user() as root:
        workspaces = Workspaces(root)
        path = workspaces.directory("default", "task")
        for opened in (workspaces.opened, workspaces.existing):
            path.chmod(0)
            with opened("default", "task") as workspace:
                assert stat.S_IMODE(os.fstat(workspace).st_mode) == 0o700


@contextmanager
def as_an_ordinary_user() -> Iterator[Path]:
    """A workspace of a user who is not root, which the test is until it is left."""
    is_root = os.geteuid() == 0
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:  # where any user gets to
        workspace = Path(directory)
        if is_root:
            os.chown(workspace, ANY_USER, ANY_USER)
            os.seteuid(ANY_USER)
        try:
            yield workspace
        finally:
            os.seteuid(0 if is_root else os.geteuid())
            workspace.chmod(0o700)
