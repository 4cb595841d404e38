"""One cgroup per run: limits that count all its processes together, the counters that tell what happened, the kill.

The files' names differ between v1 and v2, their meaning does not; both are tables here.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from services.tools.sandbox.command import OWN_PROCESSES
from services.tools.sandbox.limits import SandboxLimits
from services.tools.sandbox.procfs import is_orphan, next_name

# Finding the cgroup hierarchies in which this service may make groups of its own.

USED_CONTROLLERS = frozenset({"memory", "pids", "cpu"})
SERVICE_LEAF = "tenure-service"


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A directory in which groups can be made, and which of the used controllers work in them."""

    version: int
    directory: Path
    controllers: frozenset[str]


def find_hierarchies(mounts: str, own_groups: str) -> list[Hierarchy]:
    """The hierarchies to use, from the texts of /proc/self/mounts and /proc/self/cgroup.

    v2 is always listed when mounted; `controllers` is then what it has on offer, not yet what is delegated.
    """
    own = dict(_own_paths(own_groups))
    hierarchies: list[Hierarchy] = []
    claimed: set[str] = set()
    for mount_point, kind, options in _cgroup_mounts(mounts):
        if kind == "cgroup2":
            base = _below(mount_point, own.get("", "/"))
            base = base.parent if base.name == SERVICE_LEAF else base
            hierarchies.append(Hierarchy(2, base, _offered(base) & USED_CONTROLLERS))
        elif controllers := (options & USED_CONTROLLERS) - claimed:
            claimed |= controllers
            base = _below(mount_point, own.get(min(controllers), "/"))
            hierarchies.append(Hierarchy(1, base, frozenset(controllers)))
    return hierarchies


def delegate(hierarchy: Hierarchy) -> Hierarchy:
    """Turn a v2 group's controllers on for groups below it, as far as that is possible.

    v2 refuses controllers below a group that holds processes. A group that holds only this service (systemd:
    Delegate=yes) is emptied into a leaf beside the sandboxes; anybody else's processes are left where they are.
    """
    if hierarchy.version == 1 or not hierarchy.controllers:
        return hierarchy
    control = hierarchy.directory / "cgroup.subtree_control"
    wanted = hierarchy.controllers - set(control.read_text().split())
    if wanted:
        _move_service_to_leaf(hierarchy.directory)
        for controller in sorted(wanted):
            _try_write(control, f"+{controller}")
    enabled = frozenset(control.read_text().split()) & hierarchy.controllers
    return Hierarchy(2, hierarchy.directory, enabled)


def _move_service_to_leaf(base: Path) -> None:
    own = str(os.getpid())
    holders = (base / "cgroup.procs").read_text().split()
    if holders != [own] or not os.access(base, os.W_OK):
        return
    leaf = base / SERVICE_LEAF
    leaf.mkdir(exist_ok=True)
    (leaf / "cgroup.procs").write_text(own)


def _try_write(path: Path, text: str) -> bool:
    """Write to a kernel file that may refuse; what was achieved is read back by the caller."""
    try:
        path.write_text(text)
    except OSError:
        return False
    return True


def _own_paths(text: str) -> Iterable[tuple[str, str]]:
    """(controller, path) of /proc/self/cgroup; the v2 line has no controllers and is listed under ''."""
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            yield controller, path


def _cgroup_mounts(text: str) -> Iterable[tuple[Path, str, set[str]]]:
    for line in text.splitlines():
        _, mount_point, kind, options, *_ = line.split(" ")
        if kind in {"cgroup", "cgroup2"}:
            yield Path(mount_point.replace("\\040", " ")), kind, set(options.split(","))


def _below(mount_point: Path, own: str) -> Path:
    """The service's own group. In a container its path may name a place outside of what is mounted: then the root of
    the mount is the own group.
    """
    path = mount_point / own.lstrip("/")
    return path if ".." not in path.parts and path.is_dir() else mount_point


def _offered(base: Path) -> frozenset[str]:
    try:
        return frozenset((base / "cgroup.controllers").read_text().split())
    except OSError:
        return frozenset()


log = logging.getLogger(__name__)

_CPU_PERIOD_US = 100_000


def _cpu_quota(limits: SandboxLimits) -> int:
    return _CPU_PERIOD_US * limits.cpu_percent // 100


# (controller, file, value, whether the file must be there). Swap accounting is a boot option, hence optional.
_Setting = tuple[str, str, Callable[[SandboxLimits], object], bool]
_SETTINGS: dict[int, tuple[_Setting, ...]] = {
    1: (
        ("memory", "memory.limit_in_bytes", lambda limits: limits.memory_bytes, True),
        ("memory", "memory.memsw.limit_in_bytes", lambda limits: limits.memory_bytes, False),
        ("pids", "pids.max", lambda limits: limits.processes + OWN_PROCESSES, True),
        ("cpu", "cpu.cfs_quota_us", _cpu_quota, True),
    ),
    2: (
        ("memory", "memory.max", lambda limits: limits.memory_bytes, True),
        ("memory", "memory.swap.max", lambda _: 0, False),
        ("pids", "pids.max", lambda limits: limits.processes + OWN_PROCESSES, True),
        ("cpu", "cpu.max", lambda limits: f"{_cpu_quota(limits)} {_CPU_PERIOD_US}", True),
    ),
}
_OOM_FILE = {1: "memory.oom_control", 2: "memory.events"}
_V1_CPU_FILE = "cpuacct.usage"  # beside the others where `cpu,cpuacct` is one hierarchy, as it mostly is
_PEAK_FILE = {1: "memory.max_usage_in_bytes", 2: "memory.peak"}


