"""The wheel as users install it: what it brings, what it leaves alone, and what runs from it."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import textwrap
import zipfile
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.package.installed import ROOT, Environment, build, install, variables
from tests.support.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.server, pytest.mark.timeout(900), pytest.mark.nightly]

PACKAGES: Final = 12
DOWNLOADED_MB: Final = 15
INSTALLED_MB: Final = 36
"""Limits of the base installation, the Tenure of the wheel included. Half of the files is gRPC."""
SERVER: Final = ("services", "edges", "devstack", "checker")
NO_NAMES: Final = (*SERVER, "bench", "deploy", "protos", "spec", "tests", "examples")
"""The folders of the repository whose names are not for users' environments."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """`pip install tenure`."""
    return install(wheel, (), tmp_path_factory.mktemp("base"), compiled=False)


@pytest.fixture(scope="module")
def full(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """`pip install 'tenure[server,dev,testing]'`."""
    return install(wheel, ("server", "dev", "testing"), tmp_path_factory.mktemp("full"), compiled=True)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A user's project, with packages of its own that have the names of ours."""
    for name in SERVER:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('a package of the user')\n")
    return tmp_path


def test_the_wheel_has_one_top_level_name(wheel: Path) -> None:
    checked = subprocess.run(
        [Path(sys.executable).with_name("check-wheel-contents"), "--config", ROOT / "pyproject.toml", wheel],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout
    names = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"tenure"}


def test_the_wheel_has_the_repositorys_files_unchanged(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    places = {
        "tenure": "tenure",
        "protos/tenure": "tenure/_protos/tenure",
        **{n: f"tenure/_server/{n}" for n in SERVER},
    }
    tracked = subprocess.run(["git", "ls-files", "-z", *places], cwd=ROOT, capture_output=True, check=True).stdout
    for name in tracked.decode().rstrip("\0").split("\0"):
        source = next(place for place in places if name.startswith(f"{place}/"))
        packed = archive.read(places[source] + name.removeprefix(source))
        assert packed == (ROOT / name).read_bytes(), name
    assert "tenure/py.typed" in archive.namelist()


def test_the_wheel_states_its_licence(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    assert "\nLicense-Expression: Apache-2.0\n" in archive.read(metadata).decode()
    licence = archive.read(metadata.replace("METADATA", "licenses/LICENSE")).decode()
    assert "Apache License" in licence
    assert "Version 2.0, January 2004" in licence


def test_the_base_is_light(base: Environment) -> None:
    wheels = list(base.wheels.iterdir())
    downloaded = sum(path.stat().st_size for path in wheels) / 1e6
    installed = sum(path.stat().st_size for path in base.files()) / 1e6
    assert len(wheels) <= PACKAGES, sorted(path.name for path in wheels)
    assert downloaded < DOWNLOADED_MB
    assert installed < INSTALLED_MB


def test_the_base_has_the_client_and_no_server(base: Environment, tmp_path: Path) -> None:
    program = """
        import importlib.util, sys
        import tenure.client, tenure.cli.main, tenure.v1.task_service_pb2_grpc
        public = [getattr(tenure, name) for name in getattr(tenure, "__all__", ())]
        print([name for name in sys.argv[1:] if importlib.util.find_spec(name)])
    """
    done = base.run("python", "-c", textwrap.dedent(program), *NO_NAMES, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_the_command_works_without_extras(base: Environment, tmp_path: Path) -> None:
    version = base.run("tenure", "--version", cwd=tmp_path)
    assert re.fullmatch(r"tenure, version \d+\.\d+\.\d+\n", version.stdout), version.stderr
    shown = base.run("tenure", "--help", cwd=tmp_path)
    assert shown.returncode == 0
    listed = base.run("tenure", "--address", "127.0.0.1:1", "list", cwd=tmp_path)
    assert (listed.returncode, listed.stderr[:60]) == (
        4,
        "tenure: no gateway answers at 127.0.0.1:1: start it, for exa",
    )
    explained = base.run("tenure", "admin", "verify", "--explain", cwd=tmp_path)
    assert explained.returncode == 0, explained.stderr


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (("serve", "gateway"), "server"),
        (("serve", "all"), "server"),
        (("mcp",), "mcp"),
        (("dev",), "dev"),
        (("dev", "--replicas", "2"), "dev"),
        (("demo",), "dev"),
        (("keys", "create", "keys"), "server"),
        (("keys", "certs", "create", "certs"), "server"),
    ],
)
def test_a_command_names_the_extra_that_it_needs(
    base: Environment, tmp_path: Path, command: tuple[str, ...], extra: str
) -> None:
    done = base.run("tenure", *command, cwd=tmp_path)
    assert done.returncode == (2 if command[0] == "serve" else 3)
    words = 2 if command[0] == "serve" or command[:2] == ("keys", "certs") else 1
    named = f"tenure: `tenure {' '.join(command[:words])}` needs the extra"
    assert done.stderr.startswith(f"{named}: pip install 'tenure[{extra}]' (the package ")
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("line", "extra"),
    [
        ("from tenure.agents import Agent", "agents"),
        ("from tenure.agents import Worker", "agents"),
        ("import tenure.agents.openai_agents", "openai-agents"),
    ],
)
def test_agents_name_the_extra_that_they_need(base: Environment, tmp_path: Path, line: str, extra: str) -> None:
    done = base.run("python", "-c", line, cwd=tmp_path)
    assert f"needs the extra: pip install 'tenure[{extra}]' (the package " in done.stderr.splitlines()[-1]


def test_the_server_adds_no_name_to_the_environment(full: Environment, tmp_path: Path) -> None:
    program = "import importlib.util, sys; print([n for n in sys.argv[1:] if importlib.util.find_spec(n)])"
    assert full.run("python", "-c", program, *NO_NAMES, cwd=tmp_path).stdout == "[]\n"


@asynccontextmanager
async def dev_stack(full: Environment, cwd: Path) -> AsyncIterator[str]:
    """`tenure dev` in the user's folder, until Ctrl-C. The gateway's address."""
    dev = await asyncio.create_subprocess_exec(
        *(full.program("tenure"), "--json", "dev", "--latency-ms", "0"),
        cwd=cwd,
        env=variables(),
        stdout=PIPE,
        stderr=PIPE,
    )
    try:
        assert dev.stdout is not None
        line = await asyncio.wait_for(dev.stdout.readline(), PATIENCE_SECONDS)
        if not line:
            raise AssertionError((await dev.communicate())[1].decode())
        yield json.loads(line)["gateway"]
    finally:
        if dev.returncode is None:
            dev.send_signal(signal.SIGINT)
        _, said = await asyncio.wait_for(dev.communicate(), PATIENCE_SECONDS)
    assert (dev.returncode, b"Traceback" in said) == (0, False), said.decode()


def readme_program(address: str) -> str:
    """The first Python program of the README, for this gateway."""
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    (program,) = (block.replace("127.0.0.1:8470", address) for block in blocks if "Client(" in block)
    assert address in program
    return program


async def test_the_readmes_task_runs_from_the_wheel(full: Environment, elsewhere: Path) -> None:
    """All processes of the stack run from the wheel, beside packages of the user that have the same names."""
    async with dev_stack(full, elsewhere) as address:

        async def run(*command: str) -> subprocess.CompletedProcess[str]:
            return await asyncio.to_thread(full.run, *command, cwd=elsewhere, seconds=PATIENCE_SECONDS)

        submitted = await run("tenure", "submit", "Compare the prices of our competitors", "--watch")
        assert (submitted.returncode, "SUCCEEDED" in submitted.stdout) == (0, True), submitted.stdout + submitted.stderr
        by_program = await run("python", "-P", "-c", readme_program(address))
        assert by_program.returncode == 0, by_program.stderr
        listed = await run("tenure", "--json", "list")
        states = [json.loads(line)["state"] for line in listed.stdout.splitlines()]
        assert states == ["SUCCEEDED"] * 2
        verified = await run("tenure", "admin", "verify")
        assert (verified.returncode, "no violation" in verified.stdout) == (0, True), verified.stdout + verified.stderr


def test_the_fixture_comes_with_the_package(full: Environment, elsewhere: Path) -> None:
    """Without a conftest.py; and the user's packages stay the user's."""
    (elsewhere / "functions.py").write_text(
        "async def hello(work, name):\n    return await work.step('greet', lambda: f'Hello, {name}.')\n\n"
        "FUNCTIONS = {'hello': hello}\n"
    )
    program = """
        import pytest

        def test_hello(tenure):
            worker = tenure.worker(functions="functions")
            task = tenure.submit_function("hello", "Ada")
            worker.kill(at="after step 1")
            tenure.worker(functions="functions")
            assert task.result().value == "Hello, Ada."
            with pytest.raises(SystemExit, match="a package of the user"):
                import services
    """
    (elsewhere / "test_hello.py").write_text(textwrap.dedent(program))
    done = full.run("python", "-m", "pytest", "-q", "-W", "error", cwd=elsewhere, seconds=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
