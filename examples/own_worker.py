"""A worker with its own agent loop, on the public contract alone: gRPC and generated stubs.

It imports nothing else of Tenure. A worker in Go or TypeScript generates the same stubs from `protos/tenure/v1` and
does the same; it must keep "Rule 1" to "Rule 9", marked here and in `own_session.py`. The services refuse a worker that
breaks a rule of safety: a worker with a bug harms its own task, never a record.

    tenure dev                                                     in another terminal
    python examples/own_worker.py --queue orders
    tenure submit '{"file": "orders", "lines": ["tea", "milk"]}' --loop my-loop --queue orders --watch
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from own_session import Held, Session

from tenure.v1 import checkpoint_service_pb2 as ledger_pb
from tenure.v1 import coordinator_service_pb2 as coordinator_pb
from tenure.v1 import ledger_pb2, task_pb2, tool_pb2
from tenure.v1 import tool_service_pb2 as tools_pb
from tenure.v1.checkpoint_service_pb2_grpc import CheckpointServiceStub
from tenure.v1.coordinator_service_pb2_grpc import CoordinatorServiceStub
from tenure.v1.tool_service_pb2_grpc import ToolServiceStub

T = TypeVar("T")
LOOP: Final = "my-loop"
CALL_SECONDS: Final = 10.0
TOOL_SECONDS: Final = 60.0
TRIES: Final = 8
TRY_AGAIN: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED)
# Several replicas behind one channel: a call goes to a live replica; pings detect a frozen replica.
CHANNEL: Final = [
    ("grpc.service_config", '{"loadBalancingConfig": [{"round_robin": {}}]}'),
    ("grpc.keepalive_time_ms", 5000),
    ("grpc.keepalive_timeout_ms", 3000),
    ("grpc.http2.ping_timeout_ms", 3000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.max_reconnect_backoff_ms", 2000),
]


def next_action(point: Point) -> ledger_pb2.ToolIntent | str:
    """Returns the agent's next tool call, or its final answer. This agent writes each line of the goal, one per step.

    Your agent may call a model of any provider; after a crash it continues from the committed history. To let Tenure
    keep the budget, first reserve tokens (Commit with `reserve`), then commit an `assistant_message` with the usage.
    """
    order = json.loads(point.goal)
    done = len(point.outcomes)
    if done == len(order["lines"]):
        return f"{done} lines are written."
    arguments = {"file": order["file"], "line": order["lines"][done], "delay_ms": order.get("delay_ms", 0)}
    # Rule 4. "<step>.<index>" names the call for ever: the tool service runs each name at most once.
    call_id = f"{done + 1}.0"
    return ledger_pb2.ToolIntent(call_id=call_id, tool="append_record_unsafe", arguments_json=json.dumps(arguments))


@dataclass
class Point:
    """The resume point of a task: its ledger, folded. Every owner folds the same entries and continues from here."""

    goal: str = ""
    sequence: int = 0
    intents: dict[str, ledger_pb2.ToolIntent] = field(default_factory=dict)
    outcomes: dict[str, tool_pb2.Outcome] = field(default_factory=dict)
    resolutions: dict[str, tool_pb2.CallResolution] = field(default_factory=dict)

    def apply(self, body: ledger_pb2.EntryBody, actor: str = "") -> None:
        """Applies one entry. Ignores kinds that this loop does not use: a newer version may write unknown kinds."""
        match body.WhichOneof("body"):
            case "submitted":
                self.goal = body.submitted.spec.goal
            case "tool_intent":
                self.intents[body.tool_intent.call_id] = body.tool_intent
            case "tool_outcome":
                self.outcomes[body.tool_outcome.call_id] = body.tool_outcome.outcome
            case "operator_request" if body.operator_request.HasField("resolve_call"):
                request, reason = body.operator_request.resolve_call, body.operator_request.reason
                self.resolutions[request.call_id] = tool_pb2.CallResolution(
                    call_attempt=request.call_attempt, decision=request.decision, reason=reason, actor=actor
                )

    def open_intents(self) -> list[ledger_pb2.ToolIntent]:
        """Returns the intents without an outcome: an earlier owner may or may not have made these calls."""
        return [intent for call_id, intent in self.intents.items() if call_id not in self.outcomes]


class TaskRun:
    """One task under one claim: open; step by step commit the intent, make the call, commit the outcome; close out."""

    def __init__(self, worker: Worker, held: Held) -> None:
        self.worker, self.held = worker, held
        self.point, self.next_commit_number = Point(), 1

    async def run(self) -> None:
        """Returns when the task has left this worker. Raises the refusal that ends the work on it."""
        await again(self.open)
        while True:
            for intent in self.point.open_intents():
                outcome = await again(partial(self.execute, intent))
                if outcome.status == tool_pb2.OUTCOME_STATUS_IN_DOUBT and outcome.detail != "ABANDONED":
                    # The intent stays open: a person resolves this call attempt, and the next owner executes the call
                    # again with the resolution.
                    doubt = tool_pb2.CallInDoubt(call_id=intent.call_id, call_attempt=outcome.call_attempt)
                    return await self.leave(task_pb2.TASK_STATE_WAITING_USER, "TOOL_IN_DOUBT", calls_in_doubt=[doubt])
                await self.commit(tool_outcome=ledger_pb2.ToolOutcome(call_id=intent.call_id, outcome=outcome))
            # Rule 9. A close-out needs an outcome for every open intent; between two steps no intent is open. A loop
            # that ends a task within a step calls Fence(close), and commits the outcomes in its answer with the end.
            if self.held.cancelled:  # after a second a coordinator ends the task, and this worker gets STALE_EPOCH
                return await self.leave(task_pb2.TASK_STATE_CANCELLED, "CANCEL_REQUESTED")
            move = next_action(self.point)
            if isinstance(move, str):
                return await self.leave(task_pb2.TASK_STATE_SUCCEEDED, "FINAL_ANSWER", result=move)
            await self.commit(tool_intent=move)  # Rule 5. The intent is durable before the call.

    async def open(self) -> None:
        """Rule 6. Raises the ledger's fence and reads the history in one transaction.

        From now on the ledger refuses every earlier claim. Open may be repeated under the same claim.
        """
        self.point = Point()
        async for part in self.worker.ledger.Open(ledger_pb.OpenRequest(token=self.held.token), timeout=CALL_SECONDS):
            if part.HasField("header"):
                self.next_commit_number = part.header.next_commit_number
                self.held.cancelled = part.header.task.cancel_requested
            for entry in part.page.entries:
                self.point.apply(entry.body, entry.actor)
                self.point.sequence = self.held.progress.sequence = entry.sequence

    async def commit(self, transition: ledger_pb.Transition | None = None, **fact: Any) -> None:
        """Rule 7. Commit numbers are 1, 2, 3 … within a claim. After a lost answer, sends the very same request again.

        The ledger recognises the commit_id and repeats its answer; it writes nothing twice.
        """
        bodies = [ledger_pb2.EntryBody(**fact)] if fact else []
        request = ledger_pb.CommitRequest(
            token=self.held.token,
            commit_id=str(uuid.uuid4()),
            commit_number=self.next_commit_number,
            known_sequence=self.point.sequence,
            entries=[ledger_pb2.NewEntry(step=step_of(body), body=body) for body in bodies],
            transition=transition,
        )
        response = await again(lambda: self.worker.ledger.Commit(request, timeout=CALL_SECONDS))
        self.next_commit_number += 1
        for body in (*(entry.body for entry in response.foreign_entries), *bodies):  # external entries precede our own
            self.point.apply(body)
        self.point.sequence = self.held.progress.sequence = response.sequence
        self.held.cancelled = self.held.cancelled or response.cancel_requested

    async def leave(self, state: task_pb2.TaskState.ValueType, reason: str, **more: Any) -> None:
        """Commits a transition out of RUNNING; afterwards the claim holds no task."""
        await self.commit(ledger_pb.Transition(to_state=state, reason=reason, **more))

    async def execute(self, intent: ledger_pb2.ToolIntent) -> tool_pb2.Outcome:
        """Rule 8. Returns the outcome of the call; the caller repeats Execute until there is one.

        The tool service joins a running call and answers an ended call from its record, whichever owner made the call
        and whichever replica runs it.
        """
        await self.worker.session.trusted()
        request = tools_pb.ExecuteRequest(
            token=self.held.token,
            call_id=intent.call_id,
            tool=intent.tool,
            arguments_json=intent.arguments_json,
            resolution=self.point.resolutions.get(intent.call_id),
        )
        async for event in self.worker.tools.Execute(request, timeout=TOOL_SECONDS):
            self.held.progress.tool_signs += 1
            if event.HasField("outcome"):
                return event.outcome  # type: ignore[no-any-return]  # the stubs' streams have no types
        raise EOFError("the call's stream ended without an outcome")


class Worker:
    """The session, and one coroutine for each granted task."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.ledger: Any = CheckpointServiceStub(channel(options.checkpoints))
        self.tools: Any = ToolServiceStub(channel(options.tools))
        hello = coordinator_pb.Hello(
            session_secret=os.urandom(32),  # Rule 1. Only a process that has it can attach the session again.
            worker_id=options.id,
            queues=[options.queue],
            loops=[LOOP],
            free_slots=options.slots,
        )
        self.session = Session(CoordinatorServiceStub(channel(options.coordinators)), hello, self.take)

    def take(self, held: Held) -> None:
        held.work = asyncio.create_task(self.work(held))

    async def work(self, held: Held) -> None:
        """Runs a granted task, and releases its claim with the reason."""
        task_id, reason = held.grant.task_id, "WORKER_CRASHED"
        print(f"{task_id} begun", flush=True)
        try:
            await TaskRun(self, held).run()
            reason = "CLOSED"
        except grpc.aio.AioRpcError as error:
            # STALE_EPOCH: another owner has the task. Drop it, and never take an epoch from the error. After any other
            # refusal, also SEQUENCE_CONFLICT, release the claim: the next owner folds the ledger again.
            refusal = reason_of(error)
            reason = {"STALE_EPOCH": "FENCED", "WRONG_STATE": "CLOSED"}.get(refusal, "WORKER_HALTED")
            print(f"{task_id} dropped: {refusal or error.code().name}", flush=True)
        finally:
            await self.session.give_back(held, reason)
        print(f"{task_id} left: {reason}", flush=True)


