"""The services of `tenure dev` when the process that imports them for all cannot serve: each one starts alone."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from devstack import StackOptions
from devstack.child_process import RunningProgram, open_log
from devstack.options import Layout
from devstack.service_forks import ServiceForks
from tenure.runtime import forks
from tenure.runtime.forks import CAN_FORK, ForkClient
from tests.support.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="this system has no pidfd")

ANY_MODULE = [sys.executable, "-P", "-m", "platform"]


def forks_with(tmp_path: Path, grpc: str) -> ServiceForks:
    """The process of the imports, with another module `grpc`."""
    (tmp_path / "grpc.py").write_text(grpc)
    layout = Layout(tmp_path / "data")
    layout.logs.mkdir(parents=True)
    return ServiceForks(
        StackOptions(data_dir=layout.data_dir, environment={"*": {"PYTHONPATH": str(tmp_path)}}), layout
    )


def launched(services: ServiceForks, tmp_path: Path) -> RunningProgram:
    with open_log(tmp_path / "service.log") as log:
        return services.launch(ANY_MODULE, environment=dict(os.environ), cwd=tmp_path, log=log)


def test_service_starts_alone_after_failed_imports(tmp_path: Path) -> None:
    with forks_with(tmp_path, "raise ImportError('broken')") as services:
        services.wait_ready()
        service = launched(services, tmp_path)
        assert isinstance(service, subprocess.Popen)
        assert service.wait(PATIENCE_SECONDS) == 0
    assert "broken" in (tmp_path / "data" / "logs" / "imports.log").read_text()


def test_service_starts_alone_while_imports_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stack ends, too: it does not wait for them."""
    monkeypatch.setattr(forks, "READY_SECONDS", 0.1)
    with forks_with(tmp_path, "import time; time.sleep(3600)") as services:
        services.wait_ready()
        assert launched(services, tmp_path).wait(PATIENCE_SECONDS) == 0


def test_request_that_no_message_can_carry_is_refused(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, open_log(tmp_path / "log") as log:
        client = ForkClient(ours)
        assert client.fork("x" * (1 << 22), stdout=log.fileno(), stderr=log.fileno()) is None
        client.close()
