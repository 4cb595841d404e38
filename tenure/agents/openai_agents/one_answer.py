"""The calls of one answer of the model: those that need an approval wait together, also if they run one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

from agents.items import TResponseOutputItem
from openai.types.responses import ResponseFunctionToolCall

from tenure.domain.tools import Outcome

Make = Callable[[], Awaitable[Outcome]]
"""Makes a call of a recorded tool, or asks for the permission for an inline one. A person may have to allow it."""


@dataclass(frozen=True, slots=True)
class CallToMake:
    """A call of an answer. `make`: None for an inline tool that needs no permission."""

    tool: object
    asks: bool
    make: Make | None

    async def outcome(self) -> Outcome | None:
        """Returns what became of the call, or of the permission."""
        return None if self.make is None else await self.make()


@dataclass(slots=True)
class NewestAnswer:
    """The newest answer in a run of the SDK that runs fewer tools at the same time than the model calls."""

    _calls: list[ResponseFunctionToolCall] = field(default_factory=list)
    _made: dict[str, tuple[object, Outcome | None]] | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def begin(self, output: Iterable[TResponseOutputItem]) -> None:
        """Notes the calls of an answer."""
        self._calls = [item for item in output if isinstance(item, ResponseFunctionToolCall)]
        self._made = None

    async def made(
        self, call_id: str, look: Callable[[ResponseFunctionToolCall], Awaitable[CallToMake | None]]
    ) -> tuple[object, Outcome | None]:
        """Returns the tool and the outcome of a call that was made with the others, because one of them asks.

        `look`: returns None for a call that must be made on its turn.
        """
        async with self._lock:
            if self._made is None:
                calls = {call.call_id: each for call in self._calls if (each := await look(call)) is not None}
                together = calls if any(each.asks for each in calls.values()) else {}
                outcomes = await asyncio.gather(*(each.outcome() for each in together.values()))
                pairs = zip(together.items(), outcomes, strict=True)
                self._made = {call_id: (each.tool, outcome) for (call_id, each), outcome in pairs}
        return self._made.get(call_id, (None, None))


NEWEST_ANSWER: Final[ContextVar[NewestAnswer | None]] = ContextVar("tenure.agents.openai.newest_answer", default=None)
"""Of the run that the code belongs to; None: its tools run at the same time, and so ask together by themselves."""
