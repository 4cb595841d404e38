"""The model simulator as a process of the stack."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tenure.dev.stack.child import ChildProcess
from tenure.dev.stack.layout import Layout


class SimulatorProcess(ChildProcess):
    """Answers model calls and web searches at one address."""

    def __init__(self, layout: Layout, address: str, latency_ms: int, scenarios: Path | None = None) -> None:
        port = address.rpartition(":")[2]
        options = ["--port", port, "--log", str(layout.model_log), "--latency-ms", str(latency_ms)]
        options += ["--scenarios", str(scenarios)] if scenarios else []
        command = [sys.executable, "-P", "-m", "tenure.dev.simulator", *options]
        super().__init__("simulator", command, address, {}, layout.logs / "simulator.log")

    @property
    def model_url(self) -> str:
        """What ANTHROPIC_BASE_URL wants."""
        return f"http://{self.address}"

    @property
    def search_url(self) -> str:
        """What the tool service asks."""
        return f"http://{self.address}/search"

    async def serves(self) -> bool:
        """It listens."""
        host, _, port = self.address.rpartition(":")
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except OSError:
            return False
        writer.close()
        await writer.wait_closed()
        return True
