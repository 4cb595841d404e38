"""Client: submits tasks, finds them, and follows them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from tenure.domain.task import Source
from tenure.domain.tools import ToolDefinition
from tenure.sdk.agent_info import AgentDetails, AgentInfo, AgentRegistration, AgentRevisionInfo
from tenure.sdk.connection import GatewayConnection
from tenure.sdk.errors import invalid_argument
from tenure.sdk.events import HeartbeatEvent, TaskChangeEvent
from tenure.sdk.from_wire import change_event, task_counts, task_page, undo_plan
from tenure.sdk.operations_from_wire import agent_details, agent_info, agent_registration, agent_revision_info
from tenure.sdk.option_values import agent_of_reference, json_text
from tenure.sdk.result_type import TEXT, ResultType, result_type_of
from tenure.sdk.submit_options import AgentOptions, FunctionOptions, SubmitOptions, only, takes
from tenure.sdk.submit_request import definition_of, function_request, submit_request
from tenure.sdk.task import Task
from tenure.sdk.task_filter import States, TaskFilterOptions, task_filter
from tenure.sdk.task_info import TaskCounts, TaskPage
from tenure.sdk.undo_info import UndoPlan
from tenure.v1 import agent_service_pb2 as agent_pb
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.wire.codec import json_of
from tenure.wire.tool import tool_to_domain

if TYPE_CHECKING:
    from tenure.client import Client as GatewayClient
    from tenure.runtime.security.tls import ClientTls

T = TypeVar("T")


class Client:
    """The asyncio client of Tenure.

        async with Client("127.0.0.1:8470") as client:
            task = await client.submit("Compare the prices of our competitors", max_cost=0.5)
            print(await task.result())

    `address`: host:port of the gateway; several replicas by IP address, separated by commas. Default: the environment
    (TENURE_ADDRESS), else the gateway of the `tenure dev` that runs in this folder or above, else 127.0.0.1:8470: there
    `with` and each call raise NotFound (STACK_OF_ANOTHER_FOLDER) for the stack of another folder. `api_key`: an API
    key, or a token of an identity provider, or a function that returns one and is called at each call. Default:
    TENURE_API_KEY or TENURE_API_KEY_FILE. `tenant`: needed only without a key, or with an operator's. `tls`: True, with
    the usual authorities, or ClientTls with files; a key is sent to another machine by TLS only.

    A Client connects at its first call and belongs to the event loop of that call. Many coroutines may use it at once.

    Each call is retried while no gateway answers: for a few seconds, and for about ten seconds once one has answered.
    An attempt that a gateway takes and does not answer ends after 15 s, and is retried, too. Each retry has the same
    request id, so a submit creates one task and an answer counts once.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        api_key: str | Callable[[], str] | None = None,
        tenant: str | None = None,
        tls: ClientTls | bool | None = None,
    ) -> None:
        self._connection = GatewayConnection(address, api_key, tenant, tls)

    async def __aenter__(self) -> Self:
        self._connection.client()
        await self._connection.check_found()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connection. Calls that still run end with Unavailable."""
        await self._connection.close()

    @property
    def raw(self) -> GatewayClient:
        """The client of the protobuf messages, in the running event loop.

        Its gRPC stubs are `tasks`, `admin`, `leases`, `schedules`, `tenants`, `webhooks`, `api_keys`, `approvals`,
        `agents` and `audit`. Outside of `with` it does not ask whose stack it found: give the address.
        """
        return self._connection.client()

    @overload
    async def submit(
        self,
        goal: str,
        *,
        agent: str,
        input: Any = None,
        result: type[T],
        **options: Unpack[SubmitOptions],
    ) -> Task[T]: ...

    @overload
    async def submit(
        self,
        goal: str,
        *,
        agent: str,
        input: Any = None,
        result: Mapping[str, Any] | None = None,
        **options: Unpack[SubmitOptions],
    ) -> Task[Any]: ...

    @overload
    async def submit(self, goal: str, *, result: None = None, **options: Unpack[SubmitOptions]) -> Task[str]: ...

    @overload
    async def submit(self, goal: str, *, result: type[T], **options: Unpack[SubmitOptions]) -> Task[T]: ...

    @overload
    async def submit(self, goal: str, *, result: Mapping[str, Any], **options: Unpack[SubmitOptions]) -> Task[Any]: ...

    @takes(SubmitOptions)
    async def submit(
        self,
        goal: str,
        *,
        agent: str = "",
        input: Any = None,  # noqa: A002  the contract's word, and a keyword at the call
        result: Any = None,
        **options: Unpack[SubmitOptions],
    ) -> Task[Any]:
        """Submits a goal for an agent and returns the queued task. Creates one task, also after retries.

        An omitted argument has the default of the installation.

        goal: the first message to the agent; 1 byte to 256 KiB.
        agent: an agent in Python (docs/agents.md), or a registered one (docs/versions.md), by its name; it has a model,
            a system prompt and tools of its own. "support": its current revision, or the one that ramps; "support@7":
            this one. "": the agent that the options describe. input: a JSON value for an agent in Python, of at most
            256 KiB.
        result: the type of the result: a pydantic model, a dataclass, a TypedDict, or a JSON Schema as a dict. The task
            succeeds only with a result that fits, and `task.result()` returns it in this type. None: any text. An agent
            in Python has its own output type: here the type only reads it, and None returns its JSON value.
        options: those of `SubmitOptions` (tenure/sdk/submit_options.py). Names of tools may be any iterable; amounts of
            money a float, a Decimal or a text; times seconds or a timedelta; start_at has a time zone.

        Raises InvalidRequest (`error.field` is the argument), AlreadyExists (REQUEST_ID_REUSED, SOURCE_BUSY),
        LimitReached, PermissionDenied, Unauthenticated, Unavailable; TypeError for an unsupported type of result.
        """
        is_code = bool(agent_of_reference("agent", agent)[0])
        result_type = _returned(result) if is_code else result_type_of(result)
        schema_json = "" if is_code else result_type.schema_json
        known = only(SubmitOptions, options)
        request = submit_request(goal, known, agent=agent, input=input, result_schema_json=schema_json)
        return await self._submit(request, result_type)

    @takes(FunctionOptions)
    async def submit_function(
        self,
        function: str,
        input: Any = None,  # noqa: A002  the contract's word, and a keyword at the call
        *,
        description: str = "",
        result: Any = None,
        **options: Unpack[FunctionOptions],
    ) -> Task[Any]:
        """Submits a control function: code of yours that a worker runs as a task.

        function: its name, as a worker offers it, or a revision of it, "month_end@3". input: a JSON value
            of at most 256 KiB. description: for people.
        result: a type as in `submit`, in which `task.result()` returns what the function returned; None: as JSON value.
        options: those of `FunctionOptions`, as in `submit`. The price of `model` decides whether the default cap in
            money applies; the function names the model of each call. Its steps are model calls and tool calls.

        Raises the errors of `submit`.
        """
        request = function_request(function, input, description, only(FunctionOptions, options))
        return await self._submit(request, _returned(result))

    @overload
    async def get(self, task_id: str) -> Task[str]: ...

    @overload
    async def get(self, task_id: str, *, result: type[T]) -> Task[T]: ...

    @overload
    async def get(self, task_id: str, *, result: Mapping[str, Any]) -> Task[Any]: ...

    async def get(self, task_id: str, *, result: Any = None) -> Task[Any]:
        """Returns a task by its id. `result`: the type in which `task.result()` returns its result, as in `submit`.

        Raises NotFound, also for a task of another tenant.
        """
        result_type = result_type_of(result)
        async with self._connection.use() as client:
            return self._task(await client.get(task_id), result_type)

    @takes(TaskFilterOptions)
    async def tasks(
        self, *, limit: int | None = None, **wanted: Unpack[TaskFilterOptions]
    ) -> AsyncGenerator[Task[str]]:
        """Yields the tenant's tasks that match, the newest first, and reads the pages as they are needed.

        limit: the most tasks; None: all. Raises InvalidRequest.
        """
        matching = task_filter(**wanted)
        async with (
            self._connection.use() as client,
            aclosing(client.list_tasks(matching, limit=2**31 if limit is None else limit)) as listed,
        ):
            async for task in listed:
                yield self._task(task, TEXT)

    @takes(TaskFilterOptions)
    async def tasks_page(
        self,
        *,
        page_size: int = 50,
        page_token: str = "",
        fresh: bool = False,
        **wanted: Unpack[TaskFilterOptions],
    ) -> TaskPage:
        """Returns one page of the tasks that match, the newest first: for a backend that pages itself.

        page_size: 1 to 500. page_token: of the previous page; empty: the first page. fresh: the page must not be stale,
        where the server has a standby. Otherwise as `tasks`.
        """
        matching = task_filter(**wanted)
        request = api.ListTasksRequest(filter=matching, page_size=page_size, page_token=page_token, fresh=fresh)
        async with self._connection.use() as client:
            page = await client.tasks.ListTasks(request)
            return task_page(page)

    @takes(TaskFilterOptions)
    async def count_tasks(self, **wanted: Unpack[TaskFilterOptions]) -> TaskCounts:
        """Returns the numbers of the tenant's tasks that match, by state: exact up to 10,000 of each state."""
        request = api.CountTasksRequest(filter=task_filter(**wanted))
        async with self._connection.use() as client:
            return task_counts(await client.tasks.CountTasks(request))

    async def changes(
        self,
        *,
        after: str = "",
        state: States = (),
        labels: Mapping[str, str] | None = None,
        queue: str = "",
        source: Source | None = None,
    ) -> AsyncGenerator[TaskChangeEvent | HeartbeatEvent]:
        """Yields the changes of all tasks of the tenant that match, for ever: for dashboards.

        The first event is a heartbeat: list the tasks after it, and no change is missed. Resumes a broken connection
        without a gap or a repeat. after: the `cursor` of an earlier event; empty: from now. Raises OutOfRange
        (CURSOR_EXPIRED) when the changes after it are no longer kept: list the tasks, and begin again.
        """
        wanted = task_filter(state=state, labels=labels, queue=queue, source=source)
        async with (
            self._connection.use() as client,
            aclosing(client.watch_tasks(wanted, after_cursor=after)) as messages,
        ):
            async for message in messages:
                yield change_event(message)

    async def signal(self, correlation_id: str, payload: Any = None, *, request_id: str = "") -> str:
        """Delivers an event to the task that waits for it. Returns the task's id, or "" if no task waits for it yet.

        An event without a waiting task is kept for 7 days, and taken once. payload: a JSON value of at most 64 KiB.
        Raises LimitReached (SIGNALS_FULL).
        """
        payload_json = json_text("payload", payload)
        async with self._connection.use() as client:
            task = await client.signal(correlation_id, payload_json, request_id=request_id)
            return "" if task is None else task.task_id

    async def undo_plan(self, task_id: str, *, since_step: int = 0) -> UndoPlan:
        """Returns the effects of a task, the newest first, with what can be undone and why the others cannot.

        since_step: only effects of this step and later ones; 0: all. Raises NotFound, WrongState (UNDO_TOO_LARGE).
        """
        async with self._connection.use() as client:
            return undo_plan(await client.plan_undo(api.PlanUndoRequest(task_id=task_id, since_step=since_step)))

    async def undo(
        self,
        task_id: str,
        *,
        plan: UndoPlan | None = None,
        since_step: int = 0,
        go_on: bool = False,
        request_id: str = "",
    ) -> Task[str]:
        """Undoes effects of a task that has ended, each once, the newest first. Returns the task that does it.

        plan: undoes what this plan shows, or nothing if that has changed (PLAN_CHANGED). since_step: as in `undo_plan`;
        a task that waits for a person can be undone from a step on. go_on: go on after a compensation that failed;
        otherwise the undo ends there, and another one can undo the rest. request_id: makes your own repeat of this call
        safe; retries of the client are safe without it.

        Raises NotFound, AlreadyExists, WrongState (WRONG_STATE, NOTHING_TO_UNDO, PLAN_CHANGED, UNDO_TOO_LARGE).
        """
        digest = "" if plan is None else plan.plan_digest
        request = api.UndoTaskRequest(
            request_id=request_id, task_id=task_id, since_step=since_step, plan_digest=digest, go_on=go_on
        )
        async with self._connection.use() as client:
            return self._task(await client.undo(request), TEXT)

    async def tools(self) -> tuple[ToolDefinition, ...]:
        """Returns the tools that the tenant's tasks may call, with their schemas and effect classes."""
        async with self._connection.use() as client:
            return tuple(tool_to_domain(tool.definition) for tool in (await client.tools()).tools)

    @takes(AgentOptions)
    async def register_agent(
        self, name: str, *, result: Any = None, make_current: bool = False, **options: Unpack[AgentOptions]
    ) -> AgentRegistration:
        """Registers an agent that needs no code: a model, a system prompt and tools of the tool service.

        The same arguments give the same revision, however often. The first revision is the current one; a later one
        gets new tasks by `ramp_agent`, or at once with make_current. The arguments are those of `submit`: a submit that
        sets a limit or a policy itself goes before them. Agents in Python are registered by their workers.

        Raises InvalidRequest, PermissionDenied, LimitReached (TOO_MANY_AGENTS).
        """
        definition = definition_of(only(AgentOptions, options), result_type_of(result).schema_json)
        async with self._connection.use() as client:
            request = agent_pb.RegisterAgentRequest(name=name, definition=definition, make_current=make_current)
            return agent_registration(await client.agents.RegisterAgent(request))

    async def agents(self) -> AsyncGenerator[AgentInfo]:
        """Yields the tenant's agents that have revisions, by name."""
        async with self._connection.use() as client:
            request = agent_pb.ListAgentsRequest()
            async with aclosing(client.items(client.agents.ListAgents, request, lambda page: page.agents)) as listed:
                async for agent in listed:
                    yield agent_info(agent)

    async def agent(self, agent: str) -> AgentDetails:
        """Returns an agent with its revisions and the open tasks that each of them and each build has.

        agent: "support", or "support@7" for this revision with its definition. Raises NotFound.
        """
        name, revision = agent_of_reference("agent", agent)
        async with self._connection.use() as client:
            request = agent_pb.GetAgentRequest(name=name, revision=revision)
            return agent_details(await client.agents.GetAgent(request))

    async def ramp_agent(self, agent: str, percent: float, *, reason: str = "") -> AgentInfo:
        """Sends a part of the new tasks to a revision ("support@7"); 100 makes it current, 0 ends its ramp.

        Tasks that were submitted before keep their revision. Raises NotFound, WrongState (AGENT_REVISION_RETIRED).
        """
        name, revision = _revision_of(agent)
        if not 0 <= percent <= 100:
            raise invalid_argument("percent", f"must be 0 to 100, not {percent!r}")
        async with self._connection.use() as client:
            basis_points = round(percent * 100)
            request = agent_pb.RampAgentRequest(name=name, revision=revision, basis_points=basis_points, reason=reason)
            return agent_info((await client.agents.RampAgent(request)).agent)

    async def retire_agent(self, agent: str, *, reason: str = "") -> AgentRevisionInfo:
        """Retires a revision ("support@6") for good: no new task gets it, and its tasks go on.

        Raises NotFound, WrongState (AGENT_REVISION_IN_USE).
        """
        name, revision = _revision_of(agent)
        async with self._connection.use() as client:
            request = agent_pb.RetireAgentRevisionRequest(name=name, revision=revision, reason=reason)
            return agent_revision_info((await client.agents.RetireAgentRevision(request)).revision)

    async def _submit(self, request: api.SubmitTaskRequest, result_type: ResultType[Any]) -> Task[Any]:
        async with self._connection.use() as client:
            return self._task(await client.submit(request.spec.goal, request=request), result_type)

    def _task(self, message: task_pb2.Task, result_type: ResultType[T]) -> Task[T]:
        return Task(self._connection, message, result_type)


def _revision_of(agent: str) -> tuple[str, int]:
    name, revision = agent_of_reference("agent", agent)
    if not revision:
        raise invalid_argument("agent", f"must name a revision, not {agent!r}", "write for example support@7")
    return name, revision


def _returned(result: Any) -> ResultType[Any]:
    """Returns the type in which a function's result is read; None: the JSON value."""
    return ResultType("", json_of) if result is None else result_type_of(result)
