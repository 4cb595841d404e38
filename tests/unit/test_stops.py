"""Stops: what each selector covers, what an operator may ask for, and what is certain of a call."""

from __future__ import annotations

import pytest

from services.worker.budget_wait import queue_until_budget, wait_for_budget
from tenure.domain.budget import Denied
from tenure.domain.errors import InvalidRequest
from tenure.domain.states import BUDGET_WAIT_REASONS, Reason, TaskState
from tenure.domain.stops import (
    Certainty,
    Stop,
    StopsInForce,
    Subject,
    certainty_of,
    check_selectors,
    keeps_unknown,
    lost_stops,
    stopped,
)
from tenure.domain.tools import CallState, EffectClass
from tenure.domain.waiting_calls import WAITING_TOOLS

BILLING = Subject("acme", "billing", "nightly")


@pytest.mark.parametrize(
    ("stop", "covers"),
    [
        (Stop(), True),
        (Stop(tenant="acme"), True),
        (Stop(tenant="other"), False),
        (Stop(agent="billing"), True),
        (Stop(agent="bill"), False),
        (Stop(queue="nightly"), True),
        (Stop(tenant="acme", agent="billing", queue="nightly"), True),
        (Stop(tenant="acme", agent="mailer"), False),
        (Stop(tool="mail_*"), False),
    ],
)
def test_stop_covers_what_all_its_selectors_match(stop: Stop, covers: bool) -> None:
    assert stop.covers_task(BILLING) is covers
    assert stop.covers_call(BILLING, "send") is covers


def test_stop_of_a_tool_covers_its_calls_only() -> None:
    in_force = StopsInForce(1, (Stop(tool="mail_*", tenant="acme"),))
    assert in_force.of_call(BILLING, "mail_send") is not None
    assert in_force.of_call(BILLING, "email_send") is None
    assert in_force.of_call(Subject("other"), "mail_send") is None
    assert in_force.of_task(BILLING) is None


@pytest.mark.parametrize(
    ("stop", "is_all"), [(Stop(), False), (Stop(agent="a"), True), (Stop(tool="a b"), False), (Stop(tool="[a]"), False)]
)
def test_unclear_selectors_are_refused(stop: Stop, is_all: bool) -> None:
    with pytest.raises(InvalidRequest):
        check_selectors(stop, is_all=is_all)


@pytest.mark.parametrize("tool", [*WAITING_TOOLS, "spawn_*", "ask_*"])
def test_stop_of_a_tool_that_begins_a_wait_is_refused(tool: str) -> None:
    """The tool service never runs it, so a confirmed stop would do nothing."""
    with pytest.raises(InvalidRequest, match="no stop of a tool prevents the wait"):
        check_selectors(Stop(tool=tool), is_all=False)


@pytest.mark.parametrize("tool", ["*", "spawn_bills", "ask__*", "mail_*"])
def test_stop_of_other_tools_is_allowed(tool: str) -> None:
    check_selectors(Stop(tool=tool), is_all=False)


@pytest.mark.parametrize("effect", EffectClass)
def test_only_running_unsafe_calls_still_run(effect: EffectClass) -> None:
    still = Certainty.STILL_RUNS if effect is EffectClass.UNSAFE else Certainty.MAY_HAVE_HAPPENED
    assert certainty_of(CallState.STARTED, effect, is_run=True, begun_before=False) is still
    assert certainty_of(CallState.STARTED, effect, is_run=False, begun_before=False) is Certainty.MAY_HAVE_HAPPENED
    assert certainty_of(CallState.ACCEPTED, effect, is_run=True, begun_before=False) is Certainty.NOT_BEGUN
    assert certainty_of(CallState.ACCEPTED, effect, is_run=True, begun_before=True) is Certainty.MAY_HAVE_HAPPENED
    assert certainty_of(CallState.IN_DOUBT, effect, is_run=False, begun_before=False) is Certainty.MAY_HAVE_HAPPENED
    assert certainty_of(CallState.FINISHED, effect, is_run=False, begun_before=False) is Certainty.ENDED


def test_refusal_names_who_why_and_what_resumes() -> None:
    refusal = stopped(Stop(tool="mail_*", tenant="acme", stopped_by="user/ann", reason="wrong bills"))
    assert refusal.reason == Reason.STOPPED
    assert refusal.message == (
        "user/ann stopped tool mail_*, tenant acme: wrong bills. Nothing was begun; "
        "tenure admin resume --tool 'mail_*' --tenant acme ends the stop"
    )
    begun = stopped(Stop(stopped_by="user/ann", reason="wrong bills"), may_have_begun=True)
    assert "It may have had its effect, and runs again after the stop" in begun.message
    assert Stop().end_command == "tenure admin resume --all"


def test_stops_that_a_ledger_lost_are_found_by_selectors() -> None:
    kept = [Stop(agent="a", epoch=3), Stop(tenant="acme", epoch=4)]
    assert lost_stops([Stop(agent="a", epoch=1, reason="another")], kept) == [kept[1]]


@pytest.mark.parametrize(
    ("epoch", "stops", "others"),
    [
        (8, (), True),
        (7, (Stop(agent="b"),), True),
        (7, (), True),
        (7, (Stop(agent="a", epoch=1),), False),
        (6, (), False),
    ],
)
def test_stops_that_a_ledger_does_not_know(epoch: int, stops: tuple[Stop, ...], others: bool) -> None:
    """A restored ledger counts epochs that it has given out before."""
    assert keeps_unknown(StopsInForce(epoch, stops), StopsInForce(7, (Stop(agent="a", epoch=3),))) is others


def test_stopped_task_leaves_its_worker_without_a_retry() -> None:
    denied = Denied(Reason.STOPPED, "an operator stopped it", 5.0)
    assert wait_for_budget(denied, 0, 0.5) is None
    assert Reason.STOPPED in BUDGET_WAIT_REASONS
    left = queue_until_budget(denied)
    assert (left.to_state, left.reason, left.retry_delay_seconds) == (TaskState.RETRY_SCHEDULED, "STOPPED", 5.0)
