"""The simulator against the real client: what the client believes is the truth here."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import pytest

from tests.support.fix_simulator import REPOSITORY, running_simulator
from tests.support.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.nightly

GOAL: list[dict[str, Any]] = [{"role": "user", "content": "Research our competitor's pricing."}]
TOOLS = [{"name": name, "input_schema": {"type": "object"}} for name in ("write_file", "execute_python", "web_search")]


@pytest.fixture
async def client(simulator: Any) -> AsyncIterator[Any]:
    async with client_of(simulator) as client:
        yield client


def client_of(simulator: Any, **options: Any) -> Any:
    return anthropic.AsyncAnthropic(base_url=simulator.url, max_retries=0, **{"api_key": "sk-test", **options})


async def ask(client: Any, model: Any, messages: Any = GOAL, **fields: Any) -> Any:
    return await client.messages.create(model=model, messages=messages, **{"max_tokens": 4096, **fields})


async def stream(client: Any, model: Any, messages: Any = GOAL, **fields: Any) -> Any:
    async with client.messages.stream(model=model, messages=messages, **{"max_tokens": 4096, **fields}) as events:
        return await events.get_final_message()


def text_of(message: Any) -> Any:
    return "".join(block.text for block in message.content if block.type == "text")


def shape_of(message: Any) -> Any:
    """Everything but what is new in every answer."""
    blocks = [(block.type, getattr(block, "text", None), getattr(block, "input", None)) for block in message.content]
    return blocks, message.stop_reason, message.model, message.role


def billed(usage: Any) -> Any:
    return {
        "input_tokens": usage.input_tokens,
        "cache_creation_input_tokens": usage.cache_creation_input_tokens,
        "cache_read_input_tokens": usage.cache_read_input_tokens,
        "output_tokens": usage.output_tokens,
    }


async def last_call(simulator: Any) -> Any:
    """The only call of this test, once it is over: a client that went away does not wait for the log."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (calls := await asyncio.to_thread(simulator.calls)):
            pass
    assert len(calls) == 1
    return calls[0]


@pytest.mark.parametrize(
    "model", ["sim-hello", "sim-parallel-tools", "sim-refusal", "sim-max-tokens", "claude-opus-4-8"]
)
async def test_stream_has_the_content_of_a_whole_answer(client: Any, model: str) -> None:
    whole, streamed = await ask(client, model), await stream(client, model)
    assert shape_of(whole) == shape_of(streamed)
    assert whole.usage.output_tokens == streamed.usage.output_tokens
    ids = [block.id for message in (whole, streamed) for block in message.content if block.type == "tool_use"]
    assert len(set(ids)) == len(ids)


async def test_events_come_in_the_providers_order(client: Any) -> None:
    events = await ask(client, "sim-one-tool", stream=True)
    kinds = [event.type async for event in events]
    order = list(dict.fromkeys(kinds))
    assert order[:3] == ["message_start", "content_block_start", "content_block_delta"]
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 2


@pytest.mark.parametrize("answer", [ask, stream])
async def test_the_bill_is_what_the_answer_said(simulator: Any, client: Any, answer: Any) -> None:
    system = [{"type": "text", "text": "Be brief. " * 500, "cache_control": {"type": "ephemeral"}}]
    expected = dict.fromkeys(simulator.billed(), 0)
    for _ in range(2):
        message = await answer(client, "sim-parallel-tools", system=system)
        for name, tokens in billed(message.usage).items():
            expected[name] += tokens
    assert simulator.billed() == expected
    assert expected["cache_creation_input_tokens"] == expected["cache_read_input_tokens"] == 1250
    assert [call["answered"] for call in simulator.calls()] == [True, True]


async def test_count_equals_the_bill(simulator: Any, client: Any) -> None:
    counted = await client.messages.count_tokens(model="sim-hello", messages=GOAL, tools=TOOLS, system="Be brief.")
    message = await ask(client, "sim-hello", tools=TOOLS, system="Be brief.")
    assert counted.input_tokens == message.usage.input_tokens
    assert [call["output_tokens"] for call in simulator.calls("count_tokens")] == [0]


async def test_research_is_played_to_its_end_through_every_resume(simulator: Any) -> None:
    messages: list[dict[str, Any]] = list(GOAL)
    stop_reasons: list[Any] = []
    while not stop_reasons or stop_reasons[-1] == "tool_use":
        async with client_of(simulator) as client:  # a new client for every turn: only the conversation counts
            message = await stream(client, "claude-opus-4-8", messages)
        stop_reasons.append(message.stop_reason)
        calls = [block for block in message.content if block.type == "tool_use"]
        messages.append({"role": "assistant", "content": message.to_dict()["content"]})
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": f"did {call.name}"} for call in calls]
        messages.append({"role": "user", "content": results})
    assert stop_reasons[-1] == "end_turn"
    assert "competitive-analysis-final.md" in text_of(message)
    assert [call["turn"] for call in simulator.calls()] == list(range(len(stop_reasons)))
    written = [call for entry in messages if entry["role"] == "assistant" for call in entry["content"]]
    sources = next(call["input"] for call in written if call.get("input", {}).get("path") == "research/sources.md")
    assert "did web_search" in sources["content"]


