"""The loop of undos: makes the calls that undo the effects of another task, one after another.

The spec of the task has the calls with their arguments, as the ledger fixed them. Intents, fences, approvals, calls in
doubt and takeovers are those of every task. Calls of own tools run here: only workers that offer the function of the
undone task get such an undo.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from services.worker.loop import Loop
from services.worker.transitions import close_out
from tenure.agents.functions import undo_tools_of
from tenure.control import OwnTool
from tenure.domain.entries import ToolIntent, ToolsDefined, Transition
from tenure.domain.errors import Unavailable
from tenure.domain.next_action import ExecuteTools
from tenure.domain.states import ReleaseReason
from tenure.domain.undo import next_compensation

UNDO_TOOL_NOT_HERE: Final = "UNDO_TOOL_NOT_HERE"


class UndoLoop(Loop):
    """The loop of an undo."""

    _own: Sequence[OwnTool] = ()

    async def _work(self) -> ReleaseReason:
        self._begin()
        self._own = self._own_tools()
        self._own_approvals = tuple(tool.name for tool in self._own if tool.needs_approval)
        await self._define_tools()
        self._tools.use_own_tools(self._own)
        while True:
            self._held_task.interrupts.check()
            transition = await self._carry_out_next_call()
            if transition is not None:
                await close_out(self._dependencies, self._held_task, self._ledger, self._pending, transition)
                return ReleaseReason.CLOSED

    def _own_tools(self) -> list[OwnTool]:
        """Returns the own tools of the calls. Raises Unavailable (UNDO_TOOL_NOT_HERE) without one of them: the undo
        returns to the queue unchanged, for a worker with other code.
        """
        work = self._spec.undo
        if work is None or not work.function:
            return []
        wanted = {call.tool for call in work.calls if call.own_tool}
        function = self._dependencies.functions.get(work.function)
        known = () if function is None else undo_tools_of(function, json.loads(work.input_json or "null"))
        own = [tool for tool in known if tool.name in wanted]
        if missing := wanted - {tool.name for tool in own}:
            names = ", ".join(sorted(missing))
            message = f"this worker's {work.function} does not have {names}: start a worker whose code has it"
            raise Unavailable(message, reason=UNDO_TOOL_NOT_HERE)
        return own

    async def _service_tools(self) -> ToolsDefined:
        defined = await super()._service_tools()
        own = {tool.name: tool.shown for tool in self._own}
        unknown = tuple(name for name in defined.unknown_names if name not in own)
        return replace(defined, tools=(*defined.tools, *own.values()), unknown_names=unknown)

    async def _carry_out_next_call(self) -> Transition | None:
        """Announces or runs the next call. Returns a transition when the task must leave this worker."""
        match next_compensation(self._point, self._own_approvals):
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
