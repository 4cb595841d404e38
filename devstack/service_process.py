"""The services and the model simulator as child processes of the stack."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from devstack.child_process import ChildProcess
from devstack.options import Layout, StackOptions
from tenure.domain.access import DEFAULT_INSTALLATION, Role, server_name
from tenure.runtime.security.tls import ClientTls
from tenure.serve import command_line

ANSWER_SECONDS = 5.0


def metrics_variable(kind: str) -> str:
    """Returns the variable with the address of a service's metrics."""
    return f"TENURE_{kind.upper()}_METRICS_LISTEN"


def write_targets(file: Path, services: Iterable[ServiceProcess]) -> None:
    """Writes the list of the services' metrics, for `file_sd_configs` of Prometheus. The replacement is atomic."""
    targets = [
        {"targets": [service.metrics_address], "labels": {"component": service.kind, "process": service.name}}
        for service in services
        if service.metrics_address
    ]
    new_file = file.with_suffix(".tmp")
    new_file.write_text(json.dumps(targets, indent=2) + "\n", encoding="utf-8")
    new_file.replace(file)


class ServiceProcess(ChildProcess):
    """A service. `name`: its name in the stack (worker-1). `module`: its module (services.worker)."""

    def __init__(self, name: str, module: str, address: str, environment: Mapping[str, str], log_path: Path) -> None:
        super().__init__(name, command_line(module.rpartition(".")[2]), address, environment, log_path)
        self.module = module

    @property
    def kind(self) -> str:
        """The service: gateway, coordinator, checkpoint, tools, models or worker."""
        return self.module.rpartition(".")[2]

    @property
    def metrics_address(self) -> str:
        """The address of its metrics; "" if it serves none."""
        return self.environment.get(metrics_variable(self.kind), "")

    async def serves(self) -> bool:
        """Whether its health status is SERVING."""
        return await self.accepts_connections() and await self._is_healthy() and self.listens

    def _channel(self) -> grpc.aio.Channel:
        """Returns a channel to the service, with its own certificate if it has one."""
        options: list[tuple[str, str | int]] = [("grpc.enable_http_proxy", 0)]
        files = [self.environment.get(f"TENURE_TLS_{name}_FILE") for name in ("CA", "CERTIFICATE", "KEY")]
        if not all(files):
            return grpc.aio.insecure_channel(self.address, options=options)
        ca, certificate, key = (Path(file) for file in files if file)
        role = Role(self.module.rpartition(".")[2].upper())
        tls = ClientTls(ca, certificate, key, server_name(DEFAULT_INSTALLATION, role))
        return grpc.aio.secure_channel(
            self.address, grpc.ssl_channel_credentials(*tls.read()), options=[*options, *tls.options()]
        )

    async def _is_healthy(self) -> bool:
        async with self._channel() as channel:
            try:
                answer = await health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(), timeout=ANSWER_SECONDS
                )
            except grpc.aio.AioRpcError:
                return False
            return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


class SimulatorProcess(ChildProcess):
    """The model simulator, which also serves web search."""

    def __init__(self, layout: Layout, address: str, options: StackOptions) -> None:
        port = address.rpartition(":")[2]
        arguments = ["--port", port, "--log", str(layout.model_log), "--latency-ms", str(options.model_latency_ms)]
        arguments += ["--scenarios", str(options.scenarios.absolute())] if options.scenarios else []
        for file in options.scenario_files:
            arguments += ["--scenario", str(file.absolute())]
        super().__init__("simulator", command_line("simulator", *arguments), address, {}, layout.logs / "simulator.log")

    @property
    def model_url(self) -> str:
        """The value for ANTHROPIC_BASE_URL."""
        return f"http://{self.address}"

    @property
    def search_url(self) -> str:
        """The search endpoint for the tool service."""
        return f"http://{self.address}/search"

    async def serves(self) -> bool:
        """Whether it listens."""
        return await self.accepts_connections() and self.listens
