"""Chooses the paths that bubblewrap mounts, and makes unreachable paths reachable for a run's uid.

A service that runs as root often has files that other uids cannot reach: a virtual environment or an interpreter below
/root, workspaces below a private data directory. The launcher binds such paths into the stage, a directory that every
uid can reach, in a mount namespace of its own. On the host the stage contains only empty mount points.
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
_COMMON_DIRECTORIES = ("/run", "/tmp", "/var/tmp")  # noqa: S108  # a fresh private directory is made inside


@dataclass(frozen=True, slots=True)
class Placement:
    """The paths for bubblewrap, and the binds (source, target) that the launcher must make first."""

    view: View
    binds: list[tuple[Path, Path]]


class Stage:
    """A directory of empty mount points that every uid can reach. Only a service that runs as root needs it.

    Warm sandboxes use another stage, without mount points, for the files into which their programs are written.
    Raises SandboxUnavailable when there is no such directory.
    """

    def __init__(self, names: Sequence[str] = (_BUBBLEWRAP, _PREFIX, _WORKSPACE)) -> None:
        parent = next((path for path in self.places() if is_reachable(path / "x") and os.access(path, os.W_OK)), None)
        if parent is None:
            raise SandboxUnavailable(
                "none of the directories TMPDIR, /run, /tmp and /var/tmp is writable for the service and reachable for "
                "other users; let all users enter one of them"
            )
        self.path = Path(tempfile.mkdtemp(prefix=f"{instance_name()}-", dir=parent))
        self._points: dict[Path, Path] = {}
        for name in names:
            (self.path / name).mkdir(mode=0o711)
        self.path.chmod(0o711)

    def point(self, source: Path) -> Path:
        """Returns the mount point for this file or directory, and creates it at the first call."""
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
        """Returns the directories in which this service, or a service that died, may have created a stage."""
        return [path for path in map(Path, (tempfile.gettempdir(), *_COMMON_DIRECTORIES)) if path.is_dir()]

    def remove(self) -> None:
        """Removes the directory. It is safe because the binds exist only in the launchers' mount namespaces."""
        shutil.rmtree(self.path)


def remove_orphaned_stages() -> int:
    """Removes the stages of service processes that died, but no other user's directories. Returns their number."""
    removed = 0
    for directory in dict.fromkeys(Stage.places()):
        for entry in directory.iterdir():
            if is_orphan(entry.name) and _is_own_directory(entry):
                # Services that start at the same time remove the same leftovers, so an entry may already be gone.
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
    """Mounts host paths at the same paths in the sandbox.

    Returns the pairs (source, path in the sandbox) for bubblewrap, and the binds that the launcher must make first.
    Raises OSError for a missing path.
    """
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


def choose_paths(
    bubblewrap: Executable, interpreter: Executable, workspace: Path | None, stage: Stage | None
) -> Placement:
    """Decides for bubblewrap, the interpreter and the workspace whether they are reachable or need the stage."""
    binds: list[tuple[Path, Path]] = []

    def reachable_path(source: Path, name: str, *, visible: bool) -> Path:
        if stage is None or visible:
            return source
        binds.append((source, stage.path / name))
        return stage.path / name

    home = reachable_path(bubblewrap.home, _BUBBLEWRAP, visible=is_visible(bubblewrap))
    prefix = None
    if not interpreter.home.is_relative_to("/usr"):
        prefix = reachable_path(interpreter.home, _PREFIX, visible=is_visible(interpreter))
    if workspace is not None:
        workspace = workspace.absolute()
        workspace = reachable_path(workspace, _WORKSPACE, visible=is_reachable(workspace))
    view = View(
        bubblewrap=home / bubblewrap.path.relative_to(bubblewrap.home),
        interpreter=interpreter.path,
        prefix_source=prefix,
        prefix=interpreter.home,
        workspace=workspace,
    )
    return Placement(view, binds)


# The removal of the leftovers of service processes that died.

log = logging.getLogger(__name__)


async def sweep(detection: Detection) -> int:
    """Removes the cgroups and stages of dead services of this pid namespace, and kills what runs in the cgroups.

    Returns their number.
    """
    removed = await asyncio.to_thread(remove_orphaned_stages)
    for orphan in detection.cgroups.orphans():
        if await remove_cgroup(orphan):
            removed += 1
        else:
            log.error(
                "a dead service's cgroup cannot be removed, because a process in it does not end: %s",
                orphan.join_files[0],
            )
    if removed:
        log.warning("removed %d cgroups and directories of dead services", removed)
    return removed
