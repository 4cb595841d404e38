"""What the five processes have in common around their composition: environment, logs, failpoints, telemetry.

    def main() -> int:
        return run_service("gateway", Settings, os.environ, compose, arguments=sys.argv[1:])

`compose(process, settings)` opens everything in the order of dependency and returns when the process is to end.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Final, Protocol, TextIO, TypeVar

from tenure.runtime import failpoints as failpoint
from tenure.runtime.logs import FORMATS, configure_logs
from tenure.runtime.process import ExitCode, Process, run
from tenure.runtime.rpc_server import RpcServer
from tenure.runtime.settings import SHARED_PREFIX, describe, load, setting
from tenure.runtime.telemetry import telemetry

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class CommonSettings:
    """What every process reads, without a service's prefix."""

    failpoints: str = setting("places to break the process at, for tests", default="")
    log_format: str = setting("how logs look", default="json", choices=FORMATS)
    log_level: str = setting("the least level logged", default="INFO", choices=("DEBUG", "INFO", "WARNING", "ERROR"))


class ServiceSettings(Protocol):
    """The settings of one service; its class has a field `common: CommonSettings = group(CommonSettings)`."""

    @property
    def common(self) -> CommonSettings: ...


S = TypeVar("S", bound=ServiceSettings)
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
    """Runs a service to its end; the exit code is the process's.

    `arguments` none: `compose`. One of `commands`: that, instead of serving. --help tells the variables.
    """
    prefix = f"{SHARED_PREFIX}{name.upper()}_"
    command = " ".join(arguments)
    if command in {"-h", "--help"}:
        _say(f"{_usage(name, commands)}\n\nIts environment:\n{describe(settings_type, prefix=prefix)}")
        return ExitCode.OK
    if command and command not in commands:
        _say(_usage(name, commands), to=sys.stderr)
        return ExitCode.CONFIGURATION
    work = commands[command] if command else compose

    async def main(process: Process) -> None:
        settings = load(settings_type, environment, prefix=prefix)
        configure_logs(name, form=settings.common.log_format, level=settings.common.log_level)
        failpoint.arm(settings.common.failpoints)
        await process.open(telemetry(name, environment, instance=instance_id(), version=metadata.version("tenure")))
        await work(process, settings)

    return int(run(main))


def _usage(name: str, commands: Mapping[str, Any]) -> str:
    message = "".join(f" | {command}" for command in commands)
    return f"usage: python -m services.{name} [--help{message}]"


def _say(text: str, to: TextIO | None = None) -> None:
    print(text, file=to)


def instance_id() -> str:
    """host-pid: tells replicas apart in logs and traces."""
    return f"{socket.gethostname()}-{os.getpid()}"


async def serve(process: Process, server: RpcServer) -> None:
    """Serves until the process is told to stop; what was opened before is closed after the server has drained."""
    await process.open(server)
    _log.info("listening", extra={"address": server.address})
    await process.run_until_stopped(freeze=True)
