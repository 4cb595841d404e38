"""Finding the cgroup hierarchies in which this service may make groups of its own.

Three kinds of machines: v1 controllers, v2 alone, and hybrid ones with v1 controllers beside a v2 tree that counts
CPU time and kills whole groups but limits nothing. Groups are made below the service's own, so that whatever bounds
the service from outside bounds its sandboxes too.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

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
    found: list[Hierarchy] = []
    claimed: set[str] = set()
    for mount_point, kind, options in _cgroup_mounts(mounts):
        if kind == "cgroup2":
            base = _below(mount_point, own.get("", "/"))
            base = base.parent if base.name == SERVICE_LEAF else base
            found.append(Hierarchy(2, base, _offered(base) & USED_CONTROLLERS))
        elif controllers := (options & USED_CONTROLLERS) - claimed:
            claimed |= controllers
            base = _below(mount_point, own.get(min(controllers), "/"))
            found.append(Hierarchy(1, base, frozenset(controllers)))
    return found


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
