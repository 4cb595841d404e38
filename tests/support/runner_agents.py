"""Agents in Python whose model calls go to the model runner: no key is set where this is imported."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import agents
from agents.models.openai_chatcompletions import OpenAIChatCompletionsModel
from agents.models.openai_responses import OpenAIResponsesModel
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from tenure.agents import Agent, Work, by_runner, function
from tenure.agents.openai_agents import durable
from tenure.control import ModelCallAnswer, ModelCallReport, ModelCallRequest, TokenUsage

MODEL: Final = "sim-python-streamed"
REDIRECTED: Final = "sim-python-redirected"
agents.set_tracing_disabled(True)


def pydantic(name: str, vendor: str, *, stream: bool = True, model: str = MODEL) -> Agent[Any, str]:
    return Agent(name, model=f"{vendor}:{model}", stream=stream)


def openai_sdk(name: str, kind: type[Any], *, stream: bool = True, model: str = MODEL) -> Any:
    agent = agents.Agent(name=name, instructions="Write.", model=kind(model, openai_client=AsyncOpenAI(max_retries=0)))
    return durable(agent, stream=stream)


async def said(work: Work, prompt: str, model: str = MODEL) -> str:
    """What the model says, by a client of the function's own."""
    client = AsyncAnthropic(max_retries=0)
    request = ModelCallRequest(model=model, input_tokens=100, max_output_tokens=2000, outlives_worker=by_runner(client))

    async def run(report: ModelCallReport) -> ModelCallAnswer:
        answer = await client.messages.create(
            model=model, max_tokens=report.max_output_tokens, messages=[{"role": "user", "content": prompt}]
        )
        text = answer.content[0].text  # type: ignore[union-attr]  # the simulator writes text
        usage = TokenUsage(answer.usage.input_tokens, answer.usage.output_tokens)
        return ModelCallAnswer(result=text, text=text, usage=usage, request_id=answer._request_id or "")

    return str(await work.call_model("say", request, run))


@function(name="own-client")
async def own_client(work: Work, _given: object) -> str:
    return await said(work, "Write.")


@function(name="by-the-clock")
async def by_the_clock(work: Work, _given: object) -> str:
    return await said(work, f"It is {time.time_ns()}.")


@function(name="impatient-client")
async def impatient_client(work: Work, _given: object) -> str:
    try:
        return await asyncio.wait_for(said(work, "Write."), 2)
    except TimeoutError:
        return await said(work, "Write less.", "sim-hello")


FUNCTIONS = [
    impatient_client,
    pydantic("pydantic-messages", "anthropic"),
    pydantic("pydantic-messages-whole", "anthropic", stream=False),
    pydantic("pydantic-chat", "openai-chat"),
    pydantic("pydantic-responses", "openai-responses"),
    pydantic("pydantic-responses-whole", "openai-responses", stream=False),
    openai_sdk("sdk-chat", OpenAIChatCompletionsModel),
    openai_sdk("sdk-chat-whole", OpenAIChatCompletionsModel, stream=False),
    openai_sdk("sdk-responses", OpenAIResponsesModel),
    pydantic("pydantic-redirected", "anthropic", model=REDIRECTED),
    openai_sdk("sdk-redirected", OpenAIChatCompletionsModel, model=REDIRECTED),
    own_client,
    by_the_clock,
]
