"""The play: submits a task, freezes its first worker, kills the second, wakes the first, kills the third.

No act is timed by sleeping. The first worker freezes itself at a failpoint, and creates a file just before. A tool call
is in flight when its intent is in the ledger and the tool service's call record is STARTED. A model call is in flight
when the model runner's record of it is SENT.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from devstack import ServiceProcess, Stack, StackOptions
from tenure.cli.demo.board import Board, call_of_line, now
from tenure.cli.demo.judgement import LONGEST_RESUME_SECONDS, MODEL, effects_expected, slow_line, slow_step
from tenure.client import Client
from tenure.client.retries import CALL_TIMEOUT_SECONDS
from tenure.domain.states import is_terminal
from tenure.domain.tools import CallState
from tenure.runtime.store.postgres import Pool, open_pool, pool_connection
from tenure.runtime.task_group import TaskGroup
from tenure.v1.admin_service_pb2 import ListWorkersRequest
from tenure.v1.task_pb2 import AgentSpec, TaskSpec
from tenure.v1.task_service_pb2 import SubmitTaskRequest
from tenure.wire.common import moment

# Waits with a limit. A wait that fails reports what it waited for and the logs of the processes involved.

POLL_SECONDS: Final = 0.02
TAIL_LINES: Final = 15


class DemoFailed(RuntimeError):  # noqa: N818  not an error of the program: a result of the demo
    """An act did not happen in time, so this run proves nothing."""


@dataclass(frozen=True, slots=True)
class DemoWait:
    """Waits for `what`, at most `seconds`. A failure shows the ends of the logs of `processes`."""

    what: str
    seconds: float
    processes: tuple[ServiceProcess, ...] = ()

    async def until(self, board: Board, holds: Callable[[], bool]) -> None:
        """Waits until the condition holds, checked at each change of the board. Raises DemoFailed."""
        try:
            async with asyncio.timeout(self.seconds):
                while not holds():
                    board.changed.clear()
                    await board.changed.wait()
        except TimeoutError:
            raise self._timed_out() from None

    async def poll(self, holds: Callable[[], Awaitable[bool]]) -> None:
        """Polls a condition that has no event, such as another process's files and tables. Raises DemoFailed."""
        try:
            async with asyncio.timeout(self.seconds):
                while not await holds():  # noqa: ASYNC110  there is no event to wait for
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            raise self._timed_out() from None

    def _timed_out(self) -> DemoFailed:
        tails = [f"--- the end of {service.name}'s log\n{_tail(service)}" for service in self.processes]
        return DemoFailed("\n".join([f"waited {self.seconds:g} s for {self.what}, which did not happen", *tails]))


def _tail(service: ServiceProcess) -> str:
    return "\n".join(service.log_tail().splitlines()[-TAIL_LINES:])


FIRST: Final = "worker-1"
FREEZES_AT_STEP: Final = 4
"""A step in the middle of the scenario: its intents are committed before the freeze, and two calls have effects."""

MODEL_LATENCY_MS: Final = 400
TASK_SECONDS: Final = 90.0
READY_SECONDS: Final = 60.0
STEPS_SECONDS: Final = 60.0
RESUME_SECONDS: Final = 6 * LONGEST_RESUME_SECONDS
REFUSAL_SECONDS: Final = 60.0
_CALL_STATE: Final = "select state from calls where task_id = %s::uuid and call_id = %s::text"
_MODEL_CALL: Final = "select step, state from models.generations where task_id = %s::uuid"
_SENT: Final = "SENT"


async def perform(board: Board, environment: Mapping[str, str]) -> None:
    """Plays all acts on a stack of its own. Raises DemoFailed, and what the start of the stack raises."""
    await asyncio.to_thread(_write_tools_config, board)
    async with _stage(board, options(board, environment)) as (stack, client, pool), TaskGroup() as watching:
        play = Play(board, stack, client, pool)
        watching.create_task(play.follow(), name="follow")
        await play.submit()
        await play.freeze_the_first()
        await play.kill_the_second_in_a_call()
        await play.wake_the_first()
        await play.kill_the_third_in_a_model_call()
        await play.see_the_end()
        board.finished = True  # the screen does not wait until the processes have ended


