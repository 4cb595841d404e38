"""No call of an agent in Python runs that a person has not allowed: the cells of approval_agents, on real services."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tenure import TaskState
from tenure.agents import Effect
from tenure.sdk.events import TransitionEvent
from tenure.testing import TaskHandle, Tenure, tool, turn
from tests.support.approval_agents import AGENT, CELLS, OPENAI, PYDANTIC, WHERE, Cell
from tests.testing.parallel_agents import MODULES

pytestmark = pytest.mark.server
ANSWERS = ("allow", "edit", "deny", "nobody")
GROUPS = [(library, where) for library, places in WHERE.items() for where in places]


def begin(tenure: Tenure, folder: Path, cell: Cell, name: str) -> tuple[TaskHandle[Any], Path]:
    trace = folder / f"{cell.name}-{name}"
    called = tool("ask", input="?") if cell.where == AGENT else tool("act", cents=5)
    tenure.model.script([called, "Done."])
    tenure.model.script([tool("act", cents=5), "5"], instructions="inner")
    submitted = tenure.submit("Act", agent=cell.name, input=str(trace), approve_tools=cell.approve_tools)
    return submitted, trace


def check(tenure: Tenure, folder: Path, cell: Cell, answer: str, *, task: Any = None) -> None:
    """Brings one task to its wait, answers it, and compares the calls that ran."""
    begun, trace = task or begin(tenure, folder, cell, answer)
    begun.wait_until(TaskState.WAITING_USER)
    assert ran(trace) == [], f"{cell.name}: a call ran before anybody allowed it\n{begun.story()}"
    match answer:
        case "nobody":
            begun.cancel()
            begun.wait()
        case "deny":
            begun.deny(reason="no")
        case "edit" if cell.where != AGENT:
            begun.approve(arguments={"cents": 7})
        case _:
            begun.approve()
    if answer != "nobody":
        assert begun.result().value == "Done.", cell.name
    assert ran(trace) == expected(cell, answer), f"{cell.name}, {answer}\n{begun.story()}"


def expected(cell: Cell, answer: str) -> list[str]:
    if answer == "edit":
        return ["5"] if cell.where == AGENT else ["7"]
    return ["5"] if answer == "allow" else []


def ran(trace: Path) -> list[str]:
    return trace.read_text().split() if trace.exists() else []


@pytest.fixture
def served(tenure: Tenure) -> Tenure:
    tenure.worker(functions=MODULES)
    return tenure


SMALL = [
    (Cell(PYDANTIC, "declared", None), "allow"),
    (Cell(PYDANTIC, "submit", None), "deny"),
    (Cell(OPENAI, "declared", None), "edit"),
    (Cell(OPENAI, AGENT, None), "nobody"),
]


def test_a_call_of_each_kind_waits_for_a_person(served: Tenure, tmp_path: Path) -> None:
    for cell, answer in SMALL:
        check(served, tmp_path, cell, answer)


def decide_two(tenure: Tenure, folder: Path, cell: Cell) -> None:
    """Two calls of one answer wait together: the first is denied, the second allowed."""
    trace = folder / f"{cell.name}-two"
    called = ("ask", [{"input": "a"}, {"input": "b"}]) if cell.where == AGENT else ("act", [{"cents": 5}, {"cents": 6}])
    name, arguments = called
    tenure.model.script([turn("Two.", *(tool(name, **each) for each in arguments)), "Done."])
    tenure.model.script([tool("act", cents=6), "6"], instructions="inner")
    task = tenure.submit("Act", agent=cell.name, input=str(trace), approve_tools=cell.approve_tools)
    wait = task.wait_until(TaskState.WAITING_USER).wait
    assert wait is not None
    assert [call.arguments for call in wait.calls] == arguments, cell.name
    task.deny(wait, reason="no", calls=[wait.calls[0].call_id])
    waits = (event.wait for event in task.events() if isinstance(event, TransitionEvent) and event.wait is not None)
    later = next(each for each in waits if each.wait_id != wait.wait_id)
    assert not later.calls, f"{cell.name}: the call that was denied does not wait again"
    task.approve(later)
    assert task.result().value == "Done.", cell.name
    assert ran(trace) == ["6"], f"{cell.name}\n{task.story()}"


@pytest.mark.faults
def test_two_calls_at_once_are_decided_each(served: Tenure, tmp_path: Path) -> None:
    for cell, _ in SMALL:
        decide_two(served, tmp_path, cell)
    for library in (PYDANTIC, OPENAI):
        decide_two(served, tmp_path, Cell(library, "declared", Effect.KEYED))


@pytest.mark.faults
@pytest.mark.parametrize(("library", "where"), GROUPS)
def test_two_calls_of_each_kind_are_decided_each(served: Tenure, tmp_path: Path, library: str, where: str) -> None:
    for cell in CELLS:
        if (cell.library, cell.where) == (library, where):
            decide_two(served, tmp_path, cell)


def test_approvals_of_a_tool_that_no_agent_has_end_the_task(tenure: Tenure, tmp_path: Path) -> None:
    """The registry of the test's tenant does not have the agent, so the submit cannot refuse the name."""
    trace = tmp_path / "trace"
    tenure.worker(functions=MODULES, environment={"TENURE_WORKER_AGENT_TENANTS": "default"})
    for cell in (Cell(PYDANTIC, "submit", None), Cell(OPENAI, "submit", None)):
        task = tenure.submit("Act", agent=cell.name, input=str(trace), approve_tools=["atc"])
        ended = task.wait()
        assert ended.state == TaskState.FAILED
        assert "there is no tool 'atc'; did you mean act?" in ended.message
    assert ran(trace) == []


@pytest.mark.faults
@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize(("library", "where"), GROUPS)
def test_a_kill_before_the_wait_skips_no_approval(
    tenure: Tenure, tmp_path: Path, library: str, where: str, answer: str
) -> None:
    for cell in CELLS:
        if (cell.library, cell.where) == (library, where):
            worker = tenure.worker(functions=MODULES)
            task = begin(tenure, tmp_path, cell, answer)
            worker.kill(at="after intent 2.0")
            second = tenure.worker(functions=MODULES)
            check(tenure, tmp_path, cell, answer, task=task)
            second.kill()
