"""The clients' part of a schedule. They behave as clients may: they repeat, give up, come back, read slowly, cancel."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Final

from checker.collect import body_hash
from checker.history import Delivered, Method, OperationResult
from tenure.client import Client
from tenure.domain.errors import TenureError, TryLater
from tenure.runtime.request_context import DEFAULT_TENANT
from tenure.runtime.rpc.status import PeerFailed
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tests.fault.suite.client_log import ClientLog, Stream, request_hash
from tests.fault.suite.scenarios import RESULT_SCHEMA, SHAPED, goal_of, model_of
from tests.fault.suite.schedule import GUEST, PlannedTask, Schedule

CALL_SECONDS: Final = 5.0
GIVE_UP_SECONDS: Final = 0.02
SUBMIT_SECONDS: Final = 90.0
PAUSE_SECONDS: Final = 0.3
SLOW_SECONDS: Final = 0.5
RETRY: Final = task_pb2.RetryPolicy(max_attempts=6, factor=1.5)


@dataclass(slots=True)
class Submitted:
    """A planned task and what became of it: `task_id` empty without an answer. `below`: its sub-agents."""

    planned: PlannedTask
    goal: str
    request: api.SubmitTaskRequest
    task_id: str = ""
    below: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Traffic:
    """All clients of one seed, and those of another tenant. `tasks` are in the order of the schedule."""

    users: list[Client]
    guests: list[Client]
    schedule: Schedule
    log: ClientLog = field(default_factory=ClientLog)
    tasks: list[Submitted] = field(default_factory=list)
    _rng: random.Random = field(default_factory=random.Random)
    _run: str = ""

    def __post_init__(self) -> None:
        self._rng.seed(self.schedule.seed)
        self._run = f"s{self.schedule.seed}-{time.time_ns():x}"
        for planned in self.schedule.tasks:
            self._plan(planned)

    def _plan(self, planned: PlannedTask) -> Submitted:
        self.tasks.append(_submission(planned, f"{self._run}-{len(self.tasks)}"))
        return self.tasks[-1]

    async def submit_another(self, planned: PlannedTask, client: str) -> Submitted:
        """A task that a fault needs; no client watches it."""
        task = self._plan(planned)
        await self._submit(task, client, self.user_of(task))
        return task

    def task_ids(self, *, guests: bool) -> set[str]:
        """All of one tenant that are known, with their sub-agents."""
        known = [task for task in self.tasks if task.task_id and task.planned.guest is guests]
        return {task_id for task in known for task_id in (task.task_id, *task.below)}

    async def carry_out(self) -> None:
        """Returns once every submit is answered, every cancel asked for, and every watcher saw its task's end."""
        async with asyncio.TaskGroup() as clients:
            for number, task in enumerate([*self.tasks]):
                users = self.users_of(task)
                clients.create_task(self._one(task, f"client-{number}", users[number % len(users)]))

    def users_of(self, task: Submitted) -> list[Client]:
        """Those of the task's tenant."""
        return self.guests if task.planned.guest else self.users

    def user_of(self, task: Submitted) -> Client:
        """One of them."""
        return self.users_of(task)[0]

    async def _one(self, task: Submitted, client: str, user: Client) -> None:
        await asyncio.sleep(task.planned.at)
        if task.planned.loses_answer:
            await self._submit_once(task, client, user, GIVE_UP_SECONDS)
        async with asyncio.TaskGroup() as more:
            for number in range(task.planned.repeats):
                users = self.users_of(task)
                other = users[number % len(users)]
                more.create_task(self._submit_once(task, f"{client}-again-{number}", other, CALL_SECONDS))
            more.create_task(self._submit(task, client, user))
        if not task.task_id:
            return
        async with asyncio.TaskGroup() as followers:
            for number in range(task.planned.watchers):
                followers.create_task(self._watch(task, f"{client}-watch-{number}", user))
            if task.planned.reads:
                followers.create_task(self._read(task, f"{client}-read", user))
            if task.planned.cancel_after is not None:
                followers.create_task(self._cancel(task, f"{client}-cancel", user))

    async def _submit(self, task: Submitted, client: str, user: Client) -> None:
        """Until it is answered: what a client that wants its task has to do."""
        ends_at = time.monotonic() + SUBMIT_SECONDS
        while not task.task_id and time.monotonic() < ends_at:
            await self._submit_once(task, client, user, CALL_SECONDS)
            if not task.task_id:
                await asyncio.sleep(PAUSE_SECONDS)

    async def _submit_once(self, task: Submitted, client: str, user: Client, timeout_seconds: float) -> None:
        known = {
            "request_id": task.request.request_id,
            "request_hash": request_hash(task.request),
            "tenant": tenant_of(task),
        }
        with self.log.call(client, Method.SUBMIT, **known) as call:
            answer = await user.tasks.SubmitTask(task.request, timeout=timeout_seconds)
            call.answered(answer.task)
            task.task_id = answer.task.task_id

    async def _cancel(self, task: Submitted, client: str, user: Client) -> None:
        assert task.planned.cancel_after is not None
        if task.planned.cancels_call:
            await self._call_began(task, user)
        await asyncio.sleep(task.planned.cancel_after)
        await cancel(self.log, task.task_id, client, user, tenant_of(task))

    async def _call_began(self, task: Submitted, user: Client) -> None:
        """Waits until the task has begun a call, or has ended without; or until no service has answered for long."""
        with suppress(TryLater):
            async with aclosing(user.watch(task.task_id)) as events:
                async for event in events:
                    if event.entry.body.HasField("tool_intent"):
                        return

    async def _read(self, task: Submitted, client: str, user: Client) -> None:
        """GetTask at random moments: its answers must never go back, and strangers get none."""
        (stranger, *_), tenant = (self.users, DEFAULT_TENANT) if task.planned.guest else (self.guests, GUEST)
        for _ in range(6):
            await asyncio.sleep(self._rng.uniform(0.1, 1.5))
            request = api.GetTaskRequest(task_id=task.task_id)
            with self.log.call(client, Method.GET, task_id=task.task_id, tenant=tenant_of(task)) as call:
                call.answered((await user.tasks.GetTask(request, timeout=CALL_SECONDS)).task)
        with self.log.call(f"{client}-stranger", Method.GET, task_id=task.task_id, tenant=tenant) as call:
            call.answered((await stranger.tasks.GetTask(request, timeout=CALL_SECONDS)).task)

    async def _watch(self, task: Submitted, client: str, user: Client) -> None:
        """To the task's end, over as many streams as it takes; some are given up and resumed on the way."""
        after, give_up_after = 0, self._rng.choice([None, 2, 5])
        while True:
            stream = Stream(client, task.task_id, after, tenant_of(task))
            self.log.streams.append(stream)
            async with aclosing(self._events(stream, user, task.planned.slow)) as events:
                async for _ in events:
                    if give_up_after is not None and len(stream.delivered) >= give_up_after:
                        give_up_after = None
                        break
            if stream.ended:
                return
            after = stream.last
            await asyncio.sleep(PAUSE_SECONDS)

    async def _events(self, stream: Stream, user: Client, slow: bool) -> AsyncGenerator[int]:
        """The sequences of one stream, as they are written down; ends where the stream does."""
        request = api.WatchTaskRequest(task_id=stream.task_id, after_sequence=stream.after_sequence)
        watching = user.tasks.WatchTask(request, timeout=60.0)
        try:
            async for event in watching:
                if event.HasField("entry"):
                    entry = event.entry
                    stream.delivered.append(Delivered(entry.sequence, body_hash(entry.body), time.monotonic()))
                    yield entry.sequence
                if slow:
                    await asyncio.sleep(SLOW_SECONDS)
            stream.ended = True
        except TryLater:
            return
        except (TenureError, PeerFailed) as error:
            self.log.surprises.append(f"{stream.client} watch: {type(error).__name__} {error}")
            stream.ended = True
        finally:
            watching.cancel()


