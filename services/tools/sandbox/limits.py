"""What one run in the sandbox may use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

# Why there is no sandbox.


class SandboxUnavailable(RuntimeError):  # noqa: N818  # a state of the machine, named as such
    """No program can be run safely on this machine; the text says what is missing. Nothing is ever run without."""


class SandboxEscaped(RuntimeError):  # noqa: N818  a state of the machine, named as such
    """Programs run, and a probe got out: a wall is not where it seems to be. `escapes` says what each one did."""

    def __init__(self, escapes: Sequence[str]) -> None:
        super().__init__("the sandbox does not hold, a program inside it " + "; ".join(escapes))
        self.escapes = tuple(escapes)


MIB = 1 << 20

# A program may print this many times what is kept of its output before it is killed for it: a long report is only
# shortened, an endless loop of prints is ended.
FLOOD_FACTOR = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """Bounds of one run; each has a result class of its own, so that the agent reads why its program was ended.

    `cpu_seconds` counts all processes of the run together where cgroups can tell, each process alone elsewhere.
    `output_bytes` is kept of stdout and of stderr each; `tmp_bytes` is the size of /tmp, which counts as memory too.
    `workspace_bytes` and `workspace_files` bound what the workspace may grow to; one that is larger already may not
    grow further. Raises ValueError for a bound under which not even an empty program runs.
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
        """Output, both streams together, after which the run is killed."""
        return FLOOD_FACTOR * self.output_bytes
