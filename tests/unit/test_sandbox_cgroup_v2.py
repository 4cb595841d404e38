"""Machines with cgroup v2 alone, simulated: a tree of files that answers to writes as the kernel's does.

The laws of the kernel that matter here: a group that holds processes hands no controllers down; a process is in one
group at a time; a group has the files of the controllers that its parent handed down; only what is there can be handed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.tools.sandbox import SandboxLimits, SandboxSettings, cgroups, detection
from services.tools.sandbox.cgroups import SERVICE_LEAF, Cgroup, Cgroups, find_hierarchies

pytestmark = pytest.mark.skipif(not Path("/proc/self/ns/pid").exists(), reason="cgroups are a thing of Linux")

_FILES = {
    "memory": ("memory.max", "memory.swap.max", "memory.events", "memory.peak"),
    "pids": ("pids.max", "pids.events"),
    "cpu": ("cpu.max",),
    "io": ("io.max",),
}
_EMPTY = {"memory.events": "oom_kill 0\n", "pids.events": "max 0\n", "memory.peak": "0\n"}


class KernelV2:
    """A mounted v2 tree. `is_read_only`: as most containers see it."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, *, lacking: tuple[str, ...] = ()) -> None:
        self.root, self._lacking, self.is_read_only = root, lacking, False
        self._write, self._mkdir, self._rmdir = Path.write_text, Path.mkdir, Path.rmdir
        root.mkdir()
        self._furnish(root, set(_FILES))
        for name, own in (("write_text", self._written), ("mkdir", self._made), ("rmdir", self._removed)):
            monkeypatch.setattr(Path, name, _as_method(own))

    def group(self, path: str, *, controllers: set[str], processes: tuple[int, ...]) -> Path:
        """A group that was there before."""
        group = self.root / path
        self._mkdir(group, parents=True, exist_ok=True)
        self._furnish(group, controllers)
        self._write(group / "cgroup.procs", "".join(f"{pid}\n" for pid in processes))
        return group

    def detected(self, monkeypatch: pytest.MonkeyPatch, own: str) -> Cgroups:
        """What a service finds that is in the group `own`."""
        hierarchies = find_hierarchies(f"cgroup2 {self.root} cgroup2 rw 0 0\n", f"0::{own}\n")
        monkeypatch.setattr(cgroups, "find_hierarchies", lambda *_: hierarchies)
        return Cgroups.detect()

    def _furnish(self, group: Path, controllers: set[str]) -> None:
        contents = {"cgroup.controllers": " ".join(sorted(controllers)), "cgroup.subtree_control": ""}
        contents |= {"cgroup.procs": "", "cgroup.kill": "", "cpu.stat": "usage_usec 0\n"}
        for controller in controllers:
            contents |= {name: _EMPTY.get(name, "max\n") for name in _FILES[controller] if name not in self._lacking}
        for name, content in contents.items():
            if name not in self._lacking:
                self._write(group / name, content)

    def _is_ours(self, path: Path) -> bool:
        return path.is_relative_to(self.root)

    def _made(self, path: Path, *given: object, **named: object) -> None:
        if not self._is_ours(path):
            return self._mkdir(path, *given, **named)  # type: ignore[arg-type]  # as it was called
        self._refuse_if_read_only()
        self._mkdir(path, exist_ok=bool(named.get("exist_ok")))
        self._furnish(path, set((path.parent / "cgroup.subtree_control").read_text().split()))
        return None

    def _removed(self, path: Path) -> None:
        if self._is_ours(path):
            if (path / "cgroup.procs").read_text():
                raise OSError(errno.EBUSY, "the group holds processes")
            for file in path.iterdir():
                file.unlink()
        self._rmdir(path)

    def _written(self, path: Path, text: str) -> int:
        if self._is_ours(path):
            self._refuse_if_read_only()
            if not path.exists():
                raise OSError(errno.EACCES, f"{path.name} is not a file of this group")
            if path.name == "cgroup.procs":
                return self._moved(path, text)
            if path.name == "cgroup.subtree_control":
                text = self._handed_down(path.parent, text)
        return self._write(path, text)

    def _moved(self, path: Path, pid: str) -> int:
        for file in self.root.rglob("cgroup.procs"):
            self._write(file, "".join(f"{one}\n" for one in file.read_text().split() if one != pid))
        return self._write(path, path.read_text() + f"{pid}\n")

    def _handed_down(self, group: Path, wanted: str) -> str:
        controller = wanted.removeprefix("+")
        if (group / "cgroup.procs").read_text():
            raise OSError(errno.EBUSY, "the group holds processes")
        if controller not in (group / "cgroup.controllers").read_text().split():
            raise OSError(errno.ENOENT, f"{controller} is not offered here")
        return " ".join(sorted({*(group / "cgroup.subtree_control").read_text().split(), controller}))

    def _refuse_if_read_only(self) -> None:
        if self.is_read_only:
            raise OSError(errno.EROFS, "read-only file system")


