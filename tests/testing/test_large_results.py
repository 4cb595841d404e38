"""Results that are too large for the ledger: kept in the workspace, read again by the next owner, checked by digest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tenure import ControlStepEvent, TaskState, ToolOutcomeEvent
from tenure.testing import TaskHandle, Tenure
from tests.testing.large import SIZE, text

pytestmark = pytest.mark.server
MODULE = "tests.testing.large"
RESULTS: dict[str, Any] = {
    "large_step": [len(text("whole")), "whole"],
    "large_group": [[len(text("a").encode()), "a"], [len(text("b").encode()), "b"], [1, "c"]],
    "large_answer": [len(text("answer").encode()), "answer"],
    "large_tools": [[len(text("tool 1.0").encode()), f"tool 1.{index}", False] for index in (0, 1)],
}
RUNS = {
    "large_step": ["whole"],
    "large_group": ["a", "b"],
    "large_answer": ["answer"],
    "large_tools": ["tool 1.0", "tool 1.1"],
}


def runs(folder: Path) -> list[str]:
    return sorted((folder / "trace").read_text().splitlines())


def submit(tenure: Tenure, folder: Path, function: str) -> TaskHandle[Any]:
    return tenure.submit_function(function, {"trace": str(folder / "trace")})


@pytest.mark.faults
@pytest.mark.parametrize("function", RESULTS)
def test_a_large_result_is_recorded_by_reference(tenure: Tenure, tmp_path: Path, function: str) -> None:
    tenure.worker(functions=MODULE)
    task = submit(tenure, tmp_path, function)
    assert task.result().value == RESULTS[function]
    assert runs(tmp_path) == RUNS[function]
    entries = task.entries()
    steps = [each.result_path for each in entries if isinstance(each, ControlStepEvent) and each.result_path]
    tools = [each.output_path for each in entries if isinstance(each, ToolOutcomeEvent)]
    assert len({*steps, *tools}) == len(RUNS[function])
    for path in (*steps, *tools):
        assert path.startswith("outputs/sha256-")
        assert SIZE - 10 < len(task.handle.read_file(path)) < SIZE + 20


@pytest.mark.faults
@pytest.mark.parametrize("function", RESULTS)
def test_a_kill_between_file_and_commit(tenure: Tenure, tmp_path: Path, function: str) -> None:
    worker = tenure.worker(functions=MODULE)
    task = submit(tenure, tmp_path, function)
    worker.kill(at="after keep")
    assert not [each for each in task.entries() if isinstance(each, ControlStepEvent | ToolOutcomeEvent)]
    tenure.worker(functions=MODULE)
    assert task.result().value == RESULTS[function]
    assert set(runs(tmp_path)) == set(RUNS[function])
    assert len(runs(tmp_path)) <= 2 * len(RUNS[function])


@pytest.mark.faults
@pytest.mark.parametrize(
    ("function", "at"),
    [
        ("large_step", "after record 1"),
        ("large_group", "after record 2"),
        ("large_answer", "before close-out"),
        ("large_tools", "after outcome 1"),
    ],
)
def test_the_next_owner_reads_what_was_recorded(tenure: Tenure, tmp_path: Path, function: str, at: str) -> None:
    worker = tenure.worker(functions=MODULE)
    task = submit(tenure, tmp_path, function)
    worker.kill(at=at)
    tenure.worker(functions=MODULE)
    assert task.result().value == RESULTS[function]
    assert runs(tmp_path) == RUNS[function]


def kept(tenure: Tenure, task: TaskHandle[Any]) -> Path:
    (path,) = (tenure.stack.workspaces / tenure.tenant / task.id / "outputs").glob("sha256-*")
    return path


@pytest.mark.faults
@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (Path.unlink, "it is not there any more"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "it is another one now"),
    ],
)
@pytest.mark.parametrize("function", ["lost", "large_step"])
def test_a_lost_result_is_an_error_of_its_own(
    tenure: Tenure, tmp_path: Path, damage: Callable[[Path], object], why: str, function: str
) -> None:
    worker = tenure.worker(functions=MODULE)
    task = submit(tenure, tmp_path, function)
    worker.kill(at="after step 2")
    damage(kept(tenure, task))
    tenure.worker(functions=MODULE)
    info = task.wait()
    assert runs(tmp_path) == ["whole"]  # its effects have happened: it does not run again
    if function == "lost":
        assert why in info.result
    else:
        assert (info.state, info.reason) == (TaskState.FAILED, "FUNCTION_FAILED")
        assert "ResultLost" in info.message
        assert why in info.message


@pytest.mark.faults
def test_a_result_has_a_bound(tenure: Tenure, tmp_path: Path) -> None:
    tenure.worker(functions=MODULE)
    assert submit(tenure, tmp_path, "too_large").result().value == "ValueError"
