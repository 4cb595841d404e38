"""A real Prometheus with the rules and alerts of deploy/, which scrapes a stack, and the record of its alerts."""

from __future__ import annotations

import asyncio
import http.client
import json
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from devstack import Stack
from devstack.child_process import ChildProcess
from devstack.options import choose_address

RULES: Final = Path(__file__).parents[1] / "deploy" / "prometheus"
POLL_SECONDS: Final = 2.0
ASK_SECONDS: Final = 10.0


class PrometheusServer(ChildProcess):
    """The server as a child process. `alerts` are the names of those that fire."""

    def __init__(self, program: str, stack: Stack, folder: Path, scrape_seconds: int) -> None:
        folder.mkdir()
        interval = f"{scrape_seconds}s"
        config = {
            "global": {"scrape_interval": interval, "evaluation_interval": interval},
            "rule_files": [str(RULES / "rules.yml"), str(RULES / "alerts.yml")],
            "scrape_configs": [
                {"job_name": "tenure", "file_sd_configs": [{"files": [str(stack.layout.metrics_targets.absolute())]}]}
            ],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        address = choose_address("prometheus", usual=False)
        command = [program, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
        super().__init__(
            "prometheus", [*command, f"--web.listen-address={address}"], address, {}, folder / "prometheus.log"
        )

    async def serves(self) -> bool:
        """Whether it listens."""
        return await self.accepts_connections() and self.listens

    async def alerts(self) -> set[str]:
        """Returns the names of the alerts that fire now. Raises OSError or ValueError without a usable answer."""
        answer = await asyncio.to_thread(self._ask, "/api/v1/alerts")
        return {one["labels"]["alertname"] for one in answer["data"]["alerts"] if one["state"] == "firing"}

    def _ask(self, path: str) -> dict[str, Any]:
        connection = http.client.HTTPConnection(self.address, timeout=ASK_SECONDS)
        try:
            connection.request("GET", path)
            answer: dict[str, Any] = json.loads(connection.getresponse().read())
            return answer
        finally:
            connection.close()


def find_prometheus() -> str | None:
    """Returns the program, or None if this machine has none."""
    return shutil.which("prometheus")


@dataclass(slots=True)
class FiredAlert:
    """An alert from its first to its last firing, in seconds of the monotonic clock. `cleared_at` None: it fires."""

    name: str
    fired_at: float
    cleared_at: float | None = None
    times: int = 1

    @property
    def seconds(self) -> float:
        return (time.monotonic() if self.cleared_at is None else self.cleared_at) - self.fired_at


@dataclass(slots=True)
class AlertRecord:
    """Asks Prometheus every other second which alerts fire. `run` is its duty."""

    server: PrometheusServer
    fired: dict[str, FiredAlert] = field(default_factory=dict)
    _noted: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Records until it is cancelled."""
        while True:
            with suppress(OSError, ValueError, http.client.HTTPException):  # while it starts or ends; it is asked again
                self._note(await self.server.alerts())
            await asyncio.sleep(POLL_SECONDS)

    async def until(self, condition: Callable[[dict[str, FiredAlert]], bool], patience_seconds: float) -> bool:
        """Waits until the condition holds of the record. Returns whether it does in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_seconds):
                while not condition(self.fired):
                    self._noted.clear()
                    await self._noted.wait()
        return condition(self.fired)

    def _note(self, firing: set[str]) -> None:
        now = time.monotonic()
        for name in firing:
            known = self.fired.get(name)
            if known is None:
                self.fired[name] = FiredAlert(name, now)
            elif known.cleared_at is not None:
                known.cleared_at, known.times = None, known.times + 1
        for name, alert in self.fired.items():
            if name not in firing and alert.cleared_at is None:
                alert.cleared_at = now
        self._noted.set()
