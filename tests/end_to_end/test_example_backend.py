"""The example of a web backend as a process of its own: submits, streams that resume, approvals, and the webhook."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from tests.end_to_end.command import tenure
from tests.end_to_end.installation import Installation
from tests.support.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.server, pytest.mark.nightly]
FOLDER: Final = Path(__file__).parents[2] / "examples" / "backend"
HOOK: Final = "example-backend"


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """An event of the stream; `sequence` 0: live text."""

    kind: str
    sequence: int
    data: Any


@asynccontextmanager
async def backend(install: Installation, model: str) -> AsyncIterator[aiohttp.ClientSession]:
    """The example on a free port, with its webhook."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        address = install.stack.gateway_address
        made = await tenure("webhooks", "create", HOOK, f"{url}/webhook", address=address)
        environment = {
            **os.environ,
            "TENURE_ADDRESS": address,
            "BACKEND_MODEL": model,
            "WEBHOOK_SECRET": made.out.strip(),
        }
        command = [*("-m", "uvicorn", "backend:app", "--app-dir", str(FOLDER)), "--fd", str(listening.fileno())]
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, env=environment, pass_fds=[listening.fileno()]
        )
        try:
            async with aiohttp.ClientSession(url) as http:
                yield http
        finally:
            process.terminate()
            await process.wait()
            await tenure("webhooks", "delete", HOOK, address=address)


async def submitted(http: aiohttp.ClientSession, goal: str, key: str = "") -> str:
    async with http.post("/tasks", json={"goal": goal}, headers={"Idempotency-Key": key} if key else {}) as answer:
        assert answer.status == 202, await answer.text()
        task_id: str = (await answer.json())["task_id"]
        return task_id


async def streamed(
    http: aiohttp.ClientSession, task_id: str, until: Callable[[ServerSentEvent], bool], last_event_id: int = 0
) -> list[ServerSentEvent]:
    """Reads the stream as a browser does, and leaves after the event for which `until` holds."""
    events: list[ServerSentEvent] = []
    headers = {"Last-Event-ID": str(last_event_id)}
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        http.get(f"/tasks/{task_id}/events", headers=headers) as answer,
    ):
        assert answer.content_type == "text/event-stream"
        fields: dict[str, str] = {}
        async for line in answer.content:
            name, _, value = line.decode().strip().partition(": ")
            if name:
                fields[name] = value
                continue
            event = ServerSentEvent(fields["event"], int(fields.get("id", 0)), json.loads(fields["data"]))
            events.append(event)
            if until(event):
                return events
            fields = {}
    return events


def waits(event: ServerSentEvent) -> bool:
    return event.kind == "transition" and event.data["state"] == "WAITING_USER"


def ends(event: ServerSentEvent) -> bool:
    return event.kind == "transition" and event.data["state"] == "SUCCEEDED"


async def test_a_stream_resumes_and_a_person_approves(installation: Installation) -> None:
    goal = uuid.uuid4().hex
    async with backend(installation, "sim-e2e-one-leave") as http:
        key = uuid.uuid4().hex
        task_id = await submitted(http, goal, key)
        assert await submitted(http, goal, key) == task_id
        before = await streamed(http, task_id, waits)
        wait = before[-1].data["wait"]
        assert (wait["tool"], wait["arguments"]["file"]) == ("append_record_unsafe", goal)
        assert installation.effects(goal) == []
        stale = await http.post(f"/tasks/{task_id}/approve", json={"wait_id": str(uuid.uuid4())})
        assert stale.status == 409
        approved = await http.post(f"/tasks/{task_id}/approve", json={"wait_id": wait["wait_id"], "comment": "well"})
        assert approved.status == 200, await approved.text()
        after = await streamed(http, task_id, ends, last_event_id=before[-1].sequence)
        sequences = [event.sequence for event in [*before, *after] if event.sequence]
        assert sequences == list(range(1, len(sequences) + 1))
        assert len(installation.effects(goal)) == 1


async def test_the_webhook_approves_what_needs_no_person(installation: Installation) -> None:
    async with backend(installation, "sim-e2e-one-leave") as http:
        task_id = await submitted(http, "petty_cash")
        events = await streamed(http, task_id, ends)
        assert any(waits(event) for event in events)
        assert len(installation.effects("petty_cash")) == 1
        unsigned = await http.post("/webhook", json={"type": "task.waiting_user", "data": {"task_id": task_id}})
        assert unsigned.status == 401


async def test_a_bad_request_says_what_is_wrong(installation: Installation) -> None:
    async with backend(installation, "sim-hello") as http:
        assert (await http.post("/tasks", json={"goal": 7})).status == 422
        missing = await http.get(f"/tasks/{uuid.uuid4()}")
        assert (missing.status, "no task" in (await missing.json())["detail"]) == (404, True)
