"""How quickly a server's messages are taken: one that talks all the time leaves others their turn."""

from __future__ import annotations

import asyncio
from typing import Final

MOST_A_SECOND: Final = 1000


class Pace:
    """Of one link. What comes beyond is left in the pipe until the second is over."""

    def __init__(self) -> None:
        self._since, self._taken = 0.0, 0

    async def next(self) -> None:
        """Returns when one more may be taken, and never before others had their turn."""
        now = asyncio.get_running_loop().time()
        if now - self._since >= 1.0:
            self._since, self._taken = now, 0
        self._taken += 1
        await asyncio.sleep(self._since + 1.0 - now if self._taken > MOST_A_SECOND else 0.0)
