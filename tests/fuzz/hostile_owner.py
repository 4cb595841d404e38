"""An owner of a task with a loop of its own, in whatever language: it holds a true claim and writes what it likes."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from services.checkpoint.entries import WRITTEN_BY_OWNERS
from tenure.domain.errors import TenureError
from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2, task_pb2, tool_pb2
from tenure.v1 import task_service_pb2 as api
from tests.fuzz.calling import Answer, Code, call, check_answer
from tests.fuzz.messages import messages, type_of
from tests.fuzz.methods import method_named
from tests.fuzz.world import Owner, World
from tests.support.patience import PATIENCE_SECONDS

COMMIT = method_named("checkpoint-CheckpointService.Commit")
OPEN = method_named("checkpoint-CheckpointService.Open")
ENTRIES = method_named("gateway-TaskService.ListTaskEntries")
EXPLAIN = method_named("gateway-TaskService.ExplainTask")
SEND = method_named("gateway-TaskService.SendMessage")
CANCEL = method_named("gateway-TaskService.CancelTask")
REQUEUE = method_named("gateway-AdminService.RequeueTask")
GRANT = method_named("gateway-AdminService.GrantBudget")
FORK = method_named("gateway-TaskService.ForkTask")

Result = TypeVar("Result")
CONTENTS = st.sampled_from(
    ['[{"type": "text", "text": "x"}]', '[{"type": "tool_use", "id": "u", "name": "write_file", "input": {}}]', "[]"]
)
"""An answer's content, as a provider sends it."""
KNOWN = {"content_json": CONTENTS}
ENTRY = messages(ledger_pb2.NewEntry.DESCRIPTOR, KNOWN, hostile_in=15)
TRANSITION = messages(pb.Transition.DESCRIPTOR, hostile_in=20)
ANYTHING = messages(pb.CommitRequest.DESCRIPTOR, KNOWN, hostile_in=10)
KINDS = sorted(field.name for field in ledger_pb2.EntryBody.DESCRIPTOR.fields)
OWNED = st.sampled_from(sorted(WRITTEN_BY_OWNERS))


@st.composite
def entry_of_kind(draw: Callable[[st.SearchStrategy[Any]], Any]) -> ledger_pb2.NewEntry:
    """Each kind that an owner may write as often, and others at times; one field in eight is hostile."""
    kind = draw(st.one_of(OWNED, OWNED, OWNED, OWNED, st.sampled_from(KINDS)))
    field = ledger_pb2.EntryBody.DESCRIPTOR.fields_by_name[kind]
    entry = ledger_pb2.NewEntry(step=draw(st.integers(0, 3)))
    getattr(entry.body, field.name).CopyFrom(draw(messages(type_of(field), KNOWN, hostile_in=8)))
    return entry


