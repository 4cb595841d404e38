"""SyncClient and SyncTask. GENERATED from client.py and task.py by generate_sync.py; do not edit."""
# ruff: noqa: A002  the contract's word `input` is an argument

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, Self, TypeVar, Unpack, overload

from tenure.domain.states import TaskState
from tenure.domain.task import InputFile, Source
from tenure.domain.tools import ToolDefinition
from tenure.runtime.security.tls import ClientTls
from tenure.sdk.agent_info import AgentDetails, AgentInfo, AgentRegistration, AgentRevisionInfo
from tenure.sdk.client import Client
from tenure.sdk.events import Event, HeartbeatEvent, TaskChangeEvent
from tenure.sdk.loop_thread import LoopCalls, SyncStubs
from tenure.sdk.option_values import Money, Seconds
from tenure.sdk.submit_options import AgentOptions, FunctionOptions, SubmitOptions, takes
from tenure.sdk.task import Task
from tenure.sdk.task_filter import States, TaskFilterOptions
from tenure.sdk.task_info import CallPlan, TaskCounts, TaskFile, TaskInfo, TaskPage, TaskWait
from tenure.sdk.undo_info import UndoPlan

T = TypeVar("T")


class SyncTask(Generic[T]):
    """A task. `T` is the type of its result. A SyncClient makes it: `client.submit(…)`, `client.get(task_id)`.

    `info` is the task as this handle last saw it: after a submit, a `refresh`, a `wait` or an answer.
    """

    def __init__(self, calls: LoopCalls, task: Task[T]) -> None:
        self._calls, self._task = calls, task

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.state}>"

    @property
    def id(self) -> str:
        """The task's id, a UUID."""
        return self._task.id

    @property
    def info(self) -> TaskInfo:
        """The task as this handle last saw it. `refresh` reads it again."""
        return self._task.info

    @property
    def state(self) -> TaskState:
        """The state as this handle last saw it."""
        return self._task.state

    @property
    def current_wait(self) -> TaskWait | None:
        """The wait as this handle last saw it; None: the task did not wait."""
        return self._task.current_wait

    def to_json(self) -> dict[str, Any]:
        """Returns `info` as JSON, the same as `tenure get --json`: see docs/json.md."""
        return self._task.to_json()

    def refresh(self) -> TaskInfo:
        """Reads the task and returns it. Raises NotFound when it was deleted."""
        return self._calls.run(self._task.refresh)

    def wait(self, *, timeout: Seconds | None = None) -> TaskInfo:
        """Waits until the task has ended, successfully or not, and returns it.

        `timeout`: seconds, or a timedelta; None: without a limit. Outlives restarts of the gateway. Raises
        TimeoutError when the task has not ended in time; the task continues. Raises Unavailable after a minute without
        a gateway.
        """
        return self._calls.run(lambda: self._task.wait(timeout=timeout))

    def result(self, *, timeout: Seconds | None = None) -> T:
        """Waits until the task has ended, and returns its result in the type that was given to the submit.

        Without such a type the result is the agent's last text. `timeout`: as in `wait`.

        Raises TaskFailed, TaskCancelled, TaskTimedOut or BudgetExceeded when the task did not succeed (all of them
        TaskEnded, with `error.task`), ResultMismatch when the value does not fit the Python type, TimeoutError and
        Unavailable as `wait`.
        """
        return self._calls.run(lambda: self._task.result(timeout=timeout))

    def events(self, *, after: int = 0, live: bool = True) -> Iterator[Event]:
        """Yields the events of the task until it ends: each entry of its ledger once, in order, and live text between.

        Resumes by itself when the connection breaks or the gateway restarts, without a gap and without a repeat, also
        of live text. `after`: the sequence of an earlier event; yields only what follows it. `live`: include live text,
        which is not recorded (LiveTextEvent).

        Raises NotFound, OutOfRange for an `after` beyond the newest entry, and Unavailable after a minute without a
        gateway: continue later with `after`.
        """
        return self._calls.iterate(lambda: self._task.events(after=after, live=live))

    def entries(self, *, after: int = 0) -> Iterator[Event]:
        """Yields the entries of the ledger so far, the oldest first, and does not wait for more.

        `after`: as in `events`. Raises NotFound.
        """
        return self._calls.iterate(lambda: self._task.entries(after=after))

    def approve(
        self,
        wait: TaskWait,
        *,
        arguments: Mapping[str, Any] | None = None,
        extra_cost: Money | None = None,
        extra_tokens: int = 0,
        comment: str = "",
        calls: Iterable[str] | None = None,
        files: Iterable[InputFile | Path] = (),
        plan: CallPlan | None = None,
        request_id: str = "",
    ) -> TaskInfo:
        """Approves what the wait asks for: a tool call, the agent's request for approval, more budget, to continue.

        The answer is for exactly this wait and the call that it shows: if the task waits for something else meanwhile,
        it is refused (WrongState, WAIT_OVER or OTHER_CALL), and nothing happens.

        `calls`: of a wait for several calls, the ids of those to approve; None: all. The others wait on.
        `arguments`: runs the tool call with these instead. `extra_cost` (US dollars) and `extra_tokens`: raise the caps
        of the tree; a wait for budget without them gets `wait.budget_need.suggested_…`. `comment`: the agent reads it.
        `files`: as those of a message, see `send`; the agent reads their names with the answer.
        `plan`: later calls that need no approval of their own, see `CallPlan`.
        `request_id`: makes your own repeat of this call safe; retries of the client are safe without it.

        Raises InvalidRequest for a wait that asks no yes or no: use `answer`. Raises WrongState, NotFound,
        PermissionDenied, BudgetExhausted.
        """
        return self._calls.run(
            lambda: self._task.approve(
                wait,
                arguments=arguments,
                extra_cost=extra_cost,
                extra_tokens=extra_tokens,
                comment=comment,
                calls=calls,
                files=files,
                plan=plan,
                request_id=request_id,
            )
        )

    def deny(
        self,
        wait: TaskWait,
        *,
        reason: str = "",
        calls: Iterable[str] | None = None,
        files: Iterable[InputFile | Path] = (),
        request_id: str = "",
    ) -> TaskInfo:
        """Denies what the wait asks for. The agent reads the denial with its `reason`, and continues.

        A task that asked for budget ends as COST_EXCEEDED. Otherwise as `approve`.
        """
        return self._calls.run(
            lambda: self._task.deny(wait, reason=reason, calls=calls, files=files, request_id=request_id)
        )

    def answer(
        self,
        wait: TaskWait,
        answer: str,
        *,
        comment: str = "",
        files: Iterable[InputFile | Path] = (),
        request_id: str = "",
    ) -> TaskInfo:
        """Answers the wait with one of its `options`, or with a text (at most 64 KiB) if it takes one.

        Raises InvalidRequest if it takes neither. Otherwise as `approve`.
        """
        return self._calls.run(
            lambda: self._task.answer(wait, answer, comment=comment, files=files, request_id=request_id)
        )

    def send(
        self, text: str, *, files: Iterable[InputFile | Path] = (), interrupt: bool = False, request_id: str = ""
    ) -> TaskInfo:
        """Sends a message to the agent, which reads it at its next model call. Sent once, also after retries.

        `text`: 1 byte to 256 KiB. `files`: as those of a submit; they come into a new directory of the workspace, whose
        name the agent reads. `interrupt`: stops the model call that runs, which is billed to that point and made again
        with the message; the live sub-agents of the task get the text, too. Raises WrongState when the task has ended,
        or runs a function.
        """
        return self._calls.run(lambda: self._task.send(text, files=files, interrupt=interrupt, request_id=request_id))

    def cancel(self, *, reason: str = "") -> TaskInfo:
        """Requests the cancel of the task. When this returns, the request is recorded and will be carried out.

        `reason`: recorded; at most 1,000 characters. A task that is cancelled already stays so. Raises WrongState when
        the task ended otherwise.
        """
        return self._calls.run(lambda: self._task.cancel(reason=reason))

    def explain(self) -> tuple[str, ...]:
        """Returns about ten lines for people: why the task is in its state, and what would change that."""
        return self._calls.run(self._task.explain)

    def receipts(self, call_id: str = "") -> tuple[str, ...]:
        """Returns the signed receipts of the task's effects, a line of JSON each, and at last the head of their chain.

        `tenure receipts verify` verifies a file of these lines without any service. `call_id`: only the receipt of this
        call, without the head. Raises NotFound, and WrongState (RECEIPT_CHAIN_BROKEN).
        """
        return self._calls.run(lambda: self._task.receipts(call_id))

    def files(self, path: str = "") -> Iterator[TaskFile]:
        """Yields the files of the task's workspace, with all subdirectories. `path`: only those below this directory.

        Raises NotFound and WrongState.
        """
        return self._calls.iterate(lambda: self._task.files(path))

    def read_file(self, path: str) -> bytes:
        """Returns the content of a file of the workspace. Raises NotFound, and WrongState if it changes meanwhile.

        The content is in memory at once; `download_file` has no such limit.
        """
        return self._calls.run(lambda: self._task.read_file(path))

    def download_file(self, path: str, target: Path) -> int:
        """Writes a file of the workspace to `target`, complete or not at all, and returns its size in bytes.

        Raises OSError, and the errors of `read_file`.
        """
        return self._calls.run(lambda: self._task.download_file(path, target))


