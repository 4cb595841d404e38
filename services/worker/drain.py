"""The end of a worker in good order: nothing is lost, and another one goes on at once."""

from __future__ import annotations

import asyncio
import logging
from time import monotonic
from typing import Final

from services.worker.holdings import Holdings
from services.worker.interrupts import Interruption
from services.worker.session import Session

_log: Final = logging.getLogger(__name__)


async def drain(session: Session, holdings: Holdings, timeout_seconds: float) -> None:
    """Takes no more, gives every task back to the queue with what is known of it, and says so.

    Model calls in flight are broken off and billed for what they gave; tools go on and are joined by the next owner.
    What is not given back in time is let go: its successor resumes it from its last commit.
    """
    began, count = monotonic(), len(holdings)
    session.drain()
    for holding in holdings:
        holding.interrupts.request(Interruption.DRAIN)
    try:
        async with asyncio.timeout(timeout_seconds):
            await holdings.wait_empty()
    except TimeoutError:
        _log.warning("some tasks were not given back in time", extra={"left": len(holdings)})
    await session.say_goodbye()
    _log.info("drained", extra={"tasks": count, "seconds": round(monotonic() - began, 3)})
