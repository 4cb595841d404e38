"""Opens the sandbox for agents' programs, and decides what the service serves on this machine.

When the machine lacks a part of the sandbox, the service serves the other tools, and execute_python answers with one
sentence that names the missing part. When a probe escaped from the sandbox, the service serves nothing: a weakened
sandbox, intended or not, also weakens the machine on which the fence is enforced.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Final, NoReturn

from services.tools.sandbox import Detection, Sandbox, SandboxEscaped, SandboxSettings, SandboxUnavailable
from services.tools.servicer import SERVICE
from services.tools.settings import ToolsSettings
from tenure.domain.errors import Unavailable
from tenure.runtime.process import Process
from tenure.runtime.rpc.server import RpcServer
from tenure.runtime.security.process_security import Security
from tenure.runtime.settings import ConfigurationError

_log: Final = logging.getLogger(__name__)
LOCKS: Final = ".sandboxes"
"""The directory of the sandbox's uid locks, in the workspace root beside the tenants' directories."""

_ADVICE: Final = "fix this, then start the service again (docs/sandbox.md)"


def sandbox_settings(settings: ToolsSettings, long_running: int = 0) -> SandboxSettings:
    """Returns the sandbox's part of the service's settings. `long_running`: how many servers may run in it at once."""
    return SandboxSettings(
        slots=settings.sandbox_slots,
        long_running=long_running,
        warm=settings.sandbox_warm,
        first_uid=settings.sandbox_first_uid,
        locks=settings.workspace_root / LOCKS,
        require_cgroup=settings.sandbox_require_cgroup,
        bubblewrap=settings.sandbox_bubblewrap,
    )


async def open_sandbox(process: Process, settings: ToolsSettings, long_running: int) -> Sandbox | SandboxUnavailable:
    """Opens the sandbox, or returns why this machine has none. Raises SandboxEscaped."""
    try:
        return await process.open(await Sandbox.open(sandbox_settings(settings, long_running)))
    except SandboxUnavailable as unavailable:
        _log.warning("execute_python will not run anything: %s", unavailable)
        return unavailable


async def show_sandbox(_process: Process, settings: ToolsSettings) -> None:
    """Runs the command `sandbox`: probes the sandbox and prints its findings. Raises ConfigurationError."""
    try:
        async with await Sandbox.open(sandbox_settings(settings)) as sandbox:
            sys.stdout.write(describe(sandbox.detection))
    except (SandboxEscaped, SandboxUnavailable) as error:
        raise ConfigurationError([str(error)]) from None


def describe(detection: Detection) -> str:
    """Returns one line for each finding, and a last line that says that the sandbox holds."""
    lines = [f"present   {sentence}" for sentence in detection.present]
    lines += [f"weakened  {sentence}" for sentence in detection.weakened]
    return "".join(f"{line}\n" for line in [*lines, "holds     no probe escaped from the sandbox"])


def refusing_server(
    security: Security, settings: ToolsSettings, escaped: SandboxEscaped, process: Process
) -> RpcServer:
    """Returns a server that refuses every request with the reason."""
    _log.error("NOT SERVING: %s; %s", escaped, _ADVICE, extra={"escapes": escaped.escapes})
    server = RpcServer(settings.listen, security=security, stopping=process.stopping, serving=False)
    server.add(SERVICE, _Refusing(f"{escaped}; {_ADVICE}"))
    return server


class _Refusing:
    """A servicer whose every method, unary or streaming, raises Unavailable (SANDBOX_ESCAPED)."""

    def __init__(self, message: str) -> None:
        self._message = message

    def __getattr__(self, _method: str) -> Any:
        return self._refuse

    async def _refuse(self, _request: object, _context: object) -> NoReturn:
        raise Unavailable(self._message, reason="SANDBOX_ESCAPED", retry_after_seconds=60.0)
