"""The tool whose calls their caller runs itself, in its own process: it orders the caller to run, and waits.

The outcome does not come through here. The caller sends it with its call, and the first write of a call records it
under the locks of fence and record (accept_rules.py). That ends this run. So a worker that lost its task cannot record
an outcome, whichever replica it reaches.
"""

from __future__ import annotations

import asyncio
from typing import Final
from uuid import UUID

from services.tools.calls.executing import RemoteCallFollower
from services.tools.calls.records import CallKey
from services.tools.calls.runs import Superseded
from services.tools.tool import Arguments, CallContext, OwnCaller, Tool, ToolAnswer
from tenure.domain.errors import LimitReached, Unavailable
from tenure.domain.tools import ToolDefinition

LANE: Final = "own tools"
GUARD_SECONDS: Final = 5.0
"""The time beyond a call's timeout in which its caller can report how the call ended."""
_GONE_SECONDS: Final = GUARD_SECONDS - 0.5
"""The time beyond a call's timeout after which a caller that is away has gone: a stream may break as it reports."""


class CallerRuns:
    """Makes the tools that callers run themselves. `elsewhere` sees changes of call records by other replicas."""

    def __init__(self, elsewhere: RemoteCallFollower) -> None:
        self._elsewhere = elsewhere

    def tool(self, definition: ToolDefinition) -> Tool:
        """Returns a tool for calls with this definition."""
        return Tool(
            definition, self._run, lane=LANE, guard_seconds=GUARD_SECONDS, keeps_any_timeout=True, acts_elsewhere=True
        )

    async def _run(self, context: CallContext, _arguments: Arguments) -> ToolAnswer:
        """Orders the caller to run the call, and waits until this run is stopped: by the outcome, or at its timeout.

        Raises Unavailable when the caller has gone: before the order nothing was done. Raises Superseded when the
        record has changed at another replica while the caller was not connected to this one.
        """
        caller = context.caller
        assert caller is not None, "the runner gives a caller to every tool"
        gone_at = _now() + context.timeout_seconds + _GONE_SECONDS
        if not caller.listeners:
            context.mark_not_sent()
            raise _gone("before it was asked to run the call: nothing was done")
        context.check_may_begin(False)
        caller.order_caller(context.timeout_seconds)
        key = CallKey(UUID(context.task_id), context.call_id)
        while True:
            await caller.wait_listened(listened=False)
            await self._wait_for_return(caller, key, gone_at)

    async def _wait_for_return(self, caller: OwnCaller, key: CallKey, gone_at: float) -> None:
        """Returns when the caller follows its call here again."""
        returned = asyncio.create_task(caller.wait_listened(listened=True))
        changed = asyncio.create_task(self._changed(key, caller.call_attempt))
        waiting = {returned, changed}
        try:
            done, _ = await asyncio.wait(
                waiting, timeout=max(0.0, gone_at - _now()), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        if returned in done:
            return
        if changed in done:
            raise Superseded
        raise _gone("while it ran the call, and did not come back")

    async def _changed(self, key: CallKey, call_attempt: int) -> None:
        """Returns when another replica has changed the record."""
        try:
            await self._elsewhere.wait_for_change(key, call_attempt)
        except LimitReached:  # too many wait: this run ends by its caller's return or at its timeout
            await asyncio.Event().wait()


def _gone(when: str) -> Unavailable:
    return Unavailable(f"the worker disconnected {when}", reason="CALLER_GONE", retry_after_seconds=0.5)


def _now() -> float:
    return asyncio.get_running_loop().time()
