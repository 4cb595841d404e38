"""Streams of the Chat Completions API that break its protocol: valid ones with changes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from devstack.simulator.chat_endpoint import _choice, usage_value
from devstack.simulator.tokens import InputTokens
from tests.support.hostile_answers import CHANGES_OF_ORDER, JSON_TEXTS, StreamProtocol, hostile_answer

if TYPE_CHECKING:
    from random import Random

    from devstack.simulator.delivery import RawAnswer
    from tests.support.hostile_answers import Event

DONE = "done"


def hostile_chat_answer(random: Random, events: list[Event] | None = None) -> RawAnswer:
    """Returns a valid stream of chunks with one to three changes. `events`: the valid stream; None: a random one."""
    return hostile_answer(random, events, StreamProtocol(_valid_chunks, _CHANGES, _written_chunk))


def read_chunk(data: bytes) -> Event:
    text = data.decode().removeprefix("data: ").strip()
    return {DONE: True} if text == "[DONE]" else dict(json.loads(text))


def _written_chunk(event: Event) -> bytes:
    return b"data: [DONE]\n\n" if DONE in event else f"data: {json.dumps(event)}\n\n".encode("utf-8", "surrogatepass")


def _valid_chunks(random: Random) -> list[Event]:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    if random.random() < 0.7:
        is_in_parts = random.random() < 0.3
        deltas += [
            {"content": [{"type": "text", "text": piece}] if is_in_parts else piece}
            for piece in ("It is ", "done \U0001f600.")
        ]
    if random.random() < 0.3:
        deltas.insert(1, {"reasoning_content": "Let me see."})
    if random.random() < 0.3:
        deltas[1:1] = [{"reasoning_details": [{"type": "reasoning.text", "text": piece}]} for piece in ("Let", " me")]
    calls = random.choice([0, 0, 1, 2, 5])
    for index in range(calls):
        function = {"name": "list_files", "arguments": ""}
        deltas.append(
            {
                "tool_calls": [
                    {
                        "index": index,
                        "id": f"call_{index}",
                        "type": "function",
                        "function": function,
                        "extra_content": {"google": {"thought_signature": "c2lnbmVk"}},
                    }
                ]
            }
        )
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in ('{"path": ', '"."}')
        ]
    reason = "tool_calls" if calls else random.choice(["stop", "stop", "length", "content_filter"])
    usage = usage_value(InputTokens(random.randint(1, 500), 0, random.randint(0, 50)), 30)
    fields = {"id": "c", "object": "chat.completion.chunk", "model": "sim-hostile"}
    chunks: list[Event] = [{**fields, "choices": _choice(delta)} for delta in deltas]
    chunks += [{**fields, "choices": _choice({}, reason)}, {**fields, "choices": [], "usage": usage}, {DONE: True}]
    return chunks


def _calls_of(events: list[Event]) -> list[dict[str, Any]]:
    """Returns the deltas of tool calls, of chunks that are still whole."""
    deltas: list[dict[str, Any]] = []
    for event in events:
        choices = event.get("choices")
        delta = choices[0].get("delta") if isinstance(choices, list) and choices and isinstance(choices[0], dict) else 0
        calls = delta.get("tool_calls") if isinstance(delta, dict) else None
        deltas += [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    return deltas


def _poison_arguments(random: Random, events: list[Event]) -> None:
    pieces = [call["function"] for call in _calls_of(events) if isinstance(call.get("function"), dict)]
    if pieces:
        random.choice(pieces)["arguments"] = random.choice(JSON_TEXTS)


def _change_calls(random: Random, events: list[Event]) -> None:
    """Changes the ids or indexes of tool calls: none, the same for all, or gaps."""
    choices: list[tuple[str, list[Any]]] = [
        ("id", ["call_same"]),
        ("id", [None]),
        ("index", [0]),
        ("index", [None]),
        ("index", [7, 2**40, -1]),
    ]
    key, values = random.choice(choices)
    for call in _calls_of(events):
        if key in call:
            call[key] = random.choice(values)


def _change_usage(random: Random, events: list[Event]) -> None:
    """Removes the usage, or makes it absurd."""
    for event in events:
        if "usage" in event:
            counts = [-1, 10**30, 1.5, None, "7", 0]
            absurd = {"prompt_tokens": random.choice(counts), "completion_tokens": random.choice(counts)}
            event["usage"] = random.choice([None, [], "x", absurd, {**absurd, "prompt_tokens_details": 7}])


def _add_calls(random: Random, events: list[Event]) -> None:
    """Adds up to 1,200 calls before the end, perhaps all with one id."""
    count, has_one_id = random.choice([2, 40, 300, 1200]), random.random() < 0.3
    added: list[Event] = []
    for index in range(100, 100 + count):
        function = {"name": "list_files", "arguments": '{"path": "."}'}
        call = {"index": index, "id": "same" if has_one_id else f"call_{index}", "function": function}
        added.append({"choices": _choice({"tool_calls": [call]})})
    events[1:1] = added


def _insert_chunk(random: Random, events: list[Event]) -> None:
    chosen: Event = random.choice(
        [
            {"error": {"message": "Overloaded \ud83d", "type": "overloaded_error", "code": 503}},
            {"error": random.choice(["bad", [], 7, {"code": ["x"], "message": {}}])},
            {"object": "error", "message": "x" * 5000, "code": 400},
            {"error": {"message": "no", "code": 403, "metadata": random.choice([None, 1, [], "x", {"reasons": []}])}},
            {"choices": _choice({"content": "y" * 300_000})},
            {"choices": _choice({}, "stop") * 2}, {"choices": {}}, {DONE: True}, {},
            {"choices": _choice({}, "bored")},
        ]
    )  # fmt: skip
    events.insert(random.randrange(len(events) + 1), json.loads(json.dumps(chosen)))


_CHANGES = [
    *CHANGES_OF_ORDER, _poison_arguments, _poison_arguments, _change_calls, _change_calls, _change_usage, _add_calls,
    _insert_chunk,
]  # fmt: skip
