"""The section scale of the bench counts takeovers, repeated effects and faults as it says."""

from __future__ import annotations

import json
from pathlib import Path

from bench.options import Options, Size
from bench.scale import RESTARTED, plan_of
from bench.scale_ledger import Start, repeated_lines, takeovers
from devstack.simulator.scenario import load_scenario
from tenure.domain.states import Reason


def test_a_takeover_counts_from_the_last_kill_before_it() -> None:
    lost = Start(Reason.WORKER_LOST, 20.5, 22.0)
    measured = takeovers([lost, Start(Reason.SUBMITTED, 20.5, 30.0)], kills=[10.0, 20.0, 25.0])
    assert (measured.from_kill, measured.from_detection) == ([2.0], [1.5])


def test_a_task_lost_long_after_a_kill_is_no_takeover() -> None:
    assert takeovers([Start(Reason.LEASE_EXPIRED, 60.0, 61.0)], kills=[10.0]).from_kill == []
    assert takeovers([Start(Reason.WORKER_LOST, 5.0, 6.0)], kills=[10.0]).from_kill == []


def test_lines_with_the_same_key_are_repeated_effects(tmp_path: Path) -> None:
    lines = {"a": ["1.0", "2.0", "1.0"], "b": ["1.0"]}
    for name, keys in lines.items():
        path = tmp_path / "default" / f"{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps({"key": key}) + "\n" for key in keys))
    assert repeated_lines(tmp_path) == 1


def test_each_size_has_kills_and_one_restart_of_each_service(tmp_path: Path) -> None:
    for size in Size:
        plan = plan_of(Options(tmp_path, size, print))
        names = [name for _, name in plan.faults]
        assert sorted(name for name in names if name != "worker") == sorted(RESTARTED)
        assert "worker" in names
        assert max(at for at, _ in plan.faults) < plan.seconds


def test_no_restart_is_close_to_a_kill(tmp_path: Path) -> None:
    for size in (Size.QUICK, Size.FULL):
        faults = plan_of(Options(tmp_path, size, print)).faults
        kills = [at for at, name in faults if name == "worker"]
        assert min(abs(at - kill) for at, name in faults if name != "worker" for kill in kills) >= 5.0


def test_half_of_the_scenarios_begin_with_a_person(tmp_path: Path) -> None:
    files = plan_of(Options(tmp_path, Size.FULL, print)).mix.scenario_files(tmp_path / "scenarios")
    first = [load_scenario(file).turn(0).calls[0].name for file in files]
    assert sorted(first) == ["append_record"] * 3 + ["ask_user"] * 3
