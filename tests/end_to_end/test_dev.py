"""`tenure dev` as a stranger runs it: started, used, interrupted, started again."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import urllib.request
from asyncio.subprocess import Process
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from devstack.options import Layout
from tenure.cli.exit_codes import Exit
from tenure.client import Client
from tenure.runtime.running_stack import read_addresses
from tenure.v1.admin_service_pb2 import GetCallerRequest
from tests.end_to_end.command import next_value, start, started, tenure
from tests.support.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

needs_proc = pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="looks at processes through /proc")
QUICK = ("--latency-ms", "0", "--workers", "1")


def process_of(worker: str, data: Path) -> int:
    """The pid of a worker of this stack: the process that writes its log."""
    for output in Path("/proc").glob("[0-9]*/fd/1"):
        with suppress(OSError):
            if output.resolve() == data / "logs" / f"{worker}.log":
                return int(output.parts[2])
    raise AssertionError(f"{worker} does not run on {data}")


def calls_of_the_runner(data: Path) -> float:
    """The model calls that the model runner of a stack has begun, by its metrics."""
    targets = json.loads(Layout(data).metrics_targets.read_text())
    (address,) = next(one["targets"] for one in targets if one["labels"]["component"] == "models")
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_SECONDS) as answer:
        text = answer.read().decode()
    return sum(map(float, re.findall(r'^tenure_models_requests_total\{.*way="BEGUN".*\} (\S+)', text, re.MULTILINE)))


async def interrupted(dev: Process) -> str:
    """What it says after Ctrl-C, to its end."""
    dev.send_signal(signal.SIGINT)
    async with asyncio.timeout(PATIENCE_SECONDS):
        out, err = await dev.communicate()
    assert dev.returncode == Exit.OK, err
    assert b"Traceback" not in err
    return out.decode() + err.decode()


@pytest.mark.nightly
async def test_a_stack_ends_in_order_and_finds_its_tasks_again(tmp_path: Path) -> None:
    data = tmp_path / "data"
    dev = await start("--json", "dev", "--data", str(data), *QUICK)
    address = (await next_value(dev))["gateway"]
    assert (read_addresses(data) or {})["gateway"] == address
    task_id = (await tenure("submit", "keep me", "--model", "sim-hello", address=address)).out.strip()
    assert (await tenure("tasks", "wait", task_id, address=address)).code == Exit.OK
    async with Client(address) as client:
        assert (await client.admin.GetCaller(GetCallerRequest())).stack_folder == str(data)
    assert await asyncio.to_thread(calls_of_the_runner, data) == 1
    said = await interrupted(dev)
    assert said.index("stopping the workers") < said.index("stopping the services") < said.index("stopping etcd")
    assert said.rstrip().endswith(f"Tasks and files are kept in {data}.")
    assert read_addresses(data) is None
    async with started("--json", "dev", "--data", str(data), "--direct-models", *QUICK) as again:
        addresses = await next_value(again)
        (task,) = (await tenure("--json", "list", address=addresses["gateway"])).values
        assert (task["task_id"], task["state"]) == (task_id, "SUCCEEDED")
        assert "models" not in addresses
        next_id = (await tenure("submit", "go on", "--model", "sim-hello", address=addresses["gateway"])).out.strip()
        assert (await tenure("tasks", "wait", next_id, address=addresses["gateway"])).code == Exit.OK


@pytest.mark.nightly
async def test_its_screen_says_what_runs_where_and_what_to_do(tmp_path: Path) -> None:
    async with started("dev", *QUICK, cwd=tmp_path) as dev:
        screen = ""
        while "inspect" not in screen:
            assert dev.stdout is not None
            line = await asyncio.wait_for(dev.stdout.readline(), PATIENCE_SECONDS)
            assert dev.stderr is not None
            assert line, (await dev.stderr.read()).decode()
            screen += line.decode()
        addresses = read_addresses(tmp_path / ".tenure")
        assert addresses is not None
        for expected in (
            *(addresses["gateway"], addresses["http"], "worker-1", "SIMULATED", "embedded", "for development only"),
            *(".tenure, ", "--reset", "--watch", "sandbox"),
        ):
            assert expected in screen
        assert screen.count("\n") < 24
        from_its_folder = await start("workers", "list", cwd=tmp_path)
        out, _ = await from_its_folder.communicate()
        assert b"worker-1" in out


@pytest.mark.nightly
@needs_proc
async def test_a_second_start_in_a_folder_is_refused(tmp_path: Path) -> None:
    async with started("--json", "dev", "--data", str(tmp_path), *QUICK) as dev:
        address = (await next_value(dev))["gateway"]
        second = await tenure("dev", "--data", str(tmp_path))
        assert second.code == Exit.REFUSED
        assert f"its gateway is {address}" in second.err
        assert second.err.count("\n") == 1

        os.kill(process_of("worker-1", tmp_path), signal.SIGKILL)
        said = ""
        while "worker-1 serves again" not in said:
            assert dev.stderr is not None
            said += (await asyncio.wait_for(dev.stderr.readline(), PATIENCE_SECONDS)).decode()
        assert f"worker-1 was killed (SIGKILL); it will be restarted in 0.5 s. Its log: {tmp_path}" in said
        async with Client(address) as client:
            task = await client.submit("go on")
            assert (await client.wait(task.task_id, 60)).state


PROGRAM = """
from word import WORD
from tenure.agents import Work, Worker, function