async def test_echo_returns_the_goal(client: Any) -> None:
    messages = [*GOAL, {"role": "assistant", "content": "yes?"}, {"role": "user", "content": "ä \U0001f600 \x00 end"}]
    assert text_of(await ask(client, "sim-echo", messages)) == "ä \U0001f600 \x00 end"


async def test_a_thousand_steps_stay_in_order(client: Any) -> None:
    messages: list[dict[str, Any]] = list(GOAL)
    for step in range(1000):
        messages.append(
            {"role": "assistant", "content": [{"type": "tool_use", "id": f"t{step}", "name": "f", "input": {}}]}
        )
        messages.append(
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"t{step}", "content": "ok"}]}
        )
    before = await ask(client, "sim-steps-1000-execute_python", messages[:-2])
    after = await ask(client, "sim-steps-1000-execute_python", messages)
    assert (before.stop_reason, before.content[1].input) == ("tool_use", {"code": "print(999)"})
    assert (after.stop_reason, text_of(after)) == ("end_turn", "All steps are done.")


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, anthropic.BadRequestError),
        (401, anthropic.AuthenticationError),
        (403, anthropic.PermissionDeniedError),
        (404, anthropic.NotFoundError),
        (413, anthropic.APIStatusError),
        (429, anthropic.RateLimitError),
        (500, anthropic.InternalServerError),
        (529, anthropic.InternalServerError),
    ],
)
@pytest.mark.parametrize("answer", [ask, stream])
async def test_an_ordered_status_raises_the_clients_own_error(
    simulator: Any, client: Any, answer: Any, status: int, error: Any
) -> None:
    simulator.order_fault(status=status, retry_after_seconds=2.5, message="as ordered")
    with pytest.raises(error) as caught:
        await answer(client, "sim-hello")
    assert (caught.value.status_code, caught.value.api_message) == (status, "as ordered")
    assert caught.value.response.headers["retry-after"] == "2.5"
    (call,) = simulator.calls()
    assert (call["request_id"], call["status"], call["ending"]) == (caught.value.request_id, status, "refused")
    assert simulator.billed() == dict.fromkeys(simulator.billed(), 0)
    assert text_of(await answer(client, "sim-hello"))  # it was ordered once


async def test_each_conversation_meets_a_scenarios_rate_limit_twice(simulator: Any, client: Any) -> None:
    for goal in ("one", "another"):
        messages = [{"role": "user", "content": goal}]
        for _ in range(2):
            with pytest.raises(anthropic.RateLimitError) as caught:
                await ask(client, "sim-error-429", messages)
            assert caught.value.response.headers["retry-after"] == "1"
        assert text_of(await ask(client, "sim-error-429", messages)) == "Thank you for your patience."


async def test_a_hidden_retry_of_the_client_is_seen(simulator: Any) -> None:
    simulator.order_fault(status=529)
    async with client_of(simulator).with_options(max_retries=1) as client:
        await ask(client, "sim-hello")
    assert [call["retry_count"] for call in simulator.calls()] == ["0", "1"]


async def test_a_scenario_may_refuse_for_ever(client: Any) -> None:
    for _ in range(4):
        with pytest.raises(anthropic.BadRequestError, match="maximum allowed"):
            await ask(client, "sim-error-400")


async def test_broken_stream_is_billed_for_the_received_part(simulator: Any, client: Any) -> None:
    seen = []

    async def watch() -> None:
        async for event in await ask(client, "sim-broken-stream", stream=True):
            seen.append(event)  # noqa: PERF401  what came before the break must be kept

    with pytest.raises(httpx2.RemoteProtocolError):
        await watch()
    assert [event.type for event in seen].count("content_block_delta") == 3
    (call,) = simulator.calls()
    assert (call["ending"], call["answered"], call["input_tokens"]) == (
        "broken",
        False,
        seen[0].message.usage.input_tokens,
    )
    whole = await stream(client, "sim-broken-stream")
    assert 0 < call["output_tokens"] < whole.usage.output_tokens


async def test_a_whole_answer_may_break_too(client: Any) -> None:
    with pytest.raises(anthropic.APIConnectionError):
        await ask(client, "sim-broken-stream")


async def test_an_error_in_the_stream_is_the_providers(client: Any) -> None:
    with pytest.raises(anthropic.APIStatusError) as caught:
        await stream(client, "sim-overloaded-stream")
    assert caught.value.type == "overloaded_error"
    assert text_of(await stream(client, "sim-overloaded-stream"))