def options(board: Board, environment: Mapping[str, str]) -> StackOptions:
    """Returns the stack of the demo. Only the first worker has failpoints.

    They make it freeze itself once other workers are attached, and ignore its trust window after it is woken.
    """
    actions = (f"wait({_others_file(board)})", f"touch({_frozen_file(board)})", "freeze")
    terms = "->".join(f"{FREEZES_AT_STEP}#{action}" for action in actions)
    failpoints = f"worker.after_intent={terms};worker.ignore_trust_window"
    return StackOptions(
        data_dir=board.layout.data_dir,
        workers=1,
        model_runner=True,
        forked=True,
        model_latency_ms=MODEL_LATENCY_MS,
        tools_config=_tools_config(board),
        log_format="human",
        environment={"*": environment, FIRST: {"TENURE_FAILPOINTS": failpoints}},
    )


@asynccontextmanager
async def _stage(board: Board, options: StackOptions) -> AsyncIterator[tuple[Stack, Client, Pool]]:
    """Yields the stack, a client and a connection pool to its database. Kills the workers at the end.

    The task has ended by then, so the workers have no claims to release.
    """
    async with AsyncExitStack() as opened:
        stack = await opened.enter_async_context(Stack(options, board.tell_set_up))
        opened.callback(_kill, stack)
        client = await opened.enter_async_context(Client(stack.gateway_address))
        pool = await opened.enter_async_context(open_pool(stack.postgres_dsn, service="demo", schema="tools"))
        yield stack, client, pool


