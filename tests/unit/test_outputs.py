"""Outputs of tasks: what can be recorded, how they are folded, and what their check at the close-out says."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.domain.entries import Body, Entry, ModelAttempt, ToolIntent, ToolOutcome
from tenure.domain.fold import ResumePoint
from tenure.domain.outputs import (
    FileDigest,
    OutputState,
    TaskOutput,
    check_outputs,
    problem_of_output,
)
from tenure.domain.tools import Outcome, OutcomeStatus
from tenure.domain.webhooks import body_of
from tenure.wire.tool import outcome_to_domain, outcome_to_wire, output_to_domain, output_to_wire

DIGEST = "sha256:" + "0" * 64
FILE = TaskOutput("report", "workspace:a/b.md", OutputState.RECORDED, DIGEST, 3)
PULL = TaskOutput("pull_request", "https://example.org/1", OutputState.STATED, description="the change")


def test_outputs_that_can_be_recorded_have_no_problem() -> None:
    assert [problem_of_output(output) for output in (FILE, PULL)] == ["", ""]
    assert problem_of_output(replace(FILE, uri="workspace:a report.md")) == ""


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"kind": ""}, "kind"),
        ({"kind": "a/b"}, "kind"),
        ({"kind": "report\n"}, "kind"),
        ({"uri": "no scheme"}, "uri"),
        ({"uri": "https://example.org/a b"}, "uri"),
        ({"uri": "https://" + "x" * 1000}, "uri"),
        ({"uri": "workspace:a"}, "checked"),
        ({"state": OutputState.VERIFIED}, "checked"),
        ({"digest": "sha256"}, "digest"),
        ({"size_bytes": -1}, "size"),
        ({"description": "x" * 201}, "description"),
        ({"description": "half \ud800"}, "surrogate"),
        ({"uri": "https://example.org/\udc80"}, "surrogate"),
    ],
)
def test_each_bound_of_an_output_is_named(change: dict[str, object], word: str) -> None:
    assert word in problem_of_output(replace(PULL, **change))  # type: ignore[arg-type]


def test_check_reports_each_file() -> None:
    same, other = FileDigest(DIGEST, 3), FileDigest("sha256:" + "1" * 64, 4)
    assert check_outputs([FILE, PULL], {"a/b.md": same}) == (replace(FILE, state=OutputState.VERIFIED), PULL)
    [changed] = check_outputs([FILE], {"a/b.md": other})
    assert (changed.state, changed.digest, changed.size_bytes) == (OutputState.CHANGED, other.digest, 4)
    [missing] = check_outputs([FILE], {})
    assert (missing.state, missing.digest) == (OutputState.MISSING, DIGEST)


def test_the_fold_keeps_outputs_of_earlier_steps() -> None:
    point = ResumePoint()
    recorded = Outcome(OutcomeStatus.SUCCEEDED, "ok", output=FILE)
    failed = Outcome(OutcomeStatus.FAILED, "no", output=FILE)
    bodies: list[Body] = [
        ToolIntent("1.0", "u", "record_output", "{}"),
        ToolOutcome("1.0", recorded),
        ToolIntent("1.1", "v", "record_output", "{}"),
        ToolOutcome("1.1", failed),
    ]
    for number, body in enumerate(bodies, start=1):
        point.apply(Entry(number, 1, body))
    point.apply(Entry(5, 2, ModelAttempt(1, "m", 1, 1, 2)))
    assert point.outputs == {"1.0": replace(FILE, call_id="1.0")}
    assert not point.outcomes


@given(
    st.builds(
        TaskOutput,
        kind=st.text(max_size=5),
        uri=st.text(max_size=9),
        state=st.sampled_from(OutputState),
        digest=st.text(max_size=9),
        size_bytes=st.none() | st.integers(0, 2**53),
        description=st.text(max_size=9),
        call_id=st.just("1.0"),
    )
)
def test_outputs_survive_the_wire(output: TaskOutput) -> None:
    assert output_to_domain(output_to_wire(output)) == output
    outcome = Outcome(OutcomeStatus.SUCCEEDED, "ok", output=output)
    assert outcome_to_domain(outcome_to_wire(outcome)) == outcome


def test_a_webhook_leaves_outputs_out_before_the_task() -> None:
    outputs = [{"uri": f"https://example.org/{number:04}"} for number in range(32)]
    now = datetime(2026, 11, 23, tzinfo=UTC)
    whole = body_of("task.succeeded", now, {"task": {"task_id": "t", "outputs": outputs}})
    assert "0031" in whole
    cut = body_of("task.succeeded", now, {"task": {"task_id": "t", "outputs": outputs}}, 300)
    assert '"truncated":["task.outputs"]' in cut
    assert '"task_id":"t"' in cut
