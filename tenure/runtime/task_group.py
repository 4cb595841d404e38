"""The task group for this code base: asyncio's, which leaves the task that used it as it was.

Before Python 3.13 `asyncio.TaskGroup` cancels its own task when a child fails and does not always take that back:
where the block's body had already ended, `Task.cancelling()` stays above 0 for good. With the `asyncio.timeout` of
Python 3.11.2 (Debian 12) every later timeout in that task then raises CancelledError instead of TimeoutError, which no
`except` of a reconnecting loop catches: the task ends without a word. So no other module uses `asyncio.TaskGroup`.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import TracebackType

_LEAVES_A_CANCELLATION: Final = sys.version_info < (3, 13)


class TaskGroup(asyncio.TaskGroup):  # noqa: TID251  the one place that may
    """As `asyncio.TaskGroup`; what it cancelled itself, it takes back."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Waits for all children. asyncio takes back only a cancellation that it requested before this moment."""
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
