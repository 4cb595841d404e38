"""The loop `replay` of a run of code: the function, or the agent in Python, runs again from its beginning.

Each of its steps, tool calls and messages is answered from the record of another task. A model call goes to the model
that the replay names, if the code follows it; any other is answered from the record. Nothing else is executed, so that
the steps and the own tools of the code do not run either.
"""

from __future__ import annotations

from services.worker.control.function_run import BeginModelCall, BeginStep, FindCalls, ReadFile, ReadMessages
from services.worker.control.loop import Answer, ControlLoop
from services.worker.control.model_calls import AttemptReport
from services.worker.replay import RecordedTools, unasked
from tenure.control import Function, LookUp
from tenure.domain import entries
from tenure.domain.control import recorded_step, step_limit
from tenure.domain.next_action import ExecuteTools
from tenure.domain.replay_of_code import RecordedCode


class ReplayControlLoop(ControlLoop):
    """The loop of code that runs again."""

    @property
    def _code(self) -> RecordedCode:
        tools = self._dependencies.tools
        assert isinstance(tools, RecordedTools), "a worker offers this loop with a record only"
        return tools.code

    async def _unknown_approvals(self, function: Function) -> entries.Transition | None:  # noqa: ARG002
        """Returns None: no person is asked."""
        return None

    async def _begin_step(self, request: BeginStep) -> entries.ControlStep | entries.Transition | None:
        step, name = request.step, request.name
        if recorded_step(self._point, step, name) is not None:
            return await super()._begin_step(request)
        recorded = self._code.step(self._point, step, name, only_looks=isinstance(name, LookUp))
        return await self._answered(step, recorded)

    async def _begin_model_call(
        self, begin: BeginModelCall
    ) -> AttemptReport | entries.ControlStep | entries.Transition:
        request = begin.request
        if self._dependencies.defaults.replay_model and request.follows_replay:
            return await super()._begin_model_call(begin)
        recorded = self._code.model_call(self._point, begin.step, begin.name, request.model, request.input_tokens)
        return await self._answered(begin.step, recorded)

    async def _answered(self, step: int, recorded: entries.ControlStep) -> entries.ControlStep | entries.Transition:
        """Records a step as it is in the record. Returns it with its result, or the end at the limit of steps."""
        if (limit := step_limit(self._point, step)) is not None:
            return limit
        await self._write([(step, recorded)])
        return await self._whole(recorded)

    async def _look(self, request: FindCalls | ReadMessages | ReadFile) -> Answer | entries.Transition:
        if isinstance(request, ReadMessages) and request.step > self._point.step:
            due = self._code.messages_due(request.step, self._point.said)
            if due:
                await self._write([(self._point.step, message) for message in due])
        return await super()._look(request)

    async def _execute_calls(self, move: ExecuteTools) -> entries.Transition | None:
        return await super()._execute_calls(unasked(move))
