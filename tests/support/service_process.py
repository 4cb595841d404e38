"""A service as a process: of a test's own, to be stopped, killed and read; or one that serves many tests."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from devstack.child_process import RunningProgram
from tenure.serve import command_line
from tests.support.forked import REPOSITORY, launch, start_program
from tests.support.patience import PATIENCE_SECONDS


class ServiceProcess:
    """`tenure serve NAME`, from its start to its end. `mutation`: one of its guards is missing."""

    def __init__(
        self,
        name: str,
        settings: dict[str, str],
        *,
        failpoints: str = "",
        mutation: str = "",
        environment: Mapping[str, str] = {},
    ) -> None:
        self._name = name
        mutated = [sys.executable, "-m", "tests.fault.mutants", name, "--mutation", mutation]
        self._command = mutated if mutation else command_line(name)
        given = {f"TENURE_{name.upper()}_{key}": value for key, value in settings.items()}
        own = {key: value for key, value in os.environ.items() if not key.startswith("TENURE_")}
        self._environment = {**own, **given, "TENURE_FAILPOINTS": failpoints, **environment}
        self.address = ""
        self.lines: list[dict[str, Any]] = []
        self._log_grew = asyncio.Event()

    @property
    def pid(self) -> int:
        return self._process.pid

    async def start(self) -> ServiceProcess:
        """Returns once it serves."""
        self._process = await start_program(self._command, environment=self._environment, limit=1024 * 1024)
        self._reading = asyncio.create_task(self._read_log())
        self.address = (await self.logged("listening"))["address"]
        return self

    async def start_again(self) -> ServiceProcess:
        """After its end: the same service at the same address, with a log of its own."""
        self._environment[f"TENURE_{self._name.upper()}_LISTEN"] = self.address
        self.lines.clear()
        return await self.start()

    async def logged(self, message: str) -> dict[str, Any]:
        """The first line with this message, waited for."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                for line in self.lines:
                    if line["message"] == message:
                        return line
                assert not self._reading.done(), f"{self._name} ended:\n{self.log_text()}"
                self._log_grew.clear()
                await self._log_grew.wait()

    def log_text(self) -> str:
        return "\n".join(json.dumps(line) for line in self.lines)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    async def kill(self) -> None:
        """SIGKILL."""
        if self._process.returncode is None:
            self._process.kill()
        await self.wait()

    async def stop(self) -> int:
        """SIGTERM; the exit code."""
        if self._process.returncode is None:
            self._process.terminate()
        return await self.wait()

    async def wait(self) -> int:
        async with asyncio.timeout(PATIENCE_SECONDS):
            code = await self._process.wait()
            await self._reading
        return code

    async def _read_log(self) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            try:
                self.lines.append(json.loads(line))
            except ValueError:
                self.lines.append({"message": line.decode(errors="replace"), "level": "RAW"})
            self._log_grew.set()
        self._log_grew.set()


@contextmanager
def serving(command: list[str], environment: Mapping[str, str], log: Path) -> Iterator[str]:
    """Yields the address of a service for many tests, which belongs to none of their event loops; then kills it."""
    with log.open("wb") as file:
        process = launch(command, environment=environment, cwd=REPOSITORY, log=file)
    try:
        yield str(json.loads(first_line(process, log, '"listening"'))["address"])
    finally:
        process.kill()
        process.wait()
    assert "unexpected error" not in log.read_text()


def first_line(process: RunningProgram, log: Path, part: str) -> str:
    """The first whole line of the log with this part, waited for."""
    ends_at = time.monotonic() + PATIENCE_SECONDS
    while True:
        for line in log.read_text().splitlines(keepends=True):
            if part in line and line.endswith("\n"):
                return line
        assert process.poll() is None, f"it ended:\n{log.read_text()}"
        assert time.monotonic() < ends_at, f"it does not serve:\n{log.read_text()}"
        time.sleep(0.02)