@pytest.mark.nightly
@pytest.mark.parametrize("answer", [ask, stream])
async def test_a_dripping_answer_outlasts_the_clients_own_timeout(simulator: Any, answer: Any) -> None:
    simulator.order_fault(drip_ms=1200)
    async with client_of(simulator, timeout=httpx2.Timeout(5.0)) as client:
        begun_at = asyncio.get_running_loop().time()
        await answer(client, "claude-opus-4-8")
    assert asyncio.get_running_loop().time() - begun_at > 5.0


async def test_an_ordered_latency_is_kept(simulator: Any, client: Any) -> None:
    simulator.order_fault(latency_ms=300, model="sim-hello")
    assert await ask(client, "sim-echo")
    begun_at = asyncio.get_running_loop().time()
    await ask(client, "sim-hello")
    assert asyncio.get_running_loop().time() - begun_at >= 0.3


async def test_a_stream_waits_for_its_first_token(tmp_path: Path) -> None:
    turn = "- {text: one two three, deltas: 3, latency_ms: 1200, first_token_ms: 900}"
    (tmp_path / "late.yaml").write_text(turn)
    with running_simulator(tmp_path / "calls.jsonl", "--scenarios", str(tmp_path)) as simulator:
        async with client_of(simulator) as client:
            clock, times = asyncio.get_running_loop().time, [asyncio.get_running_loop().time()]
            async with client.messages.stream(model="sim-late", max_tokens=64, messages=GOAL) as events:
                times += [clock() async for _ in events.text_stream]
    assert len(times) == 4
    assert times[1] - times[0] >= 0.9
    assert times[3] - times[0] >= 1.2


async def test_a_client_that_leaves_mid_stream_is_billed_for_its_part(simulator: Any, client: Any) -> None:
    async with client.messages.stream(model="sim-slow", max_tokens=4096, messages=GOAL) as events:
        got = 0
        async for text in events.text_stream:
            got += len(text)
            if got > 100:
                break
    call = await last_call(simulator)
    assert (call["ending"], call["answered"], call["status"]) == ("abandoned", False, 200)
    assert call["input_tokens"] == -(-len(GOAL[0]["content"]) // 4)
    assert got // 4 <= call["output_tokens"] < 100
    assert call["duration_ms"] < 30_000


async def test_a_client_that_gives_up_waiting_is_noticed_at_once(simulator: Any, client: Any) -> None:
    simulator.order_fault(latency_ms=60_000)
    asking = asyncio.create_task(ask(client, "sim-hello"))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await asyncio.to_thread(simulator.running):
            await asyncio.sleep(0.02)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    call = await last_call(simulator)
    assert (call["ending"], call["output_tokens"]) == ("abandoned", 1)
    assert call["duration_ms"] < 30_000


async def test_an_answer_is_cut_at_max_tokens(client: Any) -> None:
    message = await stream(client, "claude-opus-4-8", max_tokens=10)
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 10)
    assert 36 < len(text_of(message)) <= 40


async def test_paused_answer_continues_when_it_is_sent_back(client: Any) -> None:
    paused = await ask(client, "sim-pause-turn")
    assert paused.stop_reason == "pause_turn"
    resumed = await ask(client, "sim-pause-turn", [*GOAL, {"role": "assistant", "content": paused.content}])
    assert text_of(resumed) == "And here is the rest of it."


async def test_prefilled_answer_is_refused(client: Any) -> None:
    with pytest.raises(anthropic.BadRequestError, match="must end with a user message"):
        await ask(client, "sim-hello", [*GOAL, {"role": "assistant", "content": "Well,"}])


async def test_refusal_has_its_stop_reason(client: Any) -> None:
    message = await stream(client, "sim-refusal")
    assert (message.stop_reason, message.stop_details.type) == ("refusal", "refusal")


async def test_an_invalid_conversation_is_refused_and_not_billed(simulator: Any, client: Any) -> None:
    call = {"type": "tool_use", "id": "t1", "name": "write_file", "input": {}}
    with pytest.raises(anthropic.BadRequestError, match="without `tool_result` blocks"):
        await ask(client, "sim-hello", [*GOAL, {"role": "assistant", "content": [call]}, *GOAL])
    assert simulator.billed()["input_tokens"] == 0


async def test_a_key_is_needed(simulator: Any) -> None:
    async with client_of(simulator, api_key="sk-invalid") as client:
        with pytest.raises(anthropic.AuthenticationError, match="invalid x-api-key"):
            await ask(client, "sim-hello")


async def test_unknown_scenario_is_not_found(client: Any) -> None:
    with pytest.raises(anthropic.NotFoundError, match="model: sim-nobody"):
        await ask(client, "sim-nobody")


