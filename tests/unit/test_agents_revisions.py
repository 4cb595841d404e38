"""Revisions of agents: which one a new task gets, who can run it, and what makes two definitions the same."""

from __future__ import annotations

from uuid import uuid4

import pytest

from services.gateway.http.requests import SubmitBody
from services.gateway.http.tasks import submit_of
from services.worker.agents import definitions_of, digests_of
from tenure.agents import Agent, Effect, Work, Worker, function
from tenure.agents.functions import content_of
from tenure.domain.agents import (
    AgentContent,
    AgentKind,
    AgentPin,
    BuildNeed,
    Routing,
    becomes_current,
    is_ramped,
    needs_of_builds,
    percent_text,
    read_percent,
    read_reference,
)
from tenure.domain.errors import InvalidRequest
from tenure.domain.pools import WorkerPool
from tenure.domain.sub_agents import Share, spec_of_sub_agent
from tenure.domain.task import ControlWork, TaskSpec, offered_function, offered_loop
from tenure.v1 import agent_service_pb2 as pb
from tenure.v1 import coordinator_service_pb2 as coordinator
from tenure.validators import validate
from tenure.wire.agent_service import digest_of
from tenure.wire.task import spec_to_domain, spec_to_wire

TASKS = [str(uuid4()) for _ in range(20_000)]
DIGEST = "0123456789abcdef" * 4


@pytest.mark.parametrize("basis_points", [0, 50, 1000, 5000, 9999, 10_000])
def test_a_ramp_gets_its_part_of_the_tasks(basis_points: int) -> None:
    got = sum(is_ramped("support", task, basis_points) for task in TASKS) / len(TASKS)
    assert got == pytest.approx(basis_points / 10_000, abs=0.02)


def test_a_higher_ramp_keeps_the_tasks_of_a_lower_one() -> None:
    tenth = {task for task in TASKS if is_ramped("support", task, 1000)}
    assert tenth <= {task for task in TASKS if is_ramped("support", task, 2500)}
    assert tenth != {task for task in TASKS if is_ramped("shop", task, 1000)}
    assert all(Routing(6, 7, 1000).choose("support", task) == (7, True) for task in tenth)
    assert Routing(6, 7, 1000).choose("support", next(iter(set(TASKS) - tenth))) == (6, False)


def test_a_whole_ramp_makes_current_and_none_ends_it() -> None:
    ramping = Routing(6).ramped(7, 1000)
    assert ramping == Routing(6, 7, 1000)
    assert ramping.ramped(7, 10_000) == Routing(7)
    assert ramping.ramped(6, 10_000) == Routing(6)
    assert ramping.ramped(7, 0) == Routing(6)
    assert ramping.ramped(5, 0) == ramping


@pytest.mark.parametrize(
    ("routing", "created", "build", "current_build", "expected"),
    [
        (Routing(0), True, True, False, True),
        (Routing(1), True, False, False, True),
        (Routing(1), False, False, False, False),
        (Routing(1), True, True, False, False),
        (Routing(1), True, False, True, False),
        (Routing(1, 2, 100), True, False, False, False),
    ],
)
def test_a_registration_makes_current_only_without_builds(
    routing: Routing, created: bool, build: bool, current_build: bool, expected: bool
) -> None:
    state = {"is_created": created, "has_build": build, "current_has_build": current_build}
    assert becomes_current(routing, AgentKind.FUNCTION, **state) is expected
    assert becomes_current(routing, AgentKind.MODEL, **state) is (routing.current == 0)


def test_references_and_percentages_are_read() -> None:
    assert read_reference("support") == ("support", 0)
    assert read_reference("support@7") == ("support", 7)
    for wrong in ("", "@7", "support@", "support@0", "support@x", "a@1@2", "support@99999999999"):
        with pytest.raises(ValueError, match=r"write its name|is not an agent"):
            read_reference(wrong)
    written = {"10%": 1000, "0.5": 50, "100%": 10_000, "0": 0, "33.33%": 3333, "7.5 %": 750}
    assert {text: read_percent(text) for text in written} == written
    for wrong in ("", "ten", "-1", "101", "0.005%", "1e1"):
        with pytest.raises(ValueError, match="%"):
            read_percent(wrong)
    assert [percent_text(points) for points in (1000, 50, 3333)] == ["10%", "0.5%", "33.33%"]


def test_builds_are_counted_by_revision() -> None:
    revisions = {3: (5, ("b2", "b3")), 2: (4, ("b1",)), 1: (0, ("b0",)), 4: (7, ())}
    assert needs_of_builds(revisions) == [
        BuildNeed("b0", 0, 0),
        BuildNeed("b1", 4, 4),
        BuildNeed("b2", 5, 0),
        BuildNeed("b3", 5, 0),
    ]


