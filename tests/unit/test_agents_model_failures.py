"""What a model call of a task raises is the library's own exception, now and in each later execution."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import agents
import httpx2
import openai
import pydantic_ai
import pytest
from agents import Runner
from pydantic_ai.capabilities import ModelFallback
from pydantic_ai.exceptions import (
    FallbackExceptionGroup,
    ModelAPIError,
    ModelConnectionError,
    ModelHTTPError,
    ModelRateLimitError,
    ModelRequestTimeout,
    UnexpectedModelBehavior,
)
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import FunctionModel

from tenure.agents import Agent, durable, function
from tenure.agents.failures import refuses_images
from tenure.agents.functions import content_of, function_table
from tenure.agents.openai_agents import durable as durable_openai
from tenure.control import Work
from tenure.control.failures import failure_of
from tenure.domain.entries import ControlFailure
from tests.support import openai_script as sdk
from tests.support.journal_work import JournalWork
from tests.support.pydantic_script import Script, text_response

LIMITED = ModelHTTPError.for_category(
    ModelRateLimitError, status_code=429, model_name="m", body="slow down", headers={"retry-after": "3"}
)
PYDANTIC: list[Exception] = [
    LIMITED,
    ModelHTTPError(422, "m", body={"detail": "no"}),
    ModelAPIError("m", "broken"),
    ModelConnectionError("m", "refused"),
    ModelRequestTimeout("m", 2.5),
    UnexpectedModelBehavior("no answer"),
]


@pytest.mark.parametrize("raised", PYDANTIC, ids=lambda error: type(error).__name__)
async def test_a_function_catches_pydantic_ai_s_exception(raised: Exception) -> None:
    agent = Agent("support", model=FunctionModel(Script(raised)))
    caught: list[BaseException] = []

    @function
    async def careful(work: Work) -> str:
        try:
            await agent.run("Hello")
        except type(raised) as error:
            caught.append(error)
        return str(await work.step("after", lambda: "went on"))

    work = JournalWork()
    for _ in range(2):
        assert await careful.run(work.begin(), None) == "went on"
    assert [type(error).__name__ for error in caught] == [type(raised).__name__] * 2
    assert {getattr(error, "status_code", 0) for error in caught} == {getattr(raised, "status_code", 0)}
    assert {getattr(error, "retry_after", None) for error in caught} == {getattr(raised, "retry_after", None)}


async def test_an_uncaught_failure_retries_the_task() -> None:
    agent = Agent("support", model=FunctionModel(Script(LIMITED)))
    with pytest.raises(ModelRateLimitError) as raised:
        await agent.durable_function.run(JournalWork("Hello"), None)
    failure = failure_of(raised.value)
    assert (failure.retryable, failure.retry_after_seconds) == (True, 3.0)


def fallen_back(first: Script, second: Script) -> pydantic_ai.Agent[Any, Any]:
    models = FallbackModel(FunctionModel(first, model_name="dead"), FunctionModel(second, model_name="alive"))
    return pydantic_ai.Agent(models, name="support")


def moved_on(first: Script, second: Script) -> pydantic_ai.Agent[Any, Any]:
    capability: Any = ModelFallback(FunctionModel(second, model_name="alive"))
    return pydantic_ai.Agent(FunctionModel(first, model_name="dead"), name="support", capabilities=[capability])


@pytest.mark.parametrize("made", [fallen_back, moved_on])
async def test_a_fallback_records_and_prices_each_model(made: Callable[..., Any]) -> None:
    first, second = Script(LIMITED), Script(text_response("Hello."))
    run = durable(made(first, second)).run
    work = JournalWork("Hello")
    for _ in range(2):
        assert await run(work.begin(), None) == "Hello."
    assert [request.model for request in work.requests] == ["function/dead", "function/alive"]
    assert (len(first.seen), len(second.seen)) == (1, 1)


async def test_a_task_whose_fallbacks_all_fail_may_be_tried_again() -> None:
    run = durable(fallen_back(Script(LIMITED), Script(LIMITED))).run
    with pytest.raises(FallbackExceptionGroup) as raised:
        await run(JournalWork("Hello"), None)
    assert failure_of(raised.value).retryable


REQUEST = httpx2.Request("POST", "https://api.openai.com/v1/responses")
OPENAI: list[Exception] = [
    openai.RateLimitError("slow down", response=httpx2.Response(429, request=REQUEST), body=None),
    openai.BadRequestError("no", response=httpx2.Response(400, request=REQUEST), body=None),
    openai.APIConnectionError(message="refused", request=REQUEST),
    openai.APITimeoutError(request=REQUEST),
]


@pytest.mark.parametrize("raised", OPENAI, ids=lambda error: type(error).__name__)
async def test_a_function_catches_openai_s_exception(raised: Exception) -> None:
    class Failing(sdk.Script):
        async def get_response(self, *arguments: Any, **options: Any) -> Any:
            raise raised

    agent = agents.Agent(name="support", model=Failing())
    durable_openai(agent)
    caught: list[BaseException] = []

    @function
    async def careful(work: Work) -> str:
        try:
            await Runner.run(agent, "Hello")
        except type(raised) as error:
            caught.append(error)
        return str(await work.step("after", lambda: "went on"))

    work = JournalWork()
    for _ in range(2):
        assert await careful.run(work.begin(), None) == "went on"
    assert [type(error) for error in caught] == [type(raised)] * 2
    assert {getattr(error, "status_code", 0) for error in caught} == {getattr(raised, "status_code", 0)}


async def test_an_answer_is_requested_whole_without_streaming() -> None:
    def streamed() -> str:
        raise AssertionError("the server cannot stream")

    async def broken(_messages: object, _info: object) -> AsyncIterator[str]:
        yield streamed()

    agent = Agent("support", model=FunctionModel(Script(text_response("Hello.")), stream_function=broken), stream=False)
    assert await agent.durable_function.run(JournalWork("Hello"), None) == "Hello."

    class Whole(sdk.Script):
        def stream_response(self, *arguments: Any, **options: Any) -> Any:
            raise AssertionError("the server cannot stream")

    run = durable_openai(agents.Agent(name="whole", model=Whole(sdk.text_message("Hello."))), stream=False).run
    work = JournalWork("Hello")
    assert await run(work, None) == "Hello."
    assert work.reports[0].texts == ["Hello."]


def test_an_openai_agent_with_a_model_names_it_in_its_revision() -> None:
    model = sdk.Script(sdk.text_message("Hello"))
    model.model = "gpt-5-mini"  # type: ignore[attr-defined]
    durable_agent = durable_openai(agents.Agent(name="support", model=model))
    content = content_of(function_table([durable_agent])["support"])
    assert content is not None
    assert content.model == "openai:gpt-5-mini"


@pytest.mark.parametrize(
    ("message", "is_refusal"),
    [
        ("BadRequestError 400: Could not process image", True),
        ("ModelHTTPError 413: too large", True),
        ("BadRequestError 400: Unknown parameter", False),
        ("RateLimitError 429: too many images", False),
    ],
)
def test_a_refusal_that_names_images_is_about_them(message: str, is_refusal: bool) -> None:
    assert refuses_images(ControlFailure("INVALID_REQUEST", message, retryable=False)) is is_refusal
