"""Where bubblewrap finds things once it runs under a uid that may not enter the service's directories.

A service that is root often lives where nobody else may look: a virtual environment or an interpreter below /root,
workspaces below a private data directory. What the uid cannot reach, the launcher binds into a directory it can
reach, in a mount namespace of its own; on the host that directory stays empty.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from services.tools.sandbox.command import View
from services.tools.sandbox.detection import Detection, Executable, is_reachable, is_visible
from services.tools.sandbox.limits import SandboxUnavailable
from services.tools.sandbox.process import remove_cgroup
from services.tools.sandbox.procfs import instance_name, is_orphan

_BUBBLEWRAP, _PREFIX, _WORKSPACE = "bubblewrap", "prefix", "workspace"
_COMMON_PLACES = ("/run", "/tmp", "/var/tmp")  # noqa: S108  # a fresh private directory is made inside


@dataclass(frozen=True, slots=True)
class Placement:
    """Paths for bubblewrap, and the binds the launcher must make first."""

    view: View
    binds: list[tuple[Path, Path]]


class Stage:
    """A directory of empty mount points that any uid can reach. Needed by a service that is root only.

    Also where the files are that programs of sandboxes started ahead are written to, without mount points then.
    """

    def __init__(self, names: Sequence[str] = (_BUBBLEWRAP, _PREFIX, _WORKSPACE)) -> None:
        parent = next(
            (place for place in self.places() if is_reachable(place / "x") and os.access(place, os.W_OK)), None
        )
        if parent is None:
            raise SandboxUnavailable("no directory for temporary files that an unprivileged uid can reach")
        self.path = Path(tempfile.mkdtemp(prefix=f"{instance_name()}-", dir=parent))
        self._points: dict[Path, Path] = {}
        for name in names:
            (self.path / name).mkdir(mode=0o711)
        self.path.chmod(0o711)

    def point(self, source: Path) -> Path:
        """A mount point for this file or directory, the same each time."""
        point = self._points.get(source)
        if point is None:
            point = self._points[source] = self.path / f"path-{len(self._points)}"
            if source.is_dir():
                point.mkdir(mode=0o711)
            else:
                point.touch(mode=0o644)
        return point

    @staticmethod
    def places() -> list[Path]:
        """Where a stage may be, ours and that of a service which died."""
        return [place for place in map(Path, (tempfile.gettempdir(), *_COMMON_PLACES)) if place.is_dir()]

    def remove(self) -> None:
        """Remove the directory; what was bound into it existed in the launchers' namespaces only."""
        shutil.rmtree(self.path)


def remove_orphaned_stages() -> int:
    """Remove the stages of service processes that are gone; other users' look-alikes are left alone."""
    removed = 0
    for place in dict.fromkeys(Stage.places()):
        for entry in place.iterdir():
            if is_orphan(entry.name) and _is_own_directory(entry):
                # Services that start together are at the same leftovers: what is gone meanwhile was removed by another.
                shutil.rmtree(entry, ignore_errors=True)
                removed += not entry.exists()
    return removed


def _is_own_directory(entry: Path) -> bool:
    try:
        status = entry.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


Binds = list[tuple[Path, Path]]


def show(paths: Sequence[Path], stage: Stage | None) -> tuple[Binds, Binds]:
    """Paths that a program shall see where they are: pairs for bubblewrap, and what the launcher must bind first."""
    pairs: Binds = []
    binds: Binds = []
    for path in paths:
        if stage is None or (is_reachable(path) and path.stat().st_mode & stat.S_IROTH):
            pairs.append((path, path))
        else:
            point = stage.point(path)
            binds.append((path, point))
            pairs.append((point, path))
    return pairs, binds


def place(bubblewrap: Executable, interpreter: Executable, workspace: Path | None, stage: Stage | None) -> Placement:
    """Decide for each thing whether it is seen where it is or through the stage."""
    binds: list[tuple[Path, Path]] = []

    def through(source: Path, name: str, *, visible: bool) -> Path:
        if stage is None or visible:
            return source
        binds.append((source, stage.path / name))
        return stage.path / name

    home = through(bubblewrap.home, _BUBBLEWRAP, visible=is_visible(bubblewrap))
    prefix = None
    if not interpreter.home.is_relative_to("/usr"):
        prefix = through(interpreter.home, _PREFIX, visible=is_visible(interpreter))
    if workspace is not None:
        workspace = workspace.absolute()
        workspace = through(workspace, _WORKSPACE, visible=is_reachable(workspace))
    view = View(
        bubblewrap=home / bubblewrap.path.relative_to(bubblewrap.home),
        interpreter=interpreter.path,
        prefix_source=prefix,
        prefix=interpreter.home,
        workspace=workspace,
    )
    return Placement(view, binds)


# Removing what service processes left behind when they died.

log = logging.getLogger(__name__)


async def sweep(detection: Detection) -> int:
    """Kill and remove what service processes of this pid namespace left behind when they died; how many things."""
    swept = await asyncio.to_thread(remove_orphaned_stages)
    for orphan in detection.cgroups.orphans():
        if await remove_cgroup(orphan):
            swept += 1
        else:
            log.error("a dead instance's cgroup cannot be removed: %s", orphan.join_files[0])
    if swept:
        log.warning("removed %d leftovers of a sandbox whose service died", swept)
    return swept
