"""Both ways in keep to what is beneath, whatever changes while they are on their way."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from services.tools.sandbox.permissions import DIRECTORY
from services.tools.workspace import beneath
from services.tools.workspace.beneath import FILE, Open
from tests.support.descriptors import open_below
from tests.support.patience import PATIENCE_SECONDS

SECRET = b"not for agents"
TRIES = 300
LINKED = (("link",), ("link", "secret"), ("a", "up"), ("a", "self"), ("proc",), ("a", "up", "x"))


@pytest.fixture(params=["resolve", "walk"])
def way(request: pytest.FixtureRequest) -> Open:
    if request.param == "resolve" and beneath.opener() is not beneath.resolve:
        assert sys.platform != "linux" or os.uname().release < "5.6", "this kernel should resolve paths itself"
        pytest.skip("this machine does not resolve paths itself")
    way: Open = getattr(beneath, request.param)
    return way


@pytest.fixture
def top(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "secret").write_bytes(SECRET)
    (tmp_path / "top" / "a" / "b").mkdir(parents=True)
    (tmp_path / "top" / "a" / "b" / "file").write_bytes(b"mine")
    descriptor = os.open(tmp_path / "top", DIRECTORY)
    yield descriptor
    os.close(descriptor)


def _names(directory: int | str) -> list[str]:
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries]


def opened(way: Open, names: tuple[str, ...], flags: int, directory: int) -> bytes | list[str]:
    descriptor = way(names, flags, directory)
    try:
        return _names(descriptor) if flags & os.O_DIRECTORY else os.read(descriptor, 100)
    finally:
        os.close(descriptor)


def test_files_below_are_opened(way: Open, top: int) -> None:
    assert opened(way, ("a", "b", "file"), os.O_RDONLY | FILE, top) == b"mine"
    assert opened(way, ("a",), DIRECTORY, top) == ["b"]
    assert opened(way, (), DIRECTORY, top) == ["a"]


@pytest.mark.parametrize("names", LINKED)
def test_links_are_not_followed(way: Open, top: int, tmp_path: Path, names: tuple[str, ...]) -> None:
    (tmp_path / "top" / "link").symlink_to(tmp_path)
    (tmp_path / "top" / "a" / "up").symlink_to("../../secret")
    (tmp_path / "top" / "a" / "self").symlink_to("b")  # inside, and a link all the same
    (tmp_path / "top" / "proc").symlink_to("/proc/self/cwd")
    for flags in (os.O_RDONLY | FILE, DIRECTORY):
        with pytest.raises(OSError):
            way(names, flags, top)


def test_the_magic_links_of_proc_are_not_followed(way: Open) -> None:
    if not Path("/proc/self/cwd").exists():
        pytest.skip("there is no /proc")
    process = os.open("/proc/self", DIRECTORY & ~os.O_NOFOLLOW)
    try:
        for names in (("cwd",), ("root", "etc"), ("fd", "0")):
            with pytest.raises(OSError):
                way(names, os.O_RDONLY | FILE, process)
    finally:
        os.close(process)


def test_errors_are_the_systems_and_no_descriptor_is_left(way: Open, top: int, tmp_path: Path) -> None:
    for names in (("nothing",), ("a", "nothing", "x"), ("a", "b", "file", "x"), ("x" * 300,)):
        with pytest.raises(OSError):
            way(names, os.O_RDONLY | FILE, top)
    assert open_below(tmp_path) == [tmp_path / "top"]  # the fixture's own


SWAPPER = """
import os, sys
os.chdir(sys.argv[1])
while True:
    os.rename("a/b", "aside"); os.rename("link", "a/b"); os.rename("a/b", "link"); os.rename("aside", "a/b")
"""


def test_link_made_during_the_walk_is_not_followed(way: Open, top: int, tmp_path: Path) -> None:
    """A process swaps a directory for a link out of the workspace and back, as an agent's program would."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_bytes(SECRET)
    (tmp_path / "top" / "link").symlink_to(tmp_path / "outside")
    racing = subprocess.Popen([sys.executable, "-c", SWAPPER, str(tmp_path / "top")])
    seen: set[Any] = set()
    by_followers: set[Any] = set()
    ends_at = time.monotonic() + PATIENCE_SECONDS
    try:
        while not (SECRET in by_followers and b"mine" in seen and b"refused" in seen):
            assert time.monotonic() < ends_at, (seen, by_followers)
            for _ in range(TRIES):
                by_followers.add(tried(follow, top))
                seen.add(tried(way, top))
    finally:
        racing.kill()
        racing.wait()
    assert seen == {b"mine", b"refused"}


def follow(names: Sequence[str], flags: int, directory: int) -> int:
    """What anybody would write, and what is led astray: the race is real."""
    return os.open("/".join(names), flags, dir_fd=directory)


def tried(way: Open, top: int) -> bytes | list[str]:
    try:
        return opened(way, ("a", "b", "file"), os.O_RDONLY | FILE, top)
    except OSError:
        return b"refused"
