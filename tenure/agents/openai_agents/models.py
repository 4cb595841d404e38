"""Makes model requests of the OpenAI Agents SDK as model calls of the task: recorded, budgeted and billed."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import openai
from agents.agent_output import AgentOutputSchemaBase
from agents.handoffs import Handoff
from agents.items import ItemHelpers, ModelResponse, TResponseInputItem, TResponseOutputItem, TResponseStreamEvent
from agents.model_settings import ModelSettings
from agents.models.interface import Model, ModelProvider, ModelTracing
from agents.models.openai_chatcompletions import OpenAIChatCompletionsModel
from agents.models.openai_responses import OpenAIResponsesModel
from agents.run_config import ModelInputData
from agents.tool import FunctionTool, Tool
from agents.usage import Usage, deserialize_usage, serialize_usage
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseErrorEvent,
    ResponseFailedEvent,
    ResponseFunctionCallArgumentsDeltaEvent,
    ResponseIncompleteEvent,
    ResponseOutputItemDoneEvent,
    ResponseReasoningSummaryTextDeltaEvent,
    ResponseReasoningTextDeltaEvent,
    ResponseTextDeltaEvent,
)
from openai.types.responses.response_prompt_param import ResponsePromptParam
from pydantic import TypeAdapter

from tenure.agents.approvals import offered_tools
from tenure.agents.conversation import is_interrupted
from tenure.agents.execution import Execution, execution_of, unit
from tenure.agents.failures import refuses_images
from tenure.agents.openai_agents.model_errors import REQUEST, exception_of, recorded_failures
from tenure.agents.openai_agents.one_answer import NEWEST_ANSWER
from tenure.agents.openai_agents.refused_images import Input, images_in, without_images
from tenure.agents.openai_agents.tools import DurableInvocation
from tenure.agents.output_report import OutputReport
from tenure.agents.vendor_clients import by_runner
from tenure.control.failures import NotReplayable, StepFailed
from tenure.control.model_calls import ModelCallAnswer, ModelCallReport, ModelCallRequest, PromptPart
from tenure.control.own_tools import OwnTool
from tenure.domain.budget import TokenUsage
from tenure.domain.models import OPENAI
from tenure.domain.texts import text_tokens
from tenure.domain.tools import ToolDefinition

DEFAULT_MAX_OUTPUT_TOKENS: Final = 8192
ATTEMPT_HEADER: Final = "x-tenure-attempt"
TOKENS_PER_REQUEST: Final = 512
TOKENS_PER_ITEM: Final = 16
TOKENS_PER_MEDIUM: Final = 5_000
CHARACTERS_PER_MEDIUM_TOKEN: Final = 42
"""Of base64: images have at most the figure before, documents grow. An estimate, which no provider states."""
_BY_HTTP: Final = (OpenAIChatCompletionsModel, OpenAIResponsesModel)
"""The models that the model runner can serve. Others use a web socket, or the library of another vendor."""
_MEDIA: Final = frozenset({"image_url", "file_data", "file_url", "data"})
"""The members of an input's items that are an image, a sound or a file: base64, or an address."""
_Given = tuple[str | None, Input]
"""The instructions and the input of a request."""
_ITEMS: Final[TypeAdapter[list[TResponseOutputItem]]] = TypeAdapter(list[TResponseOutputItem])


@dataclass(frozen=True, slots=True)
class CallOptions:
    """The options of model calls. `max_output_tokens`: of a call whose settings name no `max_tokens`.

    `streams`: False for a server that cannot stream its answers.
    """

    max_output_tokens: int = DEFAULT_MAX_OUTPUT_TOKENS
    streams: bool = True


