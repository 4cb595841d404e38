"""A task's directory goes, whatever a hostile program left in it, and nothing outside of it does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from services.tools.workspace import removal
from services.tools.workspace.removal import empty_some, remove_some, remove_some_of


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "workspace"
    path.mkdir()
    return path


def remove(workspace: Path, most: int = 50) -> int:
    """To its end; in how many steps."""
    steps = 1
    while not remove_some(workspace, most):
        steps += 1
        assert steps < 10_000
    return steps


def test_files_pipes_and_links_go_and_targets_stay(workspace: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("x")
    (workspace / "folder" / "inner").mkdir(parents=True)
    (workspace / "folder" / "inner" / "file").write_text("x")
    (workspace / "folder" / "link").symlink_to(outside)
    (workspace / "link").symlink_to(outside)
    (workspace / "dangling").symlink_to("nowhere")
    (workspace / "hard").hardlink_to(outside / "file")
    os.mkfifo(workspace / "pipe")
    remove(workspace)
    assert not workspace.exists()
    assert (outside / "file").read_text() == "x"


def test_a_step_is_bounded_and_the_next_goes_on(workspace: Path) -> None:
    for folder in range(5):
        (workspace / str(folder)).mkdir()
        for number in range(40):
            (workspace / str(folder) / str(number)).touch()
    assert remove_some(workspace, 30) is False
    assert 205 - 30 - 10 <= sum(1 for _ in workspace.rglob("*")) < 205
    assert remove(workspace, 30) >= 5


def test_a_tree_deeper_than_any_path_and_any_stack_goes(workspace: Path) -> None:
    directory = os.open(workspace, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("deeper-and-deeper", dir_fd=directory)
        inner = os.open("deeper-and-deeper", os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = inner
    os.close(directory)
    remove(workspace, 500)
    assert not workspace.exists()


def test_directories_that_are_closed_to_us_go(workspace: Path) -> None:
    (workspace / "closed" / "inner").mkdir(parents=True)
    (workspace / "closed" / "inner" / "file").touch()
    (workspace / "closed" / "inner").chmod(0)
    (workspace / "closed").chmod(0)
    workspace.chmod(0o500)
    remove(workspace)
    assert not workspace.exists()


def test_missing_directory_is_removed(workspace: Path) -> None:
    assert remove_some(workspace / "never-was")


def test_link_instead_of_a_workspace_is_not_followed(workspace: Path, tmp_path: Path) -> None:
    (workspace / "file").touch()
    link = tmp_path / "link"
    link.symlink_to(workspace)
    with pytest.raises(NotADirectoryError):
        remove_some(link)
    assert (workspace / "file").exists()


def test_one_entry_goes_and_those_beside_it_stay(workspace: Path) -> None:
    for number in range(120):
        (workspace / "gone" / str(number % 7) / "deep").mkdir(parents=True, exist_ok=True)
        (workspace / "gone" / str(number % 7) / str(number)).touch()
    (workspace / "stays").touch()
    (workspace / "link").symlink_to("stays")
    parent = os.open(workspace, os.O_RDONLY)
    try:
        assert not remove_some_of("gone", parent, 20)
        while not remove_some_of("gone", parent, 20):
            pass
        for name in ("link", "link"):  # also when it is gone
            assert remove_some_of(name, parent)
        assert [path.name for path in workspace.iterdir()] == ["stays"]
        assert empty_some(parent)
    finally:
        os.close(parent)
    assert list(workspace.iterdir()) == []


def test_a_directory_written_to_meanwhile_is_not_gone(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (workspace / "folder").mkdir()

    def written_to_after(top: int, _most: int) -> bool:
        os.close(os.open("late", os.O_CREAT, dir_fd=top))
        return True

    parent = os.open(workspace, os.O_RDONLY)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(removal, "empty_some", written_to_after)
            assert not remove_some_of("folder", parent)
        assert remove_some_of("folder", parent)
    finally:
        os.close(parent)
    assert list(workspace.iterdir()) == []