async def again(call: Callable[[], Awaitable[T]]) -> T:
    """Repeats a call until it succeeds, at most TRIES times: all calls here may be repeated. Raises refusals."""
    for tried in range(1, TRIES + 1):
        try:
            return await call()
        except (grpc.aio.AioRpcError, EOFError) as error:
            if tried == TRIES or (isinstance(error, grpc.aio.AioRpcError) and error.code() not in TRY_AGAIN):
                raise
        await asyncio.sleep(random.uniform(0.05, 0.2) * min(2**tried, 20))
    raise AssertionError("the last try returns or raises")


def reason_of(error: grpc.aio.AioRpcError) -> str:
    """Returns the reason code of a refusal, or "". Every refusal carries a google.rpc.ErrorInfo."""
    status = rpc_status.from_call(error)
    info = error_details_pb2.ErrorInfo()
    return str(next((info.reason for detail in (status.details if status else ()) if detail.Unpack(info)), ""))


def step_of(body: ledger_pb2.EntryBody) -> int:
    """Returns the step, which is part of the call id."""
    return int((body.tool_intent.call_id or body.tool_outcome.call_id).partition(".")[0])


def channel(addresses: str) -> grpc.aio.Channel:
    """Opens a channel to all replicas of a service: `ip:port,ip:port`, or one name that resolves to all of them."""
    return grpc.aio.insecure_channel(f"ipv4:{addresses}" if "," in addresses else addresses, options=CHANNEL)


async def main() -> None:
    parser = argparse.ArgumentParser(description=f"A worker with the loop {LOOP}.")
    parser.add_argument("--id", default=f"own-{os.getpid()}-{uuid.uuid4().hex[:6]}", help="unique among live workers")
    parser.add_argument("--queue", default="default")
    parser.add_argument("--slots", type=int, default=4, help="tasks at once")
    parser.add_argument("--coordinators", default="127.0.0.1:8471", help="host:port, or ip:port,ip:port")
    parser.add_argument("--checkpoints", default="127.0.0.1:8472")
    parser.add_argument("--tools", default="127.0.0.1:8473")
    worker = Worker(parser.parse_args())
    running, stop = asyncio.create_task(worker.session.run()), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()
    await worker.session.drain()
    await asyncio.wait({running}, timeout=CALL_SECONDS)  # the coordinator ends the stream once it has read all


if __name__ == "__main__":
    asyncio.run(main())
