"""The tool execute_python, which runs a program of the agent in the sandbox.

The tool is IDEMPOTENT, with one reservation. A program has no effect outside its workspace. But when its runner is
lost, the program runs again in the same workspace, which may hold files of the first run.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from services.tools.sandbox import (
    MAX_CODE_BYTES,
    Sandbox,
    SandboxLimits,
    SandboxResult,
    SandboxStatus,
    SandboxUnavailable,
)
from services.tools.tool import Arguments, CallContext, Tool, ToolAnswer, ToolFailure, define
from services.tools.workspace.bounds import reporting_full_disk
from services.tools.workspace.directories import Workspaces
from tenure.domain.errors import Unavailable
from tenure.domain.tools import EffectClass, OutcomeStatus, ProgramUsage
from tenure.runtime.observability import metrics

PYTHON_LANE: Final = "python"
MIN_TIMEOUT_SECONDS: Final = 0.1
"""The smallest timeout of a call: a program needs about this long to start."""
_KEPT_BYTES: Final = 64 * 1024
_SETUP_SECONDS: Final = 5.0
_STATUSES: Final = {SandboxStatus.OK: OutcomeStatus.SUCCEEDED, SandboxStatus.TIMEOUT: OutcomeStatus.TIMED_OUT}


def python_tools(sandbox: Sandbox | SandboxUnavailable, workspaces: Workspaces, limits: SandboxLimits) -> list[Tool]:
    """Returns execute_python. Without a sandbox, each call of the tool fails with the reason why there is none."""
    definition = define(
        "execute_python",
        EffectClass.IDEMPOTENT,
        "Run a Python program with the standard library, without network. The current directory is the workspace. "
        "The result is the program's output; files that it writes stay for later calls.",
        {
            "code": {"type": "string", "minLength": 1, "maxLength": MAX_CODE_BYTES},
            "timeout_seconds": {
                "type": "number",
                "minimum": min(MIN_TIMEOUT_SECONDS, limits.wall_seconds),
                "maximum": limits.wall_seconds,
                "description": f"The program is stopped after this time. Default: {limits.wall_seconds:g}.",
            },
        },
        required=("code",),
        timeout_seconds=limits.wall_seconds,
        output_limit_bytes=2 * _KEPT_BYTES + 4096,
    )

    async def run(context: CallContext, arguments: Arguments) -> ToolAnswer:
        if isinstance(sandbox, SandboxUnavailable):
            raise ToolFailure(f"This server cannot run programs: {sandbox}", "SANDBOX_UNAVAILABLE")
        with reporting_full_disk():
            workspace = await asyncio.to_thread(workspaces.directory, context.tenant, context.task_id)
        try:
            result = await sandbox.run_python(
                arguments["code"],
                workspace,
                replace(limits, wall_seconds=arguments.get("timeout_seconds", limits.wall_seconds)),
                on_output=lambda _stream, text: context.emit(text),
                on_end=lambda ended: _report(context, ended),
            )
        except ValueError as error:
            raise ToolFailure(str(error), "PROGRAM_TOO_LARGE") from error
        except SandboxUnavailable as unavailable:
            raise ToolFailure(f"The program was not run: {unavailable}", "SANDBOX_UNAVAILABLE") from unavailable
        return _answer(result)

    return [Tool(definition, run, lane=PYTHON_LANE, guard_seconds=_SETUP_SECONDS)]


def _report(context: CallContext, result: SandboxResult) -> None:
    metrics.count("tenure_sandbox_starts_total", start="warm" if result.warm else "cold")
    context.report_usage(_usage(result))


def _usage(result: SandboxResult) -> ProgramUsage:
    cpu_seconds = None if result.cpu_ms is None else result.cpu_ms / 1000
    return ProgramUsage(result.wall_ms / 1000, cpu_seconds, result.memory_peak_bytes)


def _answer(result: SandboxResult) -> ToolAnswer:
    if result.status is SandboxStatus.CANCELLED:
        # A call that was asked to stop does not reach this line, so the sandbox itself was closed.
        raise Unavailable("the sandbox was closed: the tool service is stopping", reason="RUNNER_STOPPED")
    return ToolAnswer(
        _content(result),
        _STATUSES.get(result.status, OutcomeStatus.FAILED),
        detail="" if result.status is SandboxStatus.OK else result.status.value,
        truncated=result.truncated,
    )


def _content(result: SandboxResult) -> str:
    """Returns the program's output, followed by the error or the exit code."""
    parts = [result.stdout.rstrip("\n")]
    if result.stderr:
        parts.append(f"[stderr]\n{result.stderr.rstrip()}")
    if result.message:
        parts.append(f"[{result.message}]")
    elif result.exit_code:
        parts.append(f"[exit code {result.exit_code}]")
    return "\n".join(part for part in parts if part) or "[no output]"
