"""The bound of a workspace holds for files without a name, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.tools.sandbox import Sandbox, SandboxLimits, SandboxStatus
from services.tools.sandbox.limits import MIB
from tests.patience import PATIENCE_SECONDS

FILL = """
import os, time
def hide(name):
    fd = os.open(name, os.O_RDWR | os.O_CREAT)
    os.unlink(name)
    os.write(fd, bytes(1 << 20))
    return fd
kept = []
for number in range(1000):
    kept.append(hide(f"f{number}") if number % 2 else hide(f"g{number}"))
    time.sleep(0.01)
"""
BY_ORPHANS = """
import os, threading, time
def child(number):
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            fd = os.open(f"f{number}", os.O_RDWR | os.O_CREAT)
            os.unlink(f"f{number}")
            os.write(fd, bytes(4 << 20))
            time.sleep(1000)
        os._exit(0)
for number in range(8):
    threading.Thread(target=child, args=(number,)).start()
time.sleep(1000)
"""
LIMITS = SandboxLimits(workspace_bytes=8 * MIB, wall_seconds=PATIENCE_SECONDS)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "workspace"
    path.mkdir()
    return path


@pytest.mark.parametrize("code", [FILL, BY_ORPHANS], ids=["its own", "those of orphans"])
async def test_files_without_a_name_count(sandbox: Sandbox, workspace: Path, code: str) -> None:
    result = await sandbox.run_python(code, workspace, LIMITS)
    assert result.status is SandboxStatus.WORKSPACE_LIMIT
    assert sum(path.stat().st_size for path in workspace.iterdir()) < LIMITS.workspace_bytes


async def test_a_temporary_file_within_the_bound_is_nobodys_business(sandbox: Sandbox, workspace: Path) -> None:
    code = (
        "import tempfile, time\nfile = tempfile.TemporaryFile(dir='.')\nfile.write(bytes(4 << 20))\n"
        "file.flush()\ntime.sleep(1)\nfile.seek(0)\nprint(len(file.read()))"
    )
    result = await sandbox.run_python(code, workspace, LIMITS)
    assert (result.status, result.stdout) == (SandboxStatus.OK, f"{4 << 20}\n")