@function
async def say(work: Work, given: None) -> str:
    return WORD


Worker([say]).run()
"""


@pytest.mark.nightly
async def test_a_program_starts_again_with_its_changed_code(tmp_path: Path) -> None:
    program, data = tmp_path / "shop.py", tmp_path / "data"
    program.write_text(PROGRAM)
    (tmp_path / "word.py").write_text('WORD = "old"')
    async with started("--json", "dev", str(program), "--reload", "--data", str(data), *QUICK) as dev:
        address = (await next_value(dev))["gateway"]
        for word in ("old", "new"):
            task_id = (await tenure("submit", "--function", "say", address=address)).out.strip()
            assert word in (await tenure("tasks", "wait", task_id, address=address)).out
            if word == "old":
                (tmp_path / "word.py").write_text('WORD = "new"')
                await said_by(dev, f"{program} starts again")
        refused = await tenure("dev", "--reset", "--yes", "--data", str(data))
        assert refused.code == Exit.REFUSED
        assert "a stack runs on" in refused.err
    deleted = await tenure("dev", "--reset", "--yes", "--data", str(data))
    assert deleted.code == Exit.OK, deleted.err
    assert not data.exists()


async def said_by(dev: Process, text: str) -> None:
    """Waits until it has written this to its stderr."""
    assert dev.stderr is not None
    while text not in (line := (await asyncio.wait_for(dev.stderr.readline(), PATIENCE_SECONDS)).decode()):
        assert line, "the stack ended"


@pytest.mark.nightly
@needs_proc
async def test_an_interrupt_while_it_starts_leaves_nothing_behind(tmp_path: Path) -> None:
    dev = await start("--json", "dev", "--data", str(tmp_path), *QUICK)
    assert dev.stderr is not None
    while b"starting checkpoint" not in await asyncio.wait_for(dev.stderr.readline(), PATIENCE_SECONDS):
        pass
    dev.send_signal(signal.SIGTERM)
    async with asyncio.timeout(PATIENCE_SECONDS):
        _, err = await dev.communicate()
    assert dev.returncode == Exit.INTERRUPTED
    assert b"Traceback" not in err
    homes = [link for link in Path("/proc").glob("[0-9]*/cwd") if _resolves_below(link, tmp_path)]
    assert homes == []


def _resolves_below(link: Path, folder: Path) -> bool:
    try:
        return link.resolve().is_relative_to(folder)
    except (OSError, PermissionError):
        return False


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--data", "{file}"), "cannot be the data folder: File exists; choose one with --data"),
        (("--etcd-binary", "{file}"), "is not an executable file"),
        (("--postgres-binaries", "{folder}"), "has no postgres, initdb"),
        (("--postgres", "postgresql://127.0.0.1:1/x"), "cannot connect to the Postgres"),
        (("--set", "checkpoint.SWEEP_INTERVAL=5"), "did you mean TENURE_CHECKPOINT_SWEEP_INTERVAL_SECONDS?"),
        (("--set", "worker-1.SLOTS=many"), "TENURE_WORKER_SLOTS"),
        (("--set", "models.MAX_CALLS=0"), "TENURE_MODELS_MAX_CALLS"),
    ],
)
async def test_a_failed_start_says_why_in_one_sentence(tmp_path: Path, arguments: Any, expected: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    filled = [argument.format(file=tmp_path / "file", folder=tmp_path / "folder") for argument in arguments]
    at_data = [] if "--data" in filled else ["--data", str(tmp_path / "data")]
    refused = await tenure("--json", "dev", *filled, *at_data)
    assert refused.code == Exit.REFUSED
    assert expected in refused.err.splitlines()[-1]
    assert refused.out == ""


def fake_program(path: Path, version: str) -> None:
    """A program that says its version, and could do nothing else."""
    path.write_text(f"#!/bin/sh\n[ \"$1\" = --version ] && echo '{version}'\n")
    path.chmod(0o755)


def fake_postgres(folder: Path, version: str) -> Path:
    folder.mkdir()
    for program in ("postgres", "initdb", "psql"):
        fake_program(folder / program, f"{program} (PostgreSQL) {version}")
    return folder


@pytest.mark.nightly
async def test_without_etcd_no_postgres_is_started(tmp_path: Path) -> None:
    data, binaries = tmp_path / "data", fake_postgres(tmp_path / "bin", "15.7")
    refused = await tenure(
        *("dev", "--data", str(data), "--postgres-binaries", str(binaries), "--etcd-binary", str(tmp_path / "no-etcd"))
    )
    assert refused.code == Exit.REFUSED
    assert refused.err == f"tenure: nothing is started: {tmp_path / 'no-etcd'} is not an executable file\n"
    assert not data.exists()


@pytest.mark.nightly
async def test_everything_that_is_missing_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refused = await tenure(
        *("dev", "--data", str(tmp_path / "data"), "--postgres-binaries", str(tmp_path / "empty")),
        *("--etcd-binary", str(tmp_path / "no-etcd")),
    )
    assert "has no postgres, initdb" in refused.err
    assert "no-etcd is not an executable file" in refused.err
    assert not (tmp_path / "data").exists()


@pytest.mark.nightly
async def test_data_of_another_postgres_is_refused_before_the_start(tmp_path: Path) -> None:
    data, binaries = tmp_path / "data", fake_postgres(tmp_path / "bin", "15.7")
    (data / "postgres").mkdir(parents=True)
    (data / "postgres" / "PG_VERSION").write_text("18\n")
    refused = await tenure("dev", "--data", str(data), "--postgres-binaries", str(binaries))
    assert refused.code == Exit.REFUSED
    assert (
        f"{data / 'postgres'} was created by PostgreSQL 18, but {binaries} has 15.7, which cannot read it"
        in refused.err
    )
    assert "name the bin directory of a PostgreSQL 18 (--postgres-binaries" in refused.err
    assert "starting" not in refused.err
    assert [path.name for path in data.iterdir()] == ["postgres"]


@pytest.mark.nightly
async def test_an_error_in_the_tools_file_is_reported_before_the_start(tmp_path: Path) -> None:
    file, data = tmp_path / "tools.yaml", tmp_path / "data"
    tool = {"url": "http://127.0.0.1:1/", "description": "It has a name that is taken."}
    file.write_text(json.dumps({"http_tools": {"read_file": tool}}))
    refused = await tenure("dev", "--data", str(data), "--tools-config", str(file))
    assert refused.code == Exit.REFUSED
    assert "http_tools.read_file: there are two tools of this name" in refused.err
    assert "Postgres" not in refused.err
    assert "Traceback" not in refused.err
    assert not list((data / "logs").iterdir())
