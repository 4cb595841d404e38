"""Replays of agents in Python and of functions: the code runs again, and nothing that it does happens again."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tenure import TaskState, ToolOutcomeEvent, TransitionEvent
from tenure.cli.exit_codes import Exit
from tenure.client.replays import ReplayError
from tenure.sdk.events import UserMessageEvent
from tenure.testing import Recording, Replay, TaskHandle, Tenure, tool
from tests.support.sweeps import first
from tests.testing.recorded import command, exported

pytestmark = pytest.mark.server
CODE = Path(__file__).with_name("replayed_agents.py")
REFUND, CLOSE = tool("refund", order="7", cents=500), tool("close", order="7")


@dataclass
class Program:
    """A program with the agents, and the runs of its code. `runs`: the folder of the recordings."""

    tenure: Tenure
    folder: Path
    runs: Path
    path: Path = field(init=False)

    def __post_init__(self) -> None:
        self.write("replayed.py")

    def write(self, name: str = "changed.py", **changes: str) -> None:
        self.path = self.folder / name
        code = CODE.read_text().replace('"/dev/null"', repr(str(self.folder / "trace")))
        for old, new in changes.items():
            code = code.replace(old, new)
        if not self.path.exists() or self.path.read_text() != code:  # workers of an unchanged program are forked
            self.path.write_text(code)

    def made(self) -> list[str]:
        """What the code did, outside of Tenure."""
        path = self.folder / "trace"
        return path.read_text().splitlines() if path.exists() else []

    def submit(self, agent: str, goal: str = "Refund order 7") -> TaskHandle[Any]:
        self.tenure.worker(program=self.path)
        return self.tenure.submit(goal, agent=agent)

    def recording(self, task: TaskHandle[Any]) -> Recording:
        return Recording(exported(self.tenure, task, self.runs))

    def replay(self, run: Recording, **options: Any) -> Replay:
        """Replays the run. Nothing happens."""
        before, tasks = self.made(), len(self.tenure.tasks)
        replay = self.tenure.replay(run, program=self.path, **options)
        assert self.made() == before
        assert len(self.tenure.tasks) == tasks + 1
        return replay


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("program")


@pytest.fixture
def program(tenure: Tenure, folder: Path, tmp_path: Path) -> Program:
    (folder / "trace").unlink(missing_ok=True)
    return Program(tenure, folder, tmp_path)


def outcomes(task: TaskHandle[Any]) -> list[str]:
    return [entry.content for entry in task.entries() if isinstance(entry, ToolOutcomeEvent)]


@pytest.mark.parametrize("agent", first(["shop", "helper"]))
def test_a_replay_runs_no_tool_of_the_agent(tenure: Tenure, program: Program, agent: str) -> None:
    """The model is another one; its calls get the recorded outcomes, and one without a record is an error."""
    tenure.model.script([REFUND, "Refunded."])
    task = program.submit(agent)
    assert task.result().value == "Refunded."
    assert program.made() == ["refund 7 500"]
    run = program.recording(task)
    tenure.model.script([REFUND, tool("refund", order="8", cents=1), "Again: {{result.1.0}}"])
    replay = program.replay(run)
    assert outcomes(replay.task)[0] == "500 cents for 7"
    assert outcomes(replay.task)[1].startswith("[not recorded]")
    assert "[not recorded]" in replay.task.result().value
    assert {call.model.rpartition("/")[2] for call in replay.task.model_calls} == {"sim-scripted"}
    expected = "expected the end as SUCCEEDED (FUNCTION_RETURNED)"
    (divergence,) = map(str, replay.divergences)
    assert divergence == f'step 4: {expected}; got the call refund {{"cents": 1, "order": "8"}}'
    assert replay.task.info.labels["replay_of"] == "count.jsonl"


@pytest.mark.parametrize("agent", first(["shop", "helper"]))
def test_the_record_answers_model_calls_without_a_model(tenure: Tenure, program: Program, agent: str) -> None:
    """The same code takes the same course. A request that the record does not have fails, and the replay names it."""
    tenure.model.script([REFUND, "Refunded."])
    task = program.submit(agent)
    assert task.result().value == "Refunded."
    run, requests = program.recording(task), len(tenure.model.requests)
    replay = program.replay(run, model="")
    assert replay.divergences == []
    assert replay.task.result().value == "Refunded."
    assert replay.task.info.cost_usd == 0
    program.write(**{"You refund orders.": "You refund orders, and you are kind."})
    changed = program.replay(run, model="")
    assert changed.task.info.state is TaskState.FAILED
    assert "[not recorded]" in changed.task.info.message
    assert "which failed" in str(changed.divergences[0])
    assert len(tenure.model.requests) == requests


def test_a_replay_of_code_asks_no_person(tenure: Tenure, program: Program) -> None:
    """An approval, a question and a message: each has its answer at its place."""
    tenure.model.script([CLOSE, tool("ask", question="Why?"), "Closed: {{last_user_text}}"])
    task = program.submit("shop")
    waits = (event.wait for event in task.events() if isinstance(event, TransitionEvent) and event.wait is not None)
    approval = next(waits)
    task.send("Hurry.")
    task.approve(approval)
    task.answer("It is paid.", next(waits))
    task.result()
    assert program.made() == ["close 7"]
    run = program.recording(task)
    tenure.model.script(run.answers)
    replay = program.replay(run)
    assert replay.divergences == []
    assert outcomes(replay.task) == outcomes(task)
    states = {entry.state for entry in replay.task.entries() if isinstance(entry, TransitionEvent)}
    assert TaskState.WAITING_USER not in states
    said = [entry.text for entry in replay.task.entries() if isinstance(entry, UserMessageEvent)]
    assert said == ["Hurry."]


@pytest.mark.faults
def test_a_replay_runs_no_step_of_a_function(tenure: Tenure, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do the tools of the agents that it runs. A function without a further step differs at its end."""
    tenure.model.script([REFUND, "Closed."])
    tenure.worker(program=program.path)
    task = tenure.submit_function("close_order", "7")
    assert task.result().value == "Closed. paid"
    assert program.made() == ["pay 7", "refund 7 500", "archive 7"]
    run = program.recording(task)
    replay = program.replay(run, model="")
    assert replay.divergences == []
    assert replay.task.result().value == "Closed. paid"
    tenure.model.script([REFUND, "Closed again."])
    assert program.replay(run).task.result().value == "Closed again. paid"
    monkeypatch.syspath_prepend(str(program.folder))
    assert tenure.replay(run, functions=program.path.stem, model="").divergences == []
    program.write(**{'"archive", happens': '"burn", happens'})
    burning = program.replay(run, model="")
    first = burning.divergences[0]
    assert (first.expected, first.got) == ("the step archive", "the step burn, which failed")
    assert "has no further step of this name" in burning.task.info.message


