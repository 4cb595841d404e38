"""Programs that attack the sandbox, each with what must become of it. Programs print ESCAPED when they get through."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from services.tools.sandbox import Sandbox, SandboxEscaped, SandboxLimits, SandboxSettings, SandboxStatus
from services.tools.sandbox import command as command_module

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

MIB = 1 << 20
LIMITS = SandboxLimits(wall_seconds=30, memory_bytes=96 * MIB, tmp_bytes=8 * MIB, file_bytes=4 * MIB, open_files=64)
SHORT = dataclasses.replace(LIMITS, wall_seconds=0.7)
LONG = dataclasses.replace(LIMITS, wall_seconds=600)
OK, NONZERO = SandboxStatus.OK, SandboxStatus.NONZERO
TIMEOUT, MEMORY = SandboxStatus.TIMEOUT, SandboxStatus.OUT_OF_MEMORY

# Shared by the programs below: `refused(action)` prints the error's name, or ESCAPED.
PRELUDE = """
import ctypes, errno, os, signal, socket, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
def refused(action):
    try: action()
    except OSError as error: print(errno.errorcode.get(error.errno, error.errno))
    else: print("ESCAPED")
def call(number, *arguments):
    if libc.syscall(number, *arguments) == -1: raise OSError(ctypes.get_errno(), "")
