"""The server with its tools. A tool returns JSON; an error of Tenure is an error of the tool, which the model reads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import Annotated, Any, Final, TypeGuard

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, InputRequiredResult
from pydantic import BaseModel, Field, ValidationError

from edges.mcp_server.answers import answer as answer_wait
from edges.mcp_server.answers import decisions_of, may_answer
from edges.mcp_server.settings import McpServerSettings
from tenure.domain.errors import TenureError, TryLater
from tenure.domain.states import TaskState, is_terminal
from tenure.runtime.release import VERSION
from tenure.sdk.client import Client
from tenure.sdk.submit_options import SubmitOptions
from tenure.sdk.task import Task
from tenure.sdk.task_info import TaskInfo

Clients = Callable[[Any], Awaitable[Client]]
"""Returns the client for one request of the transport: None on standard input and output."""

LONGEST_WAIT_SECONDS: Final = 50.0
"""Clients give up on a call after a minute."""
RUN: Final = "run"
MAX_EVENTS: Final = 200
MAX_EVENT_CHARACTERS: Final = 200_000
INSTRUCTIONS: Final = (
    "Durable tasks for AI agents: a task goes on when you, this server or a worker stops. Keep its task_id: all other "
    "tools need it, also days later. `run` waits for the result; `submit` returns at once. A task that waits has "
    "`wait`: show it to a person before you answer it."
)

TaskId = Annotated[str, Field(description="The task's id, as submit and run return it.", max_length=64)]


class RunArguments(BaseModel):
    """The arguments of `run` and `submit`."""

    goal: str = Field(description="What the agent shall do.", min_length=1)
    max_cost: float | None = Field(None, description="Cap in US dollars for all model calls of the task.")
    model: str = Field("", description="The model, unless the server chooses it.", max_length=200)
    request_id: str = Field("", description="Makes a repeat of this call safe: it gets the same task.", max_length=128)


class TenureMcp:
    """The tools, for one kind of transport. `clients`: whose identity a request has."""

    def __init__(self, clients: Clients, settings: McpServerSettings) -> None:
        self.clients, self.settings = clients, settings

    async def submit(self, request: Any, arguments: RunArguments) -> Task[Any]:
        """Submits a task within the caps of the settings."""
        client, settings = await self.clients(request), self.settings
        options: SubmitOptions = {
            "max_cost": settings.cost_of(arguments.max_cost),
            "allow_unpriced": arguments.max_cost is None,  # no client asked for the cap of the settings
            "queue": settings.queue,
            "labels": dict(settings.labels),
            "request_id": arguments.request_id,
        }
        if settings.agent:
            of_agent: Task[Any] = await client.submit(arguments.goal, agent=settings.agent, **options)
            return of_agent
        options["model"] = settings.model or arguments.model
        task: Task[Any] = await client.submit(arguments.goal, **options)
        return task

    async def task(self, request: Any, task_id: str) -> Task[Any]:
        """Returns a task of the caller's tenant. Raises NotFound."""
        return await (await self.clients(request)).get(task_id)

    async def outcome(self, task: Task[Any], seconds: float) -> dict[str, Any]:
        """Waits for the end of the task for some time, and returns where it is."""
        if not is_terminal(task.state):
            try:
                await task.wait(timeout=max(0.0, min(seconds, LONGEST_WAIT_SECONDS)))
            except TimeoutError:
                await task.refresh()
        return self.view(task.info)

    def view(self, info: TaskInfo) -> dict[str, Any]:
        """Returns what a model needs to know of a task."""
        shown = info.to_json()
        view = {name: shown[name] for name in _SHOWN}
        view["ended"] = is_terminal(info.state)
        if info.wait is not None:
            view["wait"] = {name: value for name, value in shown["wait"].items() if value not in (None, "", [])}
            view["wait"]["answerable_here"] = may_answer(info.wait, self.settings)
            view["wait"]["decisions"] = decisions_of(info.wait)
        return view


_SHOWN: Final = ("task_id", "state", "reason", "message", "step", "result", "result_data", "cost_usd", "deadline_at")


@contextmanager
def tool_errors() -> Iterator[None]:
    """Turns errors of Tenure into errors of a tool, with the code that docs/client.md lists."""
    try:
        yield
    except TenureError as error:
        raise ToolError(error_text(error)) from error


def error_text(error: TenureError) -> str:
    """Returns an error for a model: its code, and what happened. The hints of the client are for programs in Python."""
    again = f"; try again in {error.retry_after_seconds:.0f} s" if _is_late(error) else ""
    return f"{error.reason}: {error.message}{again}"


def _is_late(error: TenureError) -> TypeGuard[TryLater]:
    return isinstance(error, TryLater) and bool(error.retry_after_seconds)


class _Server(MCPServer[Any]):
    """Tools whose errors begin with their code. The library puts a sentence with the name of the tool before them."""

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context | None = None
    ) -> CallToolResult | InputRequiredResult:
        try:
            result = await super().call_tool(name, arguments, context)
        except ToolError as error:
            match error.__cause__:
                case ToolError() as own:
                    raise ToolError(str(own)) from own
                case ValidationError() as wrong:
                    raise ToolError(f"INVALID_REQUEST: {wrong}") from wrong
            raise
        if name == RUN and isinstance(result, CallToolResult):
            view = result.structured_content or {}
            result.is_error = bool(view.get("ended")) and view["state"] != TaskState.SUCCEEDED
        return result