class DurableModel(Model):
    """Sends the requests of a durable function through its `Work`, and all others directly."""

    def __init__(self, inner: Model, name: str, options: CallOptions) -> None:
        self.inner, self.name, self._options = inner, name, options

    async def get_response(
        self,
        system_instructions: str | None,
        input: str | list[TResponseInputItem],  # noqa: A002  the interface's name
        model_settings: ModelSettings,
        tools: list[Tool],
        output_schema: AgentOutputSchemaBase | None,
        handoffs: list[Handoff],
        tracing: ModelTracing,
        *,
        previous_response_id: str | None,
        conversation_id: str | None,
        prompt: ResponsePromptParam | None,
    ) -> ModelResponse:
        """Returns the response, recorded now or earlier. Raises an exception of `openai` for a request that failed.

        A request whose images the provider refuses is made again without them, and one that a message interrupts with
        the message.
        """
        references: dict[str, Any] = {
            "previous_response_id": previous_response_id,
            "conversation_id": conversation_id,
            "prompt": prompt,
        }
        rest = (tools, output_schema, handoffs, tracing)
        current = execution_of(f"the model {self.name}")
        if current is None:
            return await self.inner.get_response(system_instructions, input, model_settings, *rest, **references)
        while True:
            shown = without_images(input, current.refused_images) if current.refused_images else input
            of_model = (system_instructions, shown)

            async def send(settings: ModelSettings, given: _Given = of_model) -> ModelResponse:
                return await self.inner.get_response(given[0], given[1], settings, *rest, **references)

            def stream(settings: ModelSettings, given: _Given = of_model) -> AsyncIterator[TResponseStreamEvent]:
                return self.inner.stream_response(given[0], given[1], settings, *rest, **references)

            bound = input_bound(*of_model, tools, output_schema, handoffs)
            sending = Request(send, stream if self._options.streams else None, offered_tools(_own_tools(tools)))
            largest = largest_part(*of_model)
            try:
                return await self._call(current, bound, largest, model_settings, sending)
            except StepFailed as failed:
                if is_interrupted(failed) and current.make_input is not None:
                    made: ModelInputData = await current.make_input()
                    input, system_instructions = made.input, made.instructions  # noqa: A001
                    continue
                images = images_in(shown) if refuses_images(failed.failure) else set()
                if not images:
                    raise exception_of(failed) from failed
                current.refused_images |= images

    async def _call(
        self, current: Execution, bound: int, largest: PromptPart, settings: ModelSettings, sending: Request
    ) -> ModelResponse:
        most = settings.max_tokens or self._options.max_output_tokens
        request = ModelCallRequest(
            model=ledger_model(self.name),
            input_tokens=bound,
            max_output_tokens=most,
            largest_part=largest,
            outlives_worker=by_runner(_client_of(self.inner)),
            tools=sending.tools,
            follows_replay=bool(current.replay_model),
            interruptible=current.is_interruptible and current.make_input is not None,
        )

        async def run(report: ModelCallReport) -> ModelCallAnswer:
            headers = {**(settings.extra_headers or {}), ATTEMPT_HEADER: report.attempt}
            granted = replace(settings, max_tokens=report.max_output_tokens, extra_headers=headers)
            with unit(f"a model call of {self.name}"), recorded_failures():
                response = await sending.answer(granted, report)
            text = "".join(map(ItemHelpers.extract_last_content, response.output))
            return ModelCallAnswer(
                result={
                    "output": _ITEMS.dump_python(response.output, mode="json", exclude_unset=True),
                    "usage": serialize_usage(response.usage),
                    "response_id": response.response_id,
                },
                text=text,
                usage=_token_usage(response.usage),
                model=self.name,
                stop_reason="",
                request_id=response.request_id or response.response_id or "",
            )

        async with current.lock:
            recorded = await current.work.call_model("model", request, run)
        output = _ITEMS.validate_python(recorded["output"])
        if (answer := NEWEST_ANSWER.get()) is not None:
            answer.begin(output)
        return ModelResponse(
            output=output,
            usage=deserialize_usage(recorded["usage"]),
            response_id=recorded["response_id"],
        )

    def stream_response(self, *arguments: Any, **options: Any) -> AsyncIterator[TResponseStreamEvent]:
        """Streams a response outside of durable functions. Raises NotReplayable within one."""
        if (current := execution_of(f"the model {self.name}")) is not None:
            raise current.fail(NotReplayable("a task cannot stream an agent's events: use Runner.run"))
        return self.inner.stream_response(*arguments, **options)


