"""What this machine offers to agents' programs, and what the service does about it.

Something is missing: the other tools are served, and execute_python says in one sentence what. A probe got out: nothing
is served at all. Whoever weakened the sandbox, knowingly or not, weakened the machine that the fences are kept on.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any, Final, NoReturn

from services.tools.sandbox import Detection, Sandbox, SandboxEscaped, SandboxSettings, SandboxUnavailable
from services.tools.servicer import SERVICE
from tenure.domain.errors import Unavailable
from tenure.runtime.rpc_server import RpcServer
from tenure.runtime.settings import ConfigurationError
from tenure.v1.tool_service_pb2_grpc import add_ToolServiceServicer_to_server

if TYPE_CHECKING:
    from services.tools.settings import ToolsSettings
    from tenure.runtime.process import Process

_log: Final = logging.getLogger(__name__)
LOCKS: Final = ".sandboxes"
"""Beside the tenants' directories."""

_ADVICE: Final = "mend what is named here, then start the service again (docs/sandbox.md)"


def sandbox_settings(settings: ToolsSettings, long_running: int = 0) -> SandboxSettings:
    """Of the service's settings those that the sandbox has. `lasting`: how many programs may stay in it at once."""
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
    """A machine without a sandbox still serves the other tools. Raises SandboxEscaped."""
    try:
        return await process.open(await Sandbox.open(sandbox_settings(settings, long_running)))
    except SandboxUnavailable as unavailable:
        _log.warning("execute_python will not run anything: %s", unavailable)
        return unavailable


async def show_sandbox(_process: Process, settings: ToolsSettings) -> None:
    """The command `sandbox`: what is there, what is weaker, and whether it holds. Raises ConfigurationError."""
    try:
        async with await Sandbox.open(sandbox_settings(settings)) as sandbox:
            sys.stdout.write(describe(sandbox.detection))
    except (SandboxEscaped, SandboxUnavailable) as trouble:
        raise ConfigurationError([str(trouble)]) from None


def describe(detection: Detection) -> str:
    """A line for each sentence."""
    lines = [f"present  {sentence}" for sentence in detection.present]
    lines += [f"weaker   {sentence}" for sentence in detection.weaker]
    return "".join(f"{line}\n" for line in [*lines, "holds    every probe that tried to get out was kept in"])


def refusing_server(settings: ToolsSettings, escaped: SandboxEscaped, process: Process) -> RpcServer:
    """Answers that it does not serve, and why, whatever it is asked."""
    _log.error("NOT SERVING: %s; %s", escaped, _ADVICE, extra={"escapes": escaped.escapes})
    server = RpcServer(settings.listen, stopping=process.stopping, serving=False)
    refusing: Any = _Refusing(f"{escaped}; {_ADVICE}")
    server.add(SERVICE, add_ToolServiceServicer_to_server, refusing)
    return server


class _Refusing:
    """Every method of the service, of whatever arity."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __getattr__(self, _method: str) -> Any:
        return self._refuse

    async def _refuse(self, _request: object, _context: object) -> NoReturn:
        raise Unavailable(self._why, reason="SANDBOX_ESCAPED", retry_after_seconds=60.0)
