"""Makes an agent's model requests as model calls of its task: recorded, budgeted, billed, and shown while they run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic_ai.durable_exec import DurableOperation, ModelRequestParams
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from tenure.agents.conversation import ShownImage, images_to_show, is_interrupted, new_message
from tenure.agents.execution import Execution, unit
from tenure.agents.failures import refuses_images
from tenure.agents.output_report import OutputReport
from tenure.agents.pydantic_ai.model_errors import exception_of, recorded_failures
from tenure.agents.pydantic_ai.prompts import input_bound, largest_part
from tenure.agents.pydantic_ai.refused_images import images_in, without_images
from tenure.agents.vendor_clients import by_runner
from tenure.control.failures import StepFailed
from tenure.control.model_calls import ModelCallAnswer, ModelCallReport, ModelCallRequest
from tenure.domain.budget import TokenUsage
from tenure.domain.models import ANTHROPIC, ATTEMPT_HEADER
from tenure.domain.tools import ToolDefinition

_PRICED_AS: Final = {
    "azure-openai": "azure",
    "bedrock": "aws",
    "google-cloud": "google",
    "google-gla": "google",
    "google-vertex": "google",
    "xai": "x-ai",
}
"""The ids of providers in the ledger's price list, where Pydantic AI has other names for them."""
_FOUND_AS: Final = {"aws": "bedrock", "google": "google-gla", "x-ai": "xai"}
_STOP_REASONS: Final[dict[str, str]] = {"stop": "end_turn", "tool_call": "tool_use", "length": "max_tokens"}
"""The names of the ledger, which all loops and the command line share."""

_REPORT: ContextVar[ModelCallReport | None] = ContextVar("tenure.agents.report", default=None)

Handler = Callable[[ModelRequestParams], Awaitable[ModelResponse]]


def ledger_model(model: Model) -> str:
    """Returns the model's name as the ledger prices it: `claude-…`, `openai/gpt-…`, `google/gemini-…`.

    That of the first model of a FallbackModel, which asks each of its models in a call of its own.
    """
    if isinstance(model, FallbackModel):
        return ledger_model(model.models[0])
    if model.system == ANTHROPIC:
        return model.model_name
    return f"{_PRICED_AS.get(model.system, model.system)}/{model.model_name}"[:200]


def model_named(name: str) -> str:
    """Returns the name by which Pydantic AI finds a model of the ledger: `anthropic:claude-…`, `openai:gpt-…`.

    A name with a colon is one of Pydantic AI already.
    """
    if ":" in name:
        return name
    provider, _, model = name.rpartition("/")
    return f"{_FOUND_AS.get(provider, provider) or ANTHROPIC}:{model}"


def token_usage(usage: RequestUsage) -> TokenUsage:
    """Returns the usage as the ledger counts it: Pydantic AI's input includes the tokens of caches."""
    return TokenUsage.of_whole_input(
        usage.input_tokens, usage.output_tokens, written=usage.cache_write_tokens, read=usage.cache_read_tokens
    )


@dataclass(frozen=True, slots=True)
class CallSettings:
    """What an agent says of its model calls. `max_output_tokens`: of one whose settings name no `max_tokens`.

    `tools`: those that the model is offered, as people see them.
    """

    max_output_tokens: int
    tools: tuple[ToolDefinition, ...]


async def call_model(
    execution: Execution,
    agent: str,
    operation: DurableOperation[ModelRequestParams, Any, Any],
    params: ModelRequestParams,
    handler: Handler,
    options: CallSettings,
) -> Any:
    """Returns the encoded response, recorded now or earlier. Raises Pydantic AI's exception for one that failed.

    A request whose images the provider refuses is made again without them, and one that a message interrupts with the
    message.
    """
    model = params.run_context.model
    assert isinstance(model, Model), "a realtime session makes no requests through this interface"
    if execution.refused_images:
        params = replace(params, messages=without_images(params.messages, execution.refused_images))
    try:
        return await _call(execution, agent, model, operation, params, handler, options)
    except StepFailed as failed:
        if is_interrupted(failed):
            params = await _with_messages(execution, params, ledger_model(model))
        else:
            images = images_in(params.messages) if refuses_images(failed.failure) else set()
            if not images:
                raise exception_of(failed, model.model_name) from failed
            execution.refused_images |= images
    return await call_model(execution, agent, operation, params, handler, options)


async def new_content(execution: Execution, model: str) -> list[BinaryContent | str]:
    """Returns what users said since the last look, and the images that came with it."""
    message = await new_message(execution)
    images = [_content(image) async for image in images_to_show(execution, model)]
    return [*filter(None, [message]), *images]


def _content(image: ShownImage | str) -> BinaryContent | str:
    return image if isinstance(image, str) else BinaryContent(image.content, media_type=image.media_type)


