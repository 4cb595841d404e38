"""Turns of chats, byte by byte: ids of messages that must not meet, and a run of AG-UI that goes on after an entry."""

from __future__ import annotations

import json
import uuid
from typing import Any

import httpx2
import pytest

from tenure.runtime.http.outbound_http import http_tls_context
from tests.end_to_end.installation import Installation
from tests.support.patience import CALL_SECONDS

pytestmark = [pytest.mark.server, pytest.mark.nightly]
Frame = tuple[int | None, dict[str, Any]]
MODEL = "sim-e2e-keyed-paced"


async def streamed(installation: Installation, path: str, body: Any, **headers: str) -> list[Frame]:
    """The frames of an answer, until its end: the id of each, and its data."""
    async with httpx2.AsyncClient(
        verify=http_tls_context(), base_url=installation.stack.http_url, timeout=CALL_SECONDS, trust_env=False
    ) as http:
        response = await http.post(
            path, json=body, headers={name.replace("_", "-"): of for name, of in headers.items()}
        )
    assert response.status_code == 200, response.text
    found: list[Frame] = []
    for block in response.text.split("\n\n"):
        fields = dict(line.partition(": ")[::2] for line in block.splitlines() if not line.startswith(":"))
        if fields.get("data", "[DONE]") != "[DONE]":
            found.append((int(fields["id"]) if "id" in fields else None, json.loads(fields["data"])))
    return found


async def said_in(installation: Installation, chat_id: str, message_id: str, text: str) -> str:
    """Says something in a chat of the AI SDK. Returns the task of the turn."""
    message = {"id": message_id, "role": "user", "parts": [{"type": "text", "text": text}]}
    frames = await streamed(
        installation, "/v1/ai/chat", {"id": chat_id, "messages": [message], "task": {"model": "sim-hello"}}
    )
    (task_id,) = {data["id"] for _, data in frames if data["type"] == "data-task"}
    return str(task_id)


async def test_messages_of_two_chats_never_meet(installation: Installation) -> None:
    """The ids of one chat and message, joined, are those of the other."""
    chat = uuid.uuid4().hex
    first = await said_in(installation, f"{chat}/a", "b", "the first chat")
    second = await said_in(installation, chat, "a/b", "the second chat")
    assert first != second
    assert await said_in(installation, f"{chat}/a", "b", "the first chat") == first
    goals = {(await installation.client.get(task_id)).spec.goal for task_id in (first, second)}
    assert goals == {"the first chat", "the second chat"}


async def test_a_run_of_ag_ui_goes_on_after_an_entry(installation: Installation) -> None:
    """With Last-Event-ID the same run begins no second time, and has exactly the frames that are missing."""
    file = uuid.uuid4().hex
    body = {
        "threadId": uuid.uuid4().hex,
        "runId": "r1",
        "messages": [{"id": "m1", "role": "user", "content": file}],
        "forwardedProps": {"task": {"model": MODEL}},
    }
    await streamed(installation, "/v1/ag-ui", body)
    whole = await streamed(installation, "/v1/ag-ui", body)  # without live text, which is not recorded
    assert whole[0][1]["type"] == "RUN_STARTED"
    assert whole[-1][1]["type"] == "RUN_FINISHED"
    ids = [identity for identity, _ in whole if identity is not None]
    assert ids == sorted(set(ids))
    for last in (ids[0], ids[len(ids) // 2], ids[-2]):
        at = next(number for number, (identity, _) in enumerate(whole) if identity == last)
        rest = await streamed(installation, "/v1/ag-ui", body, last_event_id=str(last))
        assert rest == whole[at + 1 :]
    assert installation.effects(file) == [f"keyed {number}" for number in range(1, 6)]
