"""Defaults per source: filled in where nothing is said, and refused by name when they make no sense."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration

from services.checkpoint.submit.source_defaults import SourceDefaults, load_source_defaults, read_source_defaults
from tenure.runtime.settings import ConfigurationError
from tenure.v1 import task_pb2
from tenure.wire.task import policy_to_domain

FILE = """
[defaults.conversation]
priority = "PRIORITY_HIGH"
limits = { timeout = "3600s", max_steps = 7 }
policy.timeouts.start = { after = "5s", action = "TIMEOUT_ACTION_FAIL" }
policy.retry = { max_attempts = 0, initial_backoff = "2s" }

[defaults.manual]
limits = { timeout = "60s" }
"""
CONVERSATION = task_pb2.Source(kind=task_pb2.SOURCE_KIND_CONVERSATION)


def read(text: str) -> SourceDefaults:
    return read_source_defaults(tomllib.loads(text), "the file")


def problems(text: str) -> str:
    with pytest.raises(ConfigurationError) as refused:
        read(text)
    return str(refused.value)


def test_unset_fields_are_filled_in() -> None:
    sent = task_pb2.TaskSpec(goal="go", source=CONVERSATION)
    filled = read(FILE).fill(sent)
    assert filled.priority == task_pb2.PRIORITY_HIGH
    assert (filled.limits.timeout.seconds, filled.limits.max_steps) == (3600, 7)
    assert filled.policy.timeouts.start.after.seconds == 5
    assert filled.policy.retry.HasField("max_attempts")
    assert filled.policy.retry.max_attempts == 0
    assert sent == task_pb2.TaskSpec(goal="go", source=CONVERSATION), "what was sent stays as it was"


def test_the_wait_of_a_submit_goes_before_defaults_of_kinds() -> None:
    defaults = read(
        '[defaults.conversation.policy.timeouts]\nwait_person = { after = "9s" }\n'
        'wait_event = { after = "8s", action = "TIMEOUT_ACTION_FAIL" }'
    )
    sent = task_pb2.TaskSpec(goal="go", source=CONVERSATION)
    timeouts = defaults.fill(sent).policy.timeouts
    assert (timeouts.wait_person.after.seconds, timeouts.wait_event.after.seconds) == (9, 8)
    sent.policy.timeouts.wait.after.seconds = 5
    timeouts = defaults.fill(sent).policy.timeouts
    assert not timeouts.wait_person.HasField("after")
    assert timeouts.wait_event == task_pb2.PhaseTimeout(action=task_pb2.TIMEOUT_ACTION_FAIL)


def test_a_source_has_its_own_renewals_and_grace() -> None:
    defaults = read('[defaults.conversation.policy]\nrenew_interval = "0.5s"\nreconnect_grace = "0s"')
    policy = policy_to_domain(defaults.fill(task_pb2.TaskSpec(goal="go", source=CONVERSATION)).policy)
    assert (policy.renew_interval_seconds, policy.reconnect_grace_seconds) == (0.5, 0.0)
    scheduled = task_pb2.TaskSpec(goal="go", source=task_pb2.Source(kind=task_pb2.SOURCE_KIND_SCHEDULER))
    policy = policy_to_domain(defaults.fill(scheduled).policy)
    assert (policy.renew_interval_seconds, policy.reconnect_grace_seconds) == (0.0, None)
    refused = problems('[defaults.conversation.policy]\nrenew_interval = "0.1s"\nreconnect_grace = "301s"')
    assert "policy.renew_interval: must be 0.2 to 300" in refused
    assert "policy.reconnect_grace: must be 0 to 300" in refused


def test_set_fields_are_kept() -> None:
    sent = task_pb2.TaskSpec(goal="go", source=CONVERSATION, priority=task_pb2.PRIORITY_LOW)
    sent.limits.timeout.CopyFrom(Duration(nanos=500_000_000))
    sent.policy.retry.max_attempts = 4
    sent.policy.timeouts.start.after.seconds = 9
    filled = read(FILE).fill(sent)
    assert (filled.priority, filled.limits.timeout) == (task_pb2.PRIORITY_LOW, Duration(nanos=500_000_000))
    assert (filled.policy.retry.max_attempts, filled.policy.retry.initial_backoff.seconds) == (4, 2)
    assert filled.policy.timeouts.start.after.seconds == 9
    assert filled.policy.timeouts.start.action == task_pb2.TIMEOUT_ACTION_FAIL


@pytest.mark.parametrize("source_has", ["max_nano_usd = 5", "no_money_cap = true"])
def test_a_submitted_money_cap_outranks_its_sources(source_has: str) -> None:
    defaults = read(f"[defaults.manual]\nlimits = {{ {source_has} }}")
    wanted = task_pb2.Limits(max_nano_usd=7), task_pb2.Limits(no_money_cap=True)
    for limits in wanted:
        assert defaults.fill(task_pb2.TaskSpec(goal="go", limits=limits)).limits == limits
    filled = defaults.fill(task_pb2.TaskSpec(goal="go")).limits
    assert (filled.max_nano_usd, filled.no_money_cap) in {(5, False), (0, True)}


def test_duration_of_zero_is_unset() -> None:
    sent = task_pb2.TaskSpec(goal="go", source=CONVERSATION)
    sent.limits.timeout.SetInParent()
    assert read(FILE).fill(sent).limits.timeout.seconds == 3600


def test_a_task_without_source_is_manual() -> None:
    assert read(FILE).fill(task_pb2.TaskSpec(goal="go")).limits.timeout.seconds == 60
    scheduled = task_pb2.TaskSpec(goal="go", source=task_pb2.Source(kind=task_pb2.SOURCE_KIND_SCHEDULER))
    assert read(FILE).fill(scheduled) is scheduled
    assert load_source_defaults(None).fill(scheduled) is scheduled


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[defaults.nightly]\n", "defaults.nightly: is not a source"),
        ("[other]\n", "unknown key 'other'"),
        ("defaults = 3\n", "must be tables"),
        ("[defaults]\nmanual = 3\n", "must be a table"),
        ("[defaults.manual]\nqueue = 'mine'\n", "queue cannot be set here"),
        ("[defaults.manual]\npriority = 'PRIORITY_HIGHEST'\n", "PRIORITY_HIGHEST"),
        ("[defaults.manual]\nlimits = { time = '3s' }\n", "time"),
        ("[defaults.manual]\nlimits = { timeout = '25h' }\n", "25h"),
        ("[defaults.manual]\nlimits = { timeout = '90000s' }\n", "limits.timeout"),
        ("[defaults.manual]\nlimits = 3\n", "defaults.manual"),
    ],
)
def test_invalid_defaults_are_refused_by_name(text: str, expected: str) -> None:
    assert expected in problems(text)


def test_unreadable_file_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "defaults.toml"
    broken.write_text("[defaults")
    for path in (broken, tmp_path / "missing.toml"):
        with pytest.raises(ConfigurationError, match=path.name):
            load_source_defaults(path)


def test_a_list_is_filled_where_the_submit_has_none() -> None:
    defaults = read('[[defaults.conversation.policy.escalations.person]]\nafter = "60s"\nassignee = "lead"\n')
    filled = defaults.fill(task_pb2.TaskSpec(goal="go", source=CONVERSATION))
    [step] = filled.policy.escalations.person
    assert (step.after.seconds, step.assignee) == (60, "lead")
    sent = task_pb2.TaskSpec(goal="go", source=CONVERSATION)
    sent.policy.escalations.person.add(queue="urgent").after.seconds = 5
    assert defaults.fill(sent).policy.escalations == sent.policy.escalations
