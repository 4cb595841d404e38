"""The example of a client in TypeScript: its stubs, its types, and a stream that outlives a gateway."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import uuid
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Final

import pytest

from tests.end_to_end.installation import Installation
from tests.support.fix_node import packages
from tests.support.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.server, pytest.mark.nightly]
ROOT: Final = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def client_folder(node: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example with the packages of the tests, and with its stubs."""
    folder = tmp_path_factory.mktemp("typescript") / "client"
    shutil.copytree(
        ROOT / "examples" / "typescript_client", folder, ignore=shutil.ignore_patterns("node_modules", "gen")
    )
    (folder / "node_modules").symlink_to(packages())
    environment = {**os.environ, "PATH": f"{node.parent}:{os.environ['PATH']}"}
    for command in (
        [Path(sys.executable).with_name("buf"), "generate", ROOT / "protos"],
        [node, "node_modules/typescript/bin/tsc"],
    ):
        done = subprocess.run(
            [str(part) for part in command], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


async def started(node: Path, folder: Path, install: Installation, *arguments: str) -> Process:
    environment = {**os.environ, "TENURE_ADDRESS": install.stack.gateway_address}
    return await asyncio.create_subprocess_exec(
        node, "client.ts", *arguments, cwd=folder, env=environment, stdout=PIPE, stderr=PIPE
    )


async def written(process: Process) -> str:
    async with asyncio.timeout(PATIENCE_SECONDS):
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


async def test_a_task_is_submitted_and_followed(installation: Installation, node: Path, client_folder: Path) -> None:
    file = uuid.uuid4().hex
    process = await started(node, client_folder, installation, file, "sim-e2e-unsafe-at-once")
    out = await written(process)
    assert (out.count("→ append_record_unsafe"), "SUCCEEDED" in out) == (1, True)
    assert installation.effects(file) == ["at most once"]


async def test_its_stream_outlives_a_gateway(own_installation: Installation, node: Path, client_folder: Path) -> None:
    process = await started(node, client_folder, own_installation, uuid.uuid4().hex, "sim-e2e-keyed-paced")
    assert process.stdout is not None
    lines = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (line := (await process.stdout.readline()).decode().strip()) != "Turn 2.":
            lines.append(line)
    gateway = own_installation.stack.services["gateway"]
    gateway.kill()
    await own_installation.died(gateway)
    gateway.start()
    await gateway.wait_ready()
    lines += ["Turn 2.", *(await written(process)).splitlines()]
    assert [line for line in lines if line.startswith("Turn ")] == [f"Turn {number}." for number in range(1, 6)]
    assert sum(line.startswith("→ append_record") for line in lines) == 5
