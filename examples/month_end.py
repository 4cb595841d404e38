"""A control function: your own code, as durable as an agent, without a model.

    tenure dev                                                     # in another terminal
    TENURE_WORKER_LOOPS=control TENURE_WORKER_CONTROL_MODULES=month_end PYTHONPATH=examples tenure serve worker
    tenure submit --function month_end --input '{"month": "2026-10", "books": "books"}' --watch

Kill the worker in the middle and start it again: recorded steps and calls are not repeated.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tenure.control import ToolFailed, TryAgain, Work

INVOICES = {"2026-10": [120, 80, 50]}


async def month_end(work: Work, given: dict[str, Any]) -> dict[str, Any]:
    """Adds up a month, writes the total into the books once, and reports it."""
    total = await work.step("add up", add_up, given["month"])
    try:
        # UNSAFE: never made twice. An effect that must not happen twice belongs in such a call, not in a step.
        await work.call_tool("append_record_unsafe", {"file": given["books"], "line": f"{given['month']} {total}"})
    except ToolFailed as failed:
        return {"total": total, "booked": False, "why": failed.outcome.content}
    # A step runs at least once: a worker may die between its effect and its record. The key identifies a repeat.
    await work.step("tell", tell, work.task_id, total)
    return {"total": total, "booked": True}


def add_up(month: str) -> int:
    """Returns the sum of a month's invoices. A plain function runs in a thread."""
    try:
        return sum(INVOICES[month])
    except KeyError:
        raise TryAgain(f"the invoices of {month} are not there yet", retry_after_seconds=60) from None


async def tell(task_id: str, total: int) -> str:
    """Reports the booking. A coroutine runs in the worker's event loop."""
    await asyncio.sleep(0.1)
    return f"task {task_id} booked {total}"


FUNCTIONS = {"month_end": month_end}
