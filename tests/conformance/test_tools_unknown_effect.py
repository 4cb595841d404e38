"""A tool that lost its answer: the doubt is recorded under its attempt, and a person settles it."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from services.tools.calls import running, start_and_finish
from services.tools.calls.executing import ExecuteJob, Executor
from services.tools.calls.records import CallKey, CallRequest
from services.tools.output import OutputStore
from services.tools.tool import Tool, ToolAnswer, ToolInDoubt, ToolWork, define
from tenure.domain.errors import Unavailable
from tenure.domain.fencing import TASK_PREFIX, Claims
from tenure.domain.in_doubt import DidNotHappen, Happened, Resolution
from tenure.domain.tools import CallSettlement, EffectClass, Outcome, OutcomeStatus
from tenure.runtime.observability import metrics
from tests.support.executors import executor_over, last_outcome

LOST = "The bank was asked\0, and the connection broke."


@dataclass
class Bank:
    """What the tool asks. `answers`: whether its answer arrives."""

    answers: bool = False
    payments: int = 0

    async def pay(self, _context: Any, _arguments: Any) -> ToolAnswer:
        self.payments += 1
        if not self.answers:
            raise ToolInDoubt(LOST)
        return ToolAnswer("paid")


@pytest.fixture
def bank() -> Bank:
    return Bank()


@pytest.fixture
async def executor(tools_dsn: str, tmp_path: Path) -> AsyncIterator[Executor]:
    async with executor_over(tools_dsn, tmp_path) as made:
        yield made


def request(bank: Bank, effect_class: EffectClass = EffectClass.UNSAFE, settle_seconds: float = 0.0) -> ExecuteJob:
    task_id = uuid.uuid4()
    claims = Claims(f"{TASK_PREFIX}{task_id}", "default", 10, "claim", "worker")
    request = CallRequest(CallKey(task_id, "1.0"), claims, "pay", effect_class, b"{}")
    definition = replace(define("pay", effect_class, "pays", {}), settlement=CallSettlement(settle_seconds))
    return ExecuteJob(request, ToolWork(Tool(definition, bank.pay), {}))


async def outcome_of(executor: Executor, asking: ExecuteJob, word: Resolution | None = None) -> Outcome:
    asking = ExecuteJob(replace(asking.request, resolution=word), asking.work)
    return await last_outcome(executor, asking)


async def test_an_unsafe_call_of_unknown_effect_is_in_doubt(
    executor: Executor, bank: Bank, tools_database: Callable[..., Awaitable[list[Any]]]
) -> None:
    asking, counted = request(bank), metrics.cell("tenure_calls_in_doubt_total")
    before = counted.value
    first = await outcome_of(executor, asking)
    assert (first.status, first.call_attempt) == (OutcomeStatus.IN_DOUBT, 1)
    assert counted.value == before + 1
    assert first.content.startswith("It is not known whether this call happened: The bank was asked")
    assert await outcome_of(executor, asking) == first
    recorded = "select state, call_attempt, doubted_at is not null, doubt_note from calls"
    assert await tools_database(recorded) == [("IN_DOUBT", 1, True, LOST.replace("\0", "\ufffd"))]
    for unproven in (DidNotHappen(), DidNotHappen(runner_proven_gone=True)):  # its own statement is not a proof
        refused = await outcome_of(executor, asking, Resolution(1, unproven, "I looked", "olga"))
        assert (refused.status, refused.detail, bank.payments) == (OutcomeStatus.IN_DOUBT, "RUNNER_NOT_GONE", 1)
    bank.answers = True
    again = await outcome_of(executor, asking, Resolution(1, DidNotHappen(True), "I looked", "olga"))
    assert (again.status, again.content, again.call_attempt) == (OutcomeStatus.SUCCEEDED, "paid", 2)
    assert await tools_database(recorded) == [("FINISHED", 2, False, "")]
    assert bank.payments == 2


async def test_person_resolves_an_unknown_effect(executor: Executor, bank: Bank) -> None:
    asking = request(bank)
    await outcome_of(executor, asking)
    response = await outcome_of(executor, asking, Resolution(1, Happened("receipt 7"), "I looked", "olga"))
    assert (response.status, response.content, response.call_attempt) == (OutcomeStatus.SUCCEEDED, "receipt 7", 2)
    assert await outcome_of(executor, asking) == response
    assert bank.payments == 1


async def test_harmless_repeat_of_unknown_effect_has_failed(executor: Executor, bank: Bank) -> None:
    outcome = await outcome_of(executor, request(bank, EffectClass.IDEMPOTENT))
    assert (outcome.status, outcome.detail) == (OutcomeStatus.FAILED, "MAY_HAVE_HAPPENED")
    assert outcome.content.endswith("A repeat of the same call does no harm.")


async def test_settled_idempotent_call_without_an_answer_has_failed(executor: Executor, bank: Bank) -> None:
    outcome = await outcome_of(executor, request(bank, EffectClass.IDEMPOTENT, settle_seconds=0.2))
    assert (outcome.status, outcome.detail) == (OutcomeStatus.FAILED, "MAY_HAVE_HAPPENED")
    assert outcome.content.endswith("A repeat of the same call does no harm.")


async def test_person_resolves_a_keyed_call_without_an_answer(
    executor: Executor, bank: Bank, tools_database: Callable[..., Awaitable[list[Any]]]
) -> None:
    """Its next attempt is settled for the whole time again: the person said that the first did not happen."""
    asking = request(bank, EffectClass.KEYED, settle_seconds=0.2)
    first, asked = await outcome_of(executor, asking), bank.payments
    assert first.status is OutcomeStatus.IN_DOUBT
    (began,) = await tools_database("select settling_since from calls")
    again = await outcome_of(executor, asking, Resolution(1, DidNotHappen(True), "I looked", "olga"))
    assert (again.status, again.call_attempt) == (OutcomeStatus.IN_DOUBT, 2)
    assert bank.payments > asked
    assert [began] != await tools_database("select settling_since from calls")


async def test_a_resolution_of_a_call_with_a_lost_record_is_taken(
    executor: Executor, bank: Bank, tools_database: Callable[..., Awaitable[list[Any]]]
) -> None:
    """As after the tools' database was put back."""
    bank.answers = True
    kept = "select state, call_attempt, begun_before, doubted_at is not null from calls where task_id = "
    settled, doubted, again = request(bank), request(bank), request(bank)

    response = await outcome_of(executor, settled, Resolution(2, Happened("receipt 7"), "I looked", "olga"))
    assert (response.status, response.content, response.call_attempt) == (OutcomeStatus.SUCCEEDED, "receipt 7", 3)
    unproven = Resolution(2, DidNotHappen(runner_proven_gone=True), "I looked", "olga")
    counted = metrics.cell("tenure_calls_in_doubt_total")
    before = counted.value
    waits = await outcome_of(executor, doubted, unproven)
    assert counted.value == before + 1
    assert (waits.status, waits.call_attempt, bank.payments) == (OutcomeStatus.IN_DOUBT, 2, 0)
    assert await tools_database(f"{kept}'{doubted.request.key.task_id}'") == [("IN_DOUBT", 2, False, True)]
    paid = await outcome_of(executor, again, Resolution(2, DidNotHappen(True), "I looked", "olga"))
    assert (paid.content, paid.call_attempt, bank.payments) == ("paid", 3, 1)
    assert await tools_database(f"{kept}'{again.request.key.task_id}'") == [("FINISHED", 3, True, False)]