def tenant_of(task: Submitted) -> str:
    return GUEST if task.planned.guest else DEFAULT_TENANT


async def cancel(log: ClientLog, task_id: str, client: str, user: Client, tenant: str = DEFAULT_TENANT) -> None:
    """Until it is answered, or refused because the task has ended."""
    for _ in range(20):
        with log.call(client, Method.CANCEL, task_id=task_id, tenant=tenant) as call:
            request = api.CancelTaskRequest(task_id=task_id, reason="no longer wanted")
            call.answered((await user.tasks.CancelTask(request, timeout=CALL_SECONDS)).task)
        if log.operations[-1].answer is not OperationResult.UNKNOWN:
            return
        await asyncio.sleep(PAUSE_SECONDS)


def _submission(planned: PlannedTask, goal: str) -> Submitted:
    in_doubt = task_pb2.IN_DOUBT_POLICY_TELL_MODEL if planned.tells_model else task_pb2.IN_DOUBT_POLICY_WAIT_FOR_PERSON
    request = api.SubmitTaskRequest(
        request_id=goal,
        spec=task_pb2.TaskSpec(
            goal=goal_of(planned.scenario, goal),
            agent=task_pb2.AgentSpec(model=model_of(planned.scenario), max_output_tokens=2048),
            policy=task_pb2.TaskPolicy(on_in_doubt=in_doubt, retry=RETRY),
            result_schema_json=RESULT_SCHEMA if planned.scenario == SHAPED else "",
        ),
    )
    if planned.timeout_seconds is not None:
        request.spec.limits.timeout.FromMilliseconds(round(planned.timeout_seconds * 1000))
    if planned.max_tokens is not None:
        request.spec.limits.max_tokens = planned.max_tokens
    request.spec.policy.retry.initial_backoff.FromMilliseconds(500)
    request.spec.policy.retry.max_backoff.FromSeconds(2)
    return Submitted(planned, goal, request)
