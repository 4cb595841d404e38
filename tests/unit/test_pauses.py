"""The tool that finds tests which depend on a time that is not their law."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from devstack.child_process import freeze
from tests.support.patience import PATIENCE_SECONDS
from tests.support.pauses import children, frozen_descendants, state

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists the children of a process")


def test_pause_leaves_frozen_processes_frozen() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 600 & sleep 600 & wait"]) as shell:
        ends_at = time.monotonic() + PATIENCE_SECONDS
        while len(children(shell.pid)) < 2:
            assert time.monotonic() < ends_at
        asleep, running = children(shell.pid)
        try:
            freeze(asleep)
            assert list(frozen_descendants(shell.pid)) == [running]
            assert (state(asleep), state(running)) == ("T", "T")
        finally:
            for pid in (shell.pid, asleep, running):
                os.kill(pid, signal.SIGKILL)
