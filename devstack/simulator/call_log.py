"""The bill: one line of JSON for every call, written when the call is over, and the sums of them."""

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
    """One request as it was billed. `ending` is complete, refused, broken or abandoned (the client went away).

    `prompt_hash`: equal for prompts that are equal, tools and system prompt included.
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
    """Keeps the last 20,000 calls and the sums of all since `clear`; appends to a file when given one."""

    def __init__(self, path: Path | None = None) -> None:
        """Raises OSError when the file cannot be written."""
        self._descriptor: int | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._open: dict[str, tuple[float, SimulatedCall]] = {}
        self.clear()

    def clear(self) -> None:
        """Forget calls and sums. The file stays as it is."""
        self.calls: deque[dict[str, Any]] = deque(maxlen=KEPT_CALLS)
        self.count = 0
        self.billed = dict.fromkeys(BILLED, 0)

    def begin(self, call: SimulatedCall) -> None:
        self._open[call.request_id] = (time.monotonic(), call)

    def running(self) -> list[dict[str, Any]]:
        """The calls that have begun and not ended, as they stand."""
        return [asdict(call) for _, call in self._open.values()]

    def finish(self, call: SimulatedCall) -> None:
        """Write the call down, once: a second time does nothing.

        To be called before the client can know the end of its answer, so that whoever saw it finds its line.
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
            # One write to an O_APPEND file: lines of several simulators never mix.
            os.write(self._descriptor, json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
