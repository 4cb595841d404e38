"""The rule that names a run's end."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from services.tools.sandbox.limits import SandboxLimits
from services.tools.sandbox.result import Evidence, SandboxStatus, explain, last_line, run_status

ENDED_WELL = Evidence(
    stopped=None, exit_code=0, oom_kills=0, refused_forks=0, cpu_ms=20, cpu_limit_ms=1000.0, last_output=""
)


def verdict(**changes: Any) -> SandboxStatus:
    return run_status(dataclasses.replace(ENDED_WELL, **changes))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, SandboxStatus.OK),
        ({"exit_code": 1}, SandboxStatus.NONZERO),
        ({"exit_code": 137}, SandboxStatus.NONZERO),
        ({"exit_code": 137, "oom_kills": 1}, SandboxStatus.OUT_OF_MEMORY),
        ({"exit_code": None, "oom_kills": 1}, SandboxStatus.OUT_OF_MEMORY),
        ({"exit_code": 1, "refused_forks": 3}, SandboxStatus.TOO_MANY_PROCESSES),
        ({"exit_code": 152, "cpu_ms": 990}, SandboxStatus.TIMEOUT),
        ({"exit_code": 137, "cpu_ms": 1990}, SandboxStatus.TIMEOUT),
        ({"exit_code": None}, SandboxStatus.SANDBOX_ERROR),
    ],
)
def test_kernel_counters_decide_the_status(changes: dict[str, object], expected: SandboxStatus) -> None:
    assert verdict(**changes) is expected


@pytest.mark.parametrize("reason", [SandboxStatus.TIMEOUT, SandboxStatus.CANCELLED, SandboxStatus.OUTPUT_LIMIT])
def test_action_of_the_supervisor_decides_the_status(reason: SandboxStatus) -> None:
    assert verdict(stopped=reason, exit_code=None, oom_kills=1, refused_forks=5) is reason


def test_a_program_that_coped_with_a_limit_is_ok() -> None:
    assert verdict(exit_code=0, oom_kills=2, refused_forks=7) is SandboxStatus.OK


def test_an_imitated_cpu_limit_exit_is_not_believed() -> None:
    assert verdict(exit_code=152, cpu_ms=30) is SandboxStatus.NONZERO


@pytest.mark.parametrize(
    ("last_output", "expected"),
    [
        ("MemoryError", SandboxStatus.OUT_OF_MEMORY),
        ("BlockingIOError: [Errno 11] Resource temporarily unavailable", SandboxStatus.TOO_MANY_PROCESSES),
        ("RuntimeError: can't start new thread", SandboxStatus.TOO_MANY_PROCESSES),
        ("ValueError: MemoryError", SandboxStatus.NONZERO),
    ],
)
def test_last_output_decides_without_counters(last_output: str, expected: SandboxStatus) -> None:
    assert verdict(exit_code=1, oom_kills=None, refused_forks=None, cpu_ms=None, last_output=last_output) is expected


def test_last_output_is_ignored_with_counters() -> None:
    assert verdict(exit_code=1, last_output="MemoryError") is SandboxStatus.NONZERO


def test_without_a_cpu_counter_only_the_signal_counts() -> None:
    assert verdict(exit_code=152, cpu_ms=None) is SandboxStatus.TIMEOUT
    assert verdict(exit_code=137, cpu_ms=None) is SandboxStatus.NONZERO


def test_every_other_end_has_a_message() -> None:
    silent = {status for status in SandboxStatus if not explain(status, SandboxLimits(), "bwrap: no")}
    assert silent == {SandboxStatus.OK, SandboxStatus.NONZERO}


def test_last_line_is_not_blank() -> None:
    assert last_line("Traceback\n  at 1\nMemoryError\n\n  \n") == "MemoryError"
    assert last_line("\n") == ""


@pytest.mark.parametrize(
    "field", ["memory_bytes", "processes", "wall_seconds", "output_bytes", "open_files", "file_bytes"]
)
def test_limits_under_which_nothing_runs_are_refused(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        SandboxLimits(**{field: 0})
