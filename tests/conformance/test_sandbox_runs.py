"""What a program in the sandbox can rely on, and how its end is named."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from services.tools.sandbox import MAX_CODE_BYTES, Sandbox, SandboxLimits, SandboxStatus
from services.tools.sandbox.detection import Executable

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

MIB = 1 << 20
SHORT = SandboxLimits(wall_seconds=1.0)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "workspace"
    path.mkdir()
    return path


async def test_a_program_prints_and_ends(any_sandbox: Sandbox) -> None:
    result = await any_sandbox.run_python(
        "import sys; print('out'); print('err', file=sys.stderr)", None, SandboxLimits()
    )
    assert (result.status, result.exit_code) == (SandboxStatus.OK, 0)
    assert (result.stdout, result.stderr, result.truncated) == ("out\n", "err\n", False)
    assert result.message == ""


async def test_usage_is_measured(sandbox: Sandbox) -> None:
    if "memory" not in sandbox.detection.cgroups.limits:
        pytest.skip("no cgroup counts memory here")
    code = (
        "x = bytearray(50 << 20)\nimport time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass"
    )
    result = await sandbox.run_python(code, None, SandboxLimits())
    assert result.status is SandboxStatus.OK
    assert result.memory_peak_bytes is not None
    assert 50 * MIB < result.memory_peak_bytes < 100 * MIB
    assert result.cpu_ms is not None
    assert 200 <= result.cpu_ms <= result.wall_ms


async def test_an_exception_is_nonzero_with_its_traceback(any_sandbox: Sandbox) -> None:
    result = await any_sandbox.run_python("def f():\n    return 1 / 0\nf()", None, SandboxLimits())
    assert (result.status, result.exit_code) == (SandboxStatus.NONZERO, 1)
    assert "line 2, in f" in result.stderr
    assert "return 1 / 0" in result.stderr
    assert result.stderr.endswith("ZeroDivisionError: division by zero\n")


async def test_files_in_the_workspace_persist_between_runs(any_sandbox: Sandbox, workspace: Path) -> None:
    first = "import os\nos.mkdir('d')\nopen('d/f', 'w').write('kept')\nos.chmod('d/f', 0o600)\nprint(os.getcwd())"
    assert (await any_sandbox.run_python(first, workspace, SandboxLimits())).stdout == "/work\n"
    assert (workspace / "d" / "f").read_text() == "kept"
    (workspace / "from_the_service").write_text("hello")
    second = "print(open('d/f').read(), open('from_the_service').read())\nopen('from_the_service', 'a').write('!')"
    assert (await any_sandbox.run_python(second, workspace, SandboxLimits())).stdout == "kept hello\n"
    assert (workspace / "from_the_service").read_text() == "hello!"


async def test_files_stay_writable_in_every_slot(sandbox: Sandbox, workspace: Path) -> None:
    write = "import os\nopen('f', 'a').write('x')\nos.chmod('f', 0o600)"
    async with asyncio.TaskGroup() as others:
        await sandbox.run_python(write, workspace, SandboxLimits())
        for _ in range(2):
            others.create_task(sandbox.run_python("import time; time.sleep(0.3)", None, SandboxLimits()))
        for _ in range(2):
            assert (await sandbox.run_python(write, workspace, SandboxLimits())).status is SandboxStatus.OK
    assert (workspace / "f").read_text() == "xxx"


async def test_runs_in_one_workspace_at_once_share_their_files(sandbox: Sandbox, workspace: Path) -> None:
    wait = "import os, time\nwhile not os.path.exists('ready'): time.sleep(0.01)\nopen('ready', 'a').write('!')"
    async with asyncio.TaskGroup() as runs:
        waiting = runs.create_task(sandbox.run_python(wait, workspace, SandboxLimits()))
        runs.create_task(sandbox.run_python("open('ready', 'w').close()", workspace, SandboxLimits()))
    assert waiting.result().status is SandboxStatus.OK


async def test_a_program_imports_the_modules_it_wrote(sandbox: Sandbox, workspace: Path) -> None:
    await sandbox.run_python("open('helper.py', 'w').write('answer = 42')", workspace, SandboxLimits())
    result = await sandbox.run_python("import helper; print(helper.answer)", workspace, SandboxLimits())
    assert result.stdout == "42\n"
    assert not (workspace / "__pycache__").exists()


async def test_without_a_workspace_there_is_an_empty_directory(sandbox: Sandbox) -> None:
    result = await sandbox.run_python("import os; open('f', 'w').close(); print(os.listdir())", None, SandboxLimits())
    assert result.stdout == "['f']\n"


async def test_nul_and_invalid_utf8_come_through_as_text(sandbox: Sandbox) -> None:
    result = await sandbox.run_python(
        r"import sys; sys.stdout.buffer.write(b'a\0b\xff\x1b[31m')", None, SandboxLimits()
    )
    assert result.stdout == "a\0b�\x1b[31m"


@pytest.mark.parametrize("code", ["print('\0')", "print('\ud800')", "if", "\t x", ""])
async def test_invalid_code_is_nonzero(sandbox: Sandbox, code: str) -> None:
    result = await sandbox.run_python(code, None, SandboxLimits())
    assert result.status is (SandboxStatus.NONZERO if code else SandboxStatus.OK)


async def test_code_has_a_bound(sandbox: Sandbox) -> None:
    assert (await sandbox.run_python("#" * MAX_CODE_BYTES, None, SandboxLimits())).status is SandboxStatus.OK
    with pytest.raises(ValueError, match="bytes"):
        await sandbox.run_python("#" * (MAX_CODE_BYTES + 1), None, SandboxLimits())


async def test_output_is_streamed(sandbox: Sandbox, workspace: Path) -> None:
    code = "import os, time\nprint('ready')\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('gone')"
    seen: list[tuple[str, str]] = []

    def on_output(stream: str, text: str) -> None:
        seen.append((stream, text))
        if "".join(text for _, text in seen) == "ready\n":
            (workspace / "go").touch()

    result = await sandbox.run_python(code, workspace, SandboxLimits(), on_output)
    assert result.status is SandboxStatus.OK
    assert {stream for stream, _ in seen} == {"stdout"}
    assert "".join(text for _, text in seen) == result.stdout


async def test_failing_callback_ends_the_run(sandbox: Sandbox) -> None:
    def on_output(_stream: str, _text: str) -> None:
        raise LookupError("nobody listens")

    began = time.monotonic()
    with pytest.raises(LookupError, match="nobody listens"):
        await sandbox.run_python(
            "print(1)\nimport time; time.sleep(600)", None, SandboxLimits(wall_seconds=600), on_output
        )
    assert time.monotonic() - began < 60


async def test_long_output_keeps_its_beginning_and_its_end(sandbox: Sandbox) -> None:
    limits = SandboxLimits(output_bytes=1000)
    result = await sandbox.run_python("print('first'); print('x' * 3000); print('last')", None, limits)
    assert (result.status, result.truncated) == (SandboxStatus.OK, True)
    assert result.stdout.startswith("first\nxxx")
    assert result.stdout.endswith("xxx\nlast\n")


EATER = "x = []\nwhile True: x.append(bytearray(8 << 20))"
BREEDER = "import os, signal\nwhile True:\n    if os.fork() == 0: signal.pause()"
SPINNER = (
    "import threading\nwait = threading.Event().wait\n"
    "for _ in range(20): threading.Thread(target=wait, daemon=True).start()"
)
LIMITS = {
    "wall": ("import time; time.sleep(60)", SHORT, SandboxStatus.TIMEOUT),
    "cpu": ("while True: pass", SandboxLimits(cpu_seconds=1, wall_seconds=120), SandboxStatus.TIMEOUT),
    "memory": (EATER, SandboxLimits(memory_bytes=96 * MIB), SandboxStatus.OUT_OF_MEMORY),
    "processes": (BREEDER, SandboxLimits(processes=8), SandboxStatus.TOO_MANY_PROCESSES),
    "threads": (SPINNER, SandboxLimits(processes=8), SandboxStatus.TOO_MANY_PROCESSES),
    "output": ("while True: print('x' * 10000)", SandboxLimits(output_bytes=4096), SandboxStatus.OUTPUT_LIMIT),
}


@pytest.mark.parametrize("name", LIMITS)
async def test_each_limit_has_its_own_class(any_sandbox: Sandbox, name: str) -> None:
    code, limits, expected = LIMITS[name]
    result = await any_sandbox.run_python(code, None, limits)
    assert result.status is expected, result
    assert result.message


async def test_all_processes_allowed_can_be_used(any_sandbox: Sandbox) -> None:
    code = "import os\nfor _ in range(7):\n    if os.fork() == 0: __import__('signal').pause()\nprint('seven')"
    result = await any_sandbox.run_python(code, None, SandboxLimits(processes=8))
    assert (result.status, result.stdout) == (SandboxStatus.OK, "seven\n")


async def test_cpu_time_of_all_processes_counts_together(sandbox: Sandbox) -> None:
    if "cpu" not in sandbox.detection.cgroups.limits:
        pytest.skip("no cgroup counts CPU time here")
    code = "import os\nfor _ in range(3): os.fork()\nwhile True: pass"
    result = await sandbox.run_python(code, None, SandboxLimits(cpu_seconds=0.5, wall_seconds=120, cpu_percent=200))
    assert result.status is SandboxStatus.TIMEOUT
    assert "CPU time" in result.message


async def test_output_before_a_timeout_is_kept(any_sandbox: Sandbox) -> None:
    result = await any_sandbox.run_python(
        "print('begun'); import time; time.sleep(60)", None, SandboxLimits(wall_seconds=3.0)
    )
    assert (result.status, result.stdout, result.exit_code) == (SandboxStatus.TIMEOUT, "begun\n", None)


async def test_full_workspace_ends_the_program(sandbox: Sandbox, workspace: Path) -> None:
    code = "import time\nfor n in range(1000):\n    open(f'f{n}', 'wb').write(bytes(1 << 20))\n    time.sleep(0.01)"
    limits = SandboxLimits(workspace_bytes=5 * MIB, wall_seconds=60)
    result = await sandbox.run_python(code, workspace, limits)
    assert result.status is SandboxStatus.WORKSPACE_LIMIT
    overfull = await sandbox.run_python("print('ran')", workspace, SandboxLimits(workspace_bytes=MIB))
    assert (overfull.status, overfull.stdout) == (SandboxStatus.WORKSPACE_LIMIT, "")


async def test_an_exit_code_is_reported_as_it_was(sandbox: Sandbox) -> None:
    assert (await sandbox.run_python("raise SystemExit(7)", None, SandboxLimits())).exit_code == 7
    crashed = await sandbox.run_python("import ctypes; ctypes.string_at(0)", None, SandboxLimits())
    assert (crashed.status, crashed.exit_code) == (SandboxStatus.NONZERO, 128 + signal.SIGSEGV)


async def test_more_runs_than_slots_wait(sandbox: Sandbox) -> None:
    runs = [sandbox.run_python(f"print({n})", None, SandboxLimits()) for n in range(16)]
    assert [result.stdout for result in await asyncio.gather(*runs)] == [f"{n}\n" for n in range(16)]


async def test_parallel_runs_are_isolated(sandbox: Sandbox) -> None:
    look = "print(sorted(p for p in os.listdir('/proc') if p.isdigit()))"
    code = f"import os, time\nopen('/tmp/mine', 'x').close()\ntime.sleep(0.3)\n{look}"
    results = await asyncio.gather(*(sandbox.run_python(code, None, SandboxLimits()) for _ in range(4)))
    assert {result.stdout for result in results} == {"['1']\n"}


async def test_the_services_interpreter_is_the_fallback(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, nothing_left_behind: Callable[[], None]
) -> None:
    import dataclasses
    import sys

    prefix = Path(sys.base_prefix).resolve()
    python = prefix / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    tools = dataclasses.replace(sandbox._tools, interpreter=Executable(python, prefix))
    monkeypatch.setattr(sandbox, "_tools", tools)
    result = await sandbox.run_python("import sys, ctypes, json; print(sys.version_info[:2])", None, SandboxLimits())
    assert result.stdout == f"{sys.version_info[:2]}\n", result


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has directories that the sandbox's uid cannot reach")
async def test_a_workspace_in_a_private_directory_is_reached(sandbox: Sandbox, tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    (private / "workspace").mkdir()
    result = await sandbox.run_python("open('f', 'w').write('x')", private / "workspace", SandboxLimits())
    assert result.status is SandboxStatus.OK, result
    assert (private / "workspace" / "f").read_text() == "x"
    assert not list(sandbox._stage.path.rglob("f"))  # type: ignore[union-attr]  # root has a stage