class Play:
    """The acts, which must be called in this order."""

    def __init__(self, board: Board, stack: Stack, client: Client, pool: Pool) -> None:
        self._board, self._stack, self._client, self._pool = board, stack, client, pool
        self._submitted = asyncio.Event()

    async def follow(self) -> None:
        """Adds every entry of the task's ledger to the board as it is committed, until the task ends."""
        await self._submitted.wait()
        async with aclosing(self._client.watch(self._board.task_id)) as events:
            async for event in events:
                if event.HasField("entry"):
                    self._board.take_entry(event.entry)

    async def submit(self) -> None:
        """Submits the task, which the only worker takes; then starts two more workers. Either may be the next owner."""
        board = self._board
        task = await self._client.submit(
            "Place the orders, and each only once.",
            request=SubmitTaskRequest(spec=TaskSpec(agent=AgentSpec(model=MODEL))),
        )
        board.task_id, board.submitted_at = task.task_id, moment(task.create_time)
        count = len(effects_expected())
        board.tell(f"the task is submitted; its tool calls have {count} effects outside", at=board.submitted_at)
        self._submitted.set()
        first = self._stack.workers[0]
        processes = (self._stack.services["coordinator"], self._stack.services["checkpoint"], first)
        await self._wait("the first worker to open the task", TASK_SECONDS, *processes).until(
            board, lambda: len(board.holders) >= 1
        )
        others = [self._stack.add_worker(), self._stack.add_worker()]

        async def attached() -> bool:
            listed = await self._client.admin.ListWorkers(ListWorkersRequest(), timeout=CALL_TIMEOUT_SECONDS)
            return len(listed.workers) == len(self._stack.workers)

        await self._wait("two more workers to attach", READY_SECONDS, *others).poll(attached)
        board.others_ready = True
        _others_file(board).touch()

    async def freeze_the_first(self) -> None:
        """Waits until the first worker freezes itself between the intents and their calls, and for the takeover.

        The frozen worker does not renew its lease, so another worker takes the task over.
        """
        board, first, file = self._board, self._worker(0), _frozen_file(self._board)

        async def frozen() -> bool:
            return await asyncio.to_thread(file.exists)

        await self._wait(f"{first.name} to freeze itself", STEPS_SECONDS, first).poll(frozen)
        board.frozen_at = datetime.fromtimestamp(file.stat().st_mtime, UTC)
        board.tell(
            f"A is FROZEN (SIGSTOP) after committing step {FREEZES_AT_STEP}'s tool intents, before executing them",
            at=board.frozen_at,
            alarm=True,
        )
        await self._next_holder(2)

    async def kill_the_second_in_a_call(self) -> None:
        """Kills the second worker while a call with an effect is in flight: intent committed, record STARTED."""
        board, second, line = self._board, self._worker(1), slow_line()
        await self._wait(f"the intent to append {line!r}", STEPS_SECONDS, second).until(
            board, lambda: call_of_line(board.entries, line) is not None
        )
        intent = call_of_line(board.entries, line)
        assert intent is not None
        call = intent.body.tool_intent

        async def started() -> bool:
            return await self._call_state(call.call_id) is CallState.STARTED

        tools = self._stack.services["tools"]
        await self._wait(f"call {call.call_id} to be STARTED", STEPS_SECONDS, second, tools).poll(started)
        board.tell(f"call {call.call_id} ({call.tool}) runs: its intent is in the ledger, its record is STARTED")
        board.interrupted_call, board.killed_at = call.call_id, now()
        second.kill()
        if not await started():
            raise DemoFailed(f"call {call.call_id} ended before its worker was killed")
        board.tell("B is KILLED (SIGKILL) in the middle of the call", at=board.killed_at, alarm=True)
        await self._next_holder(3)

    async def wake_the_first(self) -> None:
        """Wakes the first worker, which continues where it stopped. The ledger and the tool service must refuse it."""
        board, first = self._board, self._worker(0)
        board.woken_at = now()
        first.wake()
        board.tell(
            "A is WOKEN (SIGCONT), without its trust window (failpoint worker.ignore_trust_window)",
            at=board.woken_at,
            alarm=True,
        )
        stale = board.holders[0].epoch

        async def refused() -> bool:
            listed = await self._client.refusals(board.task_id)
            board.take_refusals(listed.ledger, listed.tools)
            fences = (board.refused_by_ledger, board.refused_by_tools)
            return all(any(write.presented_epoch == stale for write in refused) for refused in fences)

        await self._wait("both fences to refuse the woken worker", REFUSAL_SECONDS, first).poll(refused)

    async def kill_the_third_in_a_model_call(self) -> None:
        """Kills the third worker while the model answers it. The model runner goes on, and the next owner joins it.

        The next owner is the first worker: it is awake, and no other is left.
        """
        board, third, step = self._board, self._worker(2), slow_step()
        runner = self._stack.services["models"]

        async def sent() -> bool:
            return await self._model_call() == (step, _SENT)

        await self._wait(f"the model call of step {step} to be {_SENT}", STEPS_SECONDS, third, runner).poll(sent)
        board.interrupted_step, board.third_killed_at = step, now()
        third.kill()
        if not await sent():
            raise DemoFailed(f"the model call of step {step} ended before its worker was killed")
        board.tell(f"C is KILLED (SIGKILL) while the model answers step {step}", at=board.third_killed_at, alarm=True)
        await self._next_holder(4)

    async def see_the_end(self) -> None:
        """Waits until the last worker has ended the task."""
        board, last = self._board, self._worker(3)
        await self._wait("the task's end", TASK_SECONDS, last).until(
            board, lambda: board.state is not None and is_terminal(board.state)
        )

    async def _next_holder(self, count: int) -> None:
        coordinator, *workers = self._stack.services["coordinator"], *self._stack.workers
        await self._wait(f"takeover number {count - 1}", RESUME_SECONDS, coordinator, *workers).until(
            self._board, lambda: len(self._board.holders) >= count
        )

    async def _call_state(self, call_id: str) -> CallState | None:
        """Returns the state of the call's record, read from the tool service's table: its API shows only outcomes."""
        async with pool_connection(self._pool) as postgres:
            row = await (await postgres.execute(_CALL_STATE, (self._board.task_id, call_id))).fetchone()
        return None if row is None else CallState(row[0])

    async def _model_call(self) -> tuple[int, str] | None:
        """Returns the step and the state of the task's newest model call, read from the model runner's table."""
        async with pool_connection(self._pool) as postgres:
            row = await (await postgres.execute(_MODEL_CALL, (self._board.task_id,))).fetchone()
        return None if row is None else (int(row[0]), str(row[1]))

    def _worker(self, index: int) -> ServiceProcess:
        """Returns the process of the claim holder with this index."""
        return self._stack.services[self._board.holders[index].worker_id]

    def _wait(self, what: str, seconds: float, *processes: ServiceProcess) -> DemoWait:
        return DemoWait(what, seconds, processes)


def _kill(stack: Stack) -> None:
    for worker in stack.workers:
        worker.kill()


def _tools_config(board: Board) -> Path:
    return board.layout.data_dir / "tools.json"


def _write_tools_config(board: Board) -> None:
    """Writes the config file of the tool service: an order goes out once, however often the model plans it."""
    config = {"built_in": {"append_record_unsafe": {"effect_key": {"arguments": ["/line"], "scope": "task"}}}}
    path = _tools_config(board)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(config), encoding="utf-8")


def _others_file(board: Board) -> Path:
    return board.layout.data_dir / "others-are-there"


def _frozen_file(board: Board) -> Path:
    return board.layout.data_dir / "frozen"