@pytest.mark.faults
def test_a_replay_looks_for_no_tools(tenure: Tenure, program: Program) -> None:
    """Those of a dynamic toolset come from the record, also for more model calls than it has."""
    look = tool("look", order="7")
    tenure.model.script([look, "It is paid."])
    task = program.submit("looker", "Is order 7 paid?")
    assert task.result().value == "It is paid."
    assert set(program.made()) == {"look for tools", "look 7"}
    tenure.model.script([look, look, look, "Again: {{result.2.0}}"])
    replay = program.replay(program.recording(task))
    assert replay.task.result().value == "Again: 7 is paid"


@pytest.mark.faults
def test_the_command_replays_code(tenure: Tenure, program: Program) -> None:
    """In the program's own worker, whose queues do not count. Other ways are refused with a reason."""
    tenure.model.script([REFUND, "Refunded."])
    task = program.submit("shop")
    assert task.result().value == "Refunded."
    tenure.model.script([REFUND, "Refunded by another."], model="sim-other")
    assert "tools refund, close, ask" in re.sub(" +", " ", command(tenure, "get", task.id).stdout)
    words = ["tasks", "replay", task.id, "--recorded-tools"]
    before = program.made()
    done = command(tenure, *words, "--model", "sim-other", "--program", str(program.path))
    assert done.exit_code == Exit.OK, done.output
    assert done.stdout.splitlines()[1:] == ["1 tool call, all from the record", "Refunded by another."]
    assert program.made() == before
    refused = command(tenure, *words, "--model", "sim-other")
    assert (refused.exit_code, "Its code runs again" in refused.stderr) == (1, True)
    other = program.folder / "other.py"
    other.write_text("from tenure.agents import Agent, Worker\nWorker([Agent('other')]).run()\n")
    wrong = command(tenure, *words, "--program", str(other))
    assert "this worker has no agent and no function of this name; it has other" in " ".join(wrong.stderr.split())
    with pytest.raises(ReplayError, match="is the run of shop"):
        tenure.replay(program.recording(task))
