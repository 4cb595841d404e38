"""A confined program of a service that is an ordinary user: it has the same uid, and reaches nothing of the service."""

from __future__ import annotations

import json
import os
import socket
import sys

import pytest

from tests.fault.ordinary_user import folder_of_an_ordinary_user, run_as_an_ordinary_user

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become an ordinary user")
pytestmark = [
    only_root,
    pytest.mark.skipif(sys.platform != "linux", reason="programs are confined on Linux only"),
    pytest.mark.faults,
]

ATTACK = """
import json, os, socket, sys
service, port, secret, own = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
def attempt(action):
    try:
        action()
    except OSError:
        return False
    return True
print(json.dumps({
    "secret": attempt(lambda: open(secret).read()),
    "environ": attempt(lambda: open(f"/proc/{service}/environ", "rb").read()),
    "memory": attempt(lambda: open(f"/proc/{service}/mem", "rb")),
    "signal": attempt(lambda: os.kill(service, 0)),
    "network": attempt(lambda: socket.create_connection(("127.0.0.1", port), 5)),
    "own": attempt(lambda: open(own + "/written", "w").write("x")),
}), flush=True)
"""
SERVICE = """
import asyncio, json, os, subprocess, sys
from dataclasses import replace
from pathlib import Path
from services.tools.inspection import forbid_inspection
from services.tools.sandbox import Command, Sandbox, SandboxLimits, SandboxSettings
attack, port, place = sys.argv[1], sys.argv[2], Path(os.environ["TMPDIR"])
async def main():
    forbid_inspection()
    secret, own = place / "secret", place / "own"
    secret.write_text("s")
    own.mkdir()
    words = (str(os.getpid()), port, str(secret), str(own))
    unconfined = subprocess.run([sys.executable, "-c", attack, *words], capture_output=True, check=True).stdout
    (own / "written").unlink()
    limits = SandboxLimits(memory_bytes=1 << 30)
    async with await Sandbox.open(SandboxSettings(long_running=1)) as sandbox:
        python = str(sandbox.detection.require().interpreter.path)
        argv = (python, "-c", attack, *words)
        command = Command(argv, {}, (), writable=(own,), directory=Path("/tmp"), network=True, leave_seconds=1.0)
        async with sandbox.long_running(command, None, limits) as running:
            confined = await running.process.stdout.readline()
            error = await running.process.stderr.read(4096) if not confined else b""
    print(json.dumps([json.loads(unconfined), json.loads(confined or json.dumps(error.decode()))]))
asyncio.run(main())
"""


def test_the_uid_alone_opens_nothing_of_the_service() -> None:
    with folder_of_an_ordinary_user() as place, socket.create_server(("127.0.0.1", 0)) as listening:
        done = run_as_an_ordinary_user(place, "-c", SERVICE, ATTACK, str(listening.getsockname()[1]))
        assert done.returncode == 0, done.stderr
        unconfined, confined = json.loads(done.stdout)
        assert (place / "tmp" / "own" / "written").read_text() == "x"
    # The environment and the memory of the service are closed for its uid; the rest only the confinement closes.
    assert unconfined == {
        "secret": True, "environ": False, "memory": False, "signal": True, "network": True, "own": True,
    }  # fmt: skip
    assert confined == {
        "secret": False, "environ": False, "memory": False, "signal": False, "network": True, "own": True,
    }  # fmt: skip
