"""`tenure tasks export`: a line for each task that matches, with everything that it was given and came to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tenure.cli.exit_codes import Exit
from tenure.cli.main import cli
from tenure.testing import Tenure, error, tool, turn

pytestmark = pytest.mark.server


def exported(tenure: Tenure, file: Path, *options: str) -> list[dict[str, Any]]:
    words = [
        "--address",
        tenure.address,
        "--tenant",
        tenure.tenant,
        "tasks",
        "export",
        "--dataset",
        str(file),
        *options,
    ]
    done = CliRunner().invoke(cli, [*words, *options], catch_exceptions=False)
    assert done.exit_code == Exit.OK, done.output
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    plural = "task" if len(rows) == 1 else "tasks"
    assert done.stderr == f"Wrote {len(rows)} {plural} to {file}.\n"
    return rows


def test_a_row_has_the_whole_task(tenure: Tenure, tmp_path: Path) -> None:
    append = tool("append_record", file="books", line="tea")
    tenure.model.script([turn("I write it down.", append), error(529, retry_after=0.01), "Done."])
    tenure.worker()
    task = tenure.submit("Buy tea", tools=["append_record"], labels={"suite": "shop"})
    task.wait()
    (row,) = exported(tenure, tmp_path / "runs.jsonl")
    assert (row["task_id"], row["input"], row["output"]) == (task.id, "Buy tea", "Done.")
    assert (row["task"]["state"], row["task"]["labels"]) == ("SUCCEEDED", {"suite": "shop"})
    assert [message["role"] for message in row["messages"]] == ["user", "assistant", "user", "assistant"]
    assert row["messages"][0]["content"] == [{"type": "text", "text": "Buy tea"}]
    assert row["messages"][-1]["content"] == [{"type": "text", "text": "Done."}]
    assert [(c["step"], c["ending"]) for c in row["model_calls"]] == [(1, "ANSWERED"), (2, "FAILED"), (2, "ANSWERED")]
    assert [call.get("text") for call in row["model_calls"]] == ["I write it down.", None, "Done."]
    assert row["model_calls"][0]["usage"]["output_tokens"] > 0
    (call,) = row["tool_calls"]
    assert (call["tool"], call["arguments"]) == ("append_record", {"file": "books", "line": "tea"})
    assert (call["status"], call["content"]) == ("SUCCEEDED", "Appended.")


@pytest.mark.faults
def test_filters_choose_the_tasks(tenure: Tenure, tmp_path: Path) -> None:
    tenure.model.script(["Done."])
    tenure.worker(functions="tests.testing.functions")
    tenure.submit("One", tools=[], labels={"suite": "shop"}).wait()
    tenure.submit("Two", tools=[], labels={"suite": "bank"}).wait()
    function = tenure.submit_function("book", {"order": 7}, labels={"suite": "shop"})
    function.wait()
    tenure.submit("Three", tools=[], queue="nobody", labels={"suite": "shop"}).cancel()
    file = tmp_path / "runs.jsonl"
    shop = exported(tenure, file, "--label", "suite=shop", "--state", "SUCCEEDED")
    assert [row["input"] for row in shop] == [{"order": 7}, "One"]
    assert shop[0]["output"] == "booked"
    assert [row["input"] for row in exported(tenure, file, "--queue", "nobody")] == ["Three"]
    assert len(exported(tenure, file, "--limit", "2")) == 2
    assert file.stat().st_mode & 0o077 == 0, "only its owner may read what people asked for"


def test_a_file_that_cannot_be_written_is_reported(tenure: Tenure, tmp_path: Path) -> None:
    """The earlier file stays as it is until the new one is complete."""
    words = ["--address", tenure.address, "tasks", "export", "--dataset", str(tmp_path / "nowhere" / "runs.jsonl")]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code != Exit.OK
    assert "nowhere/runs.jsonl cannot be written: No such file or directory" in done.stderr
    before = tmp_path / "runs.jsonl"
    before.write_text("kept\n")
    gone = CliRunner().invoke(cli, ["--address", "127.0.0.1:9", "tasks", "export", "--dataset", str(before)])
    assert gone.exit_code == Exit.UNAVAILABLE
    assert before.read_text() == "kept\n"
    assert [path.name for path in tmp_path.iterdir()] == ["runs.jsonl"]