def make_server(tenure: TenureMcp, extensions: list[Any]) -> MCPServer[Any]:
    """Returns the server with the tools."""
    server = _Server("tenure", version=VERSION, instructions=INSTRUCTIONS, extensions=extensions)

    @server.tool()
    async def submit(
        ctx: Context,
        goal: Annotated[str, Field(description="What the agent shall do.", min_length=1)],
        max_cost: Annotated[float | None, Field(description="Cap in US dollars of all model calls.")] = None,
        model: Annotated[str, Field(description="Unless the server chooses it.", max_length=200)] = "",
        request_id: Annotated[str, Field(description="A repeat with it gets the same task.", max_length=128)] = "",
    ) -> dict[str, Any]:
        """Submit a task for an agent and return at once. Read its task_id later with `status` or `result`."""
        with tool_errors():
            arguments = RunArguments(goal=goal, max_cost=max_cost, model=model, request_id=request_id)
            return tenure.view((await tenure.submit(_request(ctx), arguments)).info)

    @server.tool()
    async def run(
        ctx: Context,
        goal: Annotated[str, Field(description="What the agent shall do.", min_length=1)],
        max_cost: Annotated[float | None, Field(description="Cap in US dollars of all model calls.")] = None,
        model: Annotated[str, Field(description="Unless the server chooses it.", max_length=200)] = "",
        request_id: Annotated[str, Field(description="A repeat with it gets the same task.", max_length=128)] = "",
    ) -> dict[str, Any]:
        """Submit a task and wait for its end, at most 50 s: `ended` false means that it goes on, see `result`.

        A client with the tasks extension gets a task of the protocol instead.
        """
        with tool_errors():
            arguments = RunArguments(goal=goal, max_cost=max_cost, model=model, request_id=request_id)
            task = await tenure.submit(_request(ctx), arguments)
            return await tenure.outcome(task, LONGEST_WAIT_SECONDS)

    @server.tool()
    async def status(ctx: Context, task_id: TaskId) -> dict[str, Any]:
        """Say where a task is: its state, its wait, its cost so far."""
        with tool_errors():
            return tenure.view((await tenure.task(_request(ctx), task_id)).info)

    @server.tool()
    async def result(
        ctx: Context,
        task_id: TaskId,
        wait_seconds: Annotated[float, Field(description="How long to wait for the end.", ge=0, le=50)] = 20.0,
    ) -> dict[str, Any]:
        """Return the result of a task, and wait for it for a while. `ended` false: call again."""
        with tool_errors():
            return await tenure.outcome(await tenure.task(_request(ctx), task_id), wait_seconds)

    @server.tool()
    async def cancel(
        ctx: Context, task_id: TaskId, reason: Annotated[str, Field(max_length=1000)] = ""
    ) -> dict[str, Any]:
        """Cancel a task. It ends soon after."""
        with tool_errors():
            task = await tenure.task(_request(ctx), task_id)
            return tenure.view(await task.cancel(reason=reason))

    @server.tool()
    async def answer(
        ctx: Context,
        task_id: TaskId,
        wait_id: Annotated[str, Field(description="wait.wait_id, as the person saw it.", max_length=64)],
        answer: Annotated[str, Field(description="One of wait.decisions, or a text if there are none.")],
        comment: Annotated[str, Field(max_length=4000)] = "",
    ) -> dict[str, Any]:
        """Answer the wait of a task, for the person who was shown it. Each wait takes one answer."""
        with tool_errors():
            task = await tenure.task(_request(ctx), task_id)
            wait = task.current_wait
            if wait is None or wait.wait_id != wait_id:
                raise ToolError(f"WAIT_OVER: the task does not wait for {wait_id}; its state is {task.state}")
            return tenure.view(await answer_wait(task, wait, answer, comment, tenure.settings))

    @server.tool()
    async def events(
        ctx: Context,
        task_id: TaskId,
        after_sequence: Annotated[int, Field(description="Only what follows this event; 0: all.", ge=0)] = 0,
        limit: Annotated[int, Field(ge=1, le=MAX_EVENTS)] = 50,
    ) -> dict[str, Any]:
        """List the events of a task in their order. Call again with `last_sequence` for those that follow."""
        with tool_errors():
            task = await tenure.task(_request(ctx), task_id)
            return await _events(task, after_sequence, limit)

    return server


async def _events(task: Task[Any], after: int, limit: int) -> dict[str, Any]:
    listed: list[Mapping[str, Any]] = []
    size, more = 0, False
    async with aclosing(task.entries(after=after)) as entries:
        async for entry in entries:
            shown = entry.to_json()
            size += len(str(shown))
            if len(listed) == limit or (listed and size > MAX_EVENT_CHARACTERS):
                more = True
                break
            listed.append(shown)
    last = listed[-1]["sequence"] if listed else after
    return {"events": listed, "last_sequence": last, "more": more, "ended": is_terminal(task.state)}


def _request(ctx: Context) -> Any:
    return ctx.request_context.request
