"""Task: a handle on one task, to watch it, to answer its waits and to read its result."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any, Generic, TypeVar

from tenure.client.files import download_file, read_file
from tenure.domain.states import TaskState
from tenure.domain.task import InputFile
from tenure.sdk.answers import WaitReply, approval, denial, free_answer
from tenure.sdk.connection import GatewayConnection
from tenure.sdk.errors import ResultMismatch, ending_error
from tenure.sdk.events import Event
from tenure.sdk.from_wire import call_plan_to_wire, entry_event, result_json_of, task_file, task_info
from tenure.sdk.live_text import LiveTextFilter
from tenure.sdk.option_values import Money, Seconds, nano_usd, seconds_of
from tenure.sdk.option_values import files as input_files
from tenure.sdk.result_type import ResultType
from tenure.sdk.task_info import CallPlan, TaskFile, TaskInfo, TaskWait
from tenure.v1 import task_pb2, task_service_pb2
from tenure.wire.task import call_decision_to_wire

T = TypeVar("T")


class Task(Generic[T]):
    """A task. `T` is the type of its result. A Client makes it: `client.submit(…)`, `client.get(task_id)`.

    `info` is the task as this handle last saw it: after a submit, a `refresh`, a `wait` or an answer.
    """

    def __init__(self, connection: GatewayConnection, task: task_pb2.Task, result_type: ResultType[T]) -> None:
        self._connection, self._result_type = connection, result_type
        self._info, self._result_json = task_info(task), result_json_of(task)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.state}>"

    @property
    def id(self) -> str:
        """The task's id, a UUID."""
        return self._info.task_id

    @property
    def info(self) -> TaskInfo:
        """The task as this handle last saw it. `refresh` reads it again."""
        return self._info

    @property
    def state(self) -> TaskState:
        """The state as this handle last saw it."""
        return self._info.state

    @property
    def current_wait(self) -> TaskWait | None:
        """The wait as this handle last saw it; None: the task did not wait."""
        return self._info.wait

    def to_json(self) -> dict[str, Any]:
        """Returns `info` as JSON, the same as `tenure get --json`: see docs/json.md."""
        return self._info.to_json()

    async def refresh(self) -> TaskInfo:
        """Reads the task and returns it. Raises NotFound when it was deleted."""
        async with self._connection.use() as client:
            return self._seen(await client.get(self.id))

    async def wait(self, *, timeout: Seconds | None = None) -> TaskInfo:
        """Waits until the task has ended, successfully or not, and returns it.

        `timeout`: seconds, or a timedelta; None: without a limit. Outlives restarts of the gateway. Raises
        TimeoutError when the task has not ended in time; the task continues. Raises Unavailable after a minute without
        a gateway.
        """
        async with self._connection.use() as client:
            return self._seen(await client.wait(self.id, None if timeout is None else seconds_of(timeout)))

    async def result(self, *, timeout: Seconds | None = None) -> T:
        """Waits until the task has ended, and returns its result in the type that was given to the submit.

        Without such a type the result is the agent's last text. `timeout`: as in `wait`.

        Raises TaskFailed, TaskCancelled, TaskTimedOut or BudgetExceeded when the task did not succeed (all of them
        TaskEnded, with `error.task`), ResultMismatch when the value does not fit the Python type, TimeoutError and
        Unavailable as `wait`.
        """
        info = await self.wait(timeout=timeout)
        if info.state is not TaskState.SUCCEEDED:
            raise ending_error(info)
        return self._typed(info.result if self._result_type.is_text else self._result_json or info.result)

    async def events(self, *, after: int = 0, live: bool = True) -> AsyncGenerator[Event]:
        """Yields the events of the task until it ends: each entry of its ledger once, in order, and live text between.

        Resumes by itself when the connection breaks or the gateway restarts, without a gap and without a repeat, also
        of live text. `after`: the sequence of an earlier event; yields only what follows it. `live`: include live text,
        which is not recorded (LiveTextEvent).

        Raises NotFound, OutOfRange for an `after` beyond the newest entry, and Unavailable after a minute without a
        gateway: continue later with `after`.
        """
        live_text = LiveTextFilter()
        async with (
            self._connection.use() as client,
            aclosing(client.watch(self.id, after, live=live)) as messages,
        ):
            async for message in messages:
                event = live_text.public_event(message)
                if event is not None:
                    yield event

    async def entries(self, *, after: int = 0) -> AsyncGenerator[Event]:
        """Yields the entries of the ledger so far, the oldest first, and does not wait for more.

        `after`: as in `events`. Raises NotFound.
        """
        async with self._connection.use() as client, aclosing(client.entries(self.id, after)) as entries:
            async for entry in entries:
                yield entry_event(entry)

    async def approve(
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
        reply = approval(wait, arguments, calls)
        extra = (extra_tokens, nano_usd("extra_cost", extra_cost))
        return await self._answer(wait, reply, comment, request_id, files, *extra, plan=plan)

    async def deny(
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
        return await self._answer(wait, denial(wait, calls), reason, request_id, files)

    async def answer(
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
        return await self._answer(wait, free_answer(wait, answer), comment, request_id, files)

    async def send(
        self,
        text: str,
        *,
        files: Iterable[InputFile | Path] = (),
        interrupt: bool = False,
        request_id: str = "",
    ) -> TaskInfo:
        """Sends a message to the agent, which reads it at its next model call. Sent once, also after retries.

        `text`: 1 byte to 256 KiB. `files`: as those of a submit; they come into a new directory of the workspace, whose
        name the agent reads. `interrupt`: stops the model call that runs, which is billed to that point and made again
        with the message; the live sub-agents of the task get the text, too. Raises WrongState when the task has ended,
        or runs a function.
        """
        sent = input_files("files", files)
        async with self._connection.use() as client:
            return self._seen(await client.send(self.id, text, files=sent, request_id=request_id, interrupt=interrupt))

    async def cancel(self, *, reason: str = "") -> TaskInfo:
        """Requests the cancel of the task. When this returns, the request is recorded and will be carried out.

        `reason`: recorded; at most 1,000 characters. A task that is cancelled already stays so. Raises WrongState when
        the task ended otherwise.
        """
        async with self._connection.use() as client:
            return self._seen(await client.cancel(self.id, reason))

    async def explain(self) -> tuple[str, ...]:
        """Returns about ten lines for people: why the task is in its state, and what would change that."""
        async with self._connection.use() as client:
            response = await client.explain(self.id)
            self._seen(response.task)
            return tuple(response.lines)

    async def receipts(self, call_id: str = "") -> tuple[str, ...]:
        """Returns the signed receipts of the task's effects, a line of JSON each, and at last the head of their chain.

        `tenure receipts verify` verifies a file of these lines without any service. `call_id`: only the receipt of this
        call, without the head. Raises NotFound, and WrongState (RECEIPT_CHAIN_BROKEN).
        """
        async with self._connection.use() as client, aclosing(client.receipts(self.id, call_id)) as lines:
            return tuple([line async for line in lines])

    async def files(self, path: str = "") -> AsyncGenerator[TaskFile]:
        """Yields the files of the task's workspace, with all subdirectories. `path`: only those below this directory.

        Raises NotFound and WrongState.
        """
        async with self._connection.use() as client:
            request = task_service_pb2.ListFilesRequest(task_id=self.id, path=path)
            async with aclosing(client.pages(client.tasks.ListFiles, request)) as pages:
                async for page in pages:
                    for file in page.files:
                        yield task_file(file)

    async def read_file(self, path: str) -> bytes:
        """Returns the content of a file of the workspace. Raises NotFound, and WrongState if it changes meanwhile.

        The content is in memory at once; `download_file` has no such limit.
        """
        async with self._connection.use() as client, aclosing(read_file(client.tasks, self.id, path)) as parts:
            return b"".join([part async for part in parts])

    async def download_file(self, path: str, target: Path) -> int:
        """Writes a file of the workspace to `target`, complete or not at all, and returns its size in bytes.

        Raises OSError, and the errors of `read_file`.
        """
        async with self._connection.use() as client:
            return await download_file(client.tasks, self.id, path, target)

    async def _answer(
        self,
        wait: TaskWait,
        reply: WaitReply,
        comment: str,
        request_id: str,
        files: Iterable[InputFile | Path],
        extra_tokens: int = 0,
        extra_nano_usd: int = 0,
        plan: CallPlan | None = None,
    ) -> TaskInfo:
        sent = input_files("files", files)
        async with self._connection.use() as client:
            answered = await client.resume(
                self.id,
                wait.wait_id,
                decision=reply.decision,
                reply=reply.reply,
                calls=[call_decision_to_wire(call) for call in reply.calls],
                call_digest=wait.call_digest,
                comment=comment,
                edited_arguments_json=reply.edited_arguments_json,
                extra_budget_tokens=extra_tokens,
                extra_budget_nano_usd=extra_nano_usd,
                files=sent,
                plan=None if plan is None else call_plan_to_wire(plan),
                request_id=request_id,
            )
            return self._seen(answered)

    def _seen(self, task: task_pb2.Task) -> TaskInfo:
        self._info, self._result_json = task_info(task), result_json_of(task)
        return self._info

    def _typed(self, text: str) -> T:
        try:
            return self._result_type.read(text)
        except (ValueError, TypeError, KeyError) as error:
            mismatch = ResultMismatch(f"the result of task {self.id} does not fit its Python type: {error}")
            mismatch.hint = "task.info.result_data has the JSON value; task.info.result the text"
            raise mismatch from error
