"""The dialects of model servers: a recorded conversation of two tool steps with each.

A new dialect is one row of dialects.py and one file in `dialects/`, which this test finds by itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from services.worker.claim_ledger import StepEntry
from services.worker.model_step import answer_entries
from tenure.domain import entries
from tenure.domain.conversation import text_of, with_own_ids
from tenure.domain.fold import ResumePoint, fold
from tenure.domain.task import TaskSpec
from tenure.domain.tools import Outcome, OutcomeStatus
from tenure.model_providers.client import ModelAnswer, ModelCall, ModelCallFailed, ModelClient, ModelRequest
from tenure.model_providers.dialects import DIALECTS, dialect_of
from tenure.v1 import ledger_pb2
from tenure.wire.ledger import body_to_domain, body_to_wire
from tests.support.patience import CALL_SECONDS
from tests.support.recorded_chats import FILES, RecordedChat, RecordedServer

TOOL = {
    "name": "get_weather",
    "description": "Returns the weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
GOAL = "What is the weather in Paris and in Rome?"
RESULTS = ("18 C, sunny", "24 C, windy")
ANSWER = "Paris: 18 C. Rome: 24 C."


def new_call() -> ModelCall:
    return ModelCall(lambda _block, _text: None, lambda: None)


class Ledger:
    """The entries of a task as the ledger keeps them: bytes, which each owner and each fork reads."""

    def __init__(self) -> None:
        self._bodies: list[tuple[int, bytes]] = []
        self.append((0, entries.Submitted(TaskSpec(goal=GOAL))))

    def append(self, *new: StepEntry) -> None:
        self._bodies += [(step, body_to_wire(body).SerializeToString()) for step, body in new]

    def read_by_next_owner(self) -> ResumePoint:
        bodies = [(step, body_to_domain(ledger_pb2.EntryBody.FromString(body))) for step, body in self._bodies]
        return fold(entries.Entry(number, step, body) for number, (step, body) in enumerate(bodies, start=1))


async def take_step(chat: RecordedChat, client: ModelClient, ledger: Ledger, step: int) -> ModelAnswer:
    """Makes the model call of a step from the ledger alone, as a worker that has just taken the task over."""
    attempt = entries.ModelAttempt(1, chat.model, chat.data.get("input_tokens", 0), 1024, 2048)
    ledger.append((step, attempt))
    point = ledger.read_by_next_owner()
    request = ModelRequest(
        f"{chat.vendor}/{chat.model}",
        point.messages,
        chat.data.get("max_output_tokens", 1024),
        "You know the weather.",
        [TOOL],
        input_tokens=attempt.input_tokens,
        parameters=chat.parameters.of_step(step),
    )
    answer = await client.answer(request, new_call())
    content = with_own_ids(answer.content, point.messages, step)
    ledger.append(*answer_entries(step, attempt, replace(answer, content=content)))
    return answer


def client_of(chat: RecordedChat, server: RecordedServer) -> ModelClient:
    return ModelClient({chat.vendor: chat.provider(server.url)}, timeout_seconds=CALL_SECONDS)


@pytest.mark.parametrize("name", FILES)
async def test_recorded_conversation_goes_on_with_each_owner(name: str) -> None:
    chat, ledger = RecordedChat(name), Ledger()
    async with RecordedServer(chat) as server, client_of(chat, server) as client:
        for step, recorded in enumerate(chat.answers, start=1):
            answer = await take_step(chat, client, ledger, step)
            usage: dict[str, int] = recorded["usage"]
            assert not answer.usage_estimated
            assert {kind: getattr(answer.usage, kind) for kind in usage} == usage
            for intent in ledger.read_by_next_owner().open_intents:
                outcome = Outcome(OutcomeStatus.SUCCEEDED, RESULTS[step - 1])
                ledger.append((step, entries.ToolOutcome(intent.call_id, outcome)))
        assert server.is_over
    assert text_of(answer.content) == ANSWER
    assert answer.context_window_tokens == chat.data.get("context_window_tokens", 0)
    assert ledger.read_by_next_owner().window_tokens == answer.context_window_tokens


@pytest.mark.parametrize("name", [name for name in FILES if RecordedChat(name).dialect])
def test_recorded_host_and_model_choose_the_row(name: str) -> None:
    chat = RecordedChat(name)
    assert dialect_of(chat.host, chat.model).name == chat.dialect


def test_each_row_has_a_recorded_conversation() -> None:
    rows = [dialect.name for dialect in DIALECTS]
    assert len(set(rows)) == len(rows)
    assert set(rows) - {RecordedChat(name).dialect for name in FILES} == set()


async def test_request_that_differs_is_refused() -> None:
    chat: Any = RecordedChat("deepseek")
    chat.exchanges[0]["expect"]["messages"][0]["content"] = "another prompt"
    async with RecordedServer(chat) as server, client_of(chat, server) as client:
        with pytest.raises(ModelCallFailed, match="not as recorded"):
            await take_step(chat, client, Ledger(), 1)


async def test_error_that_google_puts_into_a_list_is_read() -> None:
    chat = RecordedChat("gemini")
    refusal = {"code": 400, "message": "Function call is missing a thought_signature in functionCall parts."}
    chat.exchanges[0] |= {"status": 400, "body": [{"error": refusal}]}
    async with RecordedServer(chat) as server, client_of(chat, server) as client:
        with pytest.raises(ModelCallFailed, match="missing a thought_signature"):
            await take_step(chat, client, Ledger(), 1)


@pytest.mark.parametrize(
    ("host", "model", "expected"),
    [
        ("evil-openai.com", "gpt-4.1", "other"),
        ("litellm.local", "openai/o3", "openai-models"),
        ("litellm.local", "opus", "other"),
        ("api.deepseek.com", "any", "deepseek"),
        ("together.example.com", "deepseek-ai/DeepSeek-V3.2", "deepseek"),
        ("openrouter.ai", "deepseek/deepseek-v3.2", "openrouter"),
        ("api.groq.com", "deepseek-r1-distill-llama-70b", "groq"),
        ("", "", "other"),
    ],
)
def test_host_decides_before_the_model(host: str, model: str, expected: str) -> None:
    assert dialect_of(host, model).name == expected


def test_row_that_the_endpoint_names_goes_before_its_host() -> None:
    assert dialect_of("api.groq.com", "our-model", "deepseek").name == "deepseek"
