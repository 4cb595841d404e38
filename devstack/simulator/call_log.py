"""The simulator's bill: one JSON line per call, written at the end of the call, and the sums of all calls."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from devstack.simulator.http_server import new_request_id

if TYPE_CHECKING:
    from pathlib import Path

    from devstack.simulator.tokens import InputTokens

KEPT_CALLS = 20_000
BILLED = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")


@dataclass
class SimulatedCall:
    """One request with its bill. `ending`: complete, refused, broken or abandoned (the client disconnected).

    `prompt_hash`: equal for equal prompts, including tools and system prompt.
    """

    endpoint: str
    request_id: str = field(default_factory=new_request_id)
    time: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="microseconds"))
    duration_ms: float = 0.0
    model: str | None = None
    turn: int | None = None
    stream: bool = False
    status: int | None = None
    ending: str = "abandoned"
    answered: bool = False
    input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int = 0
    fault: str | None = None
    error: str | None = None
    stop_reason: str | None = None
    retry_count: str | None = None
    attempt: str | None = None
    user_id: str | None = None
    prompt_hash: str | None = None

    def bill_input(self, tokens: InputTokens) -> None:
        self.input_tokens = tokens.plain
        self.cache_creation_input_tokens = tokens.cache_creation
        self.cache_read_input_tokens = tokens.cache_read


class CallLog:
    """Keeps the last 20,000 calls and the sums of all calls since `clear`.

    Appends calls to the file `path`, if given.
    """

    def __init__(self, path: Path | None = None) -> None:
        """Raises OSError if the file cannot be written."""
        self._descriptor: int | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._open: dict[str, tuple[float, SimulatedCall]] = {}
        self.clear()

    def clear(self) -> None:
        """Deletes the calls and the sums. Keeps the file."""
        self.calls: deque[dict[str, Any]] = deque(maxlen=KEPT_CALLS)
        self.count = 0
        self.billed = dict.fromkeys(BILLED, 0)

    def begin(self, call: SimulatedCall) -> None:
        self._open[call.request_id] = (time.monotonic(), call)

    def running(self) -> list[dict[str, Any]]:
        """Returns the running calls in their current state."""
        return [asdict(call) for _, call in self._open.values()]

    def finish(self, call: SimulatedCall) -> None:
        """Writes the call to the log. A second call has no effect.

        Call it before the client can have the end of its answer, so that a client that has it finds the line.
        """
        begun = self._open.pop(call.request_id, None)
        if begun is None:
            return
        begun_at, _ = begun
        call.duration_ms = round((time.monotonic() - begun_at) * 1000, 3)
        line = asdict(call)
        self.calls.append(line)
        self.count += 1
        for name in BILLED:
            self.billed[name] += line[name]
        if self._descriptor is not None:
            # A single write to an O_APPEND file, so that the lines of several simulators never mix.
            os.write(self._descriptor, json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
