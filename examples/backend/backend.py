"""A web backend: submits tasks, streams what they do to browsers, and answers their waits.

    pip install tenure starlette uvicorn standardwebhooks
    uvicorn backend:app

FastAPI is built on Starlette and takes the same functions as routes.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from standardwebhooks import Webhook, WebhookVerificationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tenure import Client, InvalidRequest, NotFound, Task, TaskWait, Unavailable, WrongState

MODEL = os.environ.get("BACKEND_MODEL", "claude-opus-4-8")
NEEDS_APPROVAL = "append_record_unsafe"
"""The agent may call this tool only after an approval."""
PETTY_CASH = "petty_cash"
"""Lines in this file need no person."""


@asynccontextmanager
async def lifespan(_app: Starlette) -> AsyncIterator[dict[str, Client]]:
    async with Client() as client:  # one for the process
        yield {"tenure": client}


async def submit(request: Request) -> Response:
    """POST /tasks {"goal": "…"}: the task, at once. A repeat with the same Idempotency-Key gets the same task."""
    body = await request.json()
    goal = body.get("goal") if isinstance(body, dict) else None
    if not isinstance(goal, str) or not goal:
        return JSONResponse({"error": "the body needs a goal: {'goal': '…'}"}, status_code=422)
    task = await request.state.tenure.submit(
        goal, model=MODEL, approve_tools=[NEEDS_APPROVAL], request_id=request.headers.get("idempotency-key", "")
    )
    return JSONResponse(task.to_json(), status_code=202)


async def get(request: Request) -> Response:
    """GET /tasks/ID: the task as it is now."""
    return JSONResponse((await _task(request)).to_json())


async def events(request: Request) -> Response:
    """GET /tasks/ID/events: server-sent events, from the beginning or after the Last-Event-ID of the browser.

    The browser's EventSource sends that header by itself when it connects again: no event is lost or repeated.
    """
    task = await _task(request)
    after = request.headers.get("last-event-id", "0")
    if not after.isdecimal():
        return JSONResponse({"error": "Last-Event-ID is the number of an event"}, status_code=422)
    return StreamingResponse(_stream(task, int(after)), media_type="text/event-stream")


async def _stream(task: Task[str], after: int) -> AsyncIterator[str]:
    async for event in task.events(after=after):
        sequence = getattr(event, "sequence", None)
        number = "" if sequence is None else f"id: {sequence}\n"  # live text has none: the entry after it repeats it
        yield f"{number}event: {event.kind}\ndata: {json.dumps(event.to_json())}\n\n"


async def approve(request: Request) -> Response:
    """POST /tasks/ID/approve {"wait_id": "…", "comment": "…"}: a person's approval of what the wait shows."""
    body = await request.json()
    task = await _task(request)
    wait = task.current_wait
    if wait is None or wait.wait_id != body.get("wait_id"):
        return JSONResponse({"error": "the task does not wait for this any more"}, status_code=409)
    await task.approve(wait, comment=str(body.get("comment", "")))
    return JSONResponse(task.to_json())


async def webhook(request: Request) -> Response:
    """POST /webhook: a task waits. Lines in the petty cash are approved here; a person sees the others.

    Create it with `tenure webhooks create backend https://…/webhook`, and set WEBHOOK_SECRET to what that prints. A
    webhook may arrive twice: the second answer is for a wait that is over, and changes nothing.
    """
    try:
        event = Webhook(os.environ["WEBHOOK_SECRET"]).verify(await request.body(), dict(request.headers))
    except WebhookVerificationError:
        return Response(status_code=401)
    if event["type"] == "task.waiting_user":
        task = await request.state.tenure.get(event["data"]["task_id"])
        wait = task.current_wait
        if wait is not None and _needs_no_person(wait):
            await task.approve(wait, comment="petty cash")
    return Response(status_code=204)


def _needs_no_person(wait: TaskWait) -> bool:
    """Whether the rule allows the call. The model wrote its arguments, and the answer is for exactly these."""
    arguments: Any = wait.arguments
    return wait.tool == NEEDS_APPROVAL and isinstance(arguments, dict) and arguments.get("file") == PETTY_CASH


async def _task(request: Request) -> Task[str]:
    task: Task[str] = await request.state.tenure.get(request.path_params["task_id"])
    return task


async def _refused(_request: Request, error: Exception) -> Response:
    """The errors of the client as HTTP: what happened, and what to do."""
    status = {InvalidRequest: 422, NotFound: 404, WrongState: 409, Unavailable: 503}[type(error)]
    return JSONResponse({"error": str(error)}, status_code=status)


app = Starlette(
    lifespan=lifespan,
    routes=[
        Route("/tasks", submit, methods=["POST"]),
        Route("/tasks/{task_id}", get),
        Route("/tasks/{task_id}/events", events),
        Route("/tasks/{task_id}/approve", approve, methods=["POST"]),
        Route("/webhook", webhook, methods=["POST"]),
    ],
    exception_handlers=dict.fromkeys((InvalidRequest, NotFound, WrongState, Unavailable), _refused),
)