"""


@dataclasses.dataclass(frozen=True)
class Abuse:
    code: str
    status: SandboxStatus = OK
    prints: str | None = None
    limits: SandboxLimits = LIMITS


ABUSES = {
    # Filling things.
    "one huge file in /tmp": Abuse("refused(lambda: open('/tmp/a', 'wb').write(bytes(5 << 20)))", prints="EFBIG\n"),
    "many files in /tmp": Abuse(
        "refused(lambda: [open(f'/tmp/{n}', 'wb').write(bytes(1 << 20)) for n in range(99)])", prints="ENOSPC\n"
    ),
    "filling /dev/shm": Abuse("refused(lambda: open('/dev/shm/a', 'wb').write(bytes(2 << 20)))", prints="ENOSPC\n"),
    "inodes without end": Abuse("n = 0\nwhile True: open(f'/tmp/{n}', 'w').close(); n += 1", MEMORY),
    "anonymous memory files": Abuse(
        "fds = []\nfor n in range(40): fds.append(os.memfd_create('m')); os.write(fds[-1], bytes(4 << 20))", MEMORY
    ),
    "a bomb that unpacks": Abuse(
        "import zlib\nsmall = zlib.compress(bytes(1 << 29 >> 3))\nx = [zlib.decompress(small) for _ in range(9)]",
        MEMORY,
    ),
    "descriptors without end": Abuse("refused(lambda: [os.dup(0) for _ in range(10_000)])", prints="EMFILE\n"),
    "huge arguments": Abuse("refused(lambda: os.execv('/bin/true', ['x' * (1 << 22)]))", prints="E2BIG\n"),
    # Going on for ever.
    "sleeping": Abuse("signal.pause()", TIMEOUT, limits=SHORT),
    "ignoring signals": Abuse(
        "for s in signal.valid_signals() - {9, 19}: signal.signal(s, signal.SIG_IGN)\nwhile True: signal.pause()",
        TIMEOUT,
        limits=SHORT,
    ),
    "spinning in many processes": Abuse("for _ in range(3): os.fork()\nwhile True: pass", TIMEOUT, limits=SHORT),
    "reading a pipe nobody writes": Abuse("os.mkfifo('f'); open('f').read()", TIMEOUT, limits=SHORT),
    "stopping its children": Abuse(
        "p = os.fork() or signal.pause()\nos.kill(p, signal.SIGSTOP); os.waitpid(p, 0)", TIMEOUT, limits=SHORT
    ),
    "a fork bomb": Abuse("while True:\n    try: os.fork()\n    except OSError: pass", SandboxStatus.TOO_MANY_PROCESSES),
    "children by vfork": Abuse("while True: subprocess.Popen(['/bin/sleep', '9'])", SandboxStatus.TOO_MANY_PROCESSES),
    "a flood of output": Abuse("while True: os.write(2, bytes(1 << 16))", SandboxStatus.OUTPUT_LIMIT),
    # Outliving itself.
    "a daemon that keeps stdout": Abuse("if os.fork() == 0: os.setsid(); os.fork() or signal.pause()", OK, ""),
    "a daemon that closed everything": Abuse(
        "if os.fork() == 0:\n    os.setsid(); os.closerange(0, 99)\n    if os.fork() == 0: signal.pause()", OK, ""
    ),
    "giving up its death signal": Abuse("refused(lambda: call(157, 1, 0, 0, 0, 0))", prints="EPERM\n"),
    "killing everything": Abuse(
        "refused(lambda: os.kill(-1, 9)); refused(lambda: os.kill(2, 9))", prints="ESRCH\n" * 2
    ),
    "crashing with a core": Abuse(
        "open('/work/x', 'w'); os.fork() or ctypes.string_at(0); os.wait(); print(os.listdir('/work'))",
        prints="['x']\n",
    ),
    # Getting out.
    "TCP": Abuse("refused(lambda: socket.create_connection(('127.0.0.1', 22), 1))", prints="EAFNOSUPPORT\n"),
    "UDP": Abuse("refused(lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))", prints="EAFNOSUPPORT\n"),
    "vsock": Abuse("refused(lambda: socket.socket(40, socket.SOCK_STREAM))", prints="EAFNOSUPPORT\n"),
    "netlink": Abuse("refused(lambda: socket.socket(16, socket.SOCK_RAW))", prints="EAFNOSUPPORT\n"),
    "host files": Abuse(
        "print([p for p in ('/etc/passwd', '/etc/shadow', '/root', '/home', '/var', '/sys') if os.path.exists(p)])",
        prints="[]\n",
    ),
    "a link to a host file": Abuse("os.symlink('/etc/shadow', 'l'); refused(lambda: open('l'))", prints="ENOENT\n"),
    "a hard link into /usr": Abuse("refused(lambda: os.link('/usr/bin/env', 'l'))", prints="EXDEV\n"),
    "writing to the system": Abuse(
        "for p in ('/x', '/usr/x', '/dev/x', '/run/x', '/run/program.py'): refused(lambda: open(p, 'w'))",
        prints="EROFS\n" * 5,
    ),
    "kernel memory": Abuse("refused(lambda: open('/dev/mem')); refused(lambda: open('/proc/kcore', 'rb'))", OK),
    "sysrq": Abuse("refused(lambda: open('/proc/sysrq-trigger', 'w'))", OK),
    "becoming root": Abuse(
        "refused(lambda: os.setuid(0)); print(subprocess.run(['/usr/bin/su', '-c', 'id'], capture_output=True).stdout)",
        prints="EINVAL\nb''\n",
    ),
    "a user namespace": Abuse("refused(lambda: call(272, 0x10000000))", prints="EPERM\n"),
    "a user namespace by clone": Abuse("refused(lambda: call(56, 0x10000011, 0, 0, 0, 0))", prints="EPERM\n"),
    "clone3": Abuse("refused(lambda: call(435, 0, 0))", prints="ENOSYS\n"),
    "io_uring": Abuse("refused(lambda: call(425, 8, 0))", prints="EPERM\n"),
    "bpf": Abuse("refused(lambda: call(321, 0, 0, 0))", prints="EPERM\n"),
    "keys": Abuse("refused(lambda: call(250, 0, -3, 0, 0))", prints="EPERM\n"),
    "mounting": Abuse("refused(lambda: call(165, b'none', b'/tmp', b'tmpfs', 0, None))", prints="EPERM\n"),
    "typing into the terminal": Abuse(
        "import fcntl; refused(lambda: fcntl.ioctl(0, 0x5412, b'x')); refused(lambda: fcntl.ioctl(0, 0x541C, b'x'))",
        prints="EPERM\nEPERM\n",
    ),
}
# System-call numbers above are x86-64's.
needs_x86_64 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="written in x86-64's system-call numbers")


@needs_x86_64
@pytest.mark.parametrize("name", ABUSES)
async def test_abuse_is_contained(sandbox: Sandbox, name: str, tmp_path: Path) -> None:
    abuse = ABUSES[name]
    if abuse.status in {MEMORY, SandboxStatus.TOO_MANY_PROCESSES} and "memory" not in sandbox.detection.cgroups.limits:
        pytest.skip("only a cgroup bounds this for a run as a whole")
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    result = await sandbox.run_python(PRELUDE + abuse.code, workspace, abuse.limits)
    assert "ESCAPED" not in result.stdout
    assert result.status is abuse.status, result
    if abuse.prints is not None:
        assert result.stdout == abuse.prints


# What was once found to leak, kept closed.


async def test_kernel_settings_cannot_be_opened_for_writing(sandbox: Sandbox) -> None:
    code = "for f in ('kernel/core_pattern', 'vm/drop_caches'): refused(lambda: open('/proc/sys/' + f, 'w'))"
    result = await sandbox.run_python(PRELUDE + code, None, LIMITS)
    assert set(result.stdout.split()) <= {"EACCES", "EROFS"}, result


async def test_the_services_environment_is_seen_nowhere(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_DSN", "postgres://secret")
    code = "import glob\nfor f in glob.glob('/proc/*/environ'): print(open(f, 'rb').read())"
    result = await sandbox.run_python(code, None, LIMITS)
    assert "PYTHONUNBUFFERED" in result.stdout
    assert "SECRET" not in result.stdout
    assert "VIRTUAL_ENV" not in result.stdout


@needs_x86_64
async def test_nothing_can_be_traced_or_read_from_outside(sandbox: Sandbox) -> None:
    code = "refused(lambda: call(101, 16, 1, 0, 0)); refused(lambda: call(310, 1, 0, 0, 0, 0, 0))"
    assert (await sandbox.run_python(PRELUDE + code, None, LIMITS)).stdout == "EPERM\nEPERM\n"


async def test_dev_and_shm_are_small_and_closed(sandbox: Sandbox) -> None:
    code = "s = os.statvfs('/dev/shm'); print(s.f_blocks * s.f_frsize); refused(lambda: open('/dev/x', 'w'))"
    assert (await sandbox.run_python(PRELUDE + code, None, LIMITS)).stdout == f"{MIB}\nEROFS\n"


async def test_no_descriptor_of_the_service_is_inherited(sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        os.set_inheritable(server.fileno(), True)
        result = await sandbox.run_python("import os; print(sorted(os.listdir('/proc/1/fd')))", None, LIMITS)
    assert result.stdout == "['0', '1', '2', '3']\n"  # the last is the listing's own


async def test_no_process_inside_is_without_the_filter(sandbox: Sandbox) -> None:
    code = "import glob\nfor f in glob.glob('/proc/[0-9]*/status'): print(f, 'Seccomp:\\t2' in open(f).read())"
    assert (await sandbox.run_python(code, None, LIMITS)).stdout == "/proc/1/status True\n"


# The self-test notices a sandbox that was put together wrongly.


async def test_the_self_test_passes_here(sandbox_settings: SandboxSettings) -> None:
    async with await Sandbox.open(sandbox_settings) as opened:
        assert (await opened.run_python("print(1)", None, LIMITS)).stdout == "1\n"


def _show_etc(monkeypatch: pytest.MonkeyPatch) -> None:
    _append(monkeypatch, "--ro-bind", "/etc", "/etc")


def _share_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    _append(monkeypatch, "--setenv", "SECRET_DSN", "postgres://secret")


def _no_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    allow_everything = bytes.fromhex("060000000000ff7f")  # BPF: return SECCOMP_RET_ALLOW
    real = Sandbox._program
    monkeypatch.setattr(
        Sandbox, "_program", lambda *given: dataclasses.replace(real(*given), filter_program=allow_everything)
    )


def _real_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sandbox, "_uid", lambda _sandbox, _slot: None)


def _append(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    real = command_module._system
    monkeypatch.setattr(command_module, "_system", lambda view: [*real(view), *words])


WEAKENED = {
    "host files": (_show_etc, "read the host's /etc/passwd"),
    "environment": (_share_environment, "saw environment variables of the service: SECRET_DSN"),
    "no filter": (_no_filter, "was allowed to be debugged"),
    "started by root": (_real_root, "opened /proc/sys/kernel/core_pattern for writing"),
}


@pytest.mark.parametrize("weakness", WEAKENED)
async def test_a_weakened_sandbox_does_not_open(
    sandbox_settings: SandboxSettings, monkeypatch: pytest.MonkeyPatch, weakness: str
) -> None:
    weaken, sentence = WEAKENED[weakness]
    if weaken is _real_root and os.geteuid() != 0:
        pytest.skip("only root can start it as root")
    weaken(monkeypatch)
    with pytest.raises(SandboxEscaped) as refused:
        await Sandbox.open(sandbox_settings)
    assert sentence in str(refused.value)


# Cancelling.


async def test_a_cancelled_run_is_gone_at_once(any_sandbox: Sandbox, nothing_left_behind: Callable[[], None]) -> None:
    ready = asyncio.Event()
    code = PRELUDE + "for _ in range(2): os.fork()\nprint('ready')\nwhile True: pass"
    run = asyncio.create_task(any_sandbox.run_python(code, None, LONG, lambda *_: ready.set()))
    await ready.wait()
    began = time.monotonic()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert time.monotonic() - began < 60  # by itself it would end after ten minutes
    assert all(task.done() for task in any_sandbox._running)


@pytest.mark.parametrize("milliseconds", [0, 1, 3, 6, 10, 15, 20, 25, 30, 40, 55])
async def test_a_run_can_be_cancelled_at_any_moment(
    any_sandbox: Sandbox, nothing_left_behind: Callable[[], None], milliseconds: int, tmp_path: Path
) -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(milliseconds / 1000):
            await any_sandbox.run_python("import time; time.sleep(600)", tmp_path, LONG)
    assert time.monotonic() - began < 60
    assert all(task.done() for task in any_sandbox._running)


async def test_a_run_cancelled_again_while_it_is_killed_is_still_killed(sandbox: Sandbox) -> None:
    ready = asyncio.Event()
    code = "print('ready')\nimport time; time.sleep(60)"
    run = asyncio.create_task(sandbox.run_python(code, None, SandboxLimits(), lambda *_: ready.set()))
    await ready.wait()
    while not run.done():
        run.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await run
    assert all(task.done() for task in sandbox._running)


async def test_closing_ends_what_runs(sandbox: Sandbox) -> None:
    ready = asyncio.Event()
    code = "print('ready')\nimport time; time.sleep(60)"
    run = asyncio.create_task(sandbox.run_python(code, None, SandboxLimits(), lambda *_: ready.set()))
    await ready.wait()
    await sandbox.close()
    assert (await run).status is SandboxStatus.CANCELLED


async def test_many_at_once_all_end_in_time(sandbox: Sandbox) -> None:
    limits = dataclasses.replace(SHORT, wall_seconds=0.3)
    spin = (sandbox.run_python("while True: pass", None, limits) for _ in range(16))
    results = await asyncio.gather(*spin)
    assert {result.status for result in results} == {TIMEOUT}
    assert max(result.wall_ms for result in results) < 2000
