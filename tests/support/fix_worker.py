"""Workers as processes, on a whole stack of real services and a simulator with scenarios made for them.

Every test of `bench` has a queue of its own, so that only the workers it started take its tasks. The tests of `served`
share a worker:

    worker = await bench.start_worker(failpoints="worker.after_model=2#kill9")
    task_id = await bench.submit("sim-worker-effects")
    task = await bench.ended(task_id)
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from devstack import StackOptions
from devstack.etcd import EtcdProcess
from devstack.service_process import ServiceProcess
from devstack.stack import Stack
from services.checkpoint.queries import MIGRATIONS as LEDGER_MIGRATIONS
from services.tools.statements import MIGRATIONS as TOOLS_MIGRATIONS
from tenure.domain import entries as facts
from tenure.domain.errors import TryLater
from tenure.domain.model_parameters import NO_PARAMETERS, ModelParameters
from tenure.domain.retry import RetryPolicy
from tenure.domain.states import TaskState
from tenure.domain.task import AgentSpec, Limits, TaskPolicy, TaskSpec
from tenure.runtime.request_context import DEFAULT_TENANT
from tenure.runtime.retrying import retrying
from tenure.runtime.rpc.client import open_channel
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2, live_pb2, task_pb2
from tenure.v1 import task_service_pb2 as tasks_pb
from tenure.v1 import worker_service_pb2 as worker_pb
from tenure.v1.checkpoint_service_pb2_grpc import CheckpointServiceStub
from tenure.v1.coordinator_service_pb2_grpc import CoordinatorServiceStub
from tenure.v1.worker_service_pb2_grpc import WorkerServiceStub
from tenure.wire.common import state_name
from tenure.wire.ledger import entries_to_domain
from tenure.wire.task import spec_to_wire
from tests.support.fix_etcd import own_prefix
from tests.support.fix_postgres import MakeDatabase
from tests.support.fix_simulator import REPOSITORY, SimulatorControl, running_simulator
from tests.support.lives import LONG_LIFE
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS
from tests.support.written_lines import whole_records

READS: Final = RetryPolicy(max_attempts=30, initial_seconds=0.2, factor=1.0)


def _append(tool: str, line: str, delay_ms: int = 0) -> dict[str, Any]:
    return {"name": tool, "arguments": {"file": "{{goal}}", "line": line, "delay_ms": delay_ms}}


def _both(number: int) -> dict[str, Any]:
    calls = [_append("append_record", f"keyed {number}"), _append("append_record_unsafe", f"once {number}")]
    return {"text": f"Step {number}.", "calls": calls}


def _paced(number: int | str) -> dict[str, Any]:
    return {"text": f"Turn {number}.", "latency_ms": 300, "calls": [_append("append_record", f"{number}")]}


def _python_call(tool: str, **arguments: Any) -> dict[str, Any]:
    return {"name": tool, "arguments": arguments}


def _stuck(tool: str, **arguments: Any) -> list[dict[str, Any]]:
    """The same call for ever. The fourth answer repeats what it read of the third."""
    calls = [_python_call(tool, **arguments)]
    return [
        {"text": "Again.", "calls": calls, "repeat": 3},
        {"text": "I read: {{result.2.0}}", "calls": calls},
        {"text": "Again.", "calls": calls, "repeat": 200},
        {"text": "Never."},
    ]


PRINTS: Final = "import time\nfor number in range(16):\n    print(number, flush=True)\n    time.sleep(0.5)\n"

SCENARIOS: Final[dict[str, list[dict[str, Any]]]] = {
    "worker-effects": [*map(_both, (1, 2, 3)), {"text": "All is written."}],
    "worker-siblings": [
        {"text": "Two.", "calls": [_append("append_record", "fast"), _append("append_record_unsafe", "slow", 2500)]},
        {"text": "Both are written."},
    ],
    "worker-slow-tool": [
        {"text": "One slow call.", "calls": [_append("append_record_unsafe", "slow", 6000)]},
        {"text": "It is written."},
    ],
    "worker-silent-tool": [
        {"text": "One long call.", "calls": [_append("append_record_unsafe", "slow", 10_000)]},
        {"text": "It is written."},
    ],
    "worker-program": [
        {"text": "Wait.", "calls": [{"name": "execute_python", "arguments": {"code": "import time; time.sleep(25)"}}]},
        {"text": "It has waited."},
    ],
    "worker-signing-tool": [
        {"text": "A slow call that prints.", "calls": [{"name": "execute_python", "arguments": {"code": PRINTS}}]},
        {"text": "It has printed."},
    ],
    "worker-slow-answer": [
        {"text": "An answer that takes long.", "latency_ms": 9500, "calls": [_append("append_record_unsafe", "once")]},
        {"text": "It is written once."},
    ],
    "worker-unsafe": [
        {"text": "One call.", "calls": [_append("append_record_unsafe", "once")]},
        {"text": "I read its outcome."},
    ],
    # In its second turn one call of each effect class.
    "worker-classes": [
        {"text": "A file.", "calls": [{"name": "write_file", "arguments": {"path": "a.txt", "content": "a"}}]},
        {
            "text": "One of each.",
            "calls": [
                {"name": "read_file", "arguments": {"path": "a.txt"}},
                {"name": "write_file", "arguments": {"path": "b.txt", "content": "b"}},
                _append("append_record", "keyed"),
                _append("append_record_unsafe", "once"),
            ],
        },
        {"text": "That was all."},
    ],
    "worker-endless": [
        {"text": "On and on.", "calls": [_append("append_record", "again {{turn}}")], "repeat": 1000},
        {"text": "Never."},
    ],
    "worker-two-calls": [
        {"text": "Two.", "calls": [_append("append_record_unsafe", "same"), _append("append_record_unsafe", "same")]},
        {"text": "{{result.0.0}} | {{result.0.1}}"},
    ],
    "worker-stuck": _stuck("read_file", path="none.txt"),
    "worker-cut": [
        {"text": "The first part", "stop_reason": "max_tokens"},
        {"text": "and the second."},
    ],
    "worker-shaped": [
        {"text": "It costs three."},
        {"text": 'Sorry:\n```json\n{"price": "three"}\n```'},
        {"text": '```json\n{"price": 3}\n```'},
    ],
    "worker-paced": [*map(_paced, range(6)), {"text": "Done at last."}],
    "worker-steady": [{**_paced("{{turn}}"), "latency_ms": 200, "repeat": 30}, {"text": "Done at last."}],
    "worker-bulky": [{**_paced("{{turn}}"), "text": "word " * 2000, "repeat": 10}, {"text": "Done at last."}],
    "worker-slow-model": [
        {"text": "One call.", "latency_ms": 1500, "calls": [_append("append_record_unsafe", "once")]},
        {"text": "It is written."},
    ],
    "worker-wordy": [
        {**_paced(0), "text": "word " * 1500, "latency_ms": 100, "deltas": 300, "repeat": 4},
        {"text": "Done at last."},
    ],
    "python-support": [
        {"text": "I refund it.", "calls": [_python_call("refund", cents=5), _python_call("note", text="refunded")]},
        {"text": "Refunded: {{result.0.0}}."},
    ],
    "python-unsafe": [
        {"text": "I send it.", "calls": [_python_call("send")]},
        {"text": "It was sent: {{result.0.0}}."},
    ],
    "python-editor": [
        {"text": "I need a draft.", "calls": [_python_call("draft", topic="sea")]},
        {"text": "Edited."},
    ],
    "python-asking": [
        {"text": "I ask.", "calls": [_python_call("ask", question="Which colour?")]},
        {"text": "It is {{result.0.0}}."},
    ],
    "python-big": [{"text": "I read.", "calls": [_python_call("big")]}, {"text": "I have read it."}],
    "python-stuck": _stuck("look_up", order=7),
    "python-slow": [{"text": "word " * 400, "latency_ms": 30_000, "deltas": 300}],
    "python-streamed": [
        {"text": " ".join(f"word{number}" for number in range(160)), "latency_ms": 10_000, "deltas": 160}
    ],
    "python-redirected": [{"text": f"{'word ' * 100} You said: {{{{last_user_text}}}}", "deltas": 100}],
    "python-writer": [{"text": "Once upon a time."}],
    "python-price": [{"text": "A price.", "calls": [_python_call("final_result", cents=5)]}, {"text": "Never."}],
    "python-openai": [
        {"text": "I refund it.", "calls": [_python_call("refund", cents=5)]},
        {"text": "Refunded."},
    ],
    "python-talk": [
        {"text": "I refund it.", "calls": [_python_call("refund", cents=5)]},
        {"text": "You said: {{last_user_text}}"},
        {"text": "I refund more.", "calls": [_python_call("refund", cents=7)]},
        {"text": "Then you said: {{last_user_text}}"},
    ],
    # Numbered words, so that a gap shows.
    "worker-streamed": [
        {
            "text": " ".join(f"word{number}" for number in range(160)),
            "latency_ms": 12_000,
            "deltas": 160,
            "calls": [_append("append_record_unsafe", "once")],
        },
        {"text": "It is written once."},
    ],
    # An answer that a test makes slow, for the call that a message interrupts.
    "worker-redirected": [{"text": f"{'word ' * 100} You said: {{{{last_user_text}}}}", "deltas": 100}],
    "worker-long-answer": [{"text": "word " * 2000, "latency_ms": 60000, "deltas": 1000}],
}
"""The goal names the record they write to."""


@dataclass(slots=True)
class WorkerBench:
    """A stack without workers, and what a test does with it. `queue` is the test's own."""

    stack: Stack
    simulator: SimulatorControl
    ledger: Any
    coordinator: Any
    queue: str = field(default_factory=lambda: f"q-{uuid.uuid4().hex[:12]}")
    workers: list[ServiceProcess] = field(default_factory=list)

    async def start_worker(
        self, *, failpoints: str = "", mutation: str = "", openai_url: str = "", **settings: str
    ) -> ServiceProcess:
        """A worker that takes this test's tasks, serving. `mutation`: one of its guards is missing. `openai_url`: of
        another server than the simulator.
        """
        environment = {
            **_environment(self.queue, self.simulator),
            **({"OPENAI_BASE_URL": openai_url} if openai_url else {}),
            "TENURE_FAILPOINTS": failpoints,
            **{f"TENURE_WORKER_{name.upper()}": value for name, value in settings.items()},
        }
        worker = self.stack.add_worker(environment)
        self.workers.append(worker)
        if mutation:
            worker.kill()
            worker.command = [sys.executable, "-P", "-m", "tests.fault.mutants", "worker", "--mutation", mutation]
            worker.start({**environment, "PYTHONPATH": str(REPOSITORY)})
        await worker.wait_ready()
        return worker

    async def submit(
        self,
        model: str,
        *,
        limits: Limits | None = None,
        policy: TaskPolicy | None = None,
        max_output_tokens: int = 0,
        tools: tuple[str, ...] | None = None,
        result_schema_json: str = "",
        system: str = "",
        parameters: ModelParameters = NO_PARAMETERS,
    ) -> str:
        """A task whose goal is a word of its own."""
        spec = TaskSpec(
            goal=f"record-{uuid.uuid4().hex}",
            agent=AgentSpec(
                model=model, max_output_tokens=max_output_tokens, tools=tools, system=system, parameters=parameters
            ),
            limits=limits or Limits(),
            policy=policy or TaskPolicy(),
            queue=self.queue,
            result_schema_json=result_schema_json,
        )
        request = pb.CreateTaskRequest(request_id=str(uuid.uuid4()), spec=spec_to_wire(spec))
        return str((await self.ledger.CreateTask(request, timeout=CALL_SECONDS)).task.task_id)

    async def task(self, task_id: str) -> task_pb2.Task:
        request = tasks_pb.GetTaskRequest(task_id=task_id)
        answer = await retrying(lambda: self.ledger.GetTask(request, timeout=CALL_SECONDS), READS)
        return answer.task  # type: ignore[no-any-return]  # the stub is untyped here

    async def entries(self, task_id: str) -> list[facts.Entry]:
        """The whole ledger of a task."""
        entries: list[facts.Entry] = []
        while True:
            request = tasks_pb.ListTaskEntriesRequest(task_id=task_id, after_sequence=len(entries), page_size=1000)
            page = await self.ledger.ListTaskEntries(request, timeout=CALL_SECONDS)
            entries.extend(entries_to_domain(page.entries))
            if not page.more:
                return entries

    async def bodies(self, task_id: str, kind: type[Any]) -> list[Any]:
        """The facts of one kind, in order."""
        return [entry.body for entry in await self.entries(task_id) if isinstance(entry.body, kind)]

    async def transitions(self, task_id: str) -> list[tuple[TaskState, str]]:
        return [(body.to_state, body.reason) for body in await self.bodies(task_id, facts.Transition)]

    async def cancel(self, task_id: str) -> None:
        await self._say(task_id, cancel_request=ledger_pb2.CancelRequest(reason="no longer wanted"))

    async def answer(self, task: task_pb2.Task, decision: str) -> None:
        """The decision on the call that the task waits for."""
        said = pb.WaitAnswer(wait_id=task.wait.wait_id, call_digest=task.wait.call_digest, decision=decision)
        await self._say(task.task_id, wait_answer=said)

    async def tell(self, task_id: str, text: str, *, interrupt: bool = False) -> None:
        """Words for the agent."""
        await self._say(task_id, user_message=ledger_pb2.UserMessage(text=text, interrupt=interrupt))

    async def _say(self, task_id: str, **fact: Any) -> None:
        request = pb.AppendForeignRequest(task_id=task_id, request_id=str(uuid.uuid4()), actor="test", **fact)
        await self.ledger.AppendForeign(request, timeout=CALL_SECONDS)

    async def live_pieces(self, task_id: str, worker: ServiceProcess) -> AsyncGenerator[live_pb2.Delta]:
        """Yields the live text of the task's model calls, until the worker no longer holds the task."""
        request = worker_pb.WatchLiveRequest(task_id=task_id, epoch=(await self.task(task_id)).epoch)
        async with open_channel(worker.address) as channel:
            async for piece in WorkerServiceStub(channel).WatchLive(request, timeout=PATIENCE_SECONDS):
                if piece.HasField("delta"):  # the first message has the holder's proof instead
                    yield piece.delta

    async def speaking(self, task_id: str, worker: ServiceProcess) -> None:
        """Waits until the model's answer has begun."""
        async with aclosing(self.live_pieces(task_id, worker)) as pieces:
            async for _ in pieces:
                return

    async def watch(self, task_id: str) -> AsyncGenerator[facts.Entry]:
        """All entries as they come, to the task's end; goes on after a break as any client would."""
        after = 0
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                request = pb.WatchEntriesRequest(task_id=task_id, after_sequence=after)
                with suppress(TryLater):
                    async for answer in self.ledger.WatchEntries(request, timeout=PATIENCE_SECONDS):
                        for entry in entries_to_domain(answer.entries):
                            after = entry.sequence
                            yield entry
                    return
                await asyncio.sleep(0.05)

    async def reached(self, task_id: str, kind: type[Any], count: int = 1) -> None:
        """Waits until the ledger has so many facts of a kind."""
        seen = 0
        async with aclosing(self.watch(task_id)) as entries:
            async for entry in entries:
                seen += isinstance(entry.body, kind)
                if seen >= count:
                    return
        raise AssertionError(f"the task ended with {seen} of {count} {kind.__name__}")

    async def ended(self, task_id: str) -> task_pb2.Task:
        """The task, once it has ended."""
        async with aclosing(self.watch(task_id)) as entries:
            async for _ in entries:
                pass
        return await self.task(task_id)

    async def in_state(self, task_id: str, state: TaskState) -> task_pb2.Task:
        """The task, once it stands there."""
        ends_at = time.monotonic() + PATIENCE_SECONDS
        while state_name((task := await self.task(task_id)).state) != state:
            assert time.monotonic() < ends_at, f"the task stays {state_name(task.state)}: {task.reason} {task.message}"
            await asyncio.sleep(0.05)
        return task

    async def died(self, worker: ServiceProcess) -> int:
        """The exit code, once it has ended."""
        ends_at = time.monotonic() + PATIENCE_SECONDS
        while worker.exit_code is None:
            assert time.monotonic() < ends_at, f"{worker.name} is still alive:\n{worker.log_tail()}"
            await asyncio.sleep(0.02)
        return worker.exit_code

    async def restart(self, service: str, *, failpoints: str = "") -> ServiceProcess:
        """Kills one of the services and starts it again at its address."""
        process = self.stack.services[service]
        process.kill()
        process.start({"TENURE_FAILPOINTS": failpoints})
        await process.wait_ready()
        return process

    async def live_workers(self) -> list[admin_pb.Worker]:
        request = admin_pb.ListWorkersRequest()
        return list((await self.coordinator.ListWorkers(request, timeout=CALL_SECONDS)).workers)

    async def claims(self, task_id: str) -> list[admin_pb.Claim]:
        request = admin_pb.ListClaimsRequest(task_id=task_id)
        return list((await self.coordinator.ListClaims(request, timeout=CALL_SECONDS)).claims)

    async def effects(self, task_id: str) -> list[str]:
        """The lines that the task's calls appended, outside of the system."""
        goal = (await self.task(task_id)).spec.goal
        path = self.stack.layout.records / DEFAULT_TENANT / f"{goal}.jsonl"
        return [record["line"] for record in whole_records(path)]

    def model_calls(self, task_id: str) -> list[dict[str, Any]]:
        """Returns the calls that the simulator got for this task, with their bills."""
        calls = [call for kind in ("messages", "chat", "responses") for call in self.simulator.calls(kind)]
        return [call for call in calls if (call["attempt"] or "").startswith(f"{task_id}/")]


