"""What is said about machines on which something is missing, and that nothing runs there."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from services.tools.sandbox import Sandbox, SandboxSettings, SandboxUnavailable, detect
from services.tools.sandbox import detection as detection_module
from services.tools.sandbox.cgroups import Cgroups

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="programs are sandboxed on Linux only")


def make_executable(path: Path, script: str) -> Path:
    path.write_text(script)
    path.chmod(0o755)
    return path


async def test_another_system_is_named_and_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    result = detect(SandboxSettings())
    assert result.missing == ("programs are sandboxed on Linux only, and this is darwin",)
    with pytest.raises(SandboxUnavailable, match="darwin"):
        await Sandbox.open(SandboxSettings())


@linux_only
async def test_without_bubblewrap_nothing_runs(tmp_path: Path) -> None:
    settings = SandboxSettings(bubblewrap=tmp_path / "bwrap")
    with pytest.raises(SandboxUnavailable, match="bwrap"):
        await Sandbox.open(settings)


@linux_only
def test_missing_parts_are_reported_together(tmp_path: Path) -> None:
    result = detect(SandboxSettings(bubblewrap=tmp_path / "bwrap", interpreter=tmp_path / "python"))
    with pytest.raises(SandboxUnavailable) as refused:
        result.require()
    assert "bwrap" in str(refused.value)
    assert "no usable Python interpreter" in str(refused.value)


@linux_only
@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("#!/bin/sh\necho bubblewrap 0.7.1\n", "install version 0.8 or newer"),
        ("#!/bin/sh\necho hello\n", "has no version number"),
        ("#!/bin/sh\nexit 1\n", "does not run"),
    ],
)
def test_an_unfit_bubblewrap_is_refused(tmp_path: Path, script: str, sentence: str) -> None:
    result = detect(SandboxSettings(bubblewrap=make_executable(tmp_path / "bwrap", script)))
    assert sentence in "; ".join(result.missing)


@linux_only
def test_a_setuid_bubblewrap_is_refused(tmp_path: Path) -> None:
    program = make_executable(tmp_path / "bwrap", "#!/bin/sh\necho bubblewrap 0.11.0\n")
    program.chmod(0o755 | stat.S_ISUID)
    assert "setuid root" in "; ".join(detect(SandboxSettings(bubblewrap=program)).missing)


@linux_only
def test_an_operator_can_insist_on_cgroups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cgroups, "detect", classmethod(lambda cls: cls(())))
    lenient, strict = detect(SandboxSettings()), detect(SandboxSettings(require_cgroup=True))
    assert "no usable one limits memory and pids" in "; ".join(strict.missing)
    assert not [sentence for sentence in lenient.missing if "cgroup" in sentence]
    assert [sentence for sentence in lenient.weakened if "memory is limited for each process" in sentence]
    assert [sentence for sentence in lenient.weakened if "processes are limited by RLIMIT_NPROC" in sentence]


@linux_only
def test_forbidden_user_namespaces_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detection_module, "_sysctl", lambda name: 0 if name == "user/max_user_namespaces" else None)
    assert "user namespaces are off: user.max_user_namespaces is 0" in detect(SandboxSettings()).missing


@linux_only
@pytest.mark.skipif(os.geteuid() != 0, reason="only root drops to other uids")
@pytest.mark.parametrize(("slots", "long_running"), [(8, 0), (2, 6)])
def test_uids_that_this_container_does_not_have_are_named(slots: int, long_running: int) -> None:
    result = detect(SandboxSettings(first_uid=2**32 - 8, slots=slots, long_running=long_running))
    assert f"uids {2**32 - 8} to {2**32 - 1} are not mapped" in "; ".join(result.missing)


@linux_only
async def test_a_bubblewrap_without_isolation_is_noticed(tmp_path: Path) -> None:
    script = (
        "#!/bin/sh\n[ \"$1\" = --version ] && echo bubblewrap 0.11.0 && exit\necho 'bwrap: no namespaces' >&2\nexit 1\n"
    )
    tmp_path.chmod(0o755)
    program = make_executable(tmp_path / "bwrap", script)
    with pytest.raises(SandboxUnavailable, match="no namespaces"):
        await Sandbox.open(SandboxSettings(bubblewrap=program))


@pytest.mark.parametrize("unfit", [{"slots": 0}, {"first_uid": 0}])
def test_settings_that_run_programs_as_root_are_refused(unfit: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be at least"):
        SandboxSettings(**unfit)  # type: ignore[arg-type]  # fields by name