async def _with_messages(execution: Execution, params: ModelRequestParams, model: str) -> ModelRequestParams:
    """Returns the request with the messages that came while it was answered, which the history of the run gets, too."""
    ctx, content = params.run_context, await new_content(execution, model)
    request = ModelRequest([UserPromptPart(content)], run_id=ctx.run_id, conversation_id=ctx.conversation_id)
    ctx.messages.append(request)
    return replace(params, messages=[*params.messages, request])


async def _call(
    execution: Execution,
    agent: str,
    model: Model,
    operation: DurableOperation[ModelRequestParams, Any, Any],
    params: ModelRequestParams,
    handler: Handler,
    options: CallSettings,
) -> Any:
    settings: ModelSettings = params.model_settings or {}
    request = ModelCallRequest(
        model=ledger_model(model),
        input_tokens=input_bound(params.messages, params.model_request_parameters),
        max_output_tokens=settings.get("max_tokens") or options.max_output_tokens,
        largest_part=largest_part(params.messages),
        outlives_worker=by_runner(client_of(model)),
        tools=options.tools,
        follows_replay=bool(execution.replay_model),
        interruptible=execution.is_interruptible,
    )

    async def run(report: ModelCallReport) -> ModelCallAnswer:
        headers = {**settings.get("extra_headers", {}), ATTEMPT_HEADER: report.attempt}
        granted: ModelSettings = {**settings, "max_tokens": report.max_output_tokens, "extra_headers": headers}
        if "max_retries" not in _unwrapped(model).unsupported_settings:
            granted["max_retries"] = 0  # retries of the client would be calls that the ledger does not know
        with unit(f"a model call of {agent}"), _reporting(report), recorded_failures():
            response = await handler(replace(params, model_settings=granted))
        return ModelCallAnswer(
            result=operation.result_codec.dump(response),
            text=response.text or "",
            usage=token_usage(response.usage),
            model=response.model_name or request.model,
            stop_reason=_STOP_REASONS.get(response.finish_reason or "", response.finish_reason or ""),
            request_id=response.provider_response_id or "",
        )

    async with execution.lock:
        return await execution.work.call_model(f"{agent}: model", request, run)


@contextmanager
def _reporting(report: ModelCallReport) -> Iterator[None]:
    token = _REPORT.set(report)
    try:
        yield
    finally:
        _REPORT.reset(token)


class ReportingModel(WrapperModel):
    """Streams each request of a model call, and reports its text and its usage as they come.

    Not `streams`: it asks for the whole answer, from servers that cannot stream.
    """

    def __init__(self, wrapped: Model, *, streams: bool) -> None:
        super().__init__(wrapped)
        self._streams = streams and _can_stream(wrapped)

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        report = _REPORT.get()
        by_runner(client_of(self.wrapped))  # again: the model may have made a new HTTP client for this run
        if report is None or not self._streams:
            return await self.wrapped.request(messages, model_settings, model_request_parameters)
        async with self.wrapped.request_stream(messages, model_settings, model_request_parameters) as stream:
            output = OutputReport(report)
            async for event in stream:
                block, text = _text_of(event)
                if text:
                    output.on_text(block, text)
                output.on_hidden(_hidden_text_of(event))
                output.on_usage(token_usage(stream.usage))
            return stream.get()


def reporting_model(model: Model, *, streams: bool) -> Model | None:
    """Returns the model that a model call sends its request with; None outside of model calls."""
    return None if _REPORT.get() is None else ReportingModel(model, streams=streams)


def _unwrapped(model: Model) -> Model:
    while isinstance(model, WrapperModel):
        model = model.wrapped
    return model


def client_of(model: Model) -> Any:
    """Returns the client of a vendor's library that a model uses, or None."""
    return getattr(_unwrapped(model), "client", None)


def _can_stream(model: Model) -> bool:
    """Whether the model can stream its answers."""
    model = _unwrapped(model)
    if isinstance(model, FunctionModel):
        return model.stream_function is not None
    return type(model).request_stream is not Model.request_stream


def _text_of(event: ModelResponseStreamEvent) -> tuple[int, str]:
    """Returns the new text of an event and the number of its part; "" for an event without text."""
    match event:
        case PartStartEvent(index=index, part=TextPart(content=text)):
            return index, text
        case PartDeltaEvent(index=index, delta=TextPartDelta(content_delta=text)):
            return index, text
        case _:
            return 0, ""


def _hidden_text_of(event: ModelResponseStreamEvent) -> str:
    """Returns the new output of an event that is not shown: thoughts, and the arguments of tools that are text."""
    match event:
        case (
            PartStartEvent(part=ThinkingPart(content=str(text)) | ToolCallPart(args=str(text)))
            | PartDeltaEvent(delta=ThinkingPartDelta(content_delta=str(text)) | ToolCallPartDelta(args_delta=str(text)))
        ):
            return text
        case _:
            return ""
