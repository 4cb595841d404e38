"""Revisions of agents at the ledger: registered once by content, never changed, and pinned to tasks at their submit."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tenure.domain.agents import is_ramped
from tenure.domain.errors import InvalidRequest, NotFound, WrongState
from tenure.domain.task import offered_loop
from tenure.v1 import agent_service_pb2 as pb
from tenure.v1 import checkpoint_service_pb2 as ledger
from tenure.v1 import schedule_service_pb2 as schedules
from tenure.v1 import task_pb2
from tenure.v1.agent_service_pb2_grpc import AgentServiceStub
from tenure.v1.schedule_service_pb2_grpc import ScheduleServiceStub
from tests.conformance.test_ledger_forks import ended, fork, tools
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, Checkpoint, MakeCheckpoint

pytestmark = pytest.mark.server


def function(version: str = "1") -> pb.AgentDefinition:
    return pb.AgentDefinition(kind=pb.AGENT_KIND_FUNCTION, code_version=version)


def without_code(system: str = "Be kind.", **fields: Any) -> pb.AgentDefinition:
    agent = task_pb2.AgentSpec(model="sim-hello", system=system, tools=task_pb2.ToolAllowlist(names=["read_file"]))
    return pb.AgentDefinition(kind=pb.AGENT_KIND_MODEL, agent=agent, **fields)


class Agents:
    """AgentService at a replica."""

    def __init__(self, replica: Checkpoint) -> None:
        self.replica = replica
        self.stub: Any = AgentServiceStub(replica.channel)

    async def register(
        self, definition: pb.AgentDefinition, build: str = "", name: str = "support", *, make_current: bool = False
    ) -> pb.RegisterAgentResponse:
        request = pb.RegisterAgentRequest(
            name=name, definition=definition, build=build, make_current=make_current, actor="alice"
        )
        answer: pb.RegisterAgentResponse = await self.stub.RegisterAgent(request, timeout=TIMEOUT_SECONDS)
        return answer

    async def get(self, name: str = "support", revision: int = 0) -> pb.GetAgentResponse:
        request = pb.GetAgentRequest(name=name, revision=revision)
        answer: pb.GetAgentResponse = await self.stub.GetAgent(request, timeout=TIMEOUT_SECONDS)
        return answer

    async def ramp(self, revision: int, basis_points: int) -> pb.Agent:
        request = pb.RampAgentRequest(name="support", revision=revision, basis_points=basis_points, actor="bob")
        answer: pb.Agent = (await self.stub.RampAgent(request, timeout=TIMEOUT_SECONDS)).agent
        return answer

    async def retire(self, revision: int) -> pb.AgentRevision:
        request = pb.RetireAgentRevisionRequest(name="support", revision=revision, actor="bob")
        answer = await self.stub.RetireAgentRevision(request, timeout=TIMEOUT_SECONDS)
        retired: pb.AgentRevision = answer.revision
        return retired

    async def submit(self, revision: int = 0, request_id: str = "", **spec: Any) -> task_pb2.Task:
        pin = task_pb2.AgentPin(revision=revision) if revision else None
        control = task_pb2.ControlWork(function="support", input_json=spec.pop("input_json", ""))
        return await self.replica.create(request_id, control=control, agent_pin=pin, **spec)


async def test_the_same_definition_is_one_revision(replica: Checkpoint) -> None:
    agents = Agents(replica)
    first = await agents.register(function(), "b1")
    assert (first.revision.revision, first.created, first.agent.current_revision) == (1, True, 1)
    again, other = await agents.register(function(), "b1"), await agents.register(function(), "b2")
    assert [(each.revision.revision, each.created) for each in (again, other)] == [(1, False)] * 2
    assert [build.build for build in other.revision.builds] == ["b1", "b2"]
    second = await agents.register(function("2"), "b3")
    assert (second.revision.revision, second.agent.current_revision, second.agent.newest_revision) == (2, 1, 2)
    assert second.revision.digest != first.revision.digest
    read = await agents.get(revision=2)
    assert read.revisions[0].definition == function("2")
    assert read.revisions[0].creator == "alice"
    assert [each.revision for each in (await agents.get()).revisions] == [2, 1]


async def test_many_registrations_at_once_make_one_revision(replica: Checkpoint, other_replica: Checkpoint) -> None:
    both = Agents(replica), Agents(other_replica)
    made = await asyncio.gather(*[side.register(function(), f"b{n}") for side in both for n in range(8)])
    assert {each.revision.revision for each in made} == {1}
    assert sum(each.created for each in made) == 1
    assert len((await both[0].get()).revisions[0].builds) == 8


async def test_without_builds_the_last_registration_of_code_counts(replica: Checkpoint) -> None:
    agents = Agents(replica)
    await agents.register(function("1"))
    assert (await agents.register(function("2"))).agent.current_revision == 2
    assert (await agents.register(function("1"))).agent.current_revision == 2
    assert (await agents.register(function("1"), make_current=True)).agent.current_revision == 1
    assert (await agents.register(function("3"), "b1")).agent.current_revision == 1
    assert (await agents.register(without_code(), make_current=True)).agent.current_revision == 4
    assert (await agents.register(without_code("two"))).agent.current_revision == 4


async def test_a_submit_is_pinned_to_the_current_revision(replica: Checkpoint) -> None:
    agents = Agents(replica)
    unknown = await agents.submit()
    assert not unknown.spec.HasField("agent_pin")
    registered = (await agents.register(function(), "b1")).revision
    task = await agents.submit()
    pin = task.spec.agent_pin
    assert (pin.agent, pin.revision, pin.digest, pin.needs_build) == ("support", 1, registered.digest, True)
    entries = await agents.replica.entries(task.task_id)
    assert entries[0].body.submitted.spec.agent_pin == pin
    loops = await agents.replica.query(
        "select loop, agent, agent_revision from ledger.tasks where tenant = %s order by created_at",
        agents.replica.tenant,
    )
    assert loops == [("control.support", "", 0), (offered_loop("support", registered.digest), "support", 1)]
    second = (await agents.register(function("2"), "b2")).revision
    assert (await agents.submit()).spec.agent_pin.revision == 1
    assert (await agents.submit(2)).spec.agent_pin.digest == second.digest
    await agents.ramp(2, 10_000)
    assert (await agents.submit()).spec.agent_pin.revision == 2
    assert [(each.revision, each.open_tasks) for each in (await agents.get()).revisions] == [(2, 2), (1, 2)]


async def test_only_code_of_the_revision_is_offered_its_tasks(
    checkpoint: MakeCheckpoint,
) -> None:
    replica = await checkpoint()
    agents = Agents(replica)
    stub = agents.replica.stub

    async def offered(*loops: str) -> list[str]:
        request = ledger.ListClaimableRequest(limit=50, queues=["default"], loops=loops)
        return [offer.task_id for offer in (await stub.ListClaimable(request, timeout=TIMEOUT_SECONDS)).offers]

    plain = (await agents.submit()).task_id
    old, new = [(await agents.register(function(n), f"b{n}")).revision.digest for n in ("1", "2")]
    tasks = [(await agents.submit(1)).task_id for _ in range(5)]
    assert await offered("control.support", offered_loop("support", new)) == [plain]
    newer = (await agents.submit(2)).task_id
    assert await offered(offered_loop("support", new)) == [newer]
    assert sorted(await offered("control.support", offered_loop("support", old))) == sorted(tasks)


async def test_a_repeat_gets_the_first_revision(replica: Checkpoint) -> None:
    agents = Agents(replica)
    await agents.register(function(), "b1")
    first, named = await agents.submit(request_id="r-1"), await agents.submit(1, request_id="r-2")
    await agents.register(function("2"), "b2", make_current=True)
    await agents.retire(1)
    assert await agents.submit(request_id="r-1") == first
    assert await agents.submit(1, request_id="r-2") == named
    with pytest.raises(WrongState) as refused:
        await agents.submit(1)
    assert refused.value.reason == "AGENT_REVISION_RETIRED"
    with pytest.raises(NotFound) as missing:
        await agents.submit(3)
    assert missing.value.reason == "AGENT_REVISION_NOT_FOUND"
    assert (await agents.retire(1)).open_tasks == 2


async def test_a_ramp_shares_new_tasks_by_their_ids(replica: Checkpoint) -> None:
    agents = Agents(replica)
    await agents.register(function(), "b1")
    await agents.register(function("2"), "b2")
    ramping = await agents.ramp(2, 3000)
    assert (ramping.current_revision, ramping.ramp_revision, ramping.ramp_basis_points) == (1, 2, 3000)
    assert ramping.actor == "bob"
    tasks = [await agents.submit() for _ in range(100)]
    for task in tasks:
        expected = 2 if is_ramped("support", task.task_id, 3000) else 1
        assert (task.spec.agent_pin.revision, task.spec.agent_pin.ramped) == (expected, expected == 2)
    assert 10 <= sum(task.spec.agent_pin.ramped for task in tasks) <= 50
    with pytest.raises(WrongState):
        await agents.retire(2)
    with pytest.raises(WrongState) as current:
        await agents.ramp(1, 500)
    assert current.value.reason == "AGENT_REVISION_CURRENT"
    ended_ramp = await agents.ramp(2, 0)
    assert (ended_ramp.current_revision, ended_ramp.ramp_revision) == (1, 0)
    assert {(await agents.submit()).spec.agent_pin.revision for _ in range(20)} == {1}


async def test_an_agent_without_code_becomes_the_agent_of_the_task(replica: Checkpoint) -> None:
    agents = Agents(replica)
    schema = '{"type": "object"}'
    limits = task_pb2.Limits(max_steps=7, max_tokens=5000)
    await agents.register(without_code(limits=limits, result_schema_json=schema))
    approved = task_pb2.AgentSpec(approve_tools=["read_file"])
    task = await agents.submit(goal="Help!", limits=task_pb2.Limits(max_tokens=300), agent=approved)
    spec = task.spec
    assert (spec.agent.model, spec.agent.system, spec.agent.loop) == ("sim-hello", "Be kind.", "messages")
    assert (list(spec.agent.tools.names), list(spec.agent.approve_tools)) == (["read_file"], ["read_file"])
    assert (spec.limits.max_steps, spec.limits.max_tokens, spec.result_schema_json) == (7, 300, schema)
    assert not spec.HasField("control")
    assert (spec.agent_pin.revision, spec.agent_pin.needs_build) == (1, False)
    assert (await agents.submit(goal="", input_json='"Hello"')).spec.goal == "Hello"
    with pytest.raises(InvalidRequest, match="input_json"):
        await agents.submit(goal="Help!", input_json="{}")
    with pytest.raises(InvalidRequest, match="goal"):
        await agents.submit(goal="")


async def test_a_requeue_keeps_the_pin_and_a_fork_may_ask_for_another(replica: Checkpoint) -> None:
    task_id = await ended(replica)
    with pytest.raises(WrongState) as refused:
        await fork(replica, task_id, "f-0", message="more", overrides=task_pb2.ForkOverrides(agent_revision=1))
    assert refused.value.reason == "NO_AGENT"
    agents = Agents(replica)
    await agents.register(without_code("one"))
    await agents.register(without_code("two"))
    task = await agents.submit(1, goal="Help!")
    owner = await replica.claim(task.task_id)
    assert await replica.requeue(owner) == [task.task_id]
    assert (await replica.get(task.task_id)).spec.agent_pin == task.spec.agent_pin
    same = await fork(replica, task.task_id, "f-1", at_sequence=2)
    assert same.spec.agent_pin == task.spec.agent_pin
    other = await fork(replica, task.task_id, "f-2", at_sequence=2, overrides=task_pb2.ForkOverrides(agent_revision=2))
    assert (other.spec.agent_pin.revision, other.spec.agent.system) == (2, "two")
    changed = await fork(replica, task.task_id, "f-3", at_sequence=2, overrides=task_pb2.ForkOverrides(system="own"))
    assert not changed.spec.HasField("agent_pin")
    assert changed.spec.agent.system == "own"


async def test_fork_cannot_choose_what_code_chooses(replica: Checkpoint) -> None:
    """As a submit. A function takes tools: those of the tool service that it may call."""
    named = task_pb2.ToolAllowlist(names=["read_file"])
    spec = task_pb2.AgentSpec(parameters=task_pb2.ModelParameters(temperature=0.5), model="m", system="s", tools=named)
    await Agents(replica).register(pb.AgentDefinition(kind=pb.AGENT_KIND_PYTHON, code_version="1"), build="b1")
    await Agents(replica).register(function(), build="b1", name="close_order")
    for name in ("support", "close_order"):
        task = await replica.create(goal="Help", control=task_pb2.ControlWork(function=name))
        for field, value in spec.ListFields():
            made = task_pb2.ForkOverrides()
            getattr(made, field.name).CopyFrom(value) if field.message_type else setattr(made, field.name, value)
            if (name, field.name) == ("close_order", "tools"):
                forked = await fork(replica, task.task_id, field.name, at_sequence=2, overrides=made)
                assert forked.spec.agent.tools == named
                continue
            with pytest.raises(InvalidRequest, match="its code chooses it") as refused:
                await fork(replica, task.task_id, field.name, at_sequence=2, overrides=made)
            assert [one.field for one in refused.value.violations] == [f"overrides.{field.name}"]


async def test_a_fork_to_another_revision_has_its_tools_and_schema(replica: Checkpoint) -> None:
    """Nothing of the former revision stays, and what the fork itself asks for goes before the definition."""
    agents = Agents(replica)
    replica = agents.replica
    await agents.register(without_code("one", result_schema_json='{"type": "object"}'))
    newer = without_code("two", result_schema_json='{"type": "string"}')
    newer.agent.tools.names[:] = ["web_search"]
    await agents.register(newer)
    task = await agents.submit(1, goal="Help!")
    owner = await replica.claim(task.task_id)
    await owner.commit(tools("read_file"))
    at = (await replica.entries(task.task_id))[-1].sequence

    async def forked(request_id: str, **overrides: Any) -> tuple[task_pb2.TaskSpec, bool]:
        made = task_pb2.ForkOverrides(**overrides)
        other = await fork(replica, task.task_id, request_id, at_sequence=at, overrides=made)
        entries = await replica.entries(other.task_id)
        return other.spec, any(each.body.HasField("tools_defined") for each in entries)

    same, are_copied = await forked("f-1")
    assert (list(same.agent.tools.names), are_copied) == (["read_file"], True)
    spec, are_copied = await forked("f-2", agent_revision=2)
    assert (list(spec.agent.tools.names), are_copied) == (["web_search"], False)
    assert spec.result_schema_json == '{"type": "string"}'
    own = task_pb2.ToolAllowlist(names=["list_files"])
    spec, _ = await forked("f-3", agent_revision=2, tools=own, result_schema_json="")
    assert (list(spec.agent.tools.names), spec.result_schema_json) == (["list_files"], "")
    assert (spec.agent.system, spec.agent_pin.revision) == ("two", 2)
    spec, _ = await forked("f-4", agent_revision=2, all_tools=True)
    assert not spec.agent.HasField("tools")


async def test_a_schedule_takes_the_revision_of_each_run(replica: Checkpoint) -> None:
    agents = Agents(replica)
    await agents.register(function(), "b1")
    stub: Any = ScheduleServiceStub(agents.replica.channel)
    spec = task_pb2.TaskSpec(control=task_pb2.ControlWork(function="support"))
    created = schedules.CreateScheduleRequest(name="nightly", cron="0 0 1 1 *", spec=spec)
    await stub.CreateSchedule(created, timeout=TIMEOUT_SECONDS)

    async def run(request_id: str) -> int:
        request = schedules.TriggerScheduleRequest(schedule="nightly", request_id=request_id)
        task = (await stub.TriggerSchedule(request, timeout=TIMEOUT_SECONDS)).task
        revision: int = task.spec.agent_pin.revision
        return revision

    assert await run("1") == 1
    await agents.register(function("2"), "b2", make_current=True)
    assert [await run("2"), await run("1")] == [2, 1]


async def test_tenants_have_agents_of_their_own(replica: Checkpoint) -> None:
    agents = Agents(replica)
    await agents.register(function(), "b1")
    async with replica.of_tenant("acme") as acme:
        theirs = Agents(acme)
        with pytest.raises(NotFound) as missing:
            await theirs.get()
        assert missing.value.reason == "AGENT_NOT_FOUND"
        assert not (await theirs.submit()).spec.HasField("agent_pin")
        assert (await theirs.register(function("9"), "b9")).revision.revision == 1
    assert [each.revision for each in (await agents.get()).revisions] == [1]


async def test_agents_are_listed_in_pages(replica: Checkpoint) -> None:
    agents = Agents(replica)
    for name in ("c", "a", "b"):
        await agents.register(function(), name=name)
    page = await agents.stub.ListAgents(pb.ListAgentsRequest(page_size=2), timeout=TIMEOUT_SECONDS)
    assert [agent.name for agent in page.agents] == ["a", "b"]
    rest = pb.ListAgentsRequest(page_size=2, page_token=page.next_page_token)
    page = await agents.stub.ListAgents(rest, timeout=TIMEOUT_SECONDS)
    assert ([agent.name for agent in page.agents], page.next_page_token) == (["c"], "")


@pytest.mark.parametrize(
    "statement",
    [
        "update ledger.agent_revisions set definition = '\\x00'",
        "update ledger.agent_revisions set digest = repeat('0', 64)",
        "update ledger.agent_revisions set revision = 5",
        "delete from ledger.agent_revisions",
        "delete from ledger.agent_builds",
        "update ledger.agent_builds set build = 'b9'",
        "update ledger.tasks set agent_revision = 2",
        "update ledger.tasks set agent = 'other'",
    ],
)
async def test_revisions_and_pins_do_not_change_by_hand(replica: Checkpoint, statement: str) -> None:
    agents = Agents(replica)
    await agents.register(function(), "b1")
    await agents.submit()
    with pytest.raises(psycopg.errors.CheckViolation):
        await agents.replica.query(statement)


async def test_a_retired_revision_stays_retired(replica: Checkpoint) -> None:
    agents = Agents(replica)
    await agents.register(function(), "b1")
    await agents.register(function("2"), "b2", make_current=True)
    await agents.retire(1)
    with pytest.raises(psycopg.errors.CheckViolation):
        await agents.replica.query("update ledger.agent_revisions set retired_at = null where revision = 1")
    for change in (agents.ramp(1, 100), agents.ramp(1, 10_000), agents.register(function(), "b1", make_current=True)):
        with pytest.raises(WrongState):
            await change
    assert not (await agents.register(function(), str(uuid4()))).created
