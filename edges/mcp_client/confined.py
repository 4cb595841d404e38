"""Builds the command of a confined server program: what it sees of the machine, its environment and its limits."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from edges.mcp_client.settings import MIB, McpServer
from services.tools.sandbox import Command, SandboxLimits

HOME: Final = Path("/tmp")  # noqa: S108  # inside the confinement, where /tmp is private and sized
_SYSTEM: Final = tuple(map(Path, ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")))
_INHERITED: Final = ("PATH", "LANG")
_LEAVE_SECONDS: Final = 1.0

# One process serves all tasks, so it may use more memory than the process of one task.
_MEMORY_BYTES: Final = 4096 * MIB
_TMP_BYTES: Final = 1024 * MIB
_FILE_BYTES: Final = 4096 * MIB
_PROCESSES: Final = 512
_OPEN_FILES: Final = 4096


class NotVisibleError(Exception):
    """The program's command is not among the files that a confined program sees."""


def limits_of(settings: McpServer, usual: SandboxLimits) -> SandboxLimits:
    """Returns the limits of a confined program: only those that keep it from taking the whole machine."""
    return replace(
        usual,
        memory_bytes=settings.memory_bytes or _MEMORY_BYTES,
        processes=_PROCESSES,
        cpu_percent=100 * (os.cpu_count() or 1),
        file_bytes=_FILE_BYTES,
        open_files=_OPEN_FILES,
        tmp_bytes=_TMP_BYTES,
    )


def command_of(settings: McpServer, environment: Mapping[str, str]) -> Command:
    """Returns the command of a confined program. `environment`: this service's. Raises NotVisibleError."""
    assert settings.command is not None
    inherited = {name: environment[name] for name in _INHERITED if name in environment}
    variables = {"USER": "mcp", "HOME": str(HOME), "TMPDIR": str(HOME), **inherited, **settings.env}
    shown = settings.read_only_paths
    if settings.cwd is not None and not _is_below(settings.cwd, (*shown, *settings.writable_paths)):
        shown = (*shown, settings.cwd)
    program = _program_path(settings.command, variables.get("PATH"), settings.cwd)
    _require_visible(program, (*_SYSTEM, *shown, *settings.writable_paths))
    return Command(
        (str(program), *settings.args),
        variables,
        shown,
        writable=settings.writable_paths,
        directory=settings.cwd or HOME,
        network=settings.network,
        leave_seconds=_LEAVE_SECONDS,
    )


def _program_path(command: str, path: str | None, cwd: Path | None) -> Path:
    path_of_command = shutil.which(command, path=path)
    if path_of_command is None:
        raise NotVisibleError(f"the command {command} is not an executable file, nor found on PATH")
    return (cwd or HOME) / path_of_command


def _require_visible(program: Path, shown: tuple[Path, ...]) -> None:
    """Raises NotVisibleError unless the program sees the command, and the file that it is a link to."""
    for path in dict.fromkeys((program, program.resolve())):
        if not _is_below(path, shown):
            raise NotVisibleError(
                f"the program does not see its command {path}: add the directory of its installation to "
                "read_only_paths, or set unconfined: true to give the program all rights of this service"
            )


def _is_below(path: Path, directories: tuple[Path, ...]) -> bool:
    return any(path.is_relative_to(directory) for directory in directories)
