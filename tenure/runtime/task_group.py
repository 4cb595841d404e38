"""The task group of this code base: `asyncio.TaskGroup`, without a cancellation that outlives the block.

Before Python 3.13, `asyncio.TaskGroup` cancels its own task when a child fails, and does not always undo that: if the
body of the block had already ended, `Task.cancelling()` stays above 0 for good. With the `asyncio.timeout` of
Python 3.11.2 (Debian 12), every later timeout in that task then raises CancelledError instead of TimeoutError, which no
`except` of a reconnecting loop catches: the task ends silently. So no other module uses `asyncio.TaskGroup`.
"""

from __future__ import annotations

import asyncio
import sys
from types import TracebackType
from typing import Final

_LEAVES_A_CANCELLATION: Final = sys.version_info < (3, 13)


class TaskGroup(asyncio.TaskGroup):  # noqa: TID251  the only allowed use
    """As `asyncio.TaskGroup`, but it undoes its own cancellation of the surrounding task."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Waits for all children. asyncio undoes only a cancellation that it requested before this call."""
        requested_before = self._requested_cancellation
        try:
            await super().__aexit__(kind, error, trace)
        finally:
            task = asyncio.current_task()
            if _LEAVES_A_CANCELLATION and self._requested_cancellation and not requested_before and task is not None:
                task.uncancel()

    @property
    def _requested_cancellation(self) -> bool:
        return bool(getattr(self, "_parent_cancel_requested", False))
