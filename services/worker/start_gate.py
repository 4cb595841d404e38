"""Spaces the starts of tasks, so that a burst of grants keeps no renewal of the session waiting.

After the loss of a worker, another one may get a thousand grants at once. The start of a task takes milliseconds of
processor time: its Open, its history, its first model call. Started all at once, the tasks make each round of the event
loop take seconds. Then the answers to renewals wait so long that the worker leaves its coordinator, and it loses all
its tasks to the next worker, which gets the same burst.
"""

from __future__ import annotations

import asyncio
from typing import Final

TOGETHER: Final = 16
"""The number of tasks that start without a pause."""
_PAUSE_SECONDS: Final = 0.01
_LATE_SECONDS: Final = 0.05
"""A pause that ends this late shows that the event loop is still busy with the tasks before."""
_MAX_WAIT_SECONDS: Final = 1.0
"""The longest wait for a prompt event loop: a loop that is always busy must start its tasks, too."""


class StartGate:
    """Lets tasks start in the order in which they came, `TOGETHER` at a time."""

    def __init__(self) -> None:
        self._one_at_a_time = asyncio.Lock()
        self._left = TOGETHER

    async def wait_turn(self) -> None:
        """Waits until the task may start."""
        async with self._one_at_a_time:
            if self._left == 0:
                await _until_prompt()
                self._left = TOGETHER
            self._left -= 1


async def _until_prompt() -> None:
    """Waits until the event loop ends a pause in time."""
    clock = asyncio.get_running_loop().time
    give_up_at = clock() + _MAX_WAIT_SECONDS
    while True:
        due_at = clock() + _PAUSE_SECONDS
        await asyncio.sleep(_PAUSE_SECONDS)
        now = clock()
        if now - due_at <= _LATE_SECONDS or now >= give_up_at:
            return