@dataclass(frozen=True, slots=True)
class Request:
    """A request: `send` gets the answer as a whole, `stream` in pieces. `tools`: those that the model is offered."""

    send: Callable[[ModelSettings], Awaitable[ModelResponse]]
    stream: Callable[[ModelSettings], AsyncIterator[TResponseStreamEvent]] | None
    tools: tuple[ToolDefinition, ...] = ()

    async def answer(self, settings: ModelSettings, report: ModelCallReport) -> ModelResponse:
        """Returns the answer, and reports its text as it comes. A model that cannot stream is asked for the whole."""
        if self.stream is None:
            return await self._whole(settings, report)
        counting = settings if settings.include_usage is not None else replace(settings, include_usage=True)
        items: list[TResponseOutputItem] = []
        output, has_begun = OutputReport(report), False
        try:
            events = self.stream(counting)
            async with aclosing(cast("AsyncGenerator[TResponseStreamEvent]", events)):
                async for event in events:
                    has_begun = True
                    _report_output(event, output)
                    match event:
                        case ResponseOutputItemDoneEvent(item=item):
                            items.append(item)
                        case ResponseCompletedEvent(response=response) | ResponseIncompleteEvent(response=response):
                            return _complete(response, items)
                        case ResponseFailedEvent() | ResponseErrorEvent():
                            raise openai.APIError(_message_of(event), REQUEST, body=None)
        except NotImplementedError:
            if has_begun:
                raise
            return await self._whole(settings, report)
        raise openai.APIError("the answer ended before it was complete", REQUEST, body=None)

    async def _whole(self, settings: ModelSettings, report: ModelCallReport) -> ModelResponse:
        whole = await self.send(settings)
        report.on_text(0, "".join(map(ItemHelpers.extract_last_content, whole.output)))
        return whole


def _report_output(event: TResponseStreamEvent, output: OutputReport) -> None:
    """Reports the new output of an event, if it has any."""
    match event:
        case ResponseTextDeltaEvent(output_index=block, delta=text):
            output.on_text(block, text)
        case (
            ResponseFunctionCallArgumentsDeltaEvent(delta=text)
            | ResponseReasoningTextDeltaEvent(delta=text)
            | ResponseReasoningSummaryTextDeltaEvent(delta=text)
        ):
            output.on_hidden(text)
        case _:
            pass


def _message_of(event: ResponseFailedEvent | ResponseErrorEvent) -> str:
    if isinstance(event, ResponseErrorEvent):
        return event.message
    return "" if event.response.error is None else event.response.error.message


def _complete(response: Response, items: list[TResponseOutputItem]) -> ModelResponse:
    """Returns a streamed answer as a whole one. Some servers leave its items out of the last event."""
    usage = Usage()
    if (billed := response.usage) is not None:
        usage = Usage(
            requests=1,
            input_tokens=billed.input_tokens,
            output_tokens=billed.output_tokens,
            total_tokens=billed.total_tokens,
            input_tokens_details=billed.input_tokens_details,
            output_tokens_details=billed.output_tokens_details,
        )
    request_id = getattr(response, "_request_id", None)
    return ModelResponse(output=response.output or items, usage=usage, response_id=response.id, request_id=request_id)


class DurableProvider(ModelProvider):
    """Finds models by name, and makes them durable."""

    def __init__(self, inner: ModelProvider, options: CallOptions) -> None:
        self._inner, self._options = inner, options

    def get_model(self, model_name: str | None) -> Model:
        """Returns the model of a name; None: the default of the SDK."""
        model = self._inner.get_model(model_name)
        return DurableModel(model, model_name or name_of(model), self._options)

    async def aclose(self) -> None:
        """Closes the connections of the models."""
        await self._inner.aclose()


def name_of(model: Model) -> str:
    """Returns the name of a model, or of its class if it states none."""
    if isinstance(model, DurableModel):
        return model.name
    return str(getattr(model, "model", "") or type(model).__name__)


