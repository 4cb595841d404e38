"""One ledger and one tool service, whole or without a guard, and scripted callers whose every call is remembered.

async with bench.arena(folder, "ledger_fence") as arena:       # "" for the services as they are
    owner = await arena.owner_with_a_call()
    …
    violations = verify(await arena.history())
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import psycopg

from checker.collect import collect_tasks, read_effects
from checker.history import (
    BoundRecord,
    History,
    Method,
    Operation,
    OperationResult,
    StopRecord,
)
from services.tools.rules.book import FRESH_SECONDS
from tenure.client import Client
from tenure.domain.in_doubt import CallInDoubt, Decision, Resolution
from tenure.domain.states import Reason, TaskState
from tenure.domain.tools import Outcome
from tenure.runtime.rpc.client import open_channel
from tenure.v1 import admin_service_pb2, ledger_pb2, task_pb2, tool_pb2, tool_service_pb2
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import task_service_pb2 as tasks_pb
from tenure.v1.tool_service_pb2_grpc import ToolServiceStub
from tenure.wire.common import STATES, duration
from tenure.wire.tool import (
    calls_in_doubt_to_wire,
    decision_to_wire,
    outcome_to_domain,
    outcome_to_wire,
    resolution_to_wire,
)
from tests.fault.mutants.catalogue import MUTATIONS
from tests.fault.mutants.lifting import lift
from tests.fault.recording_stub import RememberedLedger, without_overlap
from tests.support.fix_checkpoint import (
    Checkpoint,
    Owner,
    entry,
    reserve,
)
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS, SHORT_LIFE_SECONDS
from tests.support.service_process import ServiceProcess

TOOL, CALL = "append_record_unsafe", "1.0"
REPEATABLE_TOOL = "append_record"
OWN_TOOL = "write_letter"


@dataclass
class Arena:
    """Both services, and the callers of a few tasks. `folder` is for the files of failpoints.

    `start_tools(failpoints, alike=…)` starts another replica; alike: without the guard that this one has not.
    """

    ledger: Checkpoint
    remembered: RememberedLedger
    tools: Any
    auditor: Client
    start_tools: Callable[..., Awaitable[ServiceProcess]]
    records: Path
    folder: Path
    tools_dsn: str
    task_ids: list[str] = field(default_factory=list)
    arguments_json: str = ""
    stops: list[StopRecord] = field(default_factory=list)
    bounds: list[BoundRecord] = field(default_factory=list)

    async def task(self, **spec: Any) -> str:
        """A queued task that the history will tell of."""
        self.task_ids.append((await self.ledger.create(**spec)).task_id)
        return self.task_ids[-1]

    async def admitted_task(self, source: task_pb2.Source) -> str:
        """A task that the line of its source has admitted."""
        task_id = await self.task(source=source)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await self.ledger.get(task_id)).in_line:
                await asyncio.sleep(0.01)
        return task_id

    async def requeue(self, task_id: str) -> None:
        """An operator lets the ended task go on."""
        act = ledger_pb2.OperatorRequest(reason="once more", requeue=ledger_pb2.OperatorRequest.Requeue())
        request = pb.AppendForeignRequest(task_id=task_id, request_id=str(uuid4()), actor="olga", operator_request=act)
        await self.ledger.stub.AppendForeign(request, timeout=CALL_SECONDS)

    async def owner_with_a_call(
        self, delay_ms: int = 0, tool: str = TOOL, *defined: tool_pb2.ToolDefinition, calls: int = 1
    ) -> Owner:
        """A task's first owner, whose model asked for one tool: the intent is committed, the tool not called.

        `calls`: how often it asked for the same.
        """
        owner = await self.ledger.claim(await self.task())
        arguments = {"file": owner.task.task_id, "line": "x", "delay_ms": delay_ms}
        self.arguments_json = json.dumps(arguments)
        if defined:
            await owner.commit(entry(0, tools_defined=ledger_pb2.ToolsDefined(tools=defined)))
        await owner.commit(reserve=reserve())
        await owner.commit(*_asked_for(arguments, tool, calls))
        return owner

    async def stop(self, tools: Any = None) -> None:
        """A stop of all calls, until the tool service has confirmed it. `resume` ends it."""
        request = tool_service_pb2.SetStopsRequest(epoch=time.time_ns(), stops=[admin_service_pb2.Stop(epoch=1)])
        request.stops[0].stop_time.GetCurrentTime()
        await (tools or self.tools).SetStops(request, timeout=CALL_SECONDS)
        self.stops.append(StopRecord(answered_at=time.time()))

    async def resume(self) -> None:
        """The end of all stops."""
        self.stops = [replace(stop, ended_at=time.time()) for stop in self.stops]
        await self.tools.SetStops(tool_service_pb2.SetStopsRequest(epoch=time.time_ns()), timeout=CALL_SECONDS)

    async def done_or_blocked(self, call: asyncio.Task[Any]) -> None:
        """Returns when the call to a tool service is done, or waits for a lock in the database."""
        waiting = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        async with (
            asyncio.timeout(PATIENCE_SECONDS),
            await psycopg.AsyncConnection.connect(self.tools_dsn, autocommit=True) as postgres,
        ):
            while not call.done() and await (await postgres.execute(waiting)).fetchone() is None:
                await asyncio.sleep(0.01)

    @asynccontextmanager
    async def bounded(self, count: int) -> AsyncIterator[None]:
        """A rule that allows so many calls of TOOL while this lasts. All replicas know of it."""
        name = f"few-{uuid4()}"
        allowed = tool_pb2.ToolRule(
            name=name,
            tool=TOOL,
            verdict=tool_pb2.RULE_VERDICT_ALLOW,
            bounds=tool_pb2.RuleBounds(count=count),
        )
        await self.auditor.admin.SetToolRule(admin_service_pb2.SetToolRuleRequest(tool_rule=allowed))
        await asyncio.sleep(2 * FRESH_SECONDS)
        self.bounds.append(BoundRecord(name=name, tenant="default", tool=TOOL, since=time.time(), count=count))
        try:
            yield
        finally:
            self.bounds = [replace(bound, until=time.time()) for bound in self.bounds]
            await self.auditor.admin.DeleteToolRule(admin_service_pb2.DeleteToolRuleRequest(name=name))

    async def execute(
        self,
        owner: Owner,
        tools: Any = None,
        word: Resolution | None = None,
        tool: str = TOOL,
        call_id: str = CALL,
    ) -> Outcome:
        """The call of owner_with_a_call, to its outcome. Raises what the tool service refuses. `word`: of a person who
        knows what came of it.
        """
        request = tool_service_pb2.ExecuteRequest(
            token=owner.token, call_id=call_id, tool=tool, arguments_json=self.arguments_json
        )
        if word is not None:
            request.resolution.CopyFrom(resolution_to_wire(word))
        answers = [answer async for answer in (tools or self.tools).Execute(request, timeout=CALL_SECONDS)]
        return outcome_to_domain(answers[-1].outcome)

    async def run_own(
        self,
        owner: Owner,
        *,
        ends: bool,
        call_id: str = CALL,
        effect_key: tool_pb2.EffectKey | None = None,
        undoes: str = "",
        status: tool_pb2.OutcomeStatus.ValueType = tool_pb2.OUTCOME_STATUS_SUCCEEDED,
    ) -> Outcome | None:
        """The call, as a worker's own tool: its effect is a line in the records when the order comes. `ends`: the
        worker lives to send the outcome, of this status. None: it did not.
        """
        definition = tool_pb2.ToolDefinition(
            name=OWN_TOOL,
            input_schema_json="{}",
            effect_class=tool_pb2.EFFECT_CLASS_UNSAFE,
            timeout=duration(60),
            output_limit_bytes=1024,
            effect_key=effect_key,
        )
        request = tool_service_pb2.ExecuteRequest(
            token=owner.token,
            call_id=call_id,
            tool=OWN_TOOL,
            arguments_json=self.arguments_json,
            own_tool=definition,
            undoes=undoes,
        )
        stream = self.tools.ExecuteStream()
        await stream.write(
            tool_service_pb2.ExecuteStreamRequest(calls=[tool_service_pb2.TaggedExecute(tag=1, call=request)])
        )
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                for event in (await stream.read()).events:
                    if event.HasField("outcome"):
                        return outcome_to_domain(event.outcome)
                    if event.HasField("run_here"):
                        self._have_effect(owner, f"{owner.task.task_id}/{call_id}")
                        if not ends:
                            return None
                        outcome = tool_service_pb2.OwnOutcome(call_attempt=event.run_here.call_attempt, status=status)
                        tagged = tool_service_pb2.TaggedOwnOutcome(tag=1, outcome=outcome)
                        await stream.write(tool_service_pb2.ExecuteStreamRequest(outcomes=[tagged]))

    def _have_effect(self, owner: Owner, key: str) -> None:
        path = self.records / "default" / f"{owner.task.task_id}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(json.dumps({"key": key, "epoch": owner.claims.epoch, "line": "own"}) + "\n")

    async def undo(self, task_id: str) -> None:
        """An undo of the task's call by the tool list_files, carried out. Raises what the ledger refuses."""
        request = tasks_pb.UndoTaskRequest(request_id=str(uuid4()), task_id=task_id)
        undone = (await self.ledger.stub.UndoTask(request, timeout=CALL_SECONDS)).task
        self.task_ids.append(undone.task_id)
        owner, undoes = await self.ledger.claim(undone.task_id), f"{task_id}/{CALL}"
        intent = ledger_pb2.ToolIntent(call_id=CALL, tool="list_files", arguments_json="{}", undoes=undoes)
        await owner.commit(entry(1, tool_intent=intent))
        execute = tool_service_pb2.ExecuteRequest(
            token=owner.token, call_id=CALL, tool="list_files", arguments_json="{}", undoes=undoes
        )
        answers = [answer async for answer in self.tools.Execute(execute, timeout=CALL_SECONDS)]
        await self.end(owner, outcome_to_domain(answers[-1].outcome))

    async def fence(self, owner: Owner, *, close: bool = False) -> dict[str, Any]:
        """How the calls stand, by call_id."""
        request = tool_service_pb2.FenceRequest(token=owner.token, close=close)
        return {call.call_id: call for call in (await self.tools.Fence(request, timeout=CALL_SECONDS)).calls}

    async def end(self, owner: Owner, outcome: Outcome, state: TaskState = TaskState.SUCCEEDED) -> None:
        """The call's outcome and the end in one commit, as owners and coordinators write them."""
        settled = ledger_pb2.ToolOutcome(call_id=CALL, outcome=outcome_to_wire(outcome))
        move = pb.Transition(to_state=STATES.to_wire(state), reason="FINAL_ANSWER", result="done")
        await owner.commit(entry(1, tool_outcome=settled), transition=move)

    @asynccontextmanager
    async def runner_lost(self, owner: Owner, failpoint: str = "tools.before_effect=kill9") -> AsyncIterator[None]:
        """The call was executed by a replica that is lost in the middle of it, and the others have given it up."""
        async with self.another_replica(failpoint) as lost:
            first = asyncio.create_task(self.execute(owner, lost))
            await self.stands(owner, tool_pb2.CALL_STATE_STARTED)
            await self.execute(owner)
            yield
            first.cancel()
            await asyncio.wait([first])

    async def stands(self, owner: Owner, state: tool_pb2.CallState.ValueType) -> None:
        """Waits until the call stands like this."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while state not in {call.state for call in (await self.fence(owner)).values()}:
                await asyncio.sleep(0.02)

    async def wait_for_word(self, owner: Owner, call_attempt: int) -> None:
        """As a worker does whose call is in doubt."""
        doubts = calls_in_doubt_to_wire([CallInDoubt(CALL, call_attempt)])
        waiting, reason = task_pb2.TASK_STATE_WAITING_USER, Reason.TOOL_IN_DOUBT
        await owner.commit(transition=pb.Transition(to_state=waiting, reason=reason, calls_in_doubt=doubts))

    async def say(self, owner: Owner, call_attempt: int, decision: Decision) -> Resolution:
        """A word, over the gateway; what the task's next owner is to pass along. Raises WrongState."""
        task_id = owner.task.task_id
        await self.auditor.admin.ResolveInDoubtCall(
            admin_service_pb2.ResolveInDoubtCallRequest(
                task_id=task_id,
                call_id=CALL,
                call_attempt=call_attempt,
                decision=decision_to_wire(decision),
                reason="I looked",
            )
        )
        known: dict[str, Any] = {"task_id": task_id, "call_id": CALL, "call_attempt": call_attempt}
        said = Operation(client="olga", method=Method.RESOLVE, answer=OperationResult.OK, **known)
        self.remembered.operations.append(said)
        return Resolution(call_attempt, decision, "I looked", "olga")

    @asynccontextmanager
    async def another_replica(self, failpoints: str = "") -> AsyncIterator[Any]:
        """The stub of another tool service, with all its guards, that is not there any more when this ends."""
        service = await self.start_tools(failpoints)
        async with open_channel(service.address) as channel:
            yield ToolServiceStub(channel)
        await service.kill()

    async def history(self) -> History:
        """What ledger, tools and outside have of these tasks, and the answers that the callers got."""
        for task_id, count in self.remembered.stale_commits.items():
            async with asyncio.timeout(CALL_SECONDS):  # the audit of refusals is written beside them
                while len((await self.auditor.refusals(task_id)).ledger) < count:
                    await asyncio.sleep(0.02)
        return replace(
            await collect_tasks(self.auditor, self.task_ids),
            grants=without_overlap(self.remembered.grants),
            operations=tuple(self.remembered.operations),
            stops=tuple(self.stops),
            bounds=tuple(self.bounds),
            effects=tuple(effect for effect in read_effects(self.records) if effect.task_id in self.task_ids),
        )


