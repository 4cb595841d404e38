"""The limits of one run, and the errors that say why a machine has no sandbox."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields


class SandboxUnavailable(RuntimeError):  # noqa: N818  # a state of the machine, named as such
    """No program can run safely on this machine; the message says what is missing. No program runs unconfined."""


class SandboxEscaped(RuntimeError):  # noqa: N818  a state of the machine, named as such
    """A probe of the self-test escaped from the sandbox. `escapes`: what each escaped probe did."""

    def __init__(self, escapes: Sequence[str]) -> None:
        super().__init__("the sandbox leaks; a program inside it " + "; ".join(escapes))
        self.escapes = tuple(escapes)


MIB = 1 << 20

# A program may print this many times the bytes that are kept of its output. So a long report is only truncated, and an
# endless loop of prints is ended.
FLOOD_FACTOR = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """The limits of one run. The result class of a limit tells the agent why its program was ended.

    `memory_bytes` limits all processes of the run together where a cgroup counts memory, else each process alone.
    `cpu_seconds` counts all processes of the run together where a cgroup counts CPU time, else each process alone.
    `cpu_percent` is the share of one CPU (100: all of it).
    `output_bytes` is kept of stdout and of stderr each. `tmp_bytes` is the size of /tmp, which counts as memory too.
    `workspace_bytes` and `workspace_files` limit the growth of the workspace; a workspace that is larger already may
    not grow further. Raises ValueError for a limit under which not even an empty program runs.
    """

    memory_bytes: int = 256 * MIB
    processes: int = 32
    cpu_seconds: float = 10.0
    cpu_percent: int = 100
    wall_seconds: float = 10.0
    file_bytes: int = 64 * MIB
    open_files: int = 256
    output_bytes: int = 64 << 10
    tmp_bytes: int = 64 * MIB
    workspace_bytes: int = 512 * MIB
    workspace_files: int = 20_000

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) <= 0:
                raise ValueError(f"{field.name} must be positive")
        if self.memory_bytes < 32 * MIB:
            raise ValueError("memory_bytes must be at least 32 MiB: the interpreter alone needs about half of it")
        if self.open_files < 32:
            raise ValueError("open_files must be at least 32: setting up the sandbox needs about twenty")
        if self.file_bytes < MIB:
            raise ValueError("file_bytes must be at least 1 MiB: the program itself is written to a file")

    @property
    def flood_bytes(self) -> int:
        """Bytes of stdout and stderr together after which the run is ended."""
        return FLOOD_FACTOR * self.output_bytes
