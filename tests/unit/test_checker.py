"""The checker's frame: what is checked, what is not, and that it says so."""

from __future__ import annotations

import json
import pkgutil
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from checker import checks
from checker.check import INVARIANTS
from checker.collect import read_effects
from checker.history import (
    FLAGS,
    SOURCES,
    CallRecord,
    History,
    LedgerEntry,
    collected_in,
    split,
)
from checker.verify import (
    MAX_OF_A_CHECK,
    Examination,
    examine,
    verify,
)
from tenure.domain import entries as facts
from tenure.domain.budget import TokenUsage
from tenure.domain.states import TaskState
from tests.support.model_log import read_model_calls
from tests.unit.checker_faults import joined
from tests.unit.checker_history import (
    TASK,
    Story,
    call_joined,
    cancelled,
    cancelled_again,
    granted,
    requeued,
    taken_over,
)


def test_every_invariant_has_a_check_or_an_owner() -> None:
    assert list(INVARIANTS) == [f"I{number}" for number in range(1, 48) if number != 35]
    checked = {check.invariant for check in checks.CHECKS}
    assert checked == {number for number, invariant in INVARIANTS.items() if not invariant.elsewhere}


def test_every_module_of_checks_is_run() -> None:
    modules = [
        import_module(f"{checks.__name__}.{violation.name}") for violation in pkgutil.iter_modules(checks.__path__)
    ]
    assert {check for module in modules for check in module.CHECKS} == set(checks.CHECKS)
    assert len({(check.invariant, check.says) for check in checks.CHECKS}) == len(checks.CHECKS)


def test_checks_name_existing_sources() -> None:
    for check in checks.CHECKS:
        assert set(check.needs) <= {*SOURCES, *FLAGS}, check


@pytest.mark.parametrize("story", [taken_over, call_joined, cancelled, cancelled_again, requeued, granted])
def test_a_good_history_passes_every_check(story: Any) -> None:
    report = examine(story().history())
    assert (report.violations, report.not_run, report.unread) == ((), (), 0)
    assert (report.tasks, report.entries) == (1, len(story().entries))


@pytest.mark.parametrize("state", [TaskState.RETRY_SCHEDULED, TaskState.WAITING_USER, TaskState.FAILED])
def test_an_outliving_attempt_is_open_only_until_its_next_owner(state: TaskState) -> None:
    story = call_joined()
    index = next(at for at, entry in enumerate(story.entries) if getattr(entry.body, "reason", "") == "LEASE_EXPIRED")
    moved = facts.Transition(state, "LEASE_EXPIRED", from_state=TaskState.RUNNING)
    story.entries[index] = replace(story.entries[index], body=moved)
    messages = [each.message for each in verify(story.history()) if each.invariant == "I17"]
    assert any("while the model attempt" in message for message in messages)


def test_a_requeue_settles_no_call_of_a_model_runner() -> None:
    story = call_joined()
    index = next(at for at, entry in enumerate(story.entries) if getattr(entry.body, "reason", "") == "LEASE_EXPIRED")
    lost = replace(story.entries[index], body=facts.AttemptLost(1, TokenUsage(100)), step=1)
    story.entries.insert(index, lost)
    story.entries = [replace(entry, sequence=number) for number, entry in enumerate(story.entries, 1)]
    messages = [each.message for each in verify(story.history()) if each.invariant == "I32"]
    assert any("settles a call of a model runner" in message for message in messages)


def test_an_attempt_of_the_worker_itself_is_never_joined() -> None:
    story = call_joined()
    index = next(at for at, entry in enumerate(story.entries) if isinstance(entry.body, facts.ModelAttempt))
    story.entries[index] = replace(story.entries[index], body=facts.ModelAttempt(1, "model", 100, 50, 150))
    assert "I17" in {each.invariant for each in verify(story.history())}


def test_a_check_without_its_sources_is_reported_as_not_run() -> None:
    report = examine(History(entries=taken_over().history().entries))
    why_not = {run.says: run.why_not for run in report.runs}
    assert why_not["sequences are 1, 2, 3 … without gap or repeat"] == ""
    assert why_not["the task row has the last sequence"] == "not collected: tasks"
    assert why_not["tasks end or wait"] == "the run did not wait until all tasks had settled; not collected: tasks"
    assert why_not["later claims have higher epochs"] == "not collected: grants"


def test_an_empty_source_is_one_that_was_collected() -> None:
    history = replace(taken_over().history(), calls=(), fences=())
    assert {each.invariant for each in verify(history)} >= {"I15", "I19"}


def test_findings_of_a_task_are_bounded() -> None:
    story = taken_over()
    entries = tuple(
        LedgerEntry(task_id=TASK, sequence=2 * number, body=story.entries[1].body) for number in range(1, 100)
    )
    results = [each.message for each in verify(History(entries=entries)) if each.invariant == "I7"]
    assert len(results) == MAX_OF_A_CHECK + 1
    assert results[-1] == f"… and {100 - MAX_OF_A_CHECK} more like these"


def test_checks_by_task_equal_checks_of_all() -> None:
    other = Story(task_id=TASK[:-1] + "2")  # the same request id as the first: seen across tasks only
    other.submit()
    other.claim()
    other.attempt(1)
    other.answer()
    other.end()
    history = replace(joined(taken_over().history(), other.history()), operations=None)
    examination = Examination(collected_in(history))
    for task in split(history):
        examination.add(task)
    assert [each.invariant for each in examination.report().violations] == ["I27"]
    assert examination.report() == examine(history)


def test_entries_of_newer_kinds_are_counted() -> None:
    history = taken_over().history()
    entries = tuple(replace(entry, body=None) if entry.sequence == 17 else entry for entry in history.entries or ())
    assert examine(replace(history, entries=entries)).unread == 1


def _call(history: History) -> CallRecord:
    assert history.calls
    return history.calls[0]


def test_the_outside_is_read_from_its_files(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"key": "t1/1.0", "epoch": 7, "line": "x"}\n{"key": "t1/1.1", "epo\n')
    effects = read_effects(tmp_path)
    assert [(each.task_id, each.call_id, each.epoch, each.place) for each in effects] == [
        ("t1", "1.0", 7, "a.jsonl:1"),
        ("t1", "1.1", 0, "a.jsonl:2"),
    ]


def test_the_providers_bill_is_read_from_its_log(tmp_path: Path) -> None:
    tokens = {"output_tokens": 2, "cache_creation_input_tokens": 3, "cache_read_input_tokens": 4}
    billed = {"endpoint": "messages", "request_id": "r", "answered": True, "status": 200, "input_tokens": 1, **tokens}
    log = tmp_path / "calls.jsonl"
    assert read_model_calls(log) == ()
    lines = [{**billed, "attempt": "t1/3/2"}, {**billed, "attempt": None}, {**billed, "endpoint": "count_tokens"}]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    named, nameless = read_model_calls(log)
    assert (named.task_id, named.step, named.attempt_number) == ("t1", 3, 2)
    assert named.usage == TokenUsage(1, 2, 3, 4)
    assert nameless.task_id == ""
