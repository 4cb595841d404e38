"""A web backend with FastAPI: submits tasks, streams what they do to browsers, and answers their waits.

pip install tenure fastapi uvicorn standardwebhooks
uvicorn backend:app
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, HTTPException, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, Field
from standardwebhooks import Webhook, WebhookVerificationError

from tenure import Client, InvalidRequest, NotFound, Task, TaskWait, Unavailable, WrongState

MODEL = os.environ.get("BACKEND_MODEL", "claude-opus-4-8")
NEEDS_APPROVAL = "append_record_unsafe"
"""The agent may call this tool only after an approval."""
PETTY_CASH = "petty_cash"
"""Lines in this file need no person."""


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[dict[str, Client]]:
    async with Client() as client:  # one for the process
        yield {"tenure": client}


app = FastAPI(lifespan=lifespan)


def client_of(request: Request) -> Client:
    client: Client = request.state.tenure
    return client


Tenure = Annotated[Client, Depends(client_of)]


async def task_of(task_id: str, tenure: Tenure) -> Task[str]:
    return await tenure.get(task_id)


GivenTask = Annotated[Task[str], Depends(task_of)]


class Order(BaseModel):
    """The order that a browser submits."""

    goal: str = Field(min_length=1)


class Approval(BaseModel):
    """A person's approval. `wait_id`: of the wait that the person saw."""

    wait_id: str
    comment: str = ""


@app.post("/tasks", status_code=202)
async def submit(order: Order, tenure: Tenure, idempotency_key: Annotated[str, Header()] = "") -> dict[str, Any]:
    """Returns the task, at once. A repeat with the same Idempotency-Key gets the same task."""
    task = await tenure.submit(order.goal, model=MODEL, approve_tools=[NEEDS_APPROVAL], request_id=idempotency_key)
    return task.to_json()


@app.get("/tasks/{task_id}")  # noqa: FAST003  a dependency takes it
async def get(task: GivenTask) -> dict[str, Any]:
    """Returns the task as it is now."""
    return task.to_json()


@app.get("/tasks/{task_id}/events")  # noqa: FAST003  a dependency takes it
async def events(task: GivenTask, last_event_id: Annotated[int, Header(ge=0)] = 0) -> StreamingResponse:
    """Server-sent events, from the beginning or after the Last-Event-ID of the browser.

    The browser's EventSource sends that header by itself when it connects again: no event is lost or repeated.
    """
    return StreamingResponse(_stream(task, last_event_id), media_type="text/event-stream")


async def _stream(task: Task[str], after: int) -> AsyncIterator[str]:
    async for event in task.events(after=after):
        sequence = getattr(event, "sequence", None)
        number = "" if sequence is None else f"id: {sequence}\n"  # live text has none: the entry after it repeats it
        yield f"{number}event: {event.kind}\ndata: {json.dumps(event.to_json())}\n\n"


@app.post("/tasks/{task_id}/approve")  # noqa: FAST003  a dependency takes it
async def approve(task: GivenTask, approval: Approval) -> dict[str, Any]:
    """Approves what the person saw."""
    wait = task.current_wait
    if wait is None or wait.wait_id != approval.wait_id:
        raise HTTPException(409, "the task does not wait for this any more")
    await task.approve(wait, comment=approval.comment)
    return task.to_json()


@app.post("/webhook", status_code=204)
async def webhook(request: Request, tenure: Tenure) -> Response:
    """Takes the news that a task waits. Lines in the petty cash are approved here; a person sees the others.

    Create it with `tenure webhooks create backend https://…/webhook`, and set WEBHOOK_SECRET to what that prints. A
    webhook may arrive twice: the second answer is for a wait that is over, and changes nothing.
    """
    try:
        event = Webhook(os.environ["WEBHOOK_SECRET"]).verify(await request.body(), dict(request.headers))
    except WebhookVerificationError:
        return Response(status_code=401)
    if event["type"] == "task.waiting_user":
        task = await tenure.get(event["data"]["task_id"])
        wait = task.current_wait
        if wait is not None and _needs_no_person(wait):
            await task.approve(wait, comment="petty cash")
    return Response(status_code=204)


def _needs_no_person(wait: TaskWait) -> bool:
    """Whether the rule allows the call. The model wrote its arguments, and the answer is for exactly these."""
    arguments: Any = wait.arguments
    return wait.tool == NEEDS_APPROVAL and isinstance(arguments, dict) and arguments.get("file") == PETTY_CASH


async def _refused(_request: Request, error: Exception) -> JSONResponse:
    """The errors of the client as HTTP: what happened, and what to do."""
    status = {InvalidRequest: 422, NotFound: 404, WrongState: 409, Unavailable: 503}[type(error)]
    return JSONResponse({"detail": str(error)}, status_code=status)


for refusal in (InvalidRequest, NotFound, WrongState, Unavailable):
    app.add_exception_handler(refusal, _refused)
