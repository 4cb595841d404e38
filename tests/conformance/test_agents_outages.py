"""An outage of the provider or a refused account ends no agent in Python and no function, whatever its library says.

The clients are real and ask the simulator, or a port that refuses connections. `test_python_agents.py` has the way
through a worker, until the account is corrected.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import agents
import aiohttp
import anthropic
import httpx2
import openai
import pytest
import requests
from agents.models.openai_chatcompletions import OpenAIChatCompletionsModel
from agents.models.openai_responses import OpenAIResponsesModel
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.openai import OpenAIResponsesModel as PydanticResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from devstack.simulator.delivery import RawAnswer
from devstack.simulator.scenario import fault_from
from devstack.simulator.simulator import ModelSimulator
from tenure.agents import Agent
from tenure.agents.openai_agents import durable
from tenure.control import ModelCallAnswer, ModelCallReport, ModelCallRequest, TokenUsage
from tenure.control.failures import failure_of
from tenure.domain.control import after_function_failure
from tenure.domain.entries import Transition
from tenure.domain.retry import MAX_UNUSABLE_ANSWERS, RetryPolicy
from tenure.domain.states import TaskState
from tests.support.journal_work import JournalWork
from tests.support.patience import CALL_SECONDS

agents.set_tracing_disabled(True)
MODEL = "sim-hello"
REQUEST = ModelCallRequest(model=MODEL, input_tokens=10, max_output_tokens=10)
AWAY = "MODEL_UNAVAILABLE"
REASONS = {503: AWAY, 529: AWAY, 504: AWAY, 429: "MODEL_RATE_LIMITED"}
STATUSES = (503, 529, 504, 429, 401, 402, 403)
REASONS |= dict.fromkeys((401, 402, 403), "MODEL_ACCOUNT_REFUSED")


def anthropic_model(url: str, http: httpx2.AsyncClient) -> Model:
    return AnthropicModel(MODEL, provider=AnthropicProvider(api_key="sk-test", base_url=url, http_client=http))


def chat_model(url: str, http: httpx2.AsyncClient) -> Model:
    return OpenAIChatModel(MODEL, provider=OpenAIProvider(api_key="sk-test", base_url=f"{url}/v1", http_client=http))


def responses_model(url: str, http: httpx2.AsyncClient) -> Model:
    provider = OpenAIProvider(api_key="sk-test", base_url=f"{url}/v1", http_client=http)
    return PydanticResponsesModel(MODEL, provider=provider)


def openai_client(url: str, http: httpx2.AsyncClient) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key="sk-test", base_url=f"{url}/v1", max_retries=0, http_client=http)


Way = Callable[[str, httpx2.AsyncClient, JournalWork], Awaitable[None]]


def pydantic(*models: Callable[[str, httpx2.AsyncClient], Model], stream: bool = True) -> Way:
    async def run(url: str, http: httpx2.AsyncClient, work: JournalWork) -> None:
        made = [make(url, http) for make in models]
        model = made[0] if len(made) == 1 else FallbackModel(made[0], *made[1:])
        await Agent("support", model=model, stream=stream).durable_function.run(work, None)

    return run


def sdk(kind: type[Any], *, stream: bool = True) -> Way:
    async def run(url: str, http: httpx2.AsyncClient, work: JournalWork) -> None:
        agent = agents.Agent(name="support", model=kind(MODEL, openai_client=openai_client(url, http)))
        await durable(agent, stream=stream).run(work, None)

    return run


def own(ask: Callable[[str, httpx2.AsyncClient], Awaitable[object]]) -> Way:
    async def run(url: str, http: httpx2.AsyncClient, work: JournalWork) -> None:
        async def called(_report: ModelCallReport) -> ModelCallAnswer:
            return ModelCallAnswer(result=repr(await ask(url, http)), text="", usage=TokenUsage())

        await work.call_model("ask", REQUEST, called)

    return run


async def by_anthropic(url: str, http: httpx2.AsyncClient) -> object:
    client = anthropic.AsyncAnthropic(api_key="sk-test", base_url=url, max_retries=0, http_client=http)
    return await client.messages.create(model=MODEL, max_tokens=9, messages=[{"role": "user", "content": "hi"}])


async def by_openai(url: str, http: httpx2.AsyncClient) -> object:
    prompt: Any = [{"role": "user", "content": "hi"}]
    return await openai_client(url, http).chat.completions.create(model=MODEL, messages=prompt)


BODY: Any = {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
HEADERS = {"x-api-key": "sk-test", "anthropic-version": "2023-06-01"}


async def by_httpx(url: str, http: httpx2.AsyncClient) -> object:
    return (await http.post(f"{url}/v1/messages", json=BODY, headers=HEADERS)).raise_for_status()


async def by_aiohttp(url: str, _http: httpx2.AsyncClient) -> object:
    async with (
        aiohttp.ClientSession(headers=HEADERS, raise_for_status=True) as session,
        session.post(f"{url}/v1/messages", json=BODY) as response,
    ):
        return await response.json()


async def by_requests(url: str, _http: httpx2.AsyncClient) -> object:
    def post() -> object:
        with requests.Session() as session:
            response = session.post(f"{url}/v1/messages", json=BODY, headers=HEADERS, timeout=CALL_SECONDS)
            response.raise_for_status()
            return response.json()

    return await asyncio.to_thread(post)


WAYS: dict[str, Way] = {
    "pydantic-messages": pydantic(anthropic_model),
    "pydantic-messages-whole": pydantic(anthropic_model, stream=False),
    "pydantic-chat": pydantic(chat_model),
    "pydantic-responses": pydantic(responses_model),
    "pydantic-fallback": pydantic(anthropic_model, chat_model),
    "sdk-chat": sdk(OpenAIChatCompletionsModel),
    "sdk-chat-whole": sdk(OpenAIChatCompletionsModel, stream=False),
    "sdk-responses": sdk(OpenAIResponsesModel),
    "anthropic": own(by_anthropic),
    "openai": own(by_openai),
    "httpx": own(by_httpx),
    "aiohttp": own(by_aiohttp),
    "requests": own(by_requests),
}


@pytest.fixture
def refusing_url() -> Iterator[str]:
    """A port that is the test's own and takes no connection."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture
