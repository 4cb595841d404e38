"""The examples under test: each is killed after each of its model calls and tools, and nothing happens twice.

`python -m pytest tests/testing/test_examples.py` takes a worker or two for each kill. The programs run as they are.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tenure import TransitionEvent
from tenure.domain.states import TERMINAL, TaskState
from tenure.testing import TaskHandle, Tenure, WorkerHandle, tool
from tenure.testing.script import Script

pytestmark = [pytest.mark.server, pytest.mark.nightly]
EXAMPLES: Final = Path(__file__).parents[2] / "examples"
PROGRAM: Final = Path(__file__).with_name("example_program.py")
LOOK_SECONDS: Final = 0.02
PATIENCE_SECONDS: Final = 150.0


@dataclass(frozen=True, kw_only=True)
class Example:
    """A program of examples/agents, with what its model says.

    `agents`: the scripts of agents by a text of their instructions, besides `script`. `models`: the steps of its model
    calls. `tools`: its tool calls. `approvals`: how often a person is asked.
    """

    agent: str
    goal: str
    script: Script
    result: Any
    models: tuple[int, ...]
    tools: tuple[str, ...] = ()
    given: Any = None
    agents: tuple[tuple[str, Script], ...] = ()
    approvals: int = 0


AGENTS: Final = {
    "pydantic_weather": Example(
        agent="weather",
        goal="What is the weather in London?",
        given={"unit": "°C"},
        script=[
            tool("get_lat_lng", location_description="London"),
            tool("get_weather", lat=51.5, lng=-6.0),
            "Sunny.",
        ],
        result="Sunny.",
        models=(1, 3, 5),
        tools=("2.0", "4.0"),
    ),
    "pydantic_bank": Example(
        agent="bank",
        goal="I lost my card!",
        given={"customer_id": 123},
        script=[
            tool("customer_balance"),
            tool("block_card", reason="lost"),
            tool("final_result", support_advice="It is blocked.", block_card=True, risk=8),
        ],
        result={"support_advice": "It is blocked.", "block_card": True, "risk": 8},
        models=(1, 3, 5),
        tools=("2.0", "4.0"),
        approvals=1,
    ),
    "pydantic_jokes": Example(
        agent="jokes",
        goal="Tell me a joke.",
        agents=(("joke_factory", [tool("joke_factory", count=2), "Knock, knock."]),),
        script=[tool("final_result", response=["Knock, knock.", "Who is there?"])],
        result="Knock, knock.",
        models=(1, 2, 3),
    ),
    "openai_weather": Example(
        agent="hello-world",
        goal="What's the weather in Tokyo?",
        script=[tool("get_weather", city="Tokyo"), "Windy."],
        result="Windy.",
        models=(1, 3),
        tools=("2.0",),
    ),
    "openai_triage": Example(
        agent="triage",
        goal="I want my money back for order 7",
        script=[tool("transfer_to_refund_agent"), tool("refund", order="7", cents=500), "Refunded."],
        result="Refunded.",
        models=(1, 2, 4),
        tools=("3.0",),
        approvals=1,
    ),
    "openai_translator": Example(
        agent="translator",
        goal="Say 'Hello' in Spanish and French.",
        script=["Never asked."],
        agents=(
            (
                "You use the tools",
                [
                    [tool("translate_to_spanish", input="Hello"), tool("translate_to_french", input="Hello")],
                    "Hola. Bonjour.",
                ],
            ),
            ("to Spanish", ["Hola."]),
            ("to French", ["Bonjour."]),
        ),
        result="Hola. Bonjour.",
        models=(1, 2, 3, 4),
    ),
}
IN_EVERY_RUN: Final = ("pydantic_bank", "openai_triage")
"""Those with the most: a tool that asks a person, in each library."""
IN_NIGHTLY: Final = [pytest.param(name, marks=pytest.mark.nightly) for name in AGENTS if name not in IN_EVERY_RUN]


class Show:
    """One run of an example."""

    def __init__(self, tenure: Tenure, folder: Path, name: str) -> None:
        self.tenure, self.example = tenure, AGENTS[name]
        self.program = EXAMPLES / "agents" / f"{name}.py"
        self._runs = folder / "runs.jsonl"
        self.task: TaskHandle[Any]

    def worker(self) -> WorkerHandle:
        environment = {"EXAMPLE": str(self.program), "RUNS": str(self._runs)}
        return self.tenure.worker(program=PROGRAM, environment=environment)

    def submit(self) -> None:
        self.tenure.model.script(self.example.script)
        for text, script in self.example.agents:
            self.tenure.model.script(script, instructions=text)
        self.task = self.tenure.submit(self.example.goal, agent=self.example.agent, input=self.example.given)

    def wait_killed(self, worker: WorkerHandle) -> None:
        self.approve_until(lambda: not worker.is_running)

    def approve_until(self, is_over: Callable[[], bool]) -> None:
        """Answers each wait for an approval."""
        ends_at = time.monotonic() + PATIENCE_SECONDS
        while not is_over():
            self.tenure.go()
            if self.example.approvals and self.task.state is TaskState.WAITING_USER and self.task.current_wait:
                self.task.approve()
            if time.monotonic() > ends_at:
                pytest.fail(self.task.story())
            time.sleep(LOOK_SECONDS)

    def ended(self) -> None:
        self.approve_until(lambda: self.task.state in TERMINAL)

    @property
    def effects(self) -> list[tuple[str, str]]:
        """The effects behind the tools, as a system that honours keys counts them: the call, and what it came to."""
        lines = self._runs.read_text().splitlines() if self._runs.exists() else []
        return sorted({(call, content) for _, call, content in map(json.loads, lines)})

    def check(self, *, kills: int) -> None:
        """Each effect happened once, each model call was repeated once for each kill at most, and the bills agree.

        On a busy machine a claim may be lost without a kill: then that repeats a call, too.
        """
        assert self.task.result().value == self.example.result
        assert [call for call, _ in self.effects] == sorted(self.example.tools)
        calls = self.task.model_calls
        answered = [call for call in calls if call.ending == "ANSWERED"]
        assert tuple(call.step for call in answered) == self.example.models
        assert {call.ending for call in calls} <= {"ANSWERED", "LOST"}
        assert len(calls) <= len(answered) + max(kills, self._losses)
        self._check_bills()

    @property
    def _losses(self) -> int:
        """How often the task lost its worker."""
        changes = [entry for entry in self.task.entries() if isinstance(entry, TransitionEvent)]
        return sum(change.reason in {"WORKER_LOST", "LEASE_EXPIRED", "CLAIM_LOST"} for change in changes)

    def _check_bills(self) -> None:
        """The ledger has for each answer what the provider billed; the budget has the bills, and reserves nothing.

        The bill of a lost call is an estimate, until a worker that was not killed reports what it used.
        """
        billed = {call["attempt"]: _tokens(call) for call in self.tenure.model.requests}
        calls = self.task.model_calls
        for call in calls:
            if call.ending == "ANSWERED":
                assert call.usage.total == billed[f"{self.task.id}/{call.step}/{call.attempt_number}"]
        budget = self.task.info.budget
        answers = sum(call.usage.total for call in calls if call.ending == "ANSWERED")
        assert answers <= budget.used_tokens <= sum(call.usage.total for call in calls)
        assert budget.reserved_tokens == 0
        assert not budget.reserved_cost_usd
        if all(call.ending == "ANSWERED" for call in calls):
            assert budget.used_tokens == sum(billed.values())


def _tokens(request: dict[str, Any]) -> int:
    kinds = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    return sum(request[kind] for kind in kinds)


@pytest.mark.parametrize("name", [*IN_EVERY_RUN, *IN_NIGHTLY])
def test_an_example_runs(tenure: Tenure, tmp_path: Path, name: str) -> None:
    show = Show(tenure, tmp_path, name)
    show.worker()
    show.submit()
    show.ended()
    show.check(kills=0)


@pytest.mark.faults
@pytest.mark.parametrize("name", AGENTS)
def test_an_example_is_killed_in_every_call(tenure: Tenure, tmp_path: Path, name: str) -> None:
    """One task, and a kill after each answer of its model and after each effect of its tools."""
    show = Show(tenure, tmp_path, name)
    points = sorted(
        [f"after model {step}" for step in show.example.models]
        + [f"after own-tool {call}" for call in show.example.tools],
        key=lambda at: float(at.split()[-1]),
    )
    killed = show.worker()
    killed.kill_later(points[0])
    show.submit()
    for at in points[1:]:
        show.wait_killed(killed)
        killed = show.worker()
        killed.kill_later(at)
    show.wait_killed(killed)
    show.worker()
    show.ended()
    show.check(kills=len(show.example.models))


@pytest.mark.faults
@pytest.mark.parametrize(("name", "key"), [("pydantic_bank", "4.0"), ("openai_triage", "3.0")])
def test_an_example_without_its_key_fails_this_test(tenure: Tenure, tmp_path: Path, name: str, key: str) -> None:
    """The test of the test: with another key in each run, the effect happens twice, and the crash test says so."""
    show = Show(tenure, tmp_path, name)
    code = show.program.read_text()
    assert code.count("tool_call().idempotency_key") == 1
    show.program = tmp_path / "careless.py"
    show.program.write_text(code.replace("tool_call().idempotency_key", "__import__('uuid').uuid4().hex"))
    killed = show.worker()
    killed.kill_later(f"after own-tool {key}")
    show.submit()
    show.wait_killed(killed)
    show.worker()
    show.ended()
    assert [call for call, _ in show.effects].count(key) == 2
    with pytest.raises(AssertionError):
        show.check(kills=1)


# The functions of examples/.


@pytest.mark.faults
@pytest.mark.parametrize("at", ["after execute 2.0", "after step 1", "after outcome 2.0", "before close-out"])
def test_the_month_is_booked_once(tenure: Tenure, at: str) -> None:
    worker = tenure.worker(functions="examples.month_end")
    task = tenure.submit_function("month_end", {"month": "2026-10", "books": "books"})
    worker.kill(at=at)
    tenure.worker(functions="examples.month_end")
    assert task.result().value == {"total": 250, "booked": True}
    assert tenure.records("books") == ["2026-10 250"]
    assert tenure.effects("append_record_unsafe") == 1


@pytest.mark.faults
@pytest.mark.parametrize("at", ["after execute 1.0", "after outcome 1.0", "after model 1"])
def test_the_research_tree_asks_each_sub_agent_once(tenure: Tenure, at: str) -> None:
    """The worker has the function and the sub-agents: the kill ends whatever of them runs."""
    topics = ["tea", "milk", "sugar"]
    tenure.model.script(["{{goal}}"])
    worker = tenure.worker(functions="examples.research_tree")
    task = tenure.submit_function("research", {"topics": topics}, max_tokens=50_000)
    worker.kill(at=at)
    tenure.worker(functions="examples.research_tree")
    found = {topic: f"Find out about {topic}, in three sentences." for topic in topics}
    assert task.result().value == {"found": found, "missing": []}
    assert len(tenure.tasks) == 1 + len(topics)
    assert len(tenure.model.requests) <= 2 * len(topics)
    budget, calls = task.info.budget, [call for each in tenure.tasks for call in each.model_calls]
    assert sum(call.ending == "ANSWERED" for call in calls) == len(topics)
    answers = sum(call.usage.total for call in calls if call.ending == "ANSWERED")
    assert answers <= budget.used_tokens <= sum(call.usage.total for call in calls)
    assert budget.reserved_tokens == 0
    assert not budget.reserved_cost_usd
