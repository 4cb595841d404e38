"""A sandbox that was started ahead of its program: the program cannot tell, and it is used once."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from services.tools.sandbox import Detection, Sandbox, SandboxEscaped, SandboxLimits, SandboxSettings, SandboxStatus
from services.tools.sandbox import supervision as warm_module
from services.tools.sandbox.process import SandboxedProcess
from services.tools.sandbox.supervision import SandboxedProgram, WarmSandbox
from tests.support.fix_sandbox import SLOTS
from tests.support.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.usefixtures("nothing_left_behind"), pytest.mark.faults]

LIMITS = SandboxLimits(wall_seconds=60)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "workspace"
    path.mkdir()
    return path


@pytest.fixture
async def warm(sandbox_settings: SandboxSettings, sandbox_detection: Detection) -> AsyncIterator[Sandbox]:
    """With one sandbox waiting."""
    async with Sandbox(dataclasses.replace(sandbox_settings, warm=1), sandbox_detection) as opened:
        if trouble := await opened._warm.start():
            pytest.skip(f"no sandbox can be started ahead here: {trouble}")
        yield opened


@pytest.fixture
async def cold(sandbox_settings: SandboxSettings, sandbox_detection: Detection) -> AsyncIterator[Sandbox]:
    async with Sandbox(sandbox_settings, sandbox_detection) as opened:
        yield opened


def waiting(sandbox: Sandbox) -> list[WarmSandbox]:
    return [one.warm for one in sandbox._warm.pool._pooled.values()]


def pid_of(one: WarmSandbox) -> int:
    pid = one._process._report.init_pid
    assert pid is not None
    return pid


async def replaced(sandbox: Sandbox, former: WarmSandbox) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not waiting(sandbox) or waiting(sandbox)[0] is former:
            await asyncio.sleep(0.01)


SURROUNDINGS = """
import sys
before = sorted(sys.modules)
import os
print(before)
print(sorted(globals()), sorted(vars(sys.modules['__main__'])), __file__, __spec__)
print(os.getcwd(), os.listdir(), sys.argv, sys.orig_argv, sys.path, sys.flags, dict(os.environ))
print(sorted(os.listdir('/proc/self/fd')), [os.readlink(f'/proc/self/fd/{n}').split(':')[0] for n in range(3)])
print(sorted(sys.path_importer_cache), sys.stdin.read(), sys.stdin.seekable(), sys.stdin.isatty())
print(sorted(os.listdir('/')), os.listdir('/run'), os.listdir('/tmp'), os.getpid(), os.getppid(), os.umask(0))
status = dict(line.split(':\\t', 1) for line in open('/proc/self/status').read().splitlines() if ':\\t' in line)
print({name: status[name] for name in status if name.startswith(('Cap', 'Sec', 'NoNew', 'Uid', 'Gid', 'Sig', 'Thr'))})
import resource
print([resource.getrlimit(n) for n in range(16)], os.getpriority(os.PRIO_PROCESS, 0))
1 / 0
"""


async def test_a_program_finds_the_environment_of_a_cold_sandbox(warm: Sandbox, cold: Sandbox, workspace: Path) -> None:
    (workspace / "module.py").write_text("")
    expected = await cold.run_python(SURROUNDINGS, workspace, LIMITS)
    result = await warm.run_python(SURROUNDINGS, workspace, LIMITS)
    assert warm.warm_runs == 1
    assert result.stdout.splitlines() == expected.stdout.splitlines()
    assert len(result.stdout.splitlines()) == 8
    assert (result.status, result.stderr) == (SandboxStatus.NONZERO, expected.stderr)


async def test_modules_of_the_workspace_are_imported(warm: Sandbox, cold: Sandbox, workspace: Path) -> None:
    (workspace / "helper.py").write_text("answer = 42")
    (workspace / "sitecustomize.py").write_text("print('customized', __file__)")
    code = "import helper, sitecustomize, sys; print(helper.answer, sitecustomize.__file__)"
    outputs = [(await one.run_python(code, workspace, LIMITS)).stdout for one in (cold, warm)]
    assert outputs == ["customized /work/sitecustomize.py\n42 /work/sitecustomize.py\n"] * 2
    assert warm.warm_runs == 1


async def test_the_file_for_a_program_is_open_to_its_uid_alone(warm: Sandbox) -> None:
    """Another account of the host, which opens it while it is empty, would read the program later."""
    (one,) = waiting(warm)
    status = os.fstat(one._program_fd)
    assert stat.S_IMODE(status.st_mode) == 0o400
    assert status.st_uid == Path(f"/proc/{pid_of(one)}").stat().st_uid


async def test_a_sandbox_is_used_once(warm: Sandbox, workspace: Path) -> None:
    leave = "open('/tmp/left', 'w').close(); print(hash('seed'))"
    look = "import os; print(hash('seed')); print(os.listdir('/tmp'), os.path.exists('/tmp/left'))"
    first = await warm.run_python(leave, workspace, LIMITS)
    assert await warm._warm.pool.is_full()
    second = await warm.run_python(look, None, LIMITS)
    assert warm.warm_runs == 2
    seed, left = second.stdout.splitlines()
    assert left == "[] False"
    assert seed != first.stdout.strip()


async def test_old_warm_sandbox_is_replaced(
    sandbox_settings: SandboxSettings, sandbox_detection: Detection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.tools.sandbox.warm_pool._MAX_AGE_SECONDS", 0.2)
    async with Sandbox(dataclasses.replace(sandbox_settings, warm=1), sandbox_detection) as opened:
        if trouble := await opened._warm.start():
            pytest.skip(f"no sandbox can be started ahead here: {trouble}")
        await replaced(opened, waiting(opened)[0])


async def _kill(one: WarmSandbox) -> None:
    descriptor = os.pidfd_open(pid_of(one))
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        while one.is_alive:  # without giving way: no other task learns of it first
            pass
    finally:
        os.close(descriptor)


async def test_a_dead_warm_sandbox_is_not_handed_out(warm: Sandbox, workspace: Path) -> None:
    await _kill(waiting(warm)[0])
    assert (await warm.run_python("print(1)", workspace, LIMITS)).stdout == "1\n"
    assert warm.warm_runs == 0


async def test_a_sandbox_that_dies_at_handover_is_replaced(
    warm: Sandbox, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = WarmSandbox.prepare

    def prepare_and_die(one: WarmSandbox, code: bytes, directory: Path | None) -> None:
        prepare(one, code, directory)
        os.kill(pid_of(one), signal.SIGKILL)
        while one.is_alive:
            pass

    monkeypatch.setattr(WarmSandbox, "prepare", prepare_and_die)
    assert (await warm.run_python("open('f', 'a').write('x')", workspace, LIMITS)).status is SandboxStatus.OK
    assert (workspace / "f").read_text() == "x"
    assert warm.warm_runs == 0


async def test_without_the_mount_helper_programs_start_cold(warm: Sandbox, workspace: Path) -> None:
    mount_helper = warm._warm._mount_helper
    assert mount_helper is not None
    mount_helper._process.kill()
    await mount_helper._process.wait()
    assert (await warm.run_python("open('f', 'w')", workspace, LIMITS)).status is SandboxStatus.OK
    assert (workspace / "f").exists()
    assert warm.warm_runs == 0
    assert await warm._warm.pool.is_full()
    await warm.run_python("open('g', 'w')", workspace, LIMITS)
    assert (workspace / "g").exists()
    assert warm.warm_runs == 1


async def test_programs_limited_from_outside_need_no_own_sandbox(warm: Sandbox, workspace: Path) -> None:
    short = dataclasses.replace(LIMITS, wall_seconds=0.5)
    assert (await warm.run_python("import time; time.sleep(600)", workspace, short)).status is SandboxStatus.TIMEOUT
    assert warm.warm_runs == 1


async def test_starting_ahead_is_not_billed_to_the_program(warm: Sandbox, cold: Sandbox) -> None:
    billed = [(await one.run_python("pass", None, LIMITS)).cpu_ms for one in (warm, cold)]
    if None in billed:
        pytest.skip("no cgroup counts CPU time here")
    assert billed[0] < billed[1]  # type: ignore[operator]  # numbers by now
    assert warm.warm_runs == 1


async def test_slot_is_never_shared_with_a_warm_sandbox(warm: Sandbox, workspace: Path, tmp_path: Path) -> None:
    """Programs that take all places at once: the one that waits is used, and none is started beside them."""
    code = "import os, time\nopen(os.getcwd() + '/here', 'w')\nwhile not os.path.exists('go'): time.sleep(0.01)"
    workspaces = [tmp_path / str(number) for number in range(SLOTS)]
    async with asyncio.TaskGroup() as runs:
        for directory in workspaces:
            directory.mkdir()
            runs.create_task(warm.run_python(code, directory, LIMITS))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not all((directory / "here").exists() for directory in workspaces):
                await asyncio.sleep(0.01)
        assert not waiting(warm)
        for directory in workspaces:
            (directory / "go").touch()
    assert warm.warm_runs >= 1
    assert await warm._warm.pool.is_full()


@pytest.mark.parametrize("milliseconds", [0, 5, 52, 60, 70, 90])
async def test_closing_while_sandboxes_are_started_leaves_none(
    sandbox_settings: SandboxSettings, sandbox_detection: Detection, milliseconds: int
) -> None:
    async with Sandbox(dataclasses.replace(sandbox_settings, warm=2), sandbox_detection) as opened:
        opened._warm.pool.start()
        await asyncio.sleep(milliseconds / 1000)  # at no moment in particular
    assert not waiting(opened)


async def test_opening_tests_a_warm_sandbox(sandbox_settings: SandboxSettings) -> None:
    async with await Sandbox.open(dataclasses.replace(sandbox_settings, warm=2)) as opened:
        assert opened.warm_runs == 1
        assert [sentence for sentence in opened.detection.present if "ahead" in sentence]


async def test_weak_warm_sandbox_stops_the_start(
    sandbox_settings: SandboxSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow_everything = bytes.fromhex("060000000000ff7f")  # BPF: return SECCOMP_RET_ALLOW
    real: Callable[..., Awaitable[SandboxedProcess]] = warm_module._start_process

    async def without_filter(program: SandboxedProgram, *given: object) -> SandboxedProcess:
        return await real(dataclasses.replace(program, filter_program=allow_everything), *given)

    monkeypatch.setattr(warm_module, "_start_process", without_filter)
    with pytest.raises(SandboxEscaped, match="was allowed to be debugged"):
        await Sandbox.open(dataclasses.replace(sandbox_settings, warm=1))


async def test_a_machine_without_warm_sandboxes_runs_programs(
    sandbox_settings: SandboxSettings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, workspace: Path
) -> None:
    broken = tmp_path / "attacher.py"
    broken.write_text("import socket; socket.socket(fileno=0).send(b'unshare: Operation not permitted')")
    monkeypatch.setattr("services.tools.sandbox.mount_helper_client._SCRIPT", broken)
    async with await Sandbox.open(dataclasses.replace(sandbox_settings, warm=1)) as opened:
        assert (await opened.run_python("print(1)", workspace, LIMITS)).stdout == "1\n"
        assert opened.warm_runs == 0
        (sentence,) = [one for one in opened.detection.weakened if "ahead" in one]
        assert "unshare: Operation not permitted" in sentence