def _as_method(own: Callable[..., Any]) -> Callable[..., Any]:
    """What a class hands its instances to: a bound method would not be given the path."""

    def method(path: Path, *given: object, **named: object) -> Any:
        return own(path, *given, **named)

    return method


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KernelV2:
    return KernelV2(tmp_path / "cgroup", monkeypatch)


OWN = "/system.slice/tenure-tools.service"
ALL = {"memory", "pids", "cpu", "io"}


def made(groups: Cgroups, limits: SandboxLimits) -> tuple[Cgroup, Path]:
    cgroup = groups.new()
    assert cgroup is not None
    cgroup.create(limits)
    (procs,) = cgroup.join_files
    return cgroup, Path(procs).parent


def test_a_service_alone_in_its_group_limits_everything(kernel: KernelV2, monkeypatch: pytest.MonkeyPatch) -> None:
    base = kernel.group(OWN[1:], controllers=ALL, processes=(os.getpid(),))
    result = kernel.detected(monkeypatch, OWN)
    assert result.describe() == "cgroup v2 limits cpu, memory, pids"
    assert (base / SERVICE_LEAF / "cgroup.procs").read_text() == f"{os.getpid()}\n"
    cgroup, directory = made(result, SandboxLimits(memory_bytes=64 << 20, processes=5, cpu_percent=50))
    assert directory.parent == base
    written = {
        name: (directory / name).read_text() for name in ("memory.max", "memory.swap.max", "pids.max", "cpu.max")
    }
    assert written == {
        "memory.max": str(64 << 20),
        "memory.swap.max": "0",
        "pids.max": "6",
        "cpu.max": "50000 100000",
    }
    assert cgroup.remove()
    assert not directory.exists()


def test_a_restarted_service_finds_its_cgroup(kernel: KernelV2, monkeypatch: pytest.MonkeyPatch) -> None:
    base = kernel.group(OWN[1:], controllers=ALL, processes=(os.getpid(),))
    before = kernel.detected(monkeypatch, OWN)
    again = kernel.detected(monkeypatch, f"{OWN}/{SERVICE_LEAF}")
    assert again.hierarchies == before.hierarchies
    assert again.hierarchies[0].directory == base


def test_beside_another_process_nothing_is_limited(kernel: KernelV2, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container whose init is not the service: its processes are not ours to move."""
    base = kernel.group(OWN[1:], controllers=ALL, processes=(1, os.getpid()))
    result = kernel.detected(monkeypatch, OWN)
    assert result.describe() == "cgroup v2 counts CPU time and kills, and limits nothing"
    assert (base / "cgroup.procs").read_text() == f"1\n{os.getpid()}\n"
    monkeypatch.setattr(Cgroups, "detect", classmethod(lambda _: result))
    response = detection.detect(SandboxSettings())
    assert any("memory is limited for each process" in sentence for sentence in response.weakened)
    strict = detection.detect(SandboxSettings(require_cgroup=True))
    assert any("no usable one limits memory and pids" in sentence for sentence in strict.missing)


def test_absent_controllers_are_reported_as_not_limited(kernel: KernelV2, monkeypatch: pytest.MonkeyPatch) -> None:
    """systemd hands a user's services memory and pids, and cpu only when it is asked to."""
    kernel.group(OWN[1:], controllers={"memory", "pids"}, processes=(os.getpid(),))
    result = kernel.detected(monkeypatch, OWN)
    assert result.describe() == "cgroup v2 limits memory, pids"
    made(result, SandboxLimits())


def test_a_tree_that_cannot_be_written_to_is_not_used(kernel: KernelV2, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel.group(OWN[1:], controllers=ALL, processes=(os.getpid(),))
    kernel.is_read_only = True
    assert kernel.detected(monkeypatch, OWN).describe() == "no cgroup can be made"


def test_an_older_kernel_lacks_files_and_is_used_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """memory.peak came with 5.19, cgroup.kill with 5.14; memory.swap.max is not there without swap accounting."""
    old = KernelV2(tmp_path / "cgroup", monkeypatch, lacking=("memory.peak", "cgroup.kill", "memory.swap.max"))
    old.group(OWN[1:], controllers=ALL, processes=(os.getpid(),))
    cgroup, directory = made(old.detected(monkeypatch, OWN), SandboxLimits())
    counted = cgroup.counters()
    assert (counted.oom_kills, counted.memory_peak_bytes, counted.cpu_ms) == (0, None, 0)
    assert not (directory / "memory.swap.max").exists()
    cgroup.kill()  # process by process, of which it has none


def test_group_is_killed_by_one_write(kernel: KernelV2, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel.group(OWN[1:], controllers=ALL, processes=(os.getpid(),))
    cgroup, directory = made(kernel.detected(monkeypatch, OWN), SandboxLimits())
    cgroup.kill()
    assert (directory / "cgroup.kill").read_text() == "1"