class MutationBench:
    """Two databases and the services over them: the whole ones are started once, others for their scenario."""

    def __init__(self, ledger_dsn: str, tools_dsn: str, keys: Path, folder: Path) -> None:
        self._dsns = {"checkpoint": ledger_dsn, "tools": tools_dsn}
        self._keys, self._folder = keys, folder
        self._running = AsyncExitStack()
        self._whole: dict[str, ServiceProcess] = {}

    async def __aenter__(self) -> Self:
        for name in ("checkpoint", "tools", "gateway"):
            self._whole[name] = await self._start(self._running, name)
        for name, dsn in self._dsns.items():
            await lift(dsn, [mutation for mutation in MUTATIONS.values() if mutation.service == name])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._running.aclose()

    @asynccontextmanager
    async def arena(
        self, folder: Path, mutation: str = "", failpoints: Mapping[str, str] | None = None
    ) -> AsyncIterator[Arena]:
        """The services, one of them without a guard. `failpoints`, by service, have `{folder}` filled in."""
        wanted = {name: points.format(folder=folder) for name, points in (failpoints or {}).items()}
        mutated = MUTATIONS[mutation].service if mutation else ""
        async with AsyncExitStack() as stack:
            services = dict(self._whole)
            for name in sorted({mutated, *wanted} - {""}):
                given = {"failpoints": wanted.get(name, ""), "mutation": mutation if name == mutated else ""}
                services[name] = await self._start(stack, name, **given)
            ledger = await stack.enter_async_context(open_channel(services["checkpoint"].address))
            tools = await stack.enter_async_context(open_channel(services["tools"].address))
            replica = Checkpoint(services["checkpoint"].address, self._dsns["checkpoint"], self._keys, ledger)
            replica.stub = remembered = RememberedLedger(replica.stub)
            auditor = await stack.enter_async_context(Client(services["gateway"].address))

            async def start_tools(points: str, *, alike: bool = False) -> ServiceProcess:
                without = mutation if alike and mutated == "tools" else ""
                return await self._start(stack, "tools", failpoints=points, mutation=without)

            records = self._folder / "records"
            stub, dsn = ToolServiceStub(tools), self._dsns["tools"]
            yield Arena(replica, remembered, stub, auditor, start_tools, records, folder, dsn)

    async def _start(
        self, stack: AsyncExitStack, name: str, *, failpoints: str = "", mutation: str = ""
    ) -> ServiceProcess:
        settings = {"LISTEN": "127.0.0.1:0", **self._settings(name)}
        service = ServiceProcess(name, settings, failpoints=failpoints, mutation=mutation)
        stack.push_async_callback(service.kill)
        return await service.start()

    def _settings(self, name: str) -> dict[str, str]:
        if name == "gateway":
            peers = {f"{peer.upper()}_ADDRESS": self._whole[peer].address for peer in self._dsns}
            return {**peers, "COORDINATOR_ADDRESS": "127.0.0.1:1"}  # no coordinator: it is not asked about workers
        store = {
            "POSTGRES_DSN": self._dsns[name],
            "VERIFYING_KEYS_FILE": str(self._keys / "verifying.json"),
            "MIGRATE": "auto",
        }
        if name != "tools":
            return store
        return {
            **store,
            "WORKSPACE_ROOT": str(self._folder / "workspaces"),
            "RECORDS_DIR": str(self._folder / "records"),
            "RUNNER_TTL_SECONDS": str(SHORT_LIFE_SECONDS),
            "RUNNER_RENEW_INTERVAL_SECONDS": "0.4",
        }


def _asked_for(arguments: dict[str, Any], tool: str, calls: int) -> list[ledger_pb2.NewEntry]:
    """A model's answer with calls of one tool, and their intents."""
    uses = [{"type": "tool_use", "id": f"toolu_{one}", "name": tool, "input": arguments} for one in range(calls)]
    message = ledger_pb2.AssistantMessage(
        attempt_number=1,
        content_json=json.dumps(uses),
        stop_reason="tool_use",
        usage=task_pb2.TokenUsage(output_tokens=10),
    )
    intents = [
        ledger_pb2.ToolIntent(
            call_id=f"1.{one}", tool_use_id=f"toolu_{one}", tool=tool, arguments_json=json.dumps(arguments)
        )
        for one in range(calls)
    ]
    return [entry(1, assistant_message=message), *(entry(1, tool_intent=intent) for intent in intents)]