@pytest.mark.parametrize("elsewhere", [(True, False), (False, True)])
async def test_runner_exit_does_not_prove_effects_elsewhere(
    executor: Executor, bank: Bank, tools_database: Callable[..., Awaitable[list[Any]]], elsewhere: Any
) -> None:
    """Its tool may have come from a provider, and be one of the service's own by now."""
    asking = request(bank)
    for call_attempt, acts_elsewhere in enumerate(elsewhere, 1):
        one = ExecuteJob(replace(asking.request, acts_elsewhere=acts_elsewhere), asking.work)
        again = Resolution(call_attempt - 1, DidNotHappen(True), "I looked", "olga") if call_attempt > 1 else None
        assert (await outcome_of(executor, one, again)).call_attempt == call_attempt
    assert await tools_database("select call_attempt, acts_elsewhere from calls") == [(2, True)]


@pytest.mark.parametrize(
    ("effect_class", "status", "state"),
    [
        (EffectClass.UNSAFE, OutcomeStatus.IN_DOUBT, "IN_DOUBT"),
        (EffectClass.KEYED, OutcomeStatus.IN_DOUBT, "IN_DOUBT"),
        (EffectClass.IDEMPOTENT, OutcomeStatus.FAILED, "FINISHED"),
        (EffectClass.PURE, OutcomeStatus.FAILED, "FINISHED"),
    ],
)
async def test_a_call_broken_by_an_internal_error_has_an_outcome(
    executor: Executor,
    bank: Bank,
    tools_database: Callable[..., Awaitable[list[Any]]],
    monkeypatch: pytest.MonkeyPatch,
    effect_class: Any,
    status: Any,
    state: str,
) -> None:
    """Another replica joins a call that stands as STARTED for as long as its runner lives."""

    def broken(*_arguments: Any) -> Any:
        raise OSError("no space left")

    bank.answers = True
    monkeypatch.setattr(OutputStore, "show", broken)
    asking = request(bank, effect_class)
    outcome = await outcome_of(executor, asking)
    assert (outcome.status, outcome.call_attempt, bank.payments) == (status, 1, 1)
    assert "fault of the tool service" in outcome.content
    assert await tools_database("select state from calls") == [(state,)]
    assert await outcome_of(executor, asking) == outcome


async def test_a_mark_of_an_ended_life_leaves_no_doubt(
    executor: Executor, bank: Bank, tools_database: Callable[..., Awaitable[list[Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write of the mark is durable and its answer is lost, and the runner has a new life when it repeats it."""
    liveness, hits = executor._liveness, 0

    async def lose_answer(_name: str) -> None:
        nonlocal hits
        hits += 1
        if hits == 1:
            await tools_database("update calls set state = 'STARTED', started_at = now()")
            await liveness._lapse(liveness.runner_id)
            await liveness._begin()
            raise Unavailable("the connection was lost")

    bank.answers = True
    monkeypatch.setattr(start_and_finish, "failpoint", lose_answer)
    outcome = await outcome_of(executor, request(bank))
    assert (outcome.status, outcome.content, bank.payments) == (OutcomeStatus.SUCCEEDED, "paid", 1)


async def test_an_error_between_mark_and_effect_removes_the_mark(
    executor: Executor, bank: Bank, tools_database: Callable[..., Awaitable[list[Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(name: Any) -> None:
        if name == "tools.before_effect":
            raise OSError("no space left")

    bank.answers = True
    with monkeypatch.context() as patched:
        patched.setattr(running, "failpoint", broken)
        with pytest.raises(OSError, match="no space"):
            await outcome_of(executor, request(bank))
    assert await tools_database("select state, call_attempt from calls") == [("ACCEPTED", 2)]
    assert bank.payments == 0