def _client_of(model: Model) -> Any:
    """Returns the client of a model that the model runner can serve; None for one of another vendor, or another way."""
    return cast("Any", model)._get_client() if type(model) in _BY_HTTP else None  # noqa: SLF001  it is made at need


def ledger_model(name: str) -> str:
    """Returns the name of a model as the ledger prices it."""
    return f"{OPENAI}/{name.removeprefix(f'{OPENAI}/')}"[:200]


def _token_usage(usage: Usage) -> TokenUsage:
    """Returns the usage as the ledger counts it: the SDK's input includes the tokens of caches."""
    details = usage.input_tokens_details
    read, written = details.cached_tokens or 0, getattr(details, "cache_write_tokens", 0) or 0
    return TokenUsage(max(0, usage.input_tokens - read - written), usage.output_tokens, written, read)


def input_bound(
    system: str | None,
    given: str | list[TResponseInputItem],
    tools: list[Tool],
    output_schema: AgentOutputSchemaBase | None,
    handoffs: list[Handoff],
) -> int:
    """Returns an upper bound of the input in tokens. Images, sounds and files count with an estimate."""
    items: list[Any] = [given] if isinstance(given, str) else list(given)
    texts = [system or "", *(json.dumps(_without_media(item), default=str) for item in items)]
    texts += [f"{tool.name}{tool.description}{json.dumps(tool.params_json_schema)}" for tool in _functions(tools)]
    texts += [f"{each.tool_name}{each.tool_description}{json.dumps(each.input_json_schema)}" for each in handoffs]
    if output_schema is not None and not output_schema.is_plain_text():
        texts.append(json.dumps(output_schema.json_schema()))
    return sum(text_tokens(text) + TOKENS_PER_ITEM for text in texts) + _media_tokens(items) + TOKENS_PER_REQUEST


def largest_part(system: str | None, given: str | list[TResponseInputItem]) -> PromptPart:
    """Returns the part of the input with the longest text."""
    items: list[Any] = [{"content": given}] if isinstance(given, str) else list(given)
    tools = {item["call_id"]: item["name"] for item in items if item.get("type") == "function_call"}
    parts = [PromptPart(name="the system prompt", size_bytes=len((system or "").encode("utf-8", "replace")))]
    for item in items:
        size_bytes = len(json.dumps(_without_media(item), default=str, ensure_ascii=False).encode("utf-8", "replace"))
        tool = tools.get(item.get("call_id"), "") if item.get("type") == "function_call_output" else ""
        other = "an answer of the model" if item.get("role") == "assistant" else "a message of the user"
        parts.append(PromptPart(name=f"the result of {tool}" if tool else other, size_bytes=size_bytes, tool=tool))
    return max(parts, key=lambda part: part.size_bytes)


def _is_medium(name: str, value: Any) -> bool:
    return name in _MEDIA and isinstance(value, str)


def _without_media(value: Any) -> Any:
    """Returns an item of the input without its images, sounds and files."""
    if isinstance(value, Mapping):
        return {name: _without_media(inner) for name, inner in value.items() if not _is_medium(name, inner)}
    return [_without_media(inner) for inner in value] if isinstance(value, list) else value


def _media_tokens(value: Any) -> int:
    if isinstance(value, Mapping):
        media = [inner for name, inner in value.items() if _is_medium(name, inner)]
        own = sum(TOKENS_PER_MEDIUM + len(medium) // CHARACTERS_PER_MEDIUM_TOKEN for medium in media)
        return own + sum(map(_media_tokens, value.values()))
    return sum(map(_media_tokens, value)) if isinstance(value, list) else 0


def _own_tools(tools: list[Tool]) -> Iterator[Callable[[], OwnTool]]:
    for tool in _functions(tools):
        if isinstance(tool.on_invoke_tool, DurableInvocation):
            yield tool.on_invoke_tool.own_tool


def _functions(tools: list[Tool]) -> list[FunctionTool]:
    return [tool for tool in tools if isinstance(tool, FunctionTool)]
