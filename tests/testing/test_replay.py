"""`tenure tasks replay`: another model over the recorded tools, and nothing happens outside."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner, Result

from tenure import TaskState, ToolOutcomeEvent
from tenure.cli.exit_codes import Exit
from tenure.cli.main import cli
from tenure.testing import TaskHandle, Tenure, tool

pytestmark = pytest.mark.server
TEA = tool("append_record", file="books", line="tea")
MILK = tool("append_record", file="books", line="milk")
LOOK = tool("list_files", path=".")


def replay(tenure: Tenure, task_id: str, *options: str) -> Result:
    data = str(tenure.stack._folder / "data")
    words = ["--data", data, "--tenant", tenure.tenant, "tasks", "replay", task_id, "--model", "sim-other", *options]
    return CliRunner().invoke(cli, words, catch_exceptions=False)


def replayed(tenure: Tenure, original: TaskHandle[Any]) -> TaskHandle[Any]:
    (task,) = [task for task in tenure.tasks if task.info.labels.get("replay_of") == original.id]
    return task


@pytest.mark.faults
def test_another_model_reads_the_recorded_outcomes(tenure: Tenure) -> None:
    """The calls of both, in another order, and one that the first model did not make. Each effect happened once."""
    tenure.model.script([[TEA, LOOK], MILK, "Bought."])
    tenure.worker()
    task = tenure.submit("Buy tea and milk", tools=["append_record", "list_files"], labels={"suite": "shop"})
    assert task.result().text == "Bought."
    sugar = tool("append_record", file="books", line="sugar")
    tenure.model.script([MILK, [TEA, sugar], LOOK, "Bought by another: {{result.1.1}}"], model="sim-other")
    done = replay(tenure, task.id, "--recorded-tools")
    assert done.exit_code == Exit.OK, done.output
    again = replayed(tenure, task)
    assert tenure.records("books") == ["tea", "milk"]
    assert tenure.effects("append_record") == 2
    outcomes = {entry.call_id: entry for entry in again.entries() if isinstance(entry, ToolOutcomeEvent)}
    assert [outcomes[call].content for call in ("1.0", "2.0")] == ["Appended.", "Appended."]
    assert outcomes["2.1"].content.startswith("[not recorded]")
    assert outcomes["2.1"].status == "FAILED"
    assert [call.model for call in again.model_calls] == ["sim-other"] * 4
    assert (again.info.labels["suite"], again.info.model, again.info.loop) == ("shop", "sim-other", "replay")
    first, second, *rest = done.stdout.splitlines()
    assert first.startswith("SUCCEEDED · 4 steps")
    assert second == "4 tool calls, not in the record: 2.1 append_record"
    assert "Bought by another: [not recorded]" in "\n".join(rest)


@pytest.mark.faults
def test_a_replay_calls_no_service_and_starts_no_process(tenure: Tenure) -> None:
    tenure.model.script([tool("request_approval", question="Refund?"), "Refunded."])
    tenure.worker()
    task = tenure.submit("Refund order 7", tools=["request_approval", "spawn_sub_agents"])
    task.wait_until(TaskState.WAITING_USER)
    task.approve()
    assert task.result().text == "Refunded."
    spawn = tool("spawn_sub_agents", goals=["Refund it for me"])
    tenure.model.script([tool("request_approval", question="Refund?"), spawn, "Done."], model="sim-other")
    done = replay(tenure, task.id, "--recorded-tools")
    assert done.exit_code == Exit.OK, done.output
    again = replayed(tenure, task)
    approved, spawned = [entry for entry in again.entries() if isinstance(entry, ToolOutcomeEvent)]
    (recorded,) = [entry for entry in task.entries() if isinstance(entry, ToolOutcomeEvent)]
    assert approved.content == recorded.content
    assert spawned.content.startswith("[not recorded]")
    assert len(tenure.tasks) == 2
    expected = "expected an answer without calls; got the call spawn_sub_agents"
    assert f'Differs at step 2: {expected} {{"goals": ["Refund it for me"]}}\n' in done.stdout


@pytest.mark.faults
def test_a_replay_whose_worker_cannot_start_says_why(tenure: Tenure) -> None:
    tenure.model.script(["Done."])
    tenure.worker()
    task = tenure.submit("Say done", tools=[])
    task.wait()
    words = ["--data", "/nowhere", "--address", tenure.address, "--tenant", tenure.tenant]
    settings = {"TENURE_WORKER_SLOTS_HIGH": "no such setting", "ANTHROPIC_API_KEY": ""}
    done = CliRunner(env=settings).invoke(cli, [*words, "tasks", "replay", task.id, "--model", "m", "--recorded-tools"])
    assert done.exit_code == 1
    assert "the worker of the replay has ended" in done.stderr
    assert "TENURE_WORKER_" in done.stderr
    assert replayed(tenure, task).wait().state is TaskState.CANCELLED


@pytest.mark.faults
def test_a_replay_says_what_it_cannot_do(tenure: Tenure) -> None:
    tenure.model.script(["Done."])
    tenure.worker(functions="tests.testing.functions")
    task = tenure.submit("Say done", tools=[])
    task.wait()
    done = replay(tenure, task.id)
    assert (done.exit_code, "say --recorded-tools" in done.stderr) == (Exit.USAGE, True)
    function = tenure.submit_function("book", {"order": 7})
    function.wait()
    done = replay(tenure, function.id, "--recorded-tools")
    assert "TASK is the run of book, a function or an agent in Python. Its code runs again" in done.stderr
    done = replay(tenure, task.id, "--recorded-tools", "--model", "")
    assert "TASK is the run of an agent without code: name the model of the replay" in done.stderr
    done = replay(tenure, task.id, "--recorded-tools", "--functions", "tests.testing.functions")
    assert "TASK is the run of an agent without code: replay it without --program" in done.stderr
    done = replay(tenure, function.id, "--recorded-tools", "--functions", "tests.testing.functions", "--system", "Be")
    assert "whose code has the system prompt: change it there" in done.stderr
    assert len(tenure.tasks) == 2