def _environment(queue: str, simulator: SimulatorControl) -> dict[str, str]:
    return {
        "TENURE_WORKER_QUEUES": queue,
        "ANTHROPIC_API_KEY": "sk-test",
        "ANTHROPIC_BASE_URL": simulator.url,
        "OPENAI_BASE_URL": f"{simulator.url}/v1",
    }


@pytest.fixture(scope="session")
def worker_simulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatorControl]:
    folder = tmp_path_factory.mktemp("worker-simulator")
    scenarios: Path = folder / "scenarios"
    scenarios.mkdir()
    for name, turns in SCENARIOS.items():
        (scenarios / f"{name}.yaml").write_text(json.dumps(turns, ensure_ascii=False))  # YAML, too, and made in C
    with running_simulator(folder / "calls.jsonl", "--scenarios", str(scenarios)) as control:
        yield control


@pytest.fixture(scope="module")
def worker_etcd(etcd_process: EtcdProcess) -> str:
    """The etcd of the stack: the shared one. A module whose tests break it returns "", for an own one."""
    return etcd_process.endpoint


@pytest.fixture(scope="module")
def stack_life() -> dict[str, str]:
    """A module whose tests freeze workers or kill the tool service, and wait for the lapse, returns SHORT_LIFE."""
    return LONG_LIFE


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker_stack(
    tmp_path_factory: pytest.TempPathFactory, new_database: MakeDatabase, worker_etcd: str, stack_life: dict[str, str]
) -> AsyncIterator[Stack]:
    options = StackOptions(
        data_dir=tmp_path_factory.mktemp("worker-stack"),
        workers=0,
        postgres_dsn=await new_database("worker_stack", LEDGER_MIGRATIONS, TOOLS_MIGRATIONS),
        etcd_endpoints=worker_etcd,
        environment={
            "*": stack_life,
            "coordinator": {"TENURE_COORDINATOR_ETCD_KEY_PREFIX": own_prefix()},
            "tools": {"TENURE_TOOLS_SANDBOX_WARM": "0"},  # few tests run a program
        },
    )
    async with Stack(options) as stack:
        yield stack


