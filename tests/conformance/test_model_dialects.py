"""The dialects of chat servers: two tool steps and an answer with each, against servers that refuse what the real ones
refuse. The answers are those of the vendors' documentation (dialects.py names the pages).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Self

import pytest

from devstack.simulator.http_server import HttpRequest, HttpServer, Reply, plain_refusal
from tenure.domain.conversation import text_block, text_of, with_own_ids
from tenure.domain.models import OPENAI
from tenure.model_providers.client import ModelCall, ModelCallFailed, ModelClient, ModelRequest
from tenure.model_providers.dialects import DIALECTS, dialect_of
from tenure.model_providers.openai_models import OpenAIProvider
from tests.support.patience import CALL_SECONDS

TOOL = {"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
Body = dict[str, Any]


class DialectServer:
    """Answers with two calls and then a text; refuses a request for which `problem` returns a text."""

    def __init__(self, deltas: Callable[[int], list[Body]], problem: Callable[[Body], str]) -> None:
        self._deltas, self._problem = deltas, problem
        self._server = HttpServer(self._answer, max_body_bytes=2**20, refusal=plain_refusal)

    async def __aenter__(self) -> Self:
        await self._server.start("127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.port}/v1"

    async def _answer(self, request: HttpRequest, reply: Reply) -> None:
        body = json.loads(request.body)
        if why := self._problem(body):
            reply.send(400, json.dumps([{"error": {"message": why, "status": "INVALID_ARGUMENT"}}]).encode())
            return
        calls = sum(message["role"] == "tool" for message in body["messages"])
        deltas = self._deltas(calls) if calls < 2 else [{"content": "Done."}]
        chunks: list[Body] = [{"model": "m", "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
        reason = "tool_calls" if calls < 2 else "stop"
        chunks += [{"model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}]
        chunks += [{"model": "m", "choices": [], "usage": USAGE}]
        reply.begin(200, {"content-type": "text/event-stream"})
        reply.write(b"".join(f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks) + b"data: [DONE]\n\n")
        reply.end()


def call(number: int, **more: Any) -> Body:
    function = {"name": "look", "arguments": "{}"}
    return {"tool_calls": [{"index": 0, "id": f"c{number}", "type": "function", "function": function, **more}]}


def thoughtful(number: int) -> list[Body]:
    return [{"reasoning_content": f"thought {number}, "}, {"reasoning_content": "more"}, call(number)]


def without_thoughts(body: Body) -> str:
    """DeepSeek and Moonshot: each call of the turn goes back with the thoughts before it."""
    called = [message for message in body["messages"] if message.get("tool_calls")]
    expected = [f"thought {number}, more" for number in range(len(called))]
    if [message.get("reasoning_content") for message in called] == expected:
        return ""
    return "The reasoning_content in the thinking mode must be passed back to the API."


def signed(number: int) -> list[Body]:
    return [call(number, extra_content={"google": {"thought_signature": f"signature {number}"}})]


def without_signature(body: Body) -> str:
    calls = [one for message in body["messages"] for one in message.get("tool_calls", ())]
    signatures = [one.get("extra_content", {}).get("google", {}).get("thought_signature") for one in calls]
    if signatures == [f"signature {number}" for number in range(len(calls))]:
        return ""
    return "Function call is missing a thought_signature in functionCall parts."


def with_old_limit(body: Body) -> str:
    if "max_tokens" in body:
        return "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
    return "" if "max_completion_tokens" in body else "the limit is missing"


def with_chat_extras(body: Body) -> str:
    """A server without a row: it gets the old limit, and no thoughts."""
    extras = [message for message in body["messages"] if "reasoning_content" in message]
    return "an unknown member" if extras or "max_tokens" not in body else ""


@pytest.mark.parametrize(
    ("model", "deltas", "problem"),
    [
        ("deepseek-reasoner", thoughtful, without_thoughts),
        ("deepseek/deepseek-chat", thoughtful, without_thoughts),
        ("kimi-k2-thinking", thoughtful, without_thoughts),
        ("gemini-3-pro", signed, without_signature),
        ("google/gemini-3-flash", signed, without_signature),
        ("o4-mini", lambda number: [call(number)], with_old_limit),
        ("openai/gpt-5", lambda number: [call(number)], with_old_limit),
        ("llama3", thoughtful, with_chat_extras),
    ],
)
async def test_two_tool_steps_with_each_dialect(model: str, deltas: Any, problem: Any) -> None:
    async with DialectServer(deltas, problem) as server:
        provider = OpenAIProvider(api_key="sk-test", base_url=server.url, silence_seconds=CALL_SECONDS)
        async with ModelClient({OPENAI: provider}, timeout_seconds=CALL_SECONDS) as client:
            messages: list[Any] = [{"role": "user", "content": [text_block("Look twice.")]}]
            for step in (1, 2):
                answer = await client.answer(ModelRequest(f"openai/{model}", messages, 100, tools=[TOOL]), new_call())
                content = with_own_ids(answer.content, messages, step)
                [use] = [block for block in content if block["type"] == "tool_use"]
                result = {"type": "tool_result", "tool_use_id": use["id"], "content": "seen", "is_error": False}
                messages += [{"role": "assistant", "content": list(content)}, {"role": "user", "content": [result]}]
            answer = await client.answer(ModelRequest(f"openai/{model}", messages, 100, tools=[TOOL]), new_call())
    assert text_of(answer.content) == "Done."
    assert not answer.usage_estimated


def new_call() -> ModelCall:
    return ModelCall(lambda _block, _text: None, lambda: None)


async def test_error_that_google_puts_into_a_list_is_read() -> None:
    async with DialectServer(signed, lambda _: "Function call is missing a thought_signature.") as server:
        provider = OpenAIProvider(api_key="sk-test", base_url=server.url, silence_seconds=CALL_SECONDS)
        async with ModelClient({OPENAI: provider}, timeout_seconds=CALL_SECONDS) as client:
            messages = [{"role": "user", "content": [text_block("Look.")]}]
            with pytest.raises(ModelCallFailed, match="missing a thought_signature"):
                await client.answer(ModelRequest("openai/gemini-3-pro", messages, 100), new_call())


@pytest.mark.parametrize(
    ("host", "model", "expected"),
    [
        ("api.openai.com", "gpt-4.1", "openai"),
        ("me.openai.azure.com", "my-deployment", "openai"),
        ("evil-openai.com", "gpt-4.1", "other"),
        ("litellm.local", "gpt-4.1", "other"),
        ("litellm.local", "openai/o3", "openai-models"),
        ("litellm.local", "o3-mini", "openai-models"),
        ("litellm.local", "opus", "other"),
        ("api.deepseek.com", "any", "deepseek"),
        ("openrouter.ai", "deepseek/deepseek-v3.2", "deepseek"),
        ("generativelanguage.googleapis.com", "any", "gemini"),
        ("api.groq.com", "deepseek-r1-distill-llama-70b", "strict"),
        ("", "", "other"),
    ],
)
def test_host_decides_before_the_model(host: str, model: str, expected: str) -> None:
    assert dialect_of(host, model).name == expected


def test_each_dialect_has_a_name_of_its_own() -> None:
    assert len({dialect.name for dialect in DIALECTS}) == len(DIALECTS)