class SyncClient:
    """The synchronous client of Tenure: for scripts, notebooks, Django and Flask.

        with SyncClient("127.0.0.1:8470") as client:
            task = client.submit("Compare the prices of our competitors", max_cost=0.5)
            print(task.result())

    `address`: host:port of the gateway; several replicas by IP address, separated by commas. Default: the environment
    (TENURE_ADDRESS), else the gateway of the `tenure dev` that runs in this folder or above, else 127.0.0.1:8470: there
    `with` and each call raise NotFound (STACK_OF_ANOTHER_FOLDER) for the stack of another folder. `api_key`: an API
    key, or a token of an identity provider, or a function that returns one and is called at each call. Default:
    TENURE_API_KEY or TENURE_API_KEY_FILE. `tenant`: needed only without a key, or with an operator's. `tls`: True, with
    the usual authorities, or ClientTls with files; a key is sent to another machine by TLS only.

    A SyncClient connects at its first call, which must come after a fork. Many threads may use it at once.

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
        self._client = Client(address, api_key=api_key, tenant=tenant, tls=tls)
        self._calls = LoopCalls()

    def __enter__(self) -> Self:
        if self._client._connection.is_guessed:  # noqa: SLF001  else it connects later: a process may fork before
            self._calls.run(self._client.__aenter__)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection. Calls that still run in other threads end with Unavailable (CLIENT_CLOSED)."""
        self._calls.end(self._client.close)

    @property
    def raw(self) -> SyncStubs:
        """The gRPC stubs: `tasks`, `admin`, `leases`, `schedules`, `tenants`, `webhooks`, `agents` and so on."""
        return SyncStubs(self._calls, self._client._connection.checked)  # noqa: SLF001  checks the gateway once

    @overload
    def submit(
        self, goal: str, *, agent: str, input: Any = None, result: type[T], **options: Unpack[SubmitOptions]
    ) -> SyncTask[T]: ...

    @overload
    def submit(
        self,
        goal: str,
        *,
        agent: str,
        input: Any = None,
        result: Mapping[str, Any] | None = None,
        **options: Unpack[SubmitOptions],
    ) -> SyncTask[Any]: ...

    @overload
    def submit(self, goal: str, *, result: None = None, **options: Unpack[SubmitOptions]) -> SyncTask[str]: ...

    @overload
    def submit(self, goal: str, *, result: type[T], **options: Unpack[SubmitOptions]) -> SyncTask[T]: ...

    @overload
    def submit(self, goal: str, *, result: Mapping[str, Any], **options: Unpack[SubmitOptions]) -> SyncTask[Any]: ...

    @takes(SubmitOptions)
    def submit(
        self, goal: str, *, agent: str = "", input: Any = None, result: Any = None, **options: Unpack[SubmitOptions]
    ) -> SyncTask[Any]:
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
        return SyncTask(
            self._calls,
            self._calls.run(lambda: self._client.submit(goal, agent=agent, input=input, result=result, **options)),
        )

    @takes(FunctionOptions)
    def submit_function(
        self,
        function: str,
        input: Any = None,
        *,
        description: str = "",
        result: Any = None,
        **options: Unpack[FunctionOptions],
    ) -> SyncTask[Any]:
        """Submits a control function: code of yours that a worker runs as a task.

        function: its name, as a worker offers it, or a revision of it, "month_end@3". input: a JSON value
            of at most 256 KiB. description: for people.
        result: a type as in `submit`, in which `task.result()` returns what the function returned; None: as JSON value.
        options: those of `FunctionOptions`, as in `submit`. The price of `model` decides whether the default cap in
            money applies; the function names the model of each call. Its steps are model calls and tool calls.

        Raises the errors of `submit`.
        """
        return SyncTask(
            self._calls,
            self._calls.run(
                lambda: self._client.submit_function(function, input, description=description, result=result, **options)
            ),
        )

    @overload
    def get(self, task_id: str) -> SyncTask[str]: ...

    @overload
    def get(self, task_id: str, *, result: type[T]) -> SyncTask[T]: ...

    @overload
    def get(self, task_id: str, *, result: Mapping[str, Any]) -> SyncTask[Any]: ...

    def get(self, task_id: str, *, result: Any = None) -> SyncTask[Any]:
        """Returns a task by its id. `result`: the type in which `task.result()` returns its result, as in `submit`.

        Raises NotFound, also for a task of another tenant.
        """
        return SyncTask(self._calls, self._calls.run(lambda: self._client.get(task_id, result=result)))

    @takes(TaskFilterOptions)
    def tasks(self, *, limit: int | None = None, **wanted: Unpack[TaskFilterOptions]) -> Iterator[SyncTask[str]]:
        """Yields the tenant's tasks that match, the newest first, and reads the pages as they are needed.

        limit: the most tasks; None: all. Raises InvalidRequest.
        """
        return (
            SyncTask(self._calls, task)
            for task in self._calls.iterate(lambda: self._client.tasks(limit=limit, **wanted))
        )

    @takes(TaskFilterOptions)
    def tasks_page(
        self, *, page_size: int = 50, page_token: str = "", fresh: bool = False, **wanted: Unpack[TaskFilterOptions]
    ) -> TaskPage:
        """Returns one page of the tasks that match, the newest first: for a backend that pages itself.

        page_size: 1 to 500. page_token: of the previous page; empty: the first page. fresh: the page must not be stale,
        where the server has a standby. Otherwise as `tasks`.
        """
        return self._calls.run(
            lambda: self._client.tasks_page(page_size=page_size, page_token=page_token, fresh=fresh, **wanted)
        )

    @takes(TaskFilterOptions)
    def count_tasks(self, **wanted: Unpack[TaskFilterOptions]) -> TaskCounts:
        """Returns the numbers of the tenant's tasks that match, by state: exact up to 10,000 of each state."""
        return self._calls.run(lambda: self._client.count_tasks(**wanted))

    def changes(
        self,
        *,
        after: str = "",
        state: States = (),
        labels: Mapping[str, str] | None = None,
        queue: str = "",
        source: Source | None = None,
    ) -> Iterator[TaskChangeEvent | HeartbeatEvent]:
        """Yields the changes of all tasks of the tenant that match, for ever: for dashboards.

        The first event is a heartbeat: list the tasks after it, and no change is missed. Resumes a broken connection
        without a gap or a repeat. after: the `cursor` of an earlier event; empty: from now. Raises OutOfRange
        (CURSOR_EXPIRED) when the changes after it are no longer kept: list the tasks, and begin again.
        """
        return self._calls.iterate(
            lambda: self._client.changes(after=after, state=state, labels=labels, queue=queue, source=source)
        )

    def signal(self, correlation_id: str, payload: Any = None, *, request_id: str = "") -> str:
        """Delivers an event to the task that waits for it. Returns the task's id, or "" if no task waits for it yet.

        An event without a waiting task is kept for 7 days, and taken once. payload: a JSON value of at most 64 KiB.
        Raises LimitReached (SIGNALS_FULL).
        """
        return self._calls.run(lambda: self._client.signal(correlation_id, payload, request_id=request_id))

    def undo_plan(self, task_id: str, *, since_step: int = 0) -> UndoPlan:
        """Returns the effects of a task, the newest first, with what can be undone and why the others cannot.

        since_step: only effects of this step and later ones; 0: all. Raises NotFound, WrongState (UNDO_TOO_LARGE).
        """
        return self._calls.run(lambda: self._client.undo_plan(task_id, since_step=since_step))

    def undo(
        self,
        task_id: str,
        *,
        plan: UndoPlan | None = None,
        since_step: int = 0,
        go_on: bool = False,
        request_id: str = "",
    ) -> SyncTask[str]:
        """Undoes effects of a task that has ended, each once, the newest first. Returns the task that does it.

        plan: undoes what this plan shows, or nothing if that has changed (PLAN_CHANGED). since_step: as in `undo_plan`;
        a task that waits for a person can be undone from a step on. go_on: go on after a compensation that failed;
        otherwise the undo ends there, and another one can undo the rest. request_id: makes your own repeat of this call
        safe; retries of the client are safe without it.

        Raises NotFound, AlreadyExists, WrongState (WRONG_STATE, NOTHING_TO_UNDO, PLAN_CHANGED, UNDO_TOO_LARGE).
        """
        return SyncTask(
            self._calls,
            self._calls.run(
                lambda: self._client.undo(task_id, plan=plan, since_step=since_step, go_on=go_on, request_id=request_id)
            ),
        )

    def tools(self) -> tuple[ToolDefinition, ...]:
        """Returns the tools that the tenant's tasks may call, with their schemas and effect classes."""
        return self._calls.run(self._client.tools)

    @takes(AgentOptions)
    def register_agent(
        self, name: str, *, result: Any = None, make_current: bool = False, **options: Unpack[AgentOptions]
    ) -> AgentRegistration:
        """Registers an agent that needs no code: a model, a system prompt and tools of the tool service.

        The same arguments give the same revision, however often. The first revision is the current one; a later one
        gets new tasks by `ramp_agent`, or at once with make_current. The arguments are those of `submit`: a submit that
        sets a limit or a policy itself goes before them. Agents in Python are registered by their workers.

        Raises InvalidRequest, PermissionDenied, LimitReached (TOO_MANY_AGENTS).
        """
        return self._calls.run(
            lambda: self._client.register_agent(name, result=result, make_current=make_current, **options)
        )

    def agents(self) -> Iterator[AgentInfo]:
        """Yields the tenant's agents that have revisions, by name."""
        return self._calls.iterate(self._client.agents)

    def agent(self, agent: str) -> AgentDetails:
        """Returns an agent with its revisions and the open tasks that each of them and each build has.

        agent: "support", or "support@7" for this revision with its definition. Raises NotFound.
        """
        return self._calls.run(lambda: self._client.agent(agent))

    def ramp_agent(self, agent: str, percent: float, *, reason: str = "") -> AgentInfo:
        """Sends a part of the new tasks to a revision ("support@7"); 100 makes it current, 0 ends its ramp.

        Tasks that were submitted before keep their revision. Raises NotFound, WrongState (AGENT_REVISION_RETIRED).
        """
        return self._calls.run(lambda: self._client.ramp_agent(agent, percent, reason=reason))

    def retire_agent(self, agent: str, *, reason: str = "") -> AgentRevisionInfo:
        """Retires a revision ("support@6") for good: no new task gets it, and its tasks go on.

        Raises NotFound, WrongState (AGENT_REVISION_IN_USE).
        """
        return self._calls.run(lambda: self._client.retire_agent(agent, reason=reason))
