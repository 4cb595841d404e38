"""Which cgroups are used, read from the texts that v1, v2 and hybrid machines give."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from services.tools.sandbox.cgroups import (
    SERVICE_LEAF,
    Cgroup,
    Hierarchy,
    delegate,
    find_hierarchies,
)
from services.tools.sandbox.limits import SandboxLimits

linux_only = pytest.mark.skipif(not Path("/proc/self/ns/pid").exists(), reason="cgroups are a thing of Linux")


def make_v2(base: Path, *, offered: str, enabled: str = "", processes: str = "") -> Path:
    """A directory with the files a v2 group has; the kernel's behaviour behind them is not imitated."""
    base.mkdir(parents=True, exist_ok=True)
    (base / "cgroup.controllers").write_text(offered)
    (base / "cgroup.subtree_control").write_text(enabled)
    (base / "cgroup.procs").write_text(processes)
    return base


def test_a_hybrid_machine_limits_by_v1_and_counts_by_v2(tmp_path: Path) -> None:
    for name in ("memory/own", "pids", "cpu", "unified"):
        (tmp_path / name).mkdir(parents=True)
    make_v2(tmp_path / "unified", offered="hugetlb")
    mounts = "".join(f"cgroup {tmp_path}/{name} cgroup rw,relatime,{name} 0 0\n" for name in ("memory", "pids", "cpu"))
    mounts += f"cgroup2 {tmp_path}/unified cgroup2 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n"
    hierarchies = find_hierarchies(mounts, "9:name=systemd:/\n4:memory:/own\n8:pids:/\n1:cpu:/\n0::/\n")
    assert hierarchies == [
        Hierarchy(1, tmp_path / "memory" / "own", frozenset({"memory"})),
        Hierarchy(1, tmp_path / "pids", frozenset({"pids"})),
        Hierarchy(1, tmp_path / "cpu", frozenset({"cpu"})),
        Hierarchy(2, tmp_path / "unified", frozenset()),
    ]


def test_groups_are_made_below_the_services_own(tmp_path: Path) -> None:
    own = make_v2(tmp_path / "system.slice" / "tenure.service", offered="cpu memory pids io")
    hierarchies = find_hierarchies(f"cgroup2 {tmp_path} cgroup2 rw 0 0\n", "0::/system.slice/tenure.service\n")
    assert hierarchies == [Hierarchy(2, own, frozenset({"cpu", "memory", "pids"}))]


def test_a_service_moved_to_its_leaf_finds_the_group_above_it(tmp_path: Path) -> None:
    own = make_v2(tmp_path / "tenure.service", offered="memory pids")
    (own / SERVICE_LEAF).mkdir()
    hierarchies = find_hierarchies(f"cgroup2 {tmp_path} cgroup2 rw 0 0\n", f"0::/tenure.service/{SERVICE_LEAF}\n")
    assert hierarchies[0].directory == own


@pytest.mark.parametrize("path", ["/docker/0123", "/../../elsewhere"])
def test_a_path_that_is_not_mounted_here_falls_back_to_the_mount(tmp_path: Path, path: str) -> None:
    make_v2(tmp_path, offered="memory pids")
    assert find_hierarchies(f"cgroup2 {tmp_path} cgroup2 rw 0 0\n", f"0::{path}\n")[0].directory == tmp_path


def test_controllers_that_are_delegated_already_are_used(tmp_path: Path) -> None:
    base = make_v2(tmp_path / "own", offered="cpu memory pids", enabled="memory pids cpu")
    offered = Hierarchy(2, base, frozenset({"cpu", "memory", "pids"}))
    assert delegate(offered) == offered


def test_other_peoples_processes_are_not_moved(tmp_path: Path) -> None:
    base = make_v2(tmp_path / "own", offered="memory pids", processes=f"{os.getpid()}\n1\n")
    delegate(Hierarchy(2, base, frozenset({"memory", "pids"})))
    assert not (base / SERVICE_LEAF).exists()


def test_a_service_alone_in_its_group_moves_to_a_leaf(tmp_path: Path) -> None:
    base = make_v2(tmp_path / "own", offered="memory pids", processes=f"{os.getpid()}\n")
    delegate(Hierarchy(2, base, frozenset({"memory", "pids"})))
    assert (base / SERVICE_LEAF / "cgroup.procs").read_text() == str(os.getpid())


def test_v2_limits_have_the_names_of_v2(tmp_path: Path) -> None:
    hierarchy = Hierarchy(2, tmp_path, frozenset({"memory", "pids", "cpu"}))
    Cgroup("run", (hierarchy,)).create(SandboxLimits(memory_bytes=64 << 20, processes=5, cpu_percent=50))
    written = {path.name: path.read_text() for path in (tmp_path / "run").iterdir()}
    assert written == {"memory.max": str(64 << 20), "pids.max": "6", "cpu.max": "50000 100000"}


def test_v2_counters_have_the_names_of_v2(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / "memory.events").write_text("low 0\nmax 12\noom 1\noom_kill 1\n")
    (directory / "memory.peak").write_text("4096\n")
    (directory / "pids.events").write_text("max 3\n")
    (directory / "cpu.stat").write_text("usage_usec 2500\nuser_usec 2000\n")
    counters = Cgroup("run", (Hierarchy(2, tmp_path, frozenset({"memory", "pids", "cpu"})),)).counters()
    assert (counters.oom_kills, counters.refused_forks) == (1, 3)
    assert (counters.cpu_ms, counters.memory_peak_bytes) == (2, 4096)


@linux_only
def test_only_groups_of_dead_instances_are_orphans() -> None:
    from services.tools.sandbox.procfs import instance_name, is_orphan

    own = instance_name()
    namespace, pid, started = own.removeprefix("tenure-sandbox-").split("-")
    assert not is_orphan(f"{own}-7")
    assert is_orphan(f"tenure-sandbox-{namespace}-{pid}-{int(started) - 1}-7")
    assert not is_orphan(f"tenure-sandbox-{int(namespace) + 1}-{pid}-{int(started) - 1}-7")
    assert not is_orphan("somebody-elses-group")
