"""A model of Pydantic AI whose answers a test writes."""

from __future__ import annotations

from typing import Any

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo


class Script:
    """Answers in order. `seen`: what the model read from tools before each."""

    def __init__(self, *answers: ModelResponse | Exception) -> None:
        self.answers, self.seen = list(answers), list[list[Any]]()
        self.settings: list[Any] = []

    def __call__(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.settings.append(info.model_settings)
        self.seen.append([part.content for part in messages[-1].parts if isinstance(part, ToolReturnPart)])
        answer = self.answers[len(self.seen) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer


def call(tool: str, **arguments: Any) -> ModelResponse:
    return ModelResponse(parts=[ToolCallPart(tool, arguments, tool_call_id=f"{tool}-{len(arguments)}")])


def text_response(text: str) -> ModelResponse:
    return ModelResponse(parts=[TextPart(text)])