async def http() -> AsyncIterator[httpx2.AsyncClient]:
    # The simulator has no TLS, and to read all root certificates takes longer than the test.
    async with httpx2.AsyncClient(timeout=CALL_SECONDS, verify=False) as made:
        yield made


@pytest.fixture
async def simulator() -> AsyncIterator[ModelSimulator]:
    async with ModelSimulator() as made:
        yield made


async def what_follows(way: str, url: str, http: httpx2.AsyncClient, *, unusable: int = 0) -> Transition:
    """What follows for a task that was tried a thousand times already. `unusable`: answers in a row."""
    with pytest.raises(Exception) as raised:
        await WAYS[way](url, http, JournalWork("Hello"))
    return after_function_failure(failure_of(raised.value), 1000, RetryPolicy(), random_fraction=0.5, unusable=unusable)


@pytest.mark.parametrize("way", WAYS)
async def test_provider_that_fails_or_refuses_is_waited_for(
    way: str, simulator: ModelSimulator, http: httpx2.AsyncClient
) -> None:
    found = {}
    for status in STATUSES:
        for endpoint in ("messages", "chat", "responses"):
            fault = fault_from({"status": status, "retry_after_seconds": 999}, None)
            simulator.faults.order(fault, count=9, endpoint=endpoint, model=None)
        move = await what_follows(way, simulator.url, http)
        found[status] = move.reason
        assert (move.to_state, move.retry_delay_seconds) == (TaskState.RETRY_SCHEDULED, 999), move
        simulator.faults.clear()
    assert found == REASONS


@pytest.mark.parametrize("way", WAYS)
async def test_provider_that_refuses_connections_is_waited_for(
    way: str, refusing_url: str, http: httpx2.AsyncClient
) -> None:
    move = await what_follows(way, refusing_url, http)
    assert (move.to_state, move.reason) == (TaskState.RETRY_SCHEDULED, AWAY), move
    assert move.error_class == "CONNECTION"


@pytest.mark.parametrize("way", WAYS)
async def test_fault_of_the_request_ends_the_task(
    way: str, simulator: ModelSimulator, http: httpx2.AsyncClient
) -> None:
    for endpoint in ("messages", "chat", "responses"):
        simulator.faults.order(fault_from({"status": 400}, None), count=9, endpoint=endpoint, model=None)
    move = await what_follows(way, simulator.url, http)
    assert (move.to_state, move.reason) == (TaskState.FAILED, "FUNCTION_FAILED"), move


@pytest.mark.parametrize("way", ["pydantic-messages", "pydantic-chat", "sdk-chat"])
async def test_answers_that_no_client_can_read_end_the_task(
    way: str, simulator: ModelSimulator, http: httpx2.AsyncClient
) -> None:
    """Each is paid for: no wait for a better one until the deadline."""
    simulator.answer_next(RawAnswer(b"event: message_start\ndata: {no JSON\n\n"))
    move = await what_follows(way, simulator.url, http, unusable=MAX_UNUSABLE_ANSWERS)
    assert (move.to_state, move.reason) == (TaskState.FAILED, "MODEL_ANSWER_UNUSABLE"), move
