"""A model simulator: one process for the whole session, emptied before every test."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.forked import launch
from tests.support.patience import CALL_SECONDS
from tests.support.service_process import first_line
from tests.support.written_lines import whole_records

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class SimulatorControl:
    """The simulator as tests see it: where it is, what it billed, how it shall fail."""

    url: str
    log_path: Path

    def calls(self, endpoint: str = "messages") -> list[dict[str, Any]]:
        return [call for call in self._ask("/_sim/calls?limit=20000")["calls"] if call["endpoint"] == endpoint]

    def running(self) -> list[dict[str, Any]]:
        """The calls that are being answered, as they are billed so far."""
        return list(self._ask("/_sim/running")["calls"])

    def billed(self) -> dict[str, int]:
        """The sums of all calls of this test."""
        value: dict[str, int] = self._ask("/_sim/calls?limit=0")["billed"]
        return value

    def order_fault(self, **fault: Any) -> None:
        """For example `status=529, count=2`, `broken_stream=3, model="sim-hello"`, `latency_ms=500`."""
        self._ask("/_sim/faults", fault)

    def order_answer(self, stream: bytes, count: int = 1) -> None:
        """The next answers are this stream, byte for byte."""
        self._send(f"/_sim/answers?count={count}", stream)

    def limit(self, **per_minute: int) -> None:
        """For example `requests_per_minute=60`, for each key and model."""
        self._ask("/_sim/limits", per_minute)

    def reset(self) -> None:
        self._ask("/_sim/reset", {})

    def logged(self) -> list[dict[str, Any]]:
        """The file of the whole session."""
        return whole_records(self.log_path)

    def _ask(self, path: str, value: dict[str, Any] | None = None) -> Any:
        return self._send(path, None if value is None else json.dumps(value).encode())

    def _send(self, path: str, data: bytes | None) -> Any:
        with urllib.request.urlopen(self.url + path, data, timeout=CALL_SECONDS) as response:
            return json.load(response)


@contextlib.contextmanager
def running_simulator(log_path: Path, *options: str) -> Iterator[SimulatorControl]:
    """A simulator process of one's own, on a free port."""
    command = [sys.executable, "-m", "tests.support.hostile_simulator", "--log", str(log_path), *options]
    output = log_path.with_suffix(".out")
    with output.open("wb") as file:
        process = launch(command, environment=dict(os.environ), cwd=REPOSITORY, log=file)
    try:
        announced = first_line(process, output, "model simulator on http://")  # it listens once it says where
        yield SimulatorControl(announced.split()[-1], log_path)
    finally:
        process.terminate()
        process.wait(timeout=CALL_SECONDS)


@pytest.fixture(scope="session")
def simulator_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with running_simulator(tmp_path_factory.mktemp("simulator") / "calls.jsonl") as control:
        yield control


@pytest.fixture
def simulator(simulator_process: Any) -> Any:
    simulator_process.reset()
    return simulator_process
