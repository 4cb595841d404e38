"""A model of the OpenAI Agents SDK whose answers a test writes."""

from __future__ import annotations

from typing import Any

from agents import ModelSettings
from agents.items import ModelResponse
from agents.models.interface import Model
from agents.usage import Usage
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText


class Script(Model):
    """Answers in order. `seen`: the input of each request."""

    def __init__(self, *answers: list[Any]) -> None:
        self.answers, self.seen, self.settings = list(answers), list[Any](), list[ModelSettings]()

    async def get_response(self, *arguments: Any, **options: Any) -> ModelResponse:
        self.seen.append(arguments[1])
        self.settings.append(arguments[2])
        return ModelResponse(
            output=self.answers[len(self.seen) - 1],
            usage=Usage(requests=1, input_tokens=10, output_tokens=2, total_tokens=12),
            response_id=None,
        )

    def stream_response(self, *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError


def text_message(text: str) -> list[Any]:
    content = ResponseOutputText(text=text, type="output_text", annotations=[])
    return [ResponseOutputMessage(id="m", content=[content], role="assistant", status="completed", type="message")]


def call(tool: str, arguments: str = "{}") -> ResponseFunctionToolCall:
    return ResponseFunctionToolCall(name=tool, arguments=arguments, call_id=f"call-{tool}", type="function_call")


def sent_to_the_model(script: Script, tool: str, request: int = -1) -> list[Any]:
    return [
        item["output"] for item in script.seen[request] if item.get("call_id") == f"call-{tool}" and "output" in item
    ]
