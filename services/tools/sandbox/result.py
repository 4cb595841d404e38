"""What became of a run, and the rule that names it."""

from __future__ import annotations

import codecs
from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from services.tools.sandbox.limits import SandboxLimits

# Keeping the beginning and the end of what a program prints.


class KeptOutput:
    """The first three quarters and the last quarter of `limit_bytes` of a stream; the middle is counted, not kept.

    `feed` takes bytes in any portions and returns their text for live display; invalid UTF-8 becomes U+FFFD and a
    character split between portions comes out whole. NUL is kept: it is text like any other.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._tail_limit = limit_bytes // 4
        self._head_limit = limit_bytes - self._tail_limit
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._live = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.total_bytes = 0

    def feed(self, portion: bytes) -> str:
        """Take a portion, return the text that it completes."""
        self.total_bytes += len(portion)
        room = self._head_limit - len(self._head)
        self._head += portion[:room]
        if portion[room:]:
            self._keep_at_end(portion[room:])
        return self._live.decode(portion)

    def _keep_at_end(self, portion: bytes) -> None:
        self._tail.append(portion[-self._tail_limit :] if self._tail_limit else b"")
        self._tail_bytes += len(self._tail[-1])
        while self._tail and self._tail_bytes - len(self._tail[0]) >= self._tail_limit:
            self._tail_bytes -= len(self._tail.popleft())

    @property
    def truncated(self) -> bool:
        """Whether a middle part is missing."""
        return self.total_bytes > self._head_limit + self._tail_limit

    def text(self) -> str:
        """What was kept, with a line in the gap that says how many bytes are missing."""
        tail = b"".join(self._tail)
        if not self.truncated:
            return (bytes(self._head) + tail).decode(errors="replace")
        tail = tail[len(tail) - self._tail_limit :]
        missing = self.total_bytes - len(self._head) - len(tail)
        return f"{_whole_start(self._head)}\n[… {missing} bytes left out …]\n{_whole_end(tail)}"


def _whole_start(cut: bytes | bytearray) -> str:
    """Decode bytes cut at their end, without the character the cut went through."""
    return codecs.getincrementaldecoder("utf-8")(errors="replace").decode(bytes(cut), final=False)


def _whole_end(cut: bytes) -> str:
    """Decode bytes cut at their start: up to three continuation bytes belong to a character that is lost."""
    lost = 0
    while lost < min(3, len(cut)) and cut[lost] & 0b1100_0000 == 0b1000_0000:
        lost += 1
    return cut[lost:].decode(errors="replace")


_KILLED_BY_CPU_LIMIT = frozenset({128 + 24, 128 + 9})  # SIGXCPU at the soft limit, SIGKILL at the hard one
_NO_MORE_PROCESSES = ("Resource temporarily unavailable", "can't start new thread")


class SandboxStatus(StrEnum):
    """Result classes. A fenced run is CANCELLED here: only the caller knows why it cancelled."""

    OK = "OK"
    NONZERO = "NONZERO"
    TIMEOUT = "TIMEOUT"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    TOO_MANY_PROCESSES = "TOO_MANY_PROCESSES"
    OUTPUT_LIMIT = "OUTPUT_LIMIT"
    WORKSPACE_LIMIT = "WORKSPACE_LIMIT"
    CANCELLED = "CANCELLED"
    SANDBOX_ERROR = "SANDBOX_ERROR"


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxResult:
    """One finished run. `exit_code` is the program's (128 + signal when a signal ended it), None when it was killed
    from outside or never started. `cpu_ms` and `memory_peak_bytes` are None where no cgroup counts them.
    `message` is empty for OK and NONZERO, else one sentence for the agent. `warm`: its sandbox had been waiting for it.
    """

    status: SandboxStatus
    exit_code: int | None
    stdout: str
    stderr: str
    truncated: bool
    cpu_ms: int | None
    wall_ms: int
    memory_peak_bytes: int | None
    message: str
    warm: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that is known about a run's end. Counters are None where no cgroup counts them."""

    stopped: SandboxStatus | None
    exit_code: int | None
    oom_kills: int | None
    refused_forks: int | None
    cpu_ms: int | None
    cpu_limit_ms: float
    last_output: str


def judge(evidence: Evidence) -> SandboxStatus:
    """Name a run's end. What the supervisor did comes first, then success, then what the kernel counted.

    A program that met a limit, coped with it and ended well is OK. Without counters the last line of its traceback
    is the only witness; a program that forges it deceives nobody but its own agent.
    """
    if evidence.stopped is not None:
        return evidence.stopped
    if evidence.exit_code == 0:
        return SandboxStatus.OK
    if _out_of_memory(evidence):
        return SandboxStatus.OUT_OF_MEMORY
    if evidence.exit_code is None:
        return SandboxStatus.SANDBOX_ERROR
    if _out_of_cpu_time(evidence):
        return SandboxStatus.TIMEOUT
    if _out_of_processes(evidence):
        return SandboxStatus.TOO_MANY_PROCESSES
    return SandboxStatus.NONZERO


def _out_of_memory(evidence: Evidence) -> bool:
    if evidence.oom_kills is None:
        return evidence.last_output.startswith("MemoryError")
    return evidence.oom_kills > 0


def _out_of_cpu_time(evidence: Evidence) -> bool:
    if evidence.exit_code not in _KILLED_BY_CPU_LIMIT:
        return False
    if evidence.cpu_ms is None:
        return evidence.exit_code == 128 + 24
    # The kernel's limit counts in its own ticks, so it may strike a few of them before the counter says so.
    return evidence.cpu_ms >= 0.95 * evidence.cpu_limit_ms


def _out_of_processes(evidence: Evidence) -> bool:
    if evidence.refused_forks is None:
        return any(message in evidence.last_output for message in _NO_MORE_PROCESSES)
    return evidence.refused_forks > 0


def last_line(text: str) -> str:
    """The last line that is not blank, or nothing."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def explain(status: SandboxStatus, limits: SandboxLimits, trouble: str) -> str:
    """One sentence for the agent about what ended its program; `trouble` is the sandbox's own complaint."""
    match status:
        case SandboxStatus.OK | SandboxStatus.NONZERO:
            return ""
        case SandboxStatus.TIMEOUT:
            return f"ended after {limits.wall_seconds:g} s of wall time or {limits.cpu_seconds:g} s of CPU time"
        case SandboxStatus.OUT_OF_MEMORY:
            return f"needed more than {limits.memory_bytes} bytes of memory"
        case SandboxStatus.TOO_MANY_PROCESSES:
            return f"started more than {limits.processes} processes and threads"
        case SandboxStatus.OUTPUT_LIMIT:
            return f"printed more than {limits.flood_bytes} bytes"
        case SandboxStatus.WORKSPACE_LIMIT:
            return f"left more than {limits.workspace_bytes} bytes or {limits.workspace_files} files in the workspace"
        case SandboxStatus.CANCELLED:
            return "was cancelled"
        case SandboxStatus.SANDBOX_ERROR:
            return f"the sandbox failed: {trouble or 'it was killed from outside'}"