def test_a_pinned_task_has_the_loop_of_its_revision() -> None:
    pin = AgentPin("month_end", 3, DIGEST, needs_build=True)
    spec = TaskSpec("", control=ControlWork("month_end"), agent_pin=pin)
    assert spec.dispatch_loop == "control.month_end@0123456789abcdef" == offered_loop("month_end", DIGEST)
    assert offered_function(spec.dispatch_loop) == "month_end"
    free = TaskSpec("", control=ControlWork("month_end"), agent_pin=AgentPin("month_end", 3, DIGEST))
    assert free.dispatch_loop == "control.month_end"
    assert spec_to_domain(spec_to_wire(spec)) == spec_to_domain(spec_to_wire(spec_to_domain(spec_to_wire(spec))))
    assert spec_to_domain(spec_to_wire(spec)).agent_pin == pin
    loops = [spec.dispatch_loop, "messages"]
    hello = coordinator.Hello(worker_id="w", loops=loops, build="b-1", session_secret=bytes(32))
    validate(coordinator.SessionRequest(hello=hello))


def test_a_pool_with_a_function_has_its_revisions() -> None:
    pool = WorkerPool("p", frozenset({"w"}), loops=frozenset({"control.month_end"}))
    pool.check("w", (), ["control.month_end", offered_loop("month_end", DIGEST)])


def test_sub_agents_have_the_pin_of_an_agent_without_code_only() -> None:
    pin = AgentPin("support", 7, DIGEST)
    parent = TaskSpec("help", agent_pin=pin)
    share = Share(1000, None)
    assert spec_of_sub_agent(parent, "sub", share, 60.0).agent_pin == pin
    of_function = TaskSpec("", control=ControlWork("support"), agent_pin=pin)
    assert spec_of_sub_agent(of_function, "sub", share, 60.0).agent_pin is None


def test_the_code_of_a_function_without_a_version_is_its_build() -> None:
    function_content, agent_content = AgentContent(AgentKind.FUNCTION), AgentContent(AgentKind.PYTHON)
    assert function_content.code_version("b1") == "b1"
    assert function_content.code_version("") == ""
    assert agent_content.code_version("b1") == ""
    assert AgentContent(AgentKind.FUNCTION, version="2").code_version("b1") == "2"


def made(instructions: str = "Answer.", effect: Effect = Effect.KEYED, version: str = "") -> Agent:
    agent = Agent("support", model="anthropic:sim-hello", instructions=instructions, version=version)

    @agent.tool_plain(effect=effect)
    async def refund(order: str, cents: int) -> str:
        """Refunds an order."""
        return f"{order} {cents}"

    return agent


def digest(agent: Agent, build: str = "b1") -> str:
    return digests_of(definitions_of(Worker([agent]).functions, build))["support"]


def test_digest_of_an_agent_covers_its_definition() -> None:
    assert digest(made()) == digest(made()) == digest(made(), build="b2")
    others = [made("Be brief."), made(effect=Effect.UNSAFE), made(version="2")]
    assert len({digest(made()), *map(digest, others)}) == 4
    described = definitions_of(Worker([made()]).functions, "")["support"]
    assert (described.agent.model, described.agent.system) == ("anthropic:sim-hello", "Answer.")
    assert [tool.name for tool in described.tools] == ["refund"]
    validate(pb.RegisterAgentRequest(name="support", definition=described, actor="a"))


def test_a_functions_digest_is_of_its_version_or_its_build() -> None:
    @function
    async def month_end(work: Work, given: int) -> str:
        return f"{work.task_id} {given}"

    @function(name="month_end", version="2")
    async def other(work: Work, given: int) -> str:
        return f"{work.task_id} {given}"

    def of(item: object, build: str) -> str:
        return digests_of(definitions_of(Worker([item]).functions, build))["month_end"]

    assert of(month_end, "b1") != of(month_end, "b2")
    assert of(other, "b1") == of(other, "b2") != of(month_end, "b1")
    assert content_of(month_end.run) is not None


def test_a_plain_function_has_a_definition_too() -> None:
    async def run(_work: Work, given: object) -> object:
        return given

    definition = definitions_of({"plain": run}, "b1")["plain"]
    assert (definition.kind, definition.code_version) == (pb.AGENT_KIND_FUNCTION, "b1")


def test_the_digest_of_a_definition_stays_the_same() -> None:
    """Tasks that are pinned wait for workers whose release computes another digest."""
    definition = pb.AgentDefinition(kind=pb.AGENT_KIND_MODEL, code_version="")
    definition.agent.model, definition.agent.system = "claude-x", "Prüfe."
    definition.limits.timeout.seconds = 60
    assert digest_of(definition) == "b6ad89006f0a5fe820af98d2b6e531c11591931ce77240cfc0a1e0e3d523738f"


def test_a_submit_by_http_may_name_a_revision() -> None:
    spec = submit_of(SubmitBody(goal="Help!", agent="support@7")).spec
    assert (spec.control.function, spec.agent_pin.revision) == ("support", 7)
    spec = submit_of(SubmitBody(function="month_end@3", input=[1])).spec
    assert (spec.control.function, spec.agent_pin.revision) == ("month_end", 3)
    assert not submit_of(SubmitBody(goal="Help!", agent="support")).spec.HasField("agent_pin")
    with pytest.raises(InvalidRequest, match="is not an agent"):
        submit_of(SubmitBody(goal="Help!", agent="support@"))
