"""The cgroup of a run: limits for all its processes together, the kernel's counters, and the kill.

The names of the cgroup files differ between v1 and v2, their meaning does not; tables map both versions.
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

# The detection of the cgroup hierarchies in which this service may create groups.

USED_CONTROLLERS = frozenset({"memory", "pids", "cpu"})
SERVICE_LEAF = "tenure-service"


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A directory in which groups can be created, and which of USED_CONTROLLERS work in these groups."""

    version: int
    directory: Path
    controllers: frozenset[str]


def find_hierarchies(mounts: str, own_groups: str) -> list[Hierarchy]:
    """Returns the hierarchies to use, from the texts of /proc/self/mounts and /proc/self/cgroup.

    v2 is always listed when it is mounted. Its `controllers` are those that the kernel offers, not yet those that are
    delegated.
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
    """Enables a v2 group's controllers for the groups below it, as far as that is possible.

    Returns the hierarchy with the enabled controllers. v2 refuses controllers below a group that contains processes. If
    the group contains only this service (systemd: Delegate=yes), the service moves to a leaf group beside the
    sandboxes. Processes of other programs are not moved. Raises OSError.
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
    members = (base / "cgroup.procs").read_text().split()
    if members != [own] or not os.access(base, os.W_OK):
        return
    leaf = base / SERVICE_LEAF
    leaf.mkdir(exist_ok=True)
    (leaf / "cgroup.procs").write_text(own)


def _try_write(path: Path, text: str) -> bool:
    """Writes to a kernel file that may refuse the write. The caller reads the file back."""
    try:
        path.write_text(text)
    except OSError:
        return False
    return True


def _own_paths(text: str) -> Iterable[tuple[str, str]]:
    """Yields (controller, path) from /proc/self/cgroup. The v2 line names no controller, so its controller is ''."""
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
    """Returns the directory of the service's own group.

    In a container the path of the group may lie outside of the mount. Then the root of the mount is the own group.
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


# (controller, file, value, whether the file must exist). Swap accounting is a boot option, so its file is optional.
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
_V1_CPU_FILE = "cpuacct.usage"  # exists where `cpu,cpuacct` is one hierarchy, as on most machines
_PEAK_FILE = {1: "memory.max_usage_in_bytes", 2: "memory.peak"}


@dataclass(frozen=True, slots=True)
class Counters:
    """The kernel's counters for one run; None where no cgroup counts.

    `refused_forks`: how often the process limit refused a fork.
    """

    oom_kills: int | None = None
    refused_forks: int | None = None
    cpu_ms: int | None = None
    memory_peak_bytes: int | None = None


class Cgroup:
    """The cgroup of one run: a directory in every hierarchy."""

    def __init__(self, name: str, hierarchies: tuple[Hierarchy, ...]) -> None:
        self._directories = tuple((hierarchy, hierarchy.directory / name) for hierarchy in hierarchies)

    def create(self, limits: SandboxLimits) -> None:
        """Creates the directories and sets the limits. Raises OSError, and removes the directories then."""
        try:
            for hierarchy, directory in self._directories:
                directory.mkdir()
                for controller, file, value, required in _SETTINGS[hierarchy.version]:
                    if controller in hierarchy.controllers and (required or (directory / file).exists()):
                        (directory / file).write_text(str(value(limits)))
        except OSError:
            self.remove()
            raise

    @property
    def join_files(self) -> list[str]:
        """The files to which a process writes 0 to join the group."""
        return [str(directory / "cgroup.procs") for _, directory in self._directories]

    def counters(self) -> Counters:
        """Reads the counters."""
        values: dict[str, int | None] = {}
        for hierarchy, directory in self._directories:
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
        """Sends SIGKILL to every process of the group: at once with v2's cgroup.kill, else one by one."""
        for hierarchy, directory in self._directories:
            if hierarchy.version == 2 and (directory / "cgroup.kill").exists():
                _kill_group(directory)
                return
        for _, directory in self._directories:
            for pid in _members(directory):
                _kill_process(pid)

    def remove(self) -> bool:
        """Removes the directories. Returns False while one of them still has a process."""
        for _, directory in self._directories:
            try:
                directory.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                return False
        return True


class Cgroups:
    """The usable hierarchies of this machine. `limits`: those of memory, pids and cpu that a hierarchy limits."""

    def __init__(self, hierarchies: tuple[Hierarchy, ...]) -> None:
        self.hierarchies = hierarchies
        self.limits = frozenset[str]().union(*(hierarchy.controllers for hierarchy in hierarchies))

    @classmethod
    def detect(cls) -> Cgroups:
        """Finds the usable hierarchies. Creates and removes a group in each to test it."""
        own_groups = Path("/proc/self/cgroup")
        if not own_groups.exists():
            return cls(())
        hierarchies = find_hierarchies(Path("/proc/self/mounts").read_text(), own_groups.read_text())
        return cls(tuple(usable for hierarchy in hierarchies if (usable := _usable(hierarchy)) is not None))

    def describe(self) -> str:
        """Returns one line for operators: what each version of cgroups limits on this machine."""
        lines = []
        for version in (1, 2):
            own = [hierarchy for hierarchy in self.hierarchies if hierarchy.version == version]
            if limited := sorted(frozenset[str]().union(*(hierarchy.controllers for hierarchy in own))):
                lines.append(f"cgroup v{version} limits {', '.join(limited)}")
            elif own:
                lines.append(f"cgroup v{version} counts CPU time and kills, and limits nothing")
        return "; ".join(lines) or "no cgroup can be made"

    def new(self) -> Cgroup | None:
        """Returns a cgroup with a new name that is not created yet; None on a machine without usable hierarchies."""
        return Cgroup(next_name(), self.hierarchies) if self.hierarchies else None

    def orphans(self) -> list[Cgroup]:
        """Returns the cgroups of service processes that have ended."""
        names = {
            entry.name
            for hierarchy in self.hierarchies
            for entry in hierarchy.directory.iterdir()
            if is_orphan(entry.name)
        }
        return [Cgroup(name, self.hierarchies) for name in sorted(names)]


def _usable(hierarchy: Hierarchy) -> Hierarchy | None:
    try:
        usable = delegate(hierarchy)
        trial = Cgroup(next_name(), (usable,))
        trial.create(SandboxLimits())
        trial.remove()
    except OSError as error:
        log.info("cgroup hierarchy %s is not usable, the sandbox works without it: %s", hierarchy.directory, error)
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
    """Kills a v2 group. A missing group is not an error: services that start at the same time sweep the same groups."""
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
        log.debug("process %d of a sandbox ended before it was killed", pid)