async def test_counting_may_be_missing_while_the_model_answers(simulator: Any, client: Any) -> None:
    simulator.order_fault(status=404, endpoint="count_tokens")
    assert await ask(client, "sim-hello")
    with pytest.raises(anthropic.NotFoundError):
        await client.messages.count_tokens(model="sim-hello", messages=GOAL)


async def test_a_request_may_be_too_large(client: Any) -> None:
    with pytest.raises(anthropic.APIStatusError) as caught:
        await ask(client, "sim-hello", [{"role": "user", "content": "x" * (33 * 1024 * 1024)}])
    body: Any = caught.value.body
    assert (caught.value.status_code, body["error"]["type"]) == (413, "request_too_large")


async def test_every_call_is_in_the_call_log_with_its_caller(simulator: Any, client: Any) -> None:
    message = await ask(
        client, "sim-hello", metadata={"user_id": "task-1"}, extra_headers={"x-tenure-attempt": "task-1/3.2"}
    )
    line = next(line for line in reversed(simulator.logged()) if line["request_id"] == message._request_id)
    assert (line["attempt"], line["user_id"], line["model"], line["status"]) == (
        "task-1/3.2",
        "task-1",
        "sim-hello",
        200,
    )
    assert line["output_tokens"] == message.usage.output_tokens


async def test_many_at_once_are_all_answered_and_billed(simulator: Any, client: Any) -> None:
    messages = await asyncio.gather(*(stream(client, "sim-hello") for _ in range(100)))
    assert simulator.billed()["output_tokens"] == sum(message.usage.output_tokens for message in messages)
    assert len({call["request_id"] for call in simulator.calls()}) == 100


def test_a_stopped_simulator_has_logged_what_it_cut(tmp_path: Path) -> None:
    with running_simulator(tmp_path / "calls.jsonl", "--latency-ms", "60000") as control:
        request = urllib.request.Request(
            control.url + "/v1/messages",
            json.dumps({"model": "sim-hello", "max_tokens": 10, "stream": True, "messages": GOAL}).encode(),
            {"x-api-key": "x", "anthropic-version": "2023-06-01"},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as response:
            assert response.readline() == b"event: message_start\n"
    (line,) = control.logged()
    assert (line["ending"], line["answered"], line["output_tokens"]) == ("abandoned", False, 1)


def test_invalid_scenario_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("- text: fine\n- words: not fine")
    command = [sys.executable, "-m", "devstack.simulator", "--scenarios", str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, cwd=REPOSITORY, check=False
    )
    assert done.returncode == 2
    assert "mine.yaml, turn 1: Additional properties are not allowed" in done.stderr


def test_an_unknown_fault_is_refused(simulator: Any) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        simulator.order_fault(explode=True)
    assert caught.value.code == 400
    caught.value.close()


def test_search_answers_the_same_question_the_same_way(simulator: Any) -> None:
    def ask_search(query: Any) -> Any:
        with urllib.request.urlopen(f"{simulator.url}/search?{query}", timeout=PATIENCE_SECONDS) as response:
            return json.load(response)["results"]

    first = ask_search("q=Brightdesk+pricing&n=3")
    assert first == ask_search("q=Brightdesk+pricing&n=3")
    assert (len(first), first[0]["url"]) == (3, "https://brightdesk.example/pricing")
    assert len(ask_search("q=zymurgy&n=7")) == 7
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask_search("q=&n=3")
    caught.value.close()


def test_the_search_runs_alone_too() -> None:
    command = [sys.executable, "-m", "devstack.search_stub"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        with urllib.request.urlopen(f"{url}?q=orbitly", timeout=PATIENCE_SECONDS) as response:
            assert len(json.load(response)["results"]) == 5
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=PATIENCE_SECONDS) == 0


async def test_a_prompt_beyond_the_window_is_refused(client: Any, simulator: Any) -> None:
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 50 maximum"):
        await ask(client, "sim-steps-1-read_file-0ms-50w", [{"role": "user", "content": "word " * 100}])
    answer = await ask(client, "sim-steps-0-read_file-50w", [{"role": "user", "content": "a" * 196}])
    assert (answer.stop_reason, answer.usage.input_tokens, answer.usage.output_tokens) == (
        "model_context_window_exceeded",
        49,
        1,
    )
    refused, answered = simulator.calls()
    assert (refused["status"], refused["input_tokens"], answered["status"]) == (400, 0, 200)


async def test_call_log_has_a_digest_of_the_prompt(client: Any, simulator: Any) -> None:
    for messages in (GOAL, GOAL, [{"role": "user", "content": "something else"}]):
        await ask(client, "sim-hello", messages)
    one, same, other = (call["prompt_hash"] for call in simulator.calls())
    assert one == same != other
