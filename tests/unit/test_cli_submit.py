"""What a command line asks for, and what it leaves to the service."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tenure.cli.formatting import source_text
from tenure.cli.main import cli
from tenure.cli.parameters import SOURCE
from tenure.cli.send_and_fork import fork_request
from tenure.cli.submit import request_of
from tenure.cli.task_options import ESCALATIONS, MOMENT, PHASE_TIMEOUT, TASK_OPTIONS
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.wire.common import duration
from tests.unit.stubbed_calls import answer_calls


def test_unset_options_are_left_to_the_service() -> None:
    spec = request_of("go").spec
    assert (spec.goal, spec.agent, spec.limits) == ("go", task_pb2.AgentSpec(), task_pb2.Limits())
    assert not spec.policy.HasField("retry")


def test_zero_retries_are_not_the_default() -> None:
    retry = request_of("go", retries=0).spec.policy.retry
    assert retry.HasField("max_attempts")
    assert retry.max_attempts == 1
    assert request_of("go", retries=7).spec.policy.retry.max_attempts == 8


@pytest.mark.parametrize(
    ("word", "policy"),
    [("resume", task_pb2.LEASE_LOST_POLICY_RESUME), ("time-out", task_pb2.LEASE_LOST_POLICY_TIME_OUT)],
)
def test_policy_for_a_lost_worker_is_sent(word: str, policy: int) -> None:
    assert request_of("go", on_lease_lost=word).spec.policy.on_lease_lost == policy


def test_schema_and_zero_corrections_are_sent() -> None:
    request = request_of("go", result_schema='{"type": "object"}', result_corrections=0)
    assert request.spec.result_schema_json == '{"type": "object"}'
    assert request.spec.policy.HasField("max_result_corrections")
    assert not request_of("go").spec.policy.HasField("max_result_corrections")


def test_loop_is_sent() -> None:
    assert request_of("go", loop="of-my-own").spec.agent.loop == "of-my-own"


def test_tools_and_no_tools_exclude_each_other() -> None:
    with pytest.raises(click.UsageError, match="--no-tools"):
        request_of("go", tools=("a",), no_tools=True)


def test_money_cap_and_no_money_cap_exclude_each_other() -> None:
    assert request_of("go", no_max_cost=True).spec.limits == task_pb2.Limits(no_money_cap=True)
    assert fork_request(no_max_cost=True).overrides.limits == task_pb2.Limits(no_money_cap=True)
    for read in (partial(request_of, "go"), fork_request):
        with pytest.raises(click.UsageError, match="--no-max-cost"):
            read(max_cost=5, no_max_cost=True)


def test_a_conversation_is_the_source_and_may_have_one_task_only() -> None:
    source = request_of("go", conversation="c-1", exclusive=True).spec.source
    assert source == task_pb2.Source(kind=task_pb2.SOURCE_KIND_CONVERSATION, source_id="c-1", exclusive=True)
    assert request_of("go").spec.source == task_pb2.Source(kind=task_pb2.SOURCE_KIND_MANUAL)
    with pytest.raises(click.UsageError):
        request_of("go", exclusive=True)


def test_a_task_may_wait_in_the_line_of_its_source() -> None:
    source = request_of("go", conversation="c-1", at_most=2, debounce=5.0).spec.source
    assert (source.at_most, source.debounce.seconds, source.exclusive) == (2, 5, False)
    for wrong in ({"at_most": 1}, {"conversation": "c", "debounce": 1.0}):
        with pytest.raises(click.UsageError):
            request_of("go", **wrong)
    with pytest.raises(click.UsageError, match="--at-most"):
        request_of("go", conversation="c", at_most=1, exclusive=True)


def test_a_source_is_read_and_shown_in_one_form() -> None:
    for text in ("scheduler/nightly/2026-11-23T01:00Z/a", "control/a%2Fb", "conversation"):
        source = request_of("go", source=SOURCE.convert(text, None, None)).spec.source
        assert source_text(source) == text
    assert request_of("go", source=SOURCE.convert("control/a%2Fb", None, None)).spec.source.source_id == "a/b"
    assert source_text(request_of("go").spec.source) == ""
    for wrong in ("cron/nightly", "", "scheduler//monday"):
        with pytest.raises(click.BadParameter):
            SOURCE.convert(wrong, None, None)
    with pytest.raises(click.UsageError):
        request_of("go", source=SOURCE.convert("control/a", None, None), conversation="c-1")


def test_function_and_input_are_sent() -> None:
    request = request_of("", function="month_end", given='{"month": 10}')
    assert (request.spec.control.function, request.spec.control.input_json) == ("month_end", '{"month": 10}')
    assert request.spec.source.kind == task_pb2.SOURCE_KIND_CONTROL
    assert not request_of("go").spec.HasField("control")


@pytest.mark.parametrize(
    ("goal", "given"), [("", ""), (" \n", ""), ("go", "{}")], ids=["no goal", "blanks", "an input for nobody"]
)
def test_goal_or_function_is_required(goal: str, given: str) -> None:
    with pytest.raises(click.UsageError, match="--function"):
        request_of(goal, given=given)


@pytest.mark.parametrize("typed", ["", " \n"])
def test_an_agent_needs_a_goal_that_is_not_blank(monkeypatch: pytest.MonkeyPatch, typed: str) -> None:
    with pytest.raises(click.UsageError, match="GOAL"):
        request_of(typed, agent="support")
    monkeypatch.setattr("sys.stdin", StringIO(typed))
    with pytest.raises(click.UsageError, match="GOAL"):
        request_of("-", agent="support")


def test_start_is_a_time_or_a_delay() -> None:
    at = datetime(2031, 5, 1, 10, tzinfo=UTC)
    assert request_of("go", start_at=at).spec.start_time.ToDatetime(tzinfo=UTC) == at
    in_a_while = request_of("go", start_in=3600.0).spec.start_time.ToDatetime(tzinfo=UTC) - datetime.now(UTC)
    assert timedelta(minutes=59) < in_a_while <= timedelta(hours=1)
    assert not request_of("go").spec.HasField("start_time")
    with pytest.raises(click.UsageError, match="--start-in"):
        request_of("go", start_at=at, start_in=1.0)


def test_a_time_without_a_zone_is_of_this_machine() -> None:
    assert MOMENT.convert("2031-05-01T12:00+02:00", None, None) == datetime(2031, 5, 1, 10, tzinfo=UTC)
    here = datetime(2031, 5, 1, 12).astimezone()
    assert MOMENT.convert("2031-05-01T12:00", None, None) == here
    with pytest.raises(click.BadParameter):
        MOMENT.convert("tomorrow", None, None)


def test_phases_have_a_duration_an_action_or_both() -> None:
    seen = [PHASE_TIMEOUT.convert(text, None, None) for text in ("queued=10m:retry", "tool-call=:fail", "step=90s")]
    timeouts = request_of("go", phase_timeouts=tuple(seen)).spec.policy.timeouts
    assert (timeouts.queued.after.seconds, timeouts.queued.action) == (600, task_pb2.TIMEOUT_ACTION_RETRY)
    assert timeouts.tool_call == task_pb2.PhaseTimeout(action=task_pb2.TIMEOUT_ACTION_FAIL)
    assert timeouts.step == task_pb2.PhaseTimeout(after=duration(90.0))
    assert not request_of("go").spec.policy.HasField("timeouts")
    for text in ("queue=1m", "queued", "queued=", "queued=1m:explode", "queued=soon"):
        with pytest.raises(click.BadParameter):
            PHASE_TIMEOUT.convert(text, None, None)


def test_escalations_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "steps.json"
    file.write_text('{"person": [{"after": "60s", "assignee": "lead"}]}')
    steps = ESCALATIONS.convert(str(file), None, None)
    assert request_of("go", escalations=steps).spec.policy.escalations.person[0].assignee == "lead"


@pytest.mark.parametrize("text", ["[", '{"nobody": []}', '{"person": [{"after": 1}]}', " " * 65_537])
def test_a_wrong_file_of_escalations_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "steps.json"
    file.write_text(text)
    with pytest.raises(click.BadParameter, match=r"steps\.json"):
        ESCALATIONS.convert(str(file), None, None)
    with pytest.raises(click.BadParameter, match="absent"):
        ESCALATIONS.convert(str(tmp_path / "absent"), None, None)


def test_help_has_each_option_of_a_task_once_below_a_section() -> None:
    text = CliRunner().invoke(cli, ["submit", "--help"]).stdout
    sections = {
        title: set(re.findall(r"^  (--[a-z-]+)", body, re.MULTILINE))
        for title, body in re.findall(r"^(\w[\w ]*):\n((?:  .*\n)+)", text, re.MULTILINE)
    }
    assert sections["Options"] == {"--watch"}
    assert "--max-cost" in sections["Limits"]
    assert all(sum(option.opts[0] in names for names in sections.values()) == 1 for option in TASK_OPTIONS)


@pytest.mark.parametrize("obstacle", ["", "No worker serves queue default and the agent or function nosuch"])
def test_a_name_that_no_worker_has_is_reported_at_once(monkeypatch: pytest.MonkeyPatch, obstacle: str) -> None:
    async def submit(request: api.SubmitTaskRequest, **_options: Any) -> api.SubmitTaskResponse:
        return api.SubmitTaskResponse(task=task_pb2.Task(task_id="t" * 36, spec=request.spec))

    async def explain(_request: api.ExplainTaskRequest) -> api.ExplainTaskResponse:
        return api.ExplainTaskResponse(lines=["…"], obstacle=obstacle)

    answer_calls(monkeypatch, "tasks", "SubmitTask", submit)
    answer_calls(monkeypatch, "tasks", "ExplainTask", explain)
    result = CliRunner().invoke(cli, ["--address", "127.0.0.1:1", "submit", "go", "--agent", "nosuch"])
    assert result.exit_code == 0, result.output
    assert (f"Warning: {obstacle}." in result.stderr) == bool(obstacle)
