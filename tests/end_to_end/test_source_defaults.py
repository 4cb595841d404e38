"""`defaults.<source>`: what tasks of the four sources are by default, through a gateway, as processes."""

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
from tenure.wire.common import moment, seconds
from tests.end_to_end.command import tenure
from tests.end_to_end.installation import Installation
from tests.support.patience import CALL_SECONDS
from tests.support.service_process import ServiceProcess

pytestmark = pytest.mark.faults

FILE = """
[defaults.scheduler]
priority = "PRIORITY_LOW"
limits = { timeout = "10800s" }
policy.timeouts.wait_event = { after = "803s" }

[defaults.manual]
priority = "PRIORITY_HIGH"
limits = { timeout = "14400s" }
policy.timeouts.wait_event = { after = "804s" }
"""
EXPECTED = {"scheduler": (task_pb2.PRIORITY_LOW, 10_800, 803), "manual": (task_pb2.PRIORITY_HIGH, 14_400, 804)}
"""Priority, whole task, wait for an event, in seconds."""

QUEUE = f"defaults-{uuid.uuid4().hex[:12]}"
"""No worker serves it: the tasks stay as they were created."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def gateway(shared_stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """A gateway on a ledger with the defaults, beside those of the shared installation, on its database."""
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
    """What it submitted is cancelled in the end: no worker serves the queue."""
    async with Client(gateway) as client:
        yield client
        async for task in client.list_tasks(task_pb2.TaskFilter(queue=QUEUE, states=[task_pb2.TASK_STATE_QUEUED])):
            await client.cancel(task.task_id)


async def submit(client: Client, gateway: str, source: str) -> task_pb2.Task:
    """A task of this source that says nothing else, as such a source makes it."""
    if source == "scheduler":
        spec = task_pb2.TaskSpec(goal="go", queue=QUEUE)
        request = schedules.CreateScheduleRequest(name=f"yearly-{uuid.uuid4().hex}", spec=spec, cron="0 0 1 1 *")
        made = (await client.schedules.CreateSchedule(request)).schedule
        run = schedules.TriggerScheduleRequest(schedule=made.schedule_id)
        return (await client.schedules.TriggerSchedule(run, timeout=CALL_SECONDS)).task
    done = await tenure("--json", "submit", "go", "--queue", QUEUE, address=gateway)
    return await client.get(json.loads(done.out)["task_id"])


@pytest.mark.parametrize("source", EXPECTED)
async def test_a_task_that_says_nothing_has_the_defaults_of_its_source(
    client: Client, gateway: str, source: str
) -> None:
    task = await submit(client, gateway, source)
    priority, timeout, wait = EXPECTED[source]
    spec = task.spec
    assert task_pb2.SourceKind.Name(spec.source.kind) == f"SOURCE_KIND_{SourceKind(source.upper())}"
    assert (spec.priority, seconds(spec.limits.timeout)) == (priority, timeout)
    assert seconds(spec.policy.timeouts.wait_event.after) == wait
    lasts = (moment(task.deadline_time) - moment(task.create_time)).total_seconds()
    assert lasts == pytest.approx(timeout, abs=1), "it is not only shown"


async def test_a_repeat_is_recognised_after_a_change_of_defaults(installation: Installation, client: Client) -> None:
    """The other ledger has no file."""
    request = api.SubmitTaskRequest(request_id=uuid.uuid4().hex, spec=task_pb2.TaskSpec(queue=QUEUE))
    first = await client.submit("go", request=request)
    again = await installation.client.submit("go", request=request)
    assert (again.task_id, again.spec) == (first.task_id, first.spec)
