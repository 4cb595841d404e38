"""Programs that attack the sandbox: each account of the service contains them, and their neighbours notice nothing."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.tools.sandbox import Detection, Sandbox, SandboxEscaped, SandboxLimits, SandboxSettings
from services.tools.sandbox import command as command_module
from services.tools.sandbox.cgroups import Cgroups
from services.tools.sandbox.launcher import LANDLOCK_FOR_SIGNALS, landlock_version
from services.tools.sandbox.supervision import SandboxedProgram
from tests.fault.abuse_runner import contain
from tests.fault.abuses import FAMILIES, Abuse
from tests.fault.ordinary_user import delegated_cgroups, folder_of_an_ordinary_user, run_as_an_ordinary_user, user_id

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

MIB = 1 << 20
LIMITS = SandboxLimits(wall_seconds=60, memory_bytes=96 * MIB, tmp_bytes=8 * MIB, open_files=64)
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="this suite runs as an ordinary user already: see the others")


@pytest.mark.faults
@pytest.mark.parametrize("family", FAMILIES)
async def test_abuses_are_contained(sandbox: Sandbox, family: str, tmp_path: Path) -> None:
    assert await contain(sandbox, FAMILIES[family], tmp_path) == []


@pytest.fixture(scope="module")
def users_folder(sandbox_detection: Detection) -> Iterator[Path]:
    with folder_of_an_ordinary_user() as place:
        yield place


@pytest.mark.faults
@only_root
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("groups", "warm"), [("no cgroups", 0), ("no cgroups", 1), ("delegated cgroups", 1)])
def test_abuses_are_contained_for_an_ordinary_user(
    sandbox_detection: Detection, users_folder: Path, family: str, groups: str, warm: int
) -> None:
    if groups == "delegated cgroups" and not sandbox_detection.cgroups.limits:
        pytest.skip("root itself can make no cgroups here: " + sandbox_detection.cgroups.describe())
    directory = users_folder / "tmp" / f"{groups} {warm} {family}".replace(" ", "-")
    directory.mkdir()
    os.chown(directory, user_id(), user_id())
    given = sandbox_detection.cgroups if groups == "delegated cgroups" else Cgroups(())
    with delegated_cgroups(given) as joins:
        run = ("-m", "tests.fault.abuse_runner", family, str(directory), str(warm))
        done = run_as_an_ordinary_user(users_folder, *run, joins=joins)
    assert done.returncode == 0, done.stderr
    decoded = json.loads(done.stdout)
    assert (decoded["uid"], decoded["complaints"]) == (user_id(), [])
    of_root = sandbox_detection.cgroups.describe()
    assert decoded["limits"] == (of_root if groups == "delegated cgroups" else "no cgroup can be made")


@pytest.mark.faults
async def test_an_abuse_that_is_not_contained_is_complained_about(sandbox: Sandbox, tmp_path: Path) -> None:
    wrong = {
        "gets out": Abuse("print('ESCAPED')"),
        "fails": Abuse("1 / 0"),
        "prints something else": Abuse("print(1)", prints="2\n"),
    }
    complaints = await contain(sandbox, wrong, tmp_path)
    assert sorted(complaint.partition(":")[0] for complaint in complaints) == sorted(wrong)


TRY = """
import errno, os
def refused(action):
    try: action()
    except OSError as error: print(errno.errorcode[error.errno])
    else: print("ESCAPED")
"""


# What was once found to leak, kept closed.


@pytest.mark.faults
async def test_kernel_settings_cannot_be_opened_for_writing(sandbox: Sandbox) -> None:
    code = "for f in ('kernel/core_pattern', 'vm/drop_caches'): refused(lambda: open('/proc/sys/' + f, 'w'))"
    result = await sandbox.run_python(TRY + code, None, LIMITS)
    assert set(result.stdout.split()) <= {"EACCES", "EROFS"}, result


@pytest.mark.faults
async def test_the_services_environment_is_seen_nowhere(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_DSN", "postgres://secret")
    code = "import glob\nfor f in glob.glob('/proc/*/environ'): print(open(f, 'rb').read())"
    result = await sandbox.run_python(code, None, LIMITS)
    assert "PYTHONUNBUFFERED" in result.stdout
    assert "SECRET" not in result.stdout
    assert "VIRTUAL_ENV" not in result.stdout


@pytest.mark.faults
async def test_nothing_can_be_traced_or_read_from_outside(sandbox: Sandbox) -> None:
    code = "import ctypes\nc = ctypes.CDLL(None, use_errno=True)\n"
    code += "print(c.ptrace(16, 1, 0, 0), ctypes.get_errno(), c.process_vm_readv(1, 0, 0, 0, 0, 0), ctypes.get_errno())"
    assert (await sandbox.run_python(code, None, LIMITS)).stdout == "-1 1 -1 1\n"


@pytest.mark.faults
async def test_dev_and_shm_are_small_and_closed(sandbox: Sandbox) -> None:
    code = "s = os.statvfs('/dev/shm'); print(s.f_blocks * s.f_frsize); refused(lambda: open('/dev/x', 'w'))"
    assert (await sandbox.run_python(TRY + code, None, LIMITS)).stdout == f"{MIB}\nEROFS\n"


@pytest.mark.faults
async def test_no_descriptor_of_the_service_is_inherited(sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        os.set_inheritable(server.fileno(), True)
        result = await sandbox.run_python("import os; print(sorted(os.listdir('/proc/1/fd')))", None, LIMITS)
    assert result.stdout == "['0', '1', '2', '3']\n"  # the last is the listing's own


@pytest.mark.faults
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
    _change(monkeypatch, lambda program: dataclasses.replace(program, filter_program=allow_everything))


def _real_root(monkeypatch: pytest.MonkeyPatch) -> None:
    _change(
        monkeypatch, lambda program: dataclasses.replace(program, entry=dataclasses.replace(program.entry, uid=None))
    )


def _change(monkeypatch: pytest.MonkeyPatch, weaken: Callable[[SandboxedProgram], SandboxedProgram]) -> None:
    real = Sandbox._program
    monkeypatch.setattr(Sandbox, "_program", lambda *given: weaken(real(*given)))


def _append(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    real = command_module._system
    monkeypatch.setattr(command_module, "_system", lambda view: [*real(view), *words])


WEAKENED = {
    "host files": (_show_etc, "read the host's /etc/passwd"),
    "environment": (_share_environment, "saw environment variables of the service: SECRET_DSN"),
    "no filter": (_no_filter, "was allowed to be debugged"),
    "no filter, its effect": (_no_filter, "removed its death signal"),
    "started by root": (_real_root, "had the right to write /proc/sys/kernel/core_pattern"),
}


@pytest.mark.faults
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


@pytest.mark.faults
async def test_behind_the_network_namespace_there_is_a_second_wall(
    sandbox_settings: SandboxSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the host's own network, without the filter: what is left is Landlock, and it is enough."""
    if landlock_version() < LANDLOCK_FOR_SIGNALS:
        pytest.skip(f"this kernel's Landlock is version {landlock_version()}: nothing here but namespaces")
    _no_filter(monkeypatch)
    _append(monkeypatch, "--share-net")
    with pytest.raises(SandboxEscaped) as refused:
        await Sandbox.open(sandbox_settings)
    assert "opened a netlink socket" in str(refused.value)
    assert "TCP" not in str(refused.value)
    assert "local socket" not in str(refused.value)
