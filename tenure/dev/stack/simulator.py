"""The model simulator as a process of the stack."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from tenure.dev import die_with_parent
from tenure.dev.stack.addresses import choose_address
from tenure.dev.stack.layout import Layout

READY_SECONDS: Final = 20.0
STOP_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Simulator:
    """Where it is. `model_url` is what ANTHROPIC_BASE_URL wants."""

    model_url: str

    @property
    def search_url(self) -> str:
        return f"{self.model_url}/search"


@asynccontextmanager
async def start_simulator(layout: Layout, usual_port: bool, latency_ms: int) -> AsyncIterator[Simulator]:
    """Runs it inside the block; RuntimeError with its log when it does not come up."""
    host, _, port = choose_address("simulator", usual=usual_port).rpartition(":")
    log_path = layout.logs / "simulator.log"
    with log_path.open("ab") as log:
        process = subprocess.Popen(  # noqa: ASYNC220  quick, and the kernel watches the thread that starts it
            die_with_parent.command(_command(layout, port, latency_ms)),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        await _wait_ready(process, host, int(port), str(log_path))
        yield Simulator(f"http://{host}:{port}")
    finally:
        await asyncio.to_thread(_stop, process)


def _command(layout: Layout, port: str, latency_ms: int) -> list[str]:
    options = ["--port", port, "--log", str(layout.model_log), "--latency-ms", str(latency_ms)]
    return [sys.executable, "-m", "tenure.dev.simulator", *options]


async def _wait_ready(process: subprocess.Popen[bytes], host: str, port: int, log_path: str) -> None:
    try:
        async with asyncio.timeout(READY_SECONDS):
            while not await _listens(host, port):
                if process.poll() is not None:
                    raise RuntimeError(f"the model simulator ended with code {process.returncode}; see {log_path}")
                await asyncio.sleep(0.05)
    except TimeoutError as error:
        raise RuntimeError(f"the model simulator does not listen after {READY_SECONDS:g} s; see {log_path}") from error


async def _listens(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    await writer.wait_closed()
    return True


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
