"""A conversation as tasks: the first message submits one, a message to a live task is sent, and a later one forks it.

All tasks of a conversation have the source CONVERSATION with the conversation's id, and only one of them is live. The
id of a message is its request id, so a repeat of a request finds the turn that the first one began.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from services.gateway.http.call import HttpCall
from services.gateway.http.problems import HttpRefusal
from services.gateway.http.requests import SubmitBody
from services.gateway.http.tasks import FORK_SECONDS, submitted
from tenure.domain.errors import AlreadyExists, NotFound, WrongState
from tenure.domain.states import TERMINAL
from tenure.domain.task import InputFile, Source, SourceKind
from tenure.sdk.option_values import files as input_files
from tenure.v1 import ledger_pb2, task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.wire.common import SOURCES, STATES

TERMINAL_STATES: Final = frozenset(STATES.to_wire(state) for state in TERMINAL)
_TRIES: Final = 5
_PAGE: Final = 1000
_KINDS: Final = ("submitted", "forked", "user_message", "wait_resolution")
"""The entries that begin turns. All others, which have the answers and the outcomes of tools, are not read here."""
_TASKS_PAGE: Final = 20
_ANSWERED_BY_TEXT: Final = frozenset({task_pb2.WAIT_KIND_QUESTION, task_pb2.WAIT_KIND_APPROVAL})


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """The answer to a message: the events of the task after this sequence, until the task has ended or waits."""

    task_id: str
    after_sequence: int


def message_request_id(conversation_id: str, message_id: str) -> str:
    """Returns the request id of a message: two conversations never share one, whatever their clients choose as ids."""
    return "/".join(part.replace("%", "%25").replace("/", "%2F") for part in (conversation_id, message_id))


class ChatThread:
    """The tasks of one conversation. `options`: of its first task; its request id is the message's."""

    def __init__(self, call: HttpCall, conversation_id: str, options: SubmitBody) -> None:
        source = Source(SourceKind.CONVERSATION, conversation_id, exclusive=True)
        self._call, self._id = call, conversation_id
        self._options = options.changed(source=source, request_id="")

    async def newest(self) -> task_pb2.Task | None:
        """Returns the newest task, or None. Sub-agents have the source of their parent, but are not turns: only the
        tasks of the conversation are exclusive.
        """
        source = task_pb2.SourceFilter(kind=SOURCES.to_wire(SourceKind.CONVERSATION), source_id=self._id)
        token, more = "", True
        while more:
            request = api.ListTasksRequest(
                filter=task_pb2.TaskFilter(source=source), page_size=_TASKS_PAGE, page_token=token, fresh=True
            )
            listed = await self._call.one(self._call.stubs.tasks.ListTasks, request)
            tasks: list[task_pb2.Task] = [task for task in listed.tasks if task.spec.source.exclusive]
            if tasks:
                return tasks[0]
            token = listed.next_page_token
            more = bool(token)
        return None

    async def say(self, message_id: str, text: str, files: Sequence[InputFile] = ()) -> ChatTurn:
        """Begins the turn of a message, once, also when it is repeated. Raises the errors of the calls."""
        for tries_left in reversed(range(_TRIES)):
            task = await self.newest()
            if task is not None and (turn := await self.turn_of(task, message_id)) is not None:
                return turn
            try:
                return await self._begin(task, message_id, text, files)
            except AlreadyExists as error:
                if (known := error.metadata.get("task_id")) and error.reason == "REQUEST_ID_REUSED":
                    begun = await self.turn_of(task_pb2.Task(task_id=known), message_id)
                    if begun is not None:
                        return begun
                if not tries_left:
                    raise
            except WrongState:  # it has ended, or begun to wait, since it was read
                if not tries_left:
                    raise
        raise AssertionError("the last try returns or raises")

    async def current(self) -> ChatTurn | None:
        """Returns the turn that goes on, or None."""
        task = await self.newest()
        if task is None or task.state in TERMINAL_STATES:
            return None
        start = 1
        async for entry in self._entries(task.task_id):
            start = _begin_of(entry) or start
        return ChatTurn(task.task_id, start)

    async def after_answer(self, task_id: str, wait_id: str) -> ChatTurn:
        """Returns the turn that goes on after the answer of a wait. Raises NotFound."""
        async for entry in self._entries(task_id):
            if entry.body.wait_resolution.wait_id == wait_id:
                return ChatTurn(task_id, entry.sequence)
        raise NotFound(f"the task {task_id} had no wait {wait_id}")

    async def _begin(
        self, task: task_pb2.Task | None, message_id: str, text: str, files: Sequence[InputFile]
    ) -> ChatTurn:
        tasks, sent_files = self._call.stubs.tasks, input_files("files", files)
        if task is None:
            options = self._options.changed(goal=text, files=(*(getattr(self._options, "files", None) or ()), *files))
            begun = await submitted(self._call, options, message_id)
            return ChatTurn(begun.task_id, 1)
        if task.state in TERMINAL_STATES:
            fork = api.ForkTaskRequest(task_id=task.task_id, request_id=message_id, message=text, files=sent_files)
            forked = (await self._call.one(tasks.ForkTask, fork, timeout=FORK_SECONDS)).task
            return await self.turn_of(forked, message_id) or ChatTurn(forked.task_id, 1)
        if task.HasField("wait") and task.wait.kind == task_pb2.WAIT_KIND_TOOL_APPROVAL:
            # The turn of a message would neither show the approval nor end.
            message = f"the task waits for the approval of {task.wait.tool}: approve or reject the call first"
            raise HttpRefusal(HTTPStatus.CONFLICT, "WAITS_FOR_APPROVAL", message)
        if task.HasField("wait") and task.wait.kind in _ANSWERED_BY_TEXT:
            answer = api.ResumeTaskRequest(
                task_id=task.task_id, wait_id=task.wait.wait_id, request_id=message_id, reply=text, files=sent_files
            )
            await self._call.one(tasks.ResumeTask, answer)
        else:
            sent = api.SendMessageRequest(task_id=task.task_id, request_id=message_id, text=text, files=sent_files)
            await self._call.one(tasks.SendMessage, sent)
        return await self.turn_of(task, message_id) or ChatTurn(task.task_id, task.sequence)

    async def turn_of(self, task: task_pb2.Task, message_id: str) -> ChatTurn | None:
        """Returns the turn that the message began in this task, or None."""
        is_of_message = False
        async for entry in self._entries(task.task_id):
            body = entry.body
            if entry.sequence == 1:
                is_of_message = body.submitted.request_id == message_id
            elif is_of_message:
                is_fork = entry.sequence == 2 and body.HasField("forked")
                return ChatTurn(task.task_id, _begin_of(entry) if is_fork else 1)
            elif message_id in {body.user_message.request_id, body.wait_resolution.request_id}:
                return ChatTurn(task.task_id, entry.sequence)
        return ChatTurn(task.task_id, 1) if is_of_message else None

    async def _entries(self, task_id: str) -> AsyncGenerator[ledger_pb2.Entry]:
        after, more = 0, True
        while more:
            request = api.ListTaskEntriesRequest(task_id=task_id, after_sequence=after, page_size=_PAGE, kinds=_KINDS)
            page = await self._call.one(self._call.stubs.tasks.ListTaskEntries, request)
            for entry in page.entries:
                yield entry
                after = entry.sequence
            more = page.more


def _begin_of(entry: ledger_pb2.Entry) -> int:
    """Returns the sequence after which a turn begins, if the entry begins one; else 0."""
    body = entry.body
    if body.HasField("forked"):
        return int(entry.sequence + body.forked.copied_entries)
    is_answer = body.wait_resolution.answer_kind == ledger_pb2.WAIT_ANSWER_KIND_REPLY
    is_message = body.HasField("user_message") and bool(body.user_message.request_id)
    return int(entry.sequence) if is_answer or is_message else 0
