"""Chats by HTTP with the clients that pages use: the AI SDK's transport, and the HttpAgent of AG-UI."""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.installation import Installation
from tests.support.cutting_proxy import CuttingProxy
from tests.support.fix_node import FOLDER, packages
from tests.support.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.server
MODEL = "sim-e2e-keyed-paced"
LINES = [f"keyed {number}" for number in range(1, 6)]


async def ran(node: Path, script: str, **options: Any) -> Any:
    """What a script of tests/node printed."""
    packages()
    process = await asyncio.create_subprocess_exec(
        node, FOLDER / script, json.dumps(options), stdout=PIPE, stderr=PIPE, limit=2**24
    )
    async with asyncio.timeout(PATIENCE_SECONDS):
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return json.loads(out)


def said(text: str, message_id: str = "") -> dict[str, Any]:
    return {"id": message_id or uuid.uuid4().hex, "role": "user", "parts": [{"type": "text", "text": text}]}


async def chatted(node: Path, base: str, chat_id: str, messages: list[Any], **options: Any) -> Any:
    task = options.pop("task", {"model": MODEL})
    return await ran(
        node, "ai_chat.mjs", api=f"{base}/v1/ai/chat", chatId=chat_id, messages=messages, task=task, **options
    )


def texts(message: Any) -> list[str]:
    return [part["text"] for part in message["parts"] if part["type"] == "text"]


def tools(message: Any) -> list[tuple[str, str]]:
    return [(part["toolName"], part["state"]) for part in message["parts"] if part["type"] == "dynamic-tool"]


async def test_a_chat_of_two_messages(installation: Installation, node: Path) -> None:
    base, chat_id, file = installation.stack.http_url, uuid.uuid4().hex, uuid.uuid4().hex
    first = said(file)
    answer = await chatted(node, base, chat_id, [first])
    assert texts(answer["message"]) == [*(f"Turn {number}." for number in range(1, 6)), "All is done."]
    assert tools(answer["message"]) == [("append_record", "output-available")] * 5
    assert installation.effects(file) == LINES
    repeated = await chatted(node, base, chat_id, [first])
    assert repeated["message"]["id"] == answer["message"]["id"]
    assert texts(repeated["message"]) == texts(answer["message"])
    assert installation.effects(file) == LINES
    second = await chatted(node, base, chat_id, [first, answer["message"], said("and now?")])
    assert second["message"]["id"] != answer["message"]["id"]
    assert texts(second["message"])[-1:] == ["All is done."]
    ended = await chatted(node, base, chat_id, [first], resume=True)
    assert (ended["message"], ended["nothing"]) == (None, 1)


@pytest.mark.nightly
async def test_a_page_that_is_opened_again_gets_the_turn(installation: Installation, node: Path) -> None:
    """Here the turn waits for an approval; a turn that goes on is resumed in the test with the cuts."""
    base, chat_id = installation.stack.http_url, uuid.uuid4().hex
    task = {"model": "sim-e2e-unsafe-at-once", "approve_tools": ["append_record_unsafe"]}
    first = said(uuid.uuid4().hex)
    answer = await chatted(node, base, chat_id, [first], task=task)
    resumed = await chatted(node, base, chat_id, [first], resume=True)
    assert resumed["message"]["parts"] == answer["message"]["parts"]
    assert (resumed["message"]["id"], resumed["nothing"]) == (answer["message"]["id"], 0)


@pytest.mark.nightly
async def test_an_approval_in_a_chat(installation: Installation, node: Path) -> None:
    base, chat_id, file = installation.stack.http_url, uuid.uuid4().hex, uuid.uuid4().hex
    task = {"model": "sim-e2e-unsafe-at-once", "approve_tools": ["append_record_unsafe"]}
    first = said(file)
    asked = (await chatted(node, base, chat_id, [first], task=task))["message"]
    (part,) = [one for one in asked["parts"] if one["type"] == "dynamic-tool"]
    assert part["state"] == "approval-requested"
    assert installation.effects(file) == []
    part |= {"state": "approval-responded", "approval": {**part["approval"], "approved": True, "reason": "go"}}
    for _ in range(2):  # a repeat is the same answer
        answer = (await chatted(node, base, chat_id, [first, asked], task=task))["message"]
        assert answer["id"] == asked["id"]
        assert tools(answer) == [("append_record_unsafe", "output-available")]
        assert texts(answer)[-1] == "That was it."
        assert installation.effects(file) == ["at most once"]
    whole = (await chatted(node, base, chat_id, [first], task=task))["message"]
    assert (whole["id"], tools(whole)) == (asked["id"], [("append_record_unsafe", "output-available")])
    assert texts(whole) == ["One call.", "That was it."]


