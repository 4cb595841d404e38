"""`defaults.<source>`: what tasks of the four sources are when nobody says, through a gateway, as processes."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from devstack import Stack
from tenure.client import Client
from tenure.domain.task import SourceKind
from tenure.v1 import schedule_service_pb2 as schedules
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.wire.common import duration, moment, seconds
from tests.end_to_end.command import tenure
from tests.end_to_end.installation import Installation
from tests.support.patience import CALL_SECONDS
from tests.support.service_process import ServiceProcess

pytestmark = pytest.mark.faults

FILE = """
[defaults.conversation]
priority = "PRIORITY_HIGH"
limits = { timeout = "3600s" }
policy.retry = { max_attempts = 1, initial_backoff = "1s" }
policy.timeouts.start = { after = "5s" }
policy.timeouts.progress = { after = "61s" }
policy.timeouts.wait = { after = "601s" }
policy.timeouts.wait_person = { after = "701s" }
policy.timeouts.wait_event = { after = "801s" }
policy.lease_ttl = "3s"

[defaults.control]
priority = "PRIORITY_NORMAL"
limits = { timeout = "7200s" }
policy.retry = { max_attempts = 2, initial_backoff = "2s" }
policy.timeouts.start = { after = "6s" }
policy.timeouts.progress = { after = "62s" }
policy.timeouts.wait = { after = "602s" }
policy.timeouts.wait_person = { after = "702s" }
policy.timeouts.wait_event = { after = "802s" }
policy.lease_ttl = "4s"

[defaults.scheduler]
priority = "PRIORITY_LOW"
limits = { timeout = "10800s" }
policy.retry = { max_attempts = 3, initial_backoff = "3s" }
policy.timeouts.start = { after = "7s" }
policy.timeouts.progress = { after = "63s" }
policy.timeouts.wait = { after = "603s" }
policy.timeouts.wait_person = { after = "703s" }
policy.timeouts.wait_event = { after = "803s" }
policy.lease_ttl = "5s"