@dataclass(frozen=True, slots=True)
class Counters:
    """What the kernel counted for one run; None where nothing counts it."""

    oom_kills: int | None = None
    refused_forks: int | None = None
    cpu_ms: int | None = None
    memory_peak_bytes: int | None = None


class Cgroup:
    """One run's group: a directory in every hierarchy."""

    def __init__(self, name: str, hierarchies: tuple[Hierarchy, ...]) -> None:
        self._places = tuple((hierarchy, hierarchy.directory / name) for hierarchy in hierarchies)

    def create(self, limits: SandboxLimits) -> None:
        """Make the directories and set the limits. Raises OSError, leaving nothing behind."""
        try:
            for hierarchy, directory in self._places:
                directory.mkdir()
                for controller, file, value, required in _SETTINGS[hierarchy.version]:
                    if controller in hierarchy.controllers and (required or (directory / file).exists()):
                        (directory / file).write_text(str(value(limits)))
        except OSError:
            self.remove()
            raise

    @property
    def join_files(self) -> list[str]:
        """A process that writes 0 to each of these is in the group."""
        return [str(directory / "cgroup.procs") for _, directory in self._places]

    def counters(self) -> Counters:
        """Read what has been counted so far."""
        values: dict[str, int | None] = {}
        for hierarchy, directory in self._places:
            version = hierarchy.version
            if "memory" in hierarchy.controllers:
                values["oom_kills"] = _field(directory / _OOM_FILE[version], "oom_kill")
                values["memory_peak_bytes"] = _number(directory / _PEAK_FILE[version])
            if "pids" in hierarchy.controllers:
                values["refused_forks"] = _field(directory / "pids.events", "max")
            if version == 2 and (used := _field(directory / "cpu.stat", "usage_usec")) is not None:
                values["cpu_ms"] = used // 1000
            elif "cpu" in hierarchy.controllers and (used := _number(directory / _V1_CPU_FILE)) is not None:
                values.setdefault("cpu_ms", used // 1_000_000)
        return Counters(**values)

    def kill(self) -> None:
        """SIGKILL every process of the group: at once where v2 can, else one by one as they are listed."""
        for hierarchy, directory in self._places:
            if hierarchy.version == 2 and (directory / "cgroup.kill").exists():
                _kill_group(directory)
                return
        for _, directory in self._places:
            for pid in _members(directory):
                _kill_process(pid)

    def remove(self) -> bool:
        """Remove the directories; False while a process is still in one of them."""
        for _, directory in self._places:
            try:
                directory.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                return False
        return True


class Cgroups:
    """The hierarchies of this machine. `limits` names what is truly limited: of memory, pids, cpu."""

    def __init__(self, hierarchies: tuple[Hierarchy, ...]) -> None:
        self.hierarchies = hierarchies
        self.limits = frozenset[str]().union(*(hierarchy.controllers for hierarchy in hierarchies))

    @classmethod
    def detect(cls) -> Cgroups:
        """Find the usable hierarchies; each is tried by making and removing a group."""
        own_groups = Path("/proc/self/cgroup")
        if not own_groups.exists():
            return cls(())
        hierarchies = find_hierarchies(Path("/proc/self/mounts").read_text(), own_groups.read_text())
        return cls(tuple(usable for hierarchy in hierarchies if (usable := _tried(hierarchy)) is not None))

    def describe(self) -> str:
        """Which version of cgroups does what here, for operators."""
        lines = []
        for version in (1, 2):
            own = [hierarchy for hierarchy in self.hierarchies if hierarchy.version == version]
            if limited := sorted(frozenset[str]().union(*(hierarchy.controllers for hierarchy in own))):
                lines.append(f"cgroup v{version} limits {', '.join(limited)}")
            elif own:
                lines.append(f"cgroup v{version} counts CPU time and kills, and limits nothing")
        return "; ".join(lines) or "no cgroup can be made"

    def new(self) -> Cgroup | None:
        """A group with a fresh name, not yet created; None on a machine without usable hierarchies."""
        return Cgroup(next_name(), self.hierarchies) if self.hierarchies else None

    def orphans(self) -> list[Cgroup]:
        """Groups of service processes that are gone."""
        names = {
            entry.name
            for hierarchy in self.hierarchies
            for entry in hierarchy.directory.iterdir()
            if is_orphan(entry.name)
        }
        return [Cgroup(name, self.hierarchies) for name in sorted(names)]


def _tried(hierarchy: Hierarchy) -> Hierarchy | None:
    try:
        usable = delegate(hierarchy)
        trial = Cgroup(next_name(), (usable,))
        trial.create(SandboxLimits())
        trial.remove()
    except OSError as error:
        log.info("cgroup hierarchy %s is not usable: %s", hierarchy.directory, error)
        return None
    return usable if usable.version == 2 or usable.controllers & USED_CONTROLLERS else None


def _field(path: Path, name: str) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.split()[0] == name), None)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except OSError:
        return None


def _kill_group(directory: Path) -> None:
    """A group that vanishes meanwhile is dead: services that start together sweep the same leftovers."""
    try:
        (directory / "cgroup.kill").write_text("1")
    except OSError as error:
        if error.errno not in {errno.ENOENT, errno.ENODEV}:
            raise


def _members(directory: Path) -> list[int]:
    try:
        return [int(pid) for pid in (directory / "cgroup.procs").read_text().split()]
    except OSError:
        return []


def _kill_process(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        log.debug("process %d of a sandbox ended by itself", pid)
