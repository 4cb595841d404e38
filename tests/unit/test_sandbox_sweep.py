"""Services that start together find the same leftovers of a dead one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from services.tools.sandbox import placement
from services.tools.sandbox.procfs import instance_name, is_orphan


def test_several_sweeps_of_the_same_leftovers_all_succeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    *kept, started = instance_name().split("-")
    dead = "-".join([*kept, str(int(started) - 1)])
    assert is_orphan(f"{dead}-0")
    monkeypatch.setattr(placement.Stage, "places", staticmethod(lambda: [tmp_path]))
    for number in range(300):
        for name in ("bubblewrap", "prefix", "workspace"):
            (tmp_path / f"{dead}-{number}" / name).mkdir(parents=True)
    with ThreadPoolExecutor(4) as pool:
        sweeps = [pool.submit(placement.remove_orphaned_stages) for _ in range(4)]
        for sweep in sweeps:
            sweep.result()
    assert not any(tmp_path.iterdir())