[defaults.manual]
priority = "PRIORITY_HIGH"
limits = { timeout = "14400s" }
policy.retry = { max_attempts = 4, initial_backoff = "4s" }
policy.timeouts.start = { after = "8s" }
policy.timeouts.progress = { after = "64s" }
policy.timeouts.wait = { after = "604s" }
policy.timeouts.wait_person = { after = "704s" }
policy.timeouts.wait_event = { after = "804s" }
policy.lease_ttl = "6s"
"""
EXPECTED = {
    "conversation": (task_pb2.PRIORITY_HIGH, 3600, 1, 1, (5, 61, 601)),
    "control": (task_pb2.PRIORITY_NORMAL, 7200, 2, 2, (6, 62, 602)),
    "scheduler": (task_pb2.PRIORITY_LOW, 10_800, 3, 3, (7, 63, 603)),
    "manual": (task_pb2.PRIORITY_HIGH, 14_400, 4, 4, (8, 64, 604)),
}
"""Priority, whole task, retries, their first wait; start, progress, wait. All in seconds."""

QUEUE = f"defaults-{uuid.uuid4().hex[:12]}"
"""Nobody serves it: the tasks stay as they were created."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def gateway(shared_stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """A gateway on a ledger that was told the defaults, beside those of the shared installation, on its database."""
    file = tmp_path_factory.mktemp("defaults") / "defaults.toml"
    file.write_text(FILE)
    settings = {"LISTEN": "127.0.0.1:0", "POSTGRES_DSN": shared_stack.postgres_dsn, "DEFAULTS_FILE": str(file)}
    keys = {"VERIFYING_KEYS_FILE": str(shared_stack.layout.verifying_keys)}
    ledger = await ServiceProcess("checkpoint", {**settings, **keys}).start()
    addresses = shared_stack.addresses()
    peers = {"COORDINATOR_ADDRESS": addresses["coordinator"], "TOOLS_ADDRESS": addresses["tools"]}
    served = {"LISTEN": "127.0.0.1:0", "CHECKPOINT_ADDRESS": ledger.address, **peers}
    process = await ServiceProcess("gateway", served).start()
    yield process.address
    await process.stop()
    await ledger.stop()


@pytest.fixture
async def client(gateway: str) -> AsyncIterator[Client]:
    """What it submitted is cancelled in the end: nobody would work on it."""
    async with Client(gateway) as client:
        yield client
        async for task in client.list_tasks(task_pb2.TaskFilter(queue=QUEUE, states=[task_pb2.TASK_STATE_QUEUED])):
            await client.cancel(task.task_id)


async def submit(client: Client, gateway: str, source: str) -> task_pb2.Task:
    """A task of this source that says nothing else, as such a source makes it."""
    match source:
        case "conversation":
            asks = task_pb2.Source(kind=task_pb2.SOURCE_KIND_CONVERSATION, source_id="c-1")
            return await client.submit(
                "go", request=api.SubmitTaskRequest(spec=task_pb2.TaskSpec(queue=QUEUE, source=asks))
            )
        case "scheduler":
            spec = task_pb2.TaskSpec(goal="go", queue=QUEUE)
            request = schedules.CreateScheduleRequest(name=f"yearly-{uuid.uuid4().hex}", spec=spec, cron="0 0 1 1 *")
            made = (await client.schedules.CreateSchedule(request)).schedule
            run = schedules.TriggerScheduleRequest(schedule=made.schedule_id)
            return (await client.schedules.TriggerSchedule(run, timeout=CALL_SECONDS)).task
        case "control":
            said = ["--function", "month_end", "--input", "{}"]
        case _:
            said = ["go"]
    done = await tenure("--json", "submit", *said, "--queue", QUEUE, address=gateway)
    return await client.get(json.loads(done.out)["task_id"])


@pytest.mark.parametrize("source", EXPECTED)
async def test_a_task_that_says_nothing_has_the_defaults_of_its_source(
    client: Client, gateway: str, source: str
) -> None:
    task = await submit(client, gateway, source)
    priority, timeout, attempts, first_wait, phases = EXPECTED[source]
    spec, timeouts = task.spec, task.spec.policy.timeouts
    assert task_pb2.SourceKind.Name(spec.source.kind) == f"SOURCE_KIND_{SourceKind(source.upper())}"
    assert (spec.priority, seconds(spec.limits.timeout)) == (priority, timeout)
    assert (spec.policy.retry.max_attempts, seconds(spec.policy.retry.initial_backoff)) == (attempts, first_wait)
    assert tuple(seconds(one.after) for one in (timeouts.start, timeouts.progress, timeouts.wait)) == phases
    apart = [seconds(one) for one in (timeouts.wait_person.after, timeouts.wait_event.after, spec.policy.lease_ttl)]
    assert apart == [phases[2] + 100.0, phases[2] + 200.0, phases[2] - 598.0]
    lasts = (moment(task.deadline_time) - moment(task.create_time)).total_seconds()
    assert lasts == pytest.approx(timeout, abs=1), "it is not only shown"


async def test_a_tasks_own_values_override_defaults(client: Client) -> None:
    request = api.SubmitTaskRequest(
        spec=task_pb2.TaskSpec(
            queue=QUEUE,
            priority=task_pb2.PRIORITY_LOW,
            limits=task_pb2.Limits(timeout=duration(77)),
            policy=task_pb2.TaskPolicy(retry=task_pb2.RetryPolicy(max_attempts=0)),
        )
    )
    spec = (await client.submit("go", request=request)).spec
    assert (spec.priority, seconds(spec.limits.timeout), spec.policy.retry.max_attempts) == (
        task_pb2.PRIORITY_LOW,
        77,
        0,
    )
    assert seconds(spec.policy.retry.initial_backoff) == 4
    assert seconds(spec.policy.timeouts.wait.after) == 604


async def test_a_repeat_is_recognised_after_a_change_of_defaults(installation: Installation, client: Client) -> None:
    """The other ledger has no file."""
    request = api.SubmitTaskRequest(request_id=uuid.uuid4().hex, spec=task_pb2.TaskSpec(queue=QUEUE))
    first = await client.submit("go", request=request)
    again = await installation.client.submit("go", request=request)
    assert (again.task_id, again.spec) == (first.task_id, first.spec)
