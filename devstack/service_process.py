"""The model simulator as a process of the stack."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from devstack.child_process import ChildProcess
from devstack.options import Layout, StackOptions

# One of Tenure's services as a process of the stack.

ANSWER_SECONDS = 5.0


class ServiceProcess(ChildProcess):
    """`name` tells it apart (worker-1), `module` is what runs (services.worker), `address` is where it answers."""

    def __init__(self, name: str, module: str, address: str, environment: Mapping[str, str], log_path: Path) -> None:
        # -P: the folder we are started in must not shadow the package, and "services" is a name that many folders have.
        super().__init__(name, [sys.executable, "-P", "-m", module], address, environment, log_path)
        self.module = module

    async def serves(self) -> bool:
        """Its health says SERVING."""
        if not self.listens:
            return False
        async with grpc.aio.insecure_channel(self.address, options=[("grpc.enable_http_proxy", 0)]) as channel:
            try:
                answer = await health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(), timeout=ANSWER_SECONDS
                )
            except grpc.aio.AioRpcError:
                return False
            return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


class SimulatorProcess(ChildProcess):
    """Answers model calls and web searches at one address."""

    def __init__(self, layout: Layout, address: str, options: StackOptions) -> None:
        port = address.rpartition(":")[2]
        message = ["--port", port, "--log", str(layout.model_log), "--latency-ms", str(options.model_latency_ms)]
        message += ["--scenarios", str(options.scenarios.absolute())] if options.scenarios else []
        for file in options.scenario_files:
            message += ["--scenario", str(file.absolute())]
        command = [sys.executable, "-P", "-m", "devstack.simulator", *message]
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
        if not self.listens:
            return False
        host, _, port = self.address.rpartition(":")
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except OSError:
            return False
        writer.close()
        await writer.wait_closed()
        return True
