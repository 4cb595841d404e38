"""A run with a sub-agent, a person and a message: from its exported ledger to a replay, and where that differs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tenure import TaskState, ToolOutcomeEvent
from tenure.cli.exit_codes import Exit
from tenure.client.replays import ReplayError, UnreadableLedger
from tenure.sdk.events import SubAgentsSpawnedEvent, UserMessageEvent
from tenure.testing import Recording, TaskHandle, Tenure, tool
from tests.testing.recorded import APPEND, ASK, EDITED, SPAWN, command, exported, recorded_run

pytestmark = pytest.mark.server


def outcomes(task: TaskHandle[Any]) -> list[str]:
    return [f"{entry.content}\n\n{entry.note}" for entry in task.entries() if isinstance(entry, ToolOutcomeEvent)]


@pytest.mark.faults
def test_a_replay_carries_sub_agents_and_messages(tenure: Tenure, tmp_path: Path) -> None:
    """No task is started, and the agent reads the message and the change at the steps of the record."""
    task = recorded_run(tenure)
    run = Recording(exported(tenure, task, tmp_path))
    assert run.goal == "parent Count"
    before = {each.id for each in tenure.tasks}
    assert len(before) == 2
    tenure.model.script([ASK, SPAWN, APPEND, "Again. {{result.2.0}}"])
    replay = tenure.replay(run)
    assert replay.divergences == []
    assert "A person changed the arguments of append_record" in replay.task.result().text
    assert {each.id for each in tenure.tasks} - before == {replay.task.id}
    assert tenure.records("books") == ["3 blue boxes"]
    entries = replay.task.entries()
    assert not [entry for entry in entries if isinstance(entry, SubAgentsSpawnedEvent)]
    messages = [(entry.step, entry.text) for entry in entries if isinstance(entry, UserMessageEvent)]
    assert messages == [(1, "Only the blue ones.")]
    changed, _, arguments = outcomes(replay.task)[2].partition("\n\n")[2].partition(": ")
    assert changed == "A person changed the arguments of append_record before it was run"
    assert json.loads(arguments) == EDITED
    assert replay.task.model_calls[1].text == "I heard: Only the blue ones."
    assert outcomes(replay.task) == outcomes(task)
    assert "3 boxes" in outcomes(replay.task)[1]


def test_a_replay_names_each_difference(tenure: Tenure, tmp_path: Path) -> None:
    """An answer is not final while the record has a message for the next step; later messages are named as not read."""
    run = Recording(exported(tenure, recorded_run(tenure), tmp_path))
    other = tool("spawn_sub_agents", goals=["child count the bags"])
    tenure.model.script(["I am done already.", other, "{{last_user_text}} {{result.1.0}}"])
    replay = tenure.replay(run)
    assert "[not recorded]" in replay.task.result().text
    bags = 'got the call spawn_sub_agents {"goals": ["child count the bags"]}'
    assert [str(each) for each in replay.divergences] == [
        'step 1: expected the call request_approval {"question": "May I begin?"}; got an answer without calls',
        f'step 2: expected the call spawn_sub_agents {{"goals": ["child count the boxes"]}}; {bags}',
        'step 3: expected the call append_record {"file": "books", "line": "3 boxes"}; got an answer without calls',
    ]
    assert len(tenure.tasks) == 3


@pytest.mark.faults
def test_the_command_replays_a_file(tenure: Tenure, tmp_path: Path) -> None:
    """The installation need not have the recorded task."""
    path = exported(tenure, recorded_run(tenure), tmp_path)
    tenure.model.script([ASK, SPAWN, APPEND, "Again."], model="sim-other")
    words = ["tasks", "replay", "--ledger", str(path), "--model", "sim-other", "--recorded-tools"]
    done = command(tenure, *words, "--system", "Be brief.")
    assert done.exit_code == Exit.OK, done.output
    assert done.stdout.splitlines()[1:] == ["3 tool calls, all from the record", "Again."]
    (again,) = [each for each in tenure.tasks if each.info.labels.get("replay_of") == "count.jsonl"]
    assert (again.info.loop, again.info.system) == ("replay", "Be brief.")
    both = command(tenure, *words, "0123")
    assert (both.exit_code, "name either TASK or --ledger FILE" in both.stderr) == (Exit.USAGE, True)


@pytest.mark.faults
def test_a_run_that_failed_fails_again(tenure: Tenure, tmp_path: Path) -> None:
    """Its limit ends the replay too. With other answers from the failed step on, the replay differs from there."""
    steps = [tool("append_record", file="books", line=str(number)) for number in range(6)]
    tenure.model.script([*steps, "Done {{result.0.0}}."])
    tenure.worker()
    task = tenure.submit("Write lines", tools=["append_record"], max_steps=5)
    ended = task.wait()
    assert ended.state is not TaskState.SUCCEEDED
    run = Recording(exported(tenure, task, tmp_path))
    tenure.model.script(run.answers)
    replay = tenure.replay(run)
    assert replay.divergences == []
    assert (replay.task.info.state, replay.task.info.reason) == (ended.state, ended.reason)
    tenure.model.script([*run.answers[:4], "Done earlier."])
    calls, end = map(str, tenure.replay(run).divergences)
    assert calls.startswith('step 5: expected the call append_record {"file": "books", "line": "4"}; got an answer')
    assert end.startswith(f"step 5: expected the end as {ended.state} ({ended.reason}); got the end as SUCCEEDED")


@pytest.mark.faults
def test_an_incomplete_ledger_file_is_refused(tenure: Tenure, tmp_path: Path) -> None:
    tenure.model.script(["Done."])
    tenure.worker(functions="tests.testing.functions")
    task = tenure.submit("Say done", tools=[])
    task.wait()
    lines = exported(tenure, task, tmp_path).read_text(encoding="utf-8").splitlines(keepends=True)
    function = tenure.submit_function("book", {"order": 7})
    function.wait()
    bad = tmp_path / "bad.jsonl"
    for content, why in [
        ("", "its first entry must be `submitted`"),
        ("".join(lines[1:]), "line 1 has entry 2, but 1 comes next"),
        (lines[0] + "".join(lines[2:]), "line 2 has entry 3, but 2 comes next"),
        (lines[0] + lines[1][:40], "line 2 is not a ledger entry"),
    ]:
        bad.write_text(content, encoding="utf-8")
        with pytest.raises(UnreadableLedger, match=why):
            tenure.replay(bad)
    of_function = exported(tenure, function, tmp_path)
    with pytest.raises(ReplayError, match="is the run of book"):
        tenure.replay(of_function)
    done = command(tenure, "tasks", "replay", "--ledger", str(of_function), "--model", "sim-other", "--recorded-tools")
    assert (done.exit_code, "is the run of book" in done.stderr) == (1, True)
    with pytest.raises(UnreadableLedger, match=r"nothing\.jsonl cannot be read: No such file"):
        Recording(tmp_path / "nothing.jsonl")
