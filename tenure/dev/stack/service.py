"""One of Tenure's services as a process of the stack."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tenure.dev.stack.child import ChildProcess

ANSWER_SECONDS = 5.0


class ServiceProcess(ChildProcess):
    """`name` tells it apart (worker-1), `module` is what runs (services.worker), `address` is where it answers."""

    def __init__(self, name: str, module: str, address: str, environment: Mapping[str, str], log_path: Path) -> None:
        # -P: the folder we are started in must not shadow the package, and "services" is a name that many folders have.
        super().__init__(name, [sys.executable, "-P", "-m", module], address, environment, log_path)
        self.module = module

    async def serves(self) -> bool:
        """Its health says SERVING."""
        async with grpc.aio.insecure_channel(self.address, options=[("grpc.enable_http_proxy", 0)]) as channel:
            try:
                answer = await health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(), timeout=ANSWER_SECONDS
                )
            except grpc.aio.AioRpcError:
                return False
            return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
