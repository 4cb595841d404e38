"""Laws of a process, each checked on a real one: signals, order of closing, exit codes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]

PRELUDE = """
import asyncio, sys
from contextlib import asynccontextmanager
from tenure.runtime.process import Process, run
from tenure.runtime.settings import ConfigurationError

def say(word): print(word, flush=True)

@asynccontextmanager
async def part(name):
    say("open " + name)
    yield name
    say("close " + name)
"""

SERVING = """
async def main(process):
    await process.open(part("database"))
    await process.open(part("server"))
    say("ready")
    await process.run_until_stopped()
    say("draining")
"""

FOREVER = "await asyncio.Event().wait()"


@contextmanager
def running(main: str) -> Iterator[Any]:
    program = f"{PRELUDE}\n{main}\nsys.exit(run(main, closing_timeout_seconds=1.0))"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == word:
            return
    assert process.stderr is not None
    pytest.fail(f"the process never said {word}: {process.stderr.read()}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_closes_in_reverse_order(number: Any) -> None:
    with running(SERVING) as process:
        wait_for(process, "ready")
        process.send_signal(number)
        out, _ = process.communicate(timeout=PATIENCE_SECONDS)
        assert out.split("\n") == ["draining", "close server", "close database", ""]
        assert process.returncode == 0


def test_a_second_signal_ends_at_once() -> None:
    main = SERVING + f"    {FOREVER}\n"
    with running(main) as process:
        wait_for(process, "ready")
        process.send_signal(signal.SIGTERM)
        wait_for(process, "draining")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 128 + signal.SIGTERM


def test_signal_during_the_start_closes_open_parts() -> None:
    main = f"""
async def main(process):
    await process.open(part("database"))
    say("starting")
    {FOREVER}
"""
    with running(main) as process:
        wait_for(process, "starting")
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=PATIENCE_SECONDS)
        assert (out, process.returncode) == ("close database\n", 0)


def test_invalid_configuration_is_reported() -> None:
    main = """
async def main(process):
    raise ConfigurationError(["TENURE_X is missing", "TENURE_Y must be a number"])
"""
    with running(main) as process:
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 2
        seen = ["invalid configuration:", "  - TENURE_X is missing", "  - TENURE_Y must be a number", ""]
        assert err.split("\n") == seen


def test_port_in_use_is_one_line() -> None:
    main = """
from tenure.runtime.observability.logs import configure_logs
from tenure.runtime.rpc.server import RpcServer

async def main(process):
    configure_logs("gateway", form="json")
    first = await process.open(RpcServer("127.0.0.1:0"))
    await process.open(RpcServer(first.address))
"""
    with running(main) as process:
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 1
        (failure,) = [line for line in err.splitlines() if '"ERROR"' in line]
        assert "the port is in use" in failure
        assert "tenure serve NAME --help" in failure
        assert "Traceback" not in err


def test_failure_is_logged_and_closes_open_parts() -> None:
    main = """
async def main(process):
    await process.open(part("database"))
    raise ValueError("broken")
"""
    with running(main) as process:
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
        assert (out, process.returncode) == ("open database\nclose database\n", 1)
        assert "ValueError: broken" in err


def test_closing_that_hangs_is_bounded() -> None:
    main = f"""
@asynccontextmanager
async def hanging():
    yield
    {FOREVER}

async def main(process):
    await process.open(hanging())
"""
    with running(main) as process:
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 1
        assert "TimeoutError" in err
