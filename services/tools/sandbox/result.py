"""The result of a run: its status, the rule that chooses the status, and the truncation of the output."""

from __future__ import annotations

import codecs
from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from services.tools.sandbox.limits import SandboxLimits

# Truncation of a program's output to its beginning and its end.


class KeptOutput:
    """Keeps at most `limit_bytes` of a stream: three quarters from its beginning, one quarter from its end.

    The bytes in between are counted, not kept. Invalid UTF-8 becomes U+FFFD. NUL is kept, as it is valid text.
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
        """Takes bytes in portions of any size, and returns their text for live display.

        A character that is split between portions is returned with the later one.
        """
        self.total_bytes += len(portion)
        free_bytes = self._head_limit - len(self._head)
        self._head += portion[:free_bytes]
        if portion[free_bytes:]:
            self._append_to_tail(portion[free_bytes:])
        return self._live.decode(portion)

    def _append_to_tail(self, portion: bytes) -> None:
        self._tail.append(portion[-self._tail_limit :] if self._tail_limit else b"")
        self._tail_bytes += len(self._tail[-1])
        while self._tail and self._tail_bytes - len(self._tail[0]) >= self._tail_limit:
            self._tail_bytes -= len(self._tail.popleft())

    @property
    def truncated(self) -> bool:
        """Whether a middle part is missing."""
        return self.total_bytes > self._head_limit + self._tail_limit

    def text(self) -> str:
        """Returns the kept text, with a line in the gap that says how many bytes are missing."""
        tail = b"".join(self._tail)
        if not self.truncated:
            return (bytes(self._head) + tail).decode(errors="replace")
        tail = tail[len(tail) - self._tail_limit :]
        missing = self.total_bytes - len(self._head) - len(tail)
        return f"{_whole_start(self._head)}\n[… {missing} bytes left out …]\n{_whole_end(tail)}"


def _whole_start(data: bytes | bytearray) -> str:
    """Decodes bytes that were cut at their end, without an incomplete last character."""
    return codecs.getincrementaldecoder("utf-8")(errors="replace").decode(bytes(data), final=False)


def _whole_end(data: bytes) -> str:
    """Decodes bytes that were cut at their start, without the up to three bytes of an incomplete first character."""
    lost = 0
    while lost < min(3, len(data)) and data[lost] & 0b1100_0000 == 0b1000_0000:
        lost += 1
    return data[lost:].decode(errors="replace")


_KILLED_BY_CPU_LIMIT = frozenset({128 + 24, 128 + 9})  # SIGXCPU at the soft limit, SIGKILL at the hard one
_NO_MORE_PROCESSES = ("Resource temporarily unavailable", "can't start new thread")


class SandboxStatus(StrEnum):
    """The classes of results. A fenced run is CANCELLED here: only the caller knows why it cancelled the run."""

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
    """The result of one run.

    `exit_code`: the program's, or 128 + N when signal N ended it; None when the service killed the program or it did
    not start. `truncated`: whether bytes of stdout or stderr are missing. `cpu_ms` and `memory_peak_bytes` are None
    where no cgroup counts them. `message`: one sentence for the agent, empty for OK and NONZERO. `warm`: whether the
    program began in a warm sandbox.
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
    """The facts from which `run_status` decides the status of a run. Counters are None where no cgroup counts them.

    `stopped`: the status with which the supervisor ended the run, or None. `last_output`: the last line of stderr.
    """

    stopped: SandboxStatus | None
    exit_code: int | None
    oom_kills: int | None
    refused_forks: int | None
    cpu_ms: int | None
    cpu_limit_ms: float
    last_output: str


def run_status(evidence: Evidence) -> SandboxStatus:
    """Returns the status of a run: the supervisor's reason first, then success, then the kernel's counters.

    A program that reached a limit, handled the error and exited with 0 is OK. Without counters, the last line of the
    program's traceback is the only evidence; a program that forges it misleads only its own agent.
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
    # The kernel applies RLIMIT_CPU in ticks, so it may kill the program a few ticks before the cgroup counts the limit.
    return evidence.cpu_ms >= 0.95 * evidence.cpu_limit_ms


def _out_of_processes(evidence: Evidence) -> bool:
    if evidence.refused_forks is None:
        return any(message in evidence.last_output for message in _NO_MORE_PROCESSES)
    return evidence.refused_forks > 0


def last_line(text: str) -> str:
    """Returns the last line that is not blank, or ""."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def explain(status: SandboxStatus, limits: SandboxLimits, error: str) -> str:
    """Returns one sentence for the agent about the end of its program, or "". `error`: the sandbox's own message."""
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
            return f"printed more than {limits.flood_bytes} bytes in all"
        case SandboxStatus.WORKSPACE_LIMIT:
            return f"left more than {limits.workspace_bytes} bytes or {limits.workspace_files} files in the workspace"
        case SandboxStatus.CANCELLED:
            return "was cancelled"
        case SandboxStatus.SANDBOX_ERROR:
            return f"the sandbox failed: {error or 'another process killed it'}"