def lengths(count: int) -> Iterator[int]:
    chosen = random.Random(11)
    return iter([chosen.randint(1, 1500) for _ in range(count)])


@pytest.mark.nightly
async def test_a_chat_that_is_cut(installation: Installation, node: Path) -> None:
    host, _, port = installation.stack.http_url.removeprefix("http://").rpartition(":")
    chat_id, file = uuid.uuid4().hex, uuid.uuid4().hex
    proxy = CuttingProxy(host, int(port), lengths(100))
    await proxy.start()
    try:
        answer = await chatted(node, f"http://{proxy.address}", chat_id, [said(file)])
    finally:
        await proxy.stop()
    assert proxy.cuts > 20
    assert texts(answer["message"]) == [*(f"Turn {number}." for number in range(1, 6)), "All is done."]
    assert tools(answer["message"]) == [("append_record", "output-available")] * 5
    assert installation.effects(file) == LINES


async def test_a_run_of_ag_ui(installation: Installation, node: Path) -> None:
    file, thread_id = uuid.uuid4().hex, uuid.uuid4().hex
    runs = [
        {"text": file, "id": "m1", "runId": "r1", "task": {"model": MODEL}},
        {"text": "more", "id": "m2", "runId": "r2"},
    ]
    seen = await ran(node, "ag_ui.mjs", url=f"{installation.stack.http_url}/v1/ag-ui", threadId=thread_id, runs=runs)
    assert (seen["failed"], seen["breaks"]) == (None, 0)
    answers = [one["content"] for one in seen["messages"] if one["role"] == "assistant" and one.get("content")]
    assert answers[:6] == [*(f"Turn {number}." for number in range(1, 6)), "All is done."]
    calls = [call for one in seen["messages"] for call in one.get("toolCalls", [])]
    assert [call["function"]["name"] for call in calls][:5] == ["append_record"] * 5
    assert len([one for one in seen["messages"] if one["role"] == "tool"]) >= 5
    assert seen["state"]["task"]["state"] == "SUCCEEDED"
    assert installation.effects(file)[:5] == LINES


@pytest.mark.nightly
async def test_an_interrupt_of_ag_ui(installation: Installation, node: Path) -> None:
    file, thread_id = uuid.uuid4().hex, uuid.uuid4().hex
    task = {"model": "sim-e2e-unsafe-at-once", "approve_tools": ["append_record_unsafe"]}
    runs = [{"text": file, "id": "m1", "runId": "r1", "task": task}, {"approve": True, "runId": "r2"}]
    seen = await ran(node, "ag_ui.mjs", url=f"{installation.stack.http_url}/v1/ag-ui", threadId=thread_id, runs=runs)
    assert seen["events"].count("RUN_FINISHED") == 2
    assert installation.effects(file) == ["at most once"]
    assert [one.get("content") for one in seen["messages"] if one["role"] == "assistant"][-1] == "That was it."


@pytest.mark.nightly
async def test_a_run_of_ag_ui_that_is_cut(installation: Installation, node: Path) -> None:
    host, _, port = installation.stack.http_url.removeprefix("http://").rpartition(":")
    file, thread_id = uuid.uuid4().hex, uuid.uuid4().hex
    proxy = CuttingProxy(host, int(port), lengths(100))
    await proxy.start()
    try:
        runs = [{"text": file, "id": "m1", "runId": "r1", "task": {"model": MODEL}}]
        seen = await ran(node, "ag_ui.mjs", url=f"http://{proxy.address}/v1/ag-ui", threadId=thread_id, runs=runs)
    finally:
        await proxy.stop()
    assert proxy.cuts > 20
    answers = [one["content"] for one in seen["messages"] if one["role"] == "assistant" and one.get("content")]
    assert answers == [*(f"Turn {number}." for number in range(1, 6)), "All is done."]
    assert installation.effects(file) == LINES