@pytest.fixture
async def bench(worker_stack: Stack, worker_simulator: SimulatorControl) -> AsyncIterator[WorkerBench]:
    worker_simulator.reset()
    services = worker_stack.services
    async with (
        open_channel(services["checkpoint"].address) as ledger,
        open_channel(services["coordinator"].address) as coordinator,
    ):
        made = WorkerBench(
            worker_stack, worker_simulator, CheckpointServiceStub(ledger), CoordinatorServiceStub(coordinator)
        )
        yield made
        for worker in made.workers:
            worker.kill()
            assert "unhandled in the event loop" not in worker.log()
            assert "unexpected error" not in worker.log()


SHARED_QUEUE: Final = "shared"


@pytest.fixture(scope="module")
def shared_worker(
    request: pytest.FixtureRequest, worker_stack: Stack, worker_simulator: SimulatorControl
) -> Iterator[ServiceProcess]:
    """Serves the tests of a module that neither stop it nor need settings of their own.

    The module's CONTROL_MODULE has the functions that it runs.
    """
    functions: str = getattr(request.module, "CONTROL_MODULE", "")
    control = {"TENURE_WORKER_LOOPS": "control,messages", "TENURE_WORKER_CONTROL_MODULES": functions}
    more = {**control, "PYTHONPATH": str(REPOSITORY), "MODEL_URL": worker_simulator.url} if functions else {}
    worker = worker_stack.add_worker({**_environment(SHARED_QUEUE, worker_simulator), **more})
    yield worker
    worker.kill()
    assert "unexpected error" not in worker.log()


@pytest.fixture
def served(bench: WorkerBench, shared_worker: ServiceProcess) -> WorkerBench:
    """A bench whose tasks the shared worker takes."""
    assert shared_worker.exit_code is None
    bench.queue = SHARED_QUEUE
    return bench
