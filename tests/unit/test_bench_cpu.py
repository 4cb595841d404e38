"""Processor time by process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from bench import cpu

BUSY = "import time\nwhile time.process_time() < 0.3: pass\nprint('done', flush=True)\ninput()"
pytestmark = pytest.mark.skipif(not cpu.AVAILABLE, reason="this system has no /proc")


def busy_process(program: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_what_a_process_used_is_its_own_and_its_childrens_time() -> None:
    parent = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BUSY!r}])"
    process = busy_process(parent)
    used = cpu.cpu_seconds(process.pid)
    process.communicate(b"\n")
    assert 0.25 < used < 5


def test_a_process_that_is_gone_uses_nothing() -> None:
    process = busy_process(BUSY)
    process.communicate(b"\n")
    assert cpu.cpu_seconds(process.pid) == 0


def test_a_meter_separates_our_own_cpu_time() -> None:
    process = busy_process(BUSY)
    meter = cpu.CpuMeter({"idle": process.pid}, own="us")
    meter.start()
    began = sum(os.times()[:2])
    while sum(os.times()[:2]) - began < 0.2:
        pass
    used = meter.used_seconds()
    process.communicate(b"\n")
    assert used["us"] >= 0.2
    assert used["idle"] < 0.05


def test_where_the_system_tells_nothing_the_meter_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "AVAILABLE", False)
    meter = cpu.CpuMeter({"us": os.getpid()}, own="bench")
    meter.start()
    assert meter.used_seconds() == {}