class HostileOwner(RuleBasedStateMachine):
    """One task from its submit; what it has become in the end is looked at by the test, for all tasks at once."""

    def __init__(self, world: World, loop: asyncio.AbstractEventLoop, left: list[HostileOwner]) -> None:
        super().__init__()
        self.world, self.left = world, left
        self.sent: list[str] = []
        self._loop = loop
        self._last: pb.CommitRequest | None = None
        self.owner: Owner

    def _run(self, work: Awaitable[Result]) -> Result:
        async def waited() -> Result:
            return await work

        return asyncio.run_coroutine_threadsafe(waited(), self._loop).result(2 * PATIENCE_SECONDS)

    @property
    def task_id(self) -> str:
        return self.owner.task_id

    @initialize(result_schema=st.booleans(), tools=st.booleans())
    def submit(self, result_schema: bool, tools: bool) -> None:
        spec: dict[str, Any] = {"result_schema_json": '{"type": "object"}'} if result_schema else {}
        if tools:
            spec["agent"] = task_pb2.AgentSpec(tools=task_pb2.ToolAllowlist(names=["write_file", "ask_user"]))
        self.owner = self._run(self.world.owned(**spec))
        self.left.append(self)

    @rule(entries=st.lists(entry_of_kind() | ENTRY, min_size=1, max_size=5))
    def commits_entries(self, entries: list[ledger_pb2.NewEntry]) -> None:
        for entry in entries:  # one bad entry refuses a commit: so each is tried by itself, too
            self._commit(pb.CommitRequest(entries=[entry]))
        self._commit(pb.CommitRequest(entries=entries))

    @rule(outcome=messages(tool_pb2.Outcome.DESCRIPTOR, hostile_in=8), step=st.integers(1, 3), index=st.integers(0, 3))
    def settles_a_call(self, outcome: tool_pb2.Outcome, step: int, index: int) -> None:
        self.opens_a_call(step, index, "write_file")
        body = ledger_pb2.EntryBody(tool_outcome=ledger_pb2.ToolOutcome(call_id=f"{step}.{index}", outcome=outcome))
        self._commit(pb.CommitRequest(entries=[ledger_pb2.NewEntry(step=step, body=body)]))

    @rule(request=ANYTHING)
    def commits_anything(self, request: pb.CommitRequest) -> None:
        self._commit(request)

    @rule(transition=TRANSITION, entries=st.lists(entry_of_kind(), max_size=2))
    def moves(self, transition: pb.Transition, entries: list[ledger_pb2.NewEntry]) -> None:
        self._commit(pb.CommitRequest(transition=transition, entries=entries))

    @rule(step=st.integers(1, 3), attempt=st.integers(1, 3))
    def reserves(self, step: int, attempt: int) -> None:
        reserve = pb.Reserve(step=step, attempt_number=attempt, model="sim-plain", input_tokens=10)
        reserve.max_output_tokens, reserve.min_output_tokens = 100, 1
        self._commit(pb.CommitRequest(reserve=reserve))

    @rule(step=st.integers(1, 3), index=st.integers(0, 3), tool=st.sampled_from(["write_file", "ask_user", "x"]))
    def opens_a_call_of(self, step: int, index: int, tool: str) -> None:
        self.opens_a_call(step, index, tool)

    def opens_a_call(self, step: int, index: int, tool: str) -> None:
        intent = ledger_pb2.ToolIntent(call_id=f"{step}.{index}", tool_use_id="u", tool=tool, arguments_json="{}")
        self._commit(
            pb.CommitRequest(entries=[ledger_pb2.NewEntry(step=step, body=ledger_pb2.EntryBody(tool_intent=intent))])
        )

    @precondition(lambda self: self._last is not None)
    @rule()
    def repeats_its_last_commit(self) -> None:
        self._call(COMMIT, self._last)

    @rule()
    def opens_again(self) -> None:
        self._call(OPEN, pb.OpenRequest(token=self.owner.token))

    @rule(message=messages(api.SendMessageRequest.DESCRIPTOR))
    def is_told_something(self, message: api.SendMessageRequest) -> None:
        message.task_id = self.task_id
        self._call(SEND, message)

    @rule(request=messages(admin.GrantBudgetRequest.DESCRIPTOR))
    def is_granted_more(self, request: admin.GrantBudgetRequest) -> None:
        request.task_id = self.task_id
        self._call(GRANT, request)

    @rule()
    def is_looked_at(self) -> None:
        self._call(ENTRIES, api.ListTaskEntriesRequest(task_id=self.task_id, page_size=1000), must=Code.OK)
        self._call(EXPLAIN, api.ExplainTaskRequest(task_id=self.task_id), must=Code.OK)

    @rule(request=messages(api.ForkTaskRequest.DESCRIPTOR, hostile_in=20))
    def is_forked(self, request: api.ForkTaskRequest) -> None:
        request.task_id = self.task_id
        self._call(FORK, request)

    @rule(reason=st.sampled_from(["WORKER_DRAINED", "WORKER_HALTED"]))
    def changes_hands(self, reason: str) -> None:
        """The claim is given back; a task that was RUNNING is granted again."""
        if self._state() == task_pb2.TASK_STATE_RUNNING and not self._ending():
            self._run(self._hand_over(reason))

    @rule()
    def is_requeued_once_ended(self) -> None:
        self._call(REQUEUE, admin.RequeueTaskRequest(task_id=self.task_id, request_id=str(uuid.uuid4()), reason="on"))
        if self._state() == task_pb2.TASK_STATE_QUEUED:
            self.owner = self._run(self.world.granted_again(self.task_id))

    def _commit(self, request: pb.CommitRequest) -> None:
        request.token.CopyFrom(self.owner.token)
        request.commit_id, request.commit_number = str(uuid.uuid4()), self.owner.next_number
        request.known_sequence = self.owner.known_sequence
        answer = self._call(COMMIT, request)
        if answer.code is Code.OK:
            self._last = request
            self.owner.next_number += 1
            self.owner.known_sequence = answer.messages[0].sequence

    def _call(self, method: Any, request: Any, must: Code | None = None) -> Answer:
        answer: Answer = self._run(call(self.world.bare[method.process], method, [request]))
        self.world.tally.codes[str(method), answer.code.name] += 1
        if answer.code is Code.OK:
            self.sent.append(f"{method} {str(request)[:600]}")
        check_answer(method, [request], answer)
        assert must is None or answer.code is must, f"{method}: {answer}\nafter {self.story()}"
        self.world.check_processes()
        return answer

    def story(self) -> str:
        """What was accepted, for the reader of a failure."""
        return f"{self.task_id}:\n" + "\n".join(self.sent[-30:])

    def _state(self) -> int:
        return self._run(self.world.task(self.task_id)).state

    def _ending(self) -> bool:
        return self._run(self.world.task(self.task_id)).cancel_requested

    async def _hand_over(self, reason: str) -> None:
        assert self.world.worker is not None
        await self.world.worker.release(self.owner.grant, reason)
        async with asyncio.timeout(PATIENCE_SECONDS):
            self.owner = await self.world.granted_again(self.task_id)


async def ends_and_goes_on(world: World, one: HostileOwner) -> None:
    """The laws about what is left: a task that was cancelled ends soon; a requeue that was taken makes it go on; and
    then it is readable and can be ended again. Its ledger does not grow while it is being ended.
    """
    try:
        before = (await world.task(one.task_id)).sequence
        await world.cancel(one.task_id)
        ended = await world.ends(one.task_id)
        growth = ended.sequence - before
        assert growth <= MAX_GROWTH, f"{growth} entries were written to end it"
        request = admin.RequeueTaskRequest(task_id=one.task_id, request_id=str(uuid.uuid4()), reason="go on")
        answer = await call(world.bare["gateway"], REQUEUE, [request])
        check_answer(REQUEUE, [request], answer)
        if answer.code is Code.OK:
            owner = await world.granted_again(one.task_id)
            assert owner.known_sequence >= ended.sequence
            await world.cancel(one.task_id)
            await world.ends(one.task_id)
        for method, read in (
            (ENTRIES, api.ListTaskEntriesRequest(task_id=one.task_id, page_size=1000)),
            (EXPLAIN, api.ExplainTaskRequest(task_id=one.task_id)),
        ):
            check_answer(method, [read], seen := await call(world.bare["gateway"], method, [read]))
            assert seen.code is Code.OK, seen
    except (TimeoutError, TenureError, AssertionError) as error:
        task = await world.task(one.task_id)
        raise AssertionError(f"{error!r}; the task: {task}\nafter {one.story()}") from error


MAX_GROWTH = 64
"""Entries: more than the outcomes of all calls that one of these opens, far fewer than an ending that is tried for ever
writes.
"""
