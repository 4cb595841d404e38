"""What is left of a sandbox when its service is killed, and how it works for a service that is an ordinary user."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import services.tools.sandbox
from services.tools.sandbox import Detection, SandboxSettings
from services.tools.sandbox.placement import Stage, sweep
from services.tools.sandbox.procfs import children_of, instance_name, start_ticks
from tests.fault.ordinary_user import (
    environment_of,
    folder_of_an_ordinary_user,
    python_of_an_ordinary_user,
    run_as_an_ordinary_user,
    user_id,
)
from tests.support.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.usefixtures("nothing_left_behind"), pytest.mark.faults]

PACKAGE = Path(services.tools.sandbox.__file__).parent
ROOT = PACKAGE.parents[2]

SERVICE = """
import asyncio, sys
from services.tools.sandbox import Sandbox, SandboxLimits, SandboxSettings

async def main():
    first_uid, warm, code = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    async with await Sandbox.open(SandboxSettings(first_uid=first_uid, slots=1 + warm, warm=warm)) as sandbox:
        limits = SandboxLimits(wall_seconds=600)
        await sandbox.run_python(code, None, limits, lambda *_: print("running", flush=True))

asyncio.run(main())
"""

IN_EIGHT = "import os, signal\nfor _ in range(3): os.fork()\nprint('ready')\nsignal.pause()"
# The kernel forgets a death signal when another thread than the first becomes a new program.
WITHOUT_DEATH_SIGNAL = f"""
import os, sys, threading
threading.Thread(target=os.execv, args=(sys.executable, [sys.executable, "-c", {IN_EIGHT!r}])).start()
"""
CODES = {"forks": IN_EIGHT, "gives up its death signal": WITHOUT_DEATH_SIGNAL}


@asynccontextmanager
async def service_with_a_run(
    first_uid: int,
    warm: int = 0,
    code: str = IN_EIGHT,
    *,
    python: Sequence[str] = (sys.executable,),
    cwd: Path = ROOT,
    **options: Any,
) -> AsyncIterator[asyncio.subprocess.Process]:
    command = (*python, "-c", SERVICE, str(first_uid), str(warm), code)
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, cwd=cwd, start_new_session=True, **options)
    try:
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), PATIENCE_SECONDS) == b"running\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def processes_of(*uids: int) -> list[str]:
    results = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            text = status.read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if any(f"\nUid:\t{uid}\t" in text for uid in uids) and "\nState:\tZ" not in text:
            results.append(text.split("\n", 1)[0])
    return results


def things_of(pid: int, detection: Detection) -> set[Path]:
    """Cgroups and stages of the service with this pid."""
    places = [*(hierarchy.directory for hierarchy in detection.cgroups.hierarchies), *Stage.places()]
    return {entry for place in places for entry in place.glob(f"tenure-sandbox-*-{pid}-*")}


def is_helper(pid: int) -> bool:
    """Returns whether the process is a mount helper or a reaper, and lives."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return b"mount_helper.py" in command or b"/reaper.py" in command


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.skipif(os.geteuid() != 0, reason="the uid of a slot identifies its processes, which needs root")
@pytest.mark.parametrize("code", CODES.values(), ids=CODES)
@pytest.mark.parametrize("warm", [0, 2])
async def test_a_killed_services_runs_die_and_the_next_cleans_up(
    sandbox_settings: SandboxSettings, sandbox_detection: Detection, warm: int, code: str
) -> None:
    uids = range(sandbox_settings.first_uid, sandbox_settings.first_uid + 1 + warm)
    async with service_with_a_run(uids[0], warm, code) as service:
        # Bubblewrap's monitor and eight of the program; a monitor and an interpreter of each sandbox that waits.
        await until(lambda: len(processes_of(*uids)) == 9 + 2 * warm)
        helpers = [pid for pid in children_of(service.pid) if is_helper(pid)]
        assert len(helpers) == (2 if warm else 1)
        left_behind = things_of(service.pid, sandbox_detection)
        assert len(left_behind) >= 1 + len(sandbox_detection.cgroups.hierarchies)
        service.send_signal(signal.SIGKILL)
        await until(lambda: not processes_of(*uids))
        await until(lambda: not any(map(is_helper, helpers)))
    # Any service of this machine that starts just now cleans up, too: one of another test, for example.
    assert things_of(service.pid, sandbox_detection) <= left_behind
    await sweep(sandbox_detection)
    await until(lambda: not things_of(service.pid, sandbox_detection))


async def test_a_process_in_a_dead_services_cgroup_is_killed(sandbox_detection: Detection) -> None:
    if not sandbox_detection.cgroups.hierarchies:
        pytest.skip("no cgroups may be made here")
    service, leftover = [await asyncio.create_subprocess_exec("sleep", "600") for _ in range(2)]
    prefix = instance_name().rsplit("-", 2)[0]
    name = f"{prefix}-{service.pid}-{start_ticks(service.pid)}-1"
    places = [hierarchy.directory / name for hierarchy in sandbox_detection.cgroups.hierarchies]
    for place in places:
        place.mkdir()
        (place / "cgroup.procs").write_text(str(leftover.pid))
    service.kill()  # from here on any service that starts on this machine cleans up, and not before
    await service.wait()
    await sweep(sandbox_detection)
    assert await asyncio.wait_for(leftover.wait(), PATIENCE_SECONDS) == -signal.SIGKILL
    await until(lambda: not any(place.exists() for place in places))


