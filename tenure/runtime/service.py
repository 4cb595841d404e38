"""Starts a service process: loads its settings, sets up logs, failpoints and telemetry, and runs it.

    def main() -> int:
        return run_service("gateway", Settings, os.environ, compose, arguments=sys.argv[1:])

`compose(process, settings)` opens the parts of the service in the order of dependency and returns when the process is
to end.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol, TextIO, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tenure.domain.access import Role
from tenure.domain.outbound import is_loopback_host
from tenure.runtime import failpoints as failpoint
from tenure.runtime.observability import metrics
from tenure.runtime.observability.logs import FORMATS, configure_logs
from tenure.runtime.observability.metric_catalogue import CATALOGUE
from tenure.runtime.observability.request_log import set_logged_requests
from tenure.runtime.observability.telemetry import telemetry
from tenure.runtime.process import ExitCode, Process, run
from tenure.runtime.release import VERSION
from tenure.runtime.rpc.server import RpcServer
from tenure.runtime.security.certificate_files import CertificateFiles, PeerTls
from tenure.runtime.security.tls import MutualTlsSettings
from tenure.runtime.settings import SHARED_PREFIX, Address, ConfigurationError, describe, group, load, setting

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class CommonSettings:
    """The settings that every process reads under the shared prefix TENURE_."""

    failpoints: str = setting("failpoints to arm, for tests", default="")
    log_format: str = setting("format of the log", default="json", choices=FORMATS)
    allow_insecure_network: bool = setting(
        "serve addresses that other machines reach without TLS and authentication", default=False
    )
    log_requests: bool | None = setting(
        "log a line for each request; by default the gateway does, and the others only for requests that failed",
        default=None,
    )
    log_level: str = setting("lowest level to log", default="INFO", choices=("DEBUG", "INFO", "WARNING", "ERROR"))
    metrics_allow_network: bool = setting(
        "serve metrics at addresses that other machines reach: without TLS, to every peer that reaches them",
        default=False,
    )
    metrics_tenants: int = setting(
        "tenants with their own values in metrics; the others are counted together", default=50, minimum=0, maximum=500
    )
    tls: MutualTlsSettings = group(MutualTlsSettings, "TENURE_TLS_")


class ServiceSettings(Protocol):
    """The settings of one service; its class has a field `common: CommonSettings = group(CommonSettings)`."""

    @property
    def listen(self) -> Address: ...
    @property
    def metrics_listen(self) -> Address | None: ...
    @property
    def common(self) -> CommonSettings: ...


def metrics_setting() -> Any:
    """Declares the setting `metrics_listen` of a service."""
    return setting("address of the metrics for Prometheus, as http://…/metrics; empty: none", default=None)


S = TypeVar("S", bound=ServiceSettings)
HEALTH: Final = "health"
_METRICS_IN_NETWORK: Final = (
    "{}: {} can be reached from other machines, and metrics are served without TLS and authentication: they name "
    "queues, tools, models and tenants. Set TENURE_METRICS_ALLOW_NETWORK=true if only Prometheus can reach it"
)
_NO_COMMANDS: Final[Mapping[str, Any]] = {}


def run_service(
    name: str,
    settings_type: type[S],
    environment: Mapping[str, str],
    compose: Callable[[Process, S], Awaitable[None]],
    *,
    arguments: Sequence[str] = (),
    commands: Mapping[str, Callable[[Process, S], Awaitable[None]]] = _NO_COMMANDS,
) -> int:
    """Runs a service until it ends and returns the exit code of the process.

    Without `arguments`, runs `compose`. With the name of one of `commands`, runs that command instead. With `health`,
    asks the running service for its health. With `--help`, prints the usage and the table of variables.
    """
    prefix = f"{SHARED_PREFIX}{name.upper()}_"
    command = " ".join(arguments)
    if command in {"-h", "--help"}:
        _print(f"{_usage(name, commands)}\n\nIts environment:\n{describe(settings_type, prefix=prefix)}")
        return ExitCode.OK
    if command == HEALTH:
        return _ask_for_health(name, settings_type, environment, prefix)
    if command and command not in commands:
        _print(_usage(name, commands), to=sys.stderr)
        return ExitCode.CONFIGURATION
    work = commands[command] if command else compose

    async def main(process: Process) -> None:
        settings = load(settings_type, environment, prefix=prefix)
        configure_logs(name, form=settings.common.log_format, level=settings.common.log_level)
        every = settings.common.log_requests
        set_logged_requests(every=name == Role.GATEWAY.lower() if every is None else every)
        failpoint.arm(settings.common.failpoints)
        await process.open(telemetry(name, environment, instance=instance_id(), version=VERSION))
        if work is compose:
            await serve_metrics(process, name, settings)
        await work(process, settings)

    return int(run(main))


async def serve_metrics(process: Process, name: str, settings: ServiceSettings) -> None:
    """Samples the metrics of the process, and serves them if the settings say where."""
    metrics.name_tenants(settings.common.metrics_tenants)
    metrics.gauge("tenure_build_info", 1, service=name, version=VERSION)
    for described in CATALOGUE.values():
        if described.kind == "counter" and not described.labels and name in described.services:
            metrics.cell(described.name)  # from 0 on, so that the first event is an increase
    await process.open(sampling())
    listen = settings.metrics_listen
    if listen is None:
        return
    if not is_loopback_host(listen.host) and not settings.common.metrics_allow_network:
        raise ConfigurationError([_METRICS_IN_NETWORK.format(f"{SHARED_PREFIX}{name.upper()}_METRICS_LISTEN", listen)])
    # Imported here because only a process that serves metrics should pay for the import.
    from tenure.runtime.observability.prometheus import metrics_endpoint

    await process.open(metrics_endpoint(listen))


def _ask_for_health(name: str, settings_type: type[S], environment: Mapping[str, str], prefix: str) -> int:
    try:
        settings = load(settings_type, environment, prefix=prefix)
        problem = asyncio.run(health_problem(settings.listen, Role[name.upper()], settings.common.tls))
    except ConfigurationError as error:
        _print(str(error), to=sys.stderr)
        return ExitCode.CONFIGURATION
    _print(problem or "SERVING", to=sys.stderr if problem else None)
    return ExitCode.FAILED if problem else ExitCode.OK


def _usage(name: str, commands: Mapping[str, Any]) -> str:
    alternatives = "".join(f" | {command}" for command in (HEALTH, *commands))
    return f"usage: tenure serve {name} [--help{alternatives}]"


def _print(text: str, to: TextIO | None = None) -> None:
    print(text, file=to)


def instance_id() -> str:
    """Returns "host-pid", which distinguishes replicas in logs and traces."""
    return f"{socket.gethostname()}-{os.getpid()}"


async def serve(process: Process, server: RpcServer, *front_ends: AbstractAsyncContextManager[Any]) -> None:
    """Serves until the process stops. The server drains before the parts that were opened earlier are closed.

    `front_ends`: what calls the server for callers of its own; each is opened after it, and closed before it.
    """
    await process.open(server)
    for front_end in front_ends:
        await process.open(front_end)
    _log.info("listening", extra={"address": server.address})
    await process.run_until_stopped()


# Samples the metrics of a process once a second: the delay of its event loop, and what is read from elsewhere.

INTERVAL_SECONDS: Final = 1.0


@asynccontextmanager
async def sampling(interval_seconds: float = INTERVAL_SECONDS) -> AsyncIterator[None]:
    """Samples inside the block."""
    task = asyncio.create_task(_sample(interval_seconds), name="sample metrics")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _sample(interval_seconds: float) -> None:
    loop = asyncio.get_running_loop()
    delay = metrics.histogram("tenure_event_loop_delay_seconds")
    while True:
        metrics.REGISTRY.sample()
        due = loop.time() + interval_seconds
        await asyncio.sleep(interval_seconds)
        delay.observe(max(0.0, loop.time() - due))


# Asks a service of this machine for its health, for probes that run a command: `tenure serve gateway health`.

ANSWER_SECONDS: Final = 5.0


async def health_problem(listen: Address, role: Role, tls: MutualTlsSettings) -> str:
    """Returns why the service that listens there does not serve; "" if it serves. Presents the service's certificate.

    Raises ConfigurationError for certificate files that cannot be used.
    """
    address = listen.from_here
    async with _channel(address, role, tls) as channel:
        try:
            answer = await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=ANSWER_SECONDS
            )
        except grpc.aio.AioRpcError as error:
            return f"{address} does not answer: {error.details()}"
    serving = answer.status == health_pb2.HealthCheckResponse.SERVING
    return "" if serving else f"{address} is NOT_SERVING; the service's log says why"


def _channel(address: str, role: Role, tls: MutualTlsSettings) -> grpc.aio.Channel:
    options: list[tuple[str, str | int]] = [("grpc.enable_http_proxy", 0)]
    if tls.certificate_file is None:
        return grpc.aio.insecure_channel(address, options=options)
    peer = PeerTls(CertificateFiles(tls), role)
    return grpc.aio.secure_channel(
        address, grpc.ssl_channel_credentials(*peer.read()), options=[*options, *peer.options()]
    )
