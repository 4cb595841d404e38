"""The launcher of a sandbox: each run of a program starts it, so it imports little."""

from __future__ import annotations

import subprocess
import sys

from services.tools.sandbox import launcher

SLOW = {"typing", "re", "enum", "functools", "collections", "signal", "socket", "contextlib"}
"""Some take longer to import than all else that the launcher does."""


def test_the_launcher_imports_nothing_slow() -> None:
    command = [sys.executable, "-I", "-S", "-X", "importtime", launcher.__file__, "--unknown", "option"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, env={})
    *times, refusal = run.stderr.splitlines()
    assert (run.returncode, refusal) == (launcher.FAILED, "sandbox launcher: unknown option --unknown")
    imported = {line.rpartition("|")[2].strip() for line in times}
    assert "ctypes" in imported
    assert not imported & SLOW
