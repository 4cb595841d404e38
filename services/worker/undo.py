"""The loop `tenure.undo`: makes the calls that undo the effects of another task, one after another.

The spec of the task has the calls with their arguments, as the ledger fixed them. Intents, fences, approvals, calls in
doubt and takeovers are those of every task.
"""

from __future__ import annotations

from services.worker.loop import Loop
from services.worker.transitions import close_out
from tenure.domain.entries import ToolIntent, Transition
from tenure.domain.next_action import ExecuteTools
from tenure.domain.states import ReleaseReason
from tenure.domain.undo import next_compensation


class UndoLoop(Loop):
    """The loop of an undo."""

    async def _work(self) -> ReleaseReason:
        self._begin()
        await self._define_tools()
        while True:
            self._held_task.interrupts.check()
            transition = await self._carry_out_next_call()
            if transition is not None:
                await close_out(self._dependencies, self._held_task, self._ledger, self._pending, transition)
                return ReleaseReason.CLOSED

    async def _carry_out_next_call(self) -> Transition | None:
        """Announces or runs the next call. Returns a transition when the task must leave this worker."""
        match next_compensation(self._point):
            case ToolIntent() as intent:
                await self._wait_trusted()
                self._pending.append((self._point.step + 1, intent))
                await self._flush()
                return None
            case ExecuteTools() as move:
                transition = await self._execute_calls(move)
                if transition is None:
                    await self._flush()
                return transition
            case Transition() as end:
                return end
