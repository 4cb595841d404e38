"""The model simulator as a process of the stack."""

from __future__ import annotations

import asyncio
import sys

from tenure.dev.stack.child import ChildProcess
from tenure.dev.stack.layout import Layout
from tenure.dev.stack.options import StackOptions


class SimulatorProcess(ChildProcess):
    """Answers model calls and web searches at one address."""

    def __init__(self, layout: Layout, address: str, options: StackOptions) -> None:
        port = address.rpartition(":")[2]
        words = ["--port", port, "--log", str(layout.model_log), "--latency-ms", str(options.model_latency_ms)]
        words += ["--scenarios", str(options.scenarios.absolute())] if options.scenarios else []
        for file in options.scenario_files:
            words += ["--scenario", str(file.absolute())]
        command = [sys.executable, "-P", "-m", "tenure.dev.simulator", *words]
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