async def test_a_living_services_things_are_left_alone(
    sandbox_settings: SandboxSettings, sandbox_detection: Detection
) -> None:
    async with service_with_a_run(sandbox_settings.first_uid) as service:
        things = things_of(service.pid, sandbox_detection)
        await sweep(sandbox_detection)
        assert things_of(service.pid, sandbox_detection) == things
        assert service.returncode is None
        service.send_signal(signal.SIGKILL)
    await until(lambda: not processes_of(sandbox_settings.first_uid))
    await sweep(sandbox_detection)


ORDINARY_SERVICE = """
import asyncio, json, os, sys, tempfile
from pathlib import Path
from services.tools.sandbox import Sandbox, SandboxLimits, SandboxSettings, SandboxUnavailable

PROGRAMS = {
    "fine": "open('kept', 'w').write('x'); print(os.getuid())".replace("os", "__import__('os')"),
    "memory": "x = []\\nwhile True: x.append(bytearray(8 << 20))",
    "processes": "import os, signal\\nwhile True:\\n    if os.fork() == 0: signal.pause()",
    "time": "while True: pass",
}

async def main():
    workspace = Path(tempfile.mkdtemp())
    limits = SandboxLimits(processes=8, memory_bytes=96 << 20, cpu_seconds=1)
    results = {}
    async with await Sandbox.open(SandboxSettings(warm=int(sys.argv[1]))) as sandbox:
        for name, code in PROGRAMS.items():
            assert await sandbox._warm.pool.is_full()
            result = await sandbox.run_python(code, workspace, limits)
            results[name] = [result.status, result.stdout]
        slow = asyncio.create_task(sandbox.run_python("import time; time.sleep(60)", None, limits))
        await asyncio.sleep(0.2)
        slow.cancel()
        await asyncio.wait({slow})
        weakened, warm_runs = sandbox.detection.weakened, sandbox.warm_runs
    kept = (workspace / "kept").read_text()
    try:
        await Sandbox.open(SandboxSettings(require_cgroup=True))
        strict = "opened"
    except SandboxUnavailable as error:
        strict = str(error)
    told = {"results": results, "weakened": weakened, "kept": kept, "uid": os.getuid(), "strict": strict}
    status = dict(line.split(":\\t") for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
    told["privileges"] = [status["NoNewPrivs"], int(status["CapBnd"], 16) > 0]
    print(json.dumps({**told, "warm_runs": warm_runs}))

asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="everything else runs as an ordinary user already")
@pytest.mark.parametrize(("warm", "confined"), [(0, False), (1, False), (0, True), (1, True)])
def test_an_ordinary_user_gets_a_sandbox_with_named_weaknesses(
    sandbox_detection: Detection, warm: int, confined: bool
) -> None:
    """Confined: also with the security context of the tool service in deploy/compose.yaml."""
    with folder_of_an_ordinary_user() as place:
        done = run_as_an_ordinary_user(place, "-c", ORDINARY_SERVICE, str(warm), confined=confined)
    assert done.returncode == 0, done.stderr
    decoded = json.loads(done.stdout)
    assert decoded["uid"] == user_id()
    assert decoded["privileges"] == (["1", False] if confined else ["0", True])
    assert decoded["results"] == {
        "fine": ["OK", "65534\n"],
        "memory": ["OUT_OF_MEMORY", ""],
        "processes": ["TOO_MANY_PROCESSES", ""],
        "time": ["TIMEOUT", ""],
    }
    assert decoded["kept"] == "x"
    # The probe when it opens, and all but the first program, whose limits are news.
    assert decoded["warm_runs"] >= (4 if warm else 0)
    assert [sentence for sentence in decoded["weakened"] if "this service's own uid" in sentence]
    if not [sentence for sentence in decoded["weakened"] if "no cgroup" in sentence]:
        assert decoded["strict"] == "opened"
    else:
        assert "cgroups are required by the settings" in decoded["strict"]
    assert not processes_of(user_id())


@pytest.mark.skipif(os.geteuid() != 0, reason="everything else runs as an ordinary user already")
@pytest.mark.parametrize("code", CODES.values(), ids=CODES)
async def test_a_killed_service_of_an_ordinary_user_takes_all_along(sandbox_detection: Detection, code: str) -> None:
    with folder_of_an_ordinary_user() as place:
        options: dict[str, Any] = {"python": python_of_an_ordinary_user(place), "cwd": place}
        async with service_with_a_run(user_id(), 2, code, env=environment_of(place), **options) as service:
            # The service, its mount helper and reaper, the run's nine, two of each sandbox that waits.
            await until(lambda: len(processes_of(user_id())) == 3 + 9 + 2 * 2)
            service.send_signal(signal.SIGKILL)
            await until(lambda: not processes_of(user_id()))
