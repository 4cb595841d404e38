"""Undos at the tool service: a compensation frees the effect key of the undone call, and has a key of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from services.tools.calls.closing import FenceCloser
from services.tools.calls.executing import Executor
from services.tools.calls.runs import RunningCalls
from services.tools.statements import SCHEMA
from tenure.domain.close_out import outcomes_of_ended_calls
from tenure.domain.effect_keys import EffectKey, EffectScope, OnRepeat
from tenure.domain.entries import ToolIntent
from tenure.domain.in_doubt import Abandon, Decision, DidNotHappen, Happened, Resolution, ResolvedCall
from tenure.domain.repeated_effects import EffectFact, fact_of_outcome
from tenure.domain.tools import CallState, CallStatus, EffectClass, Outcome, OutcomeStatus
from tenure.runtime.store.postgres import open_pool
from tests.support.executors import executor_over, last_outcome
from tests.support.planned_payments import Bank, Behaviour, Payer, Payments

TREE = EffectKey(("/order",), EffectScope.TREE)
TENANT = EffectKey(("/order",), EffectScope.TENANT, 3600.0)
_LOST = Behaviour.PAYS_AND_LOSES


@pytest.fixture
async def executor(tools_dsn: str, tmp_path: Path) -> AsyncIterator[Executor]:
    async with executor_over(tools_dsn, tmp_path) as one:
        yield one


class _Shop:
    """Pays orders under an effect key, and refunds them in undos, which are tasks without relatives."""

    def __init__(
        self, executor: Executor, key: EffectKey, *, refund_key: EffectKey | None = None, tenant: str = ""
    ) -> None:
        self._executor = executor
        self.pays = Payments(Bank(), key)
        self.refunds = Payments(Bank(), refund_key, EffectClass.UNSAFE, tenant=tenant or self.pays.tenant)

    async def pay(
        self,
        payer: Payer,
        call_id: str,
        behaviour: Behaviour = Behaviour.PAYS,
        *,
        resolution: Resolution | None = None,
    ) -> Outcome:
        return await last_outcome(self._executor, self.pays.job(payer, call_id, 7, behaviour, resolution=resolution))

    async def refund(
        self,
        undone: str,
        behaviour: Behaviour = Behaviour.PAYS,
        *,
        undo: Payer | None = None,
        resolution: Resolution | None = None,
    ) -> Outcome:
        job = self.refunds.job(undo or Payer.root(), "1.0", 7, behaviour, resolution=resolution, undoes=undone)
        return await last_outcome(self._executor, job)


@pytest.mark.parametrize("key", [TREE, TENANT])
async def test_undone_effect_may_be_made_again(executor: Executor, key: EffectKey) -> None:
    shop, payer = _Shop(executor, key), Payer.root()
    await shop.pay(payer, "1.0")
    await shop.refund(f"{payer.task_id}/1.0")
    again = await shop.pay(payer.relative(), "1.0")
    third = await shop.pay(payer.relative(), "1.0")
    assert (again.status, again.detail, third.detail) == (OutcomeStatus.SUCCEEDED, "", "ALREADY_HAPPENED")
    assert shop.pays.paid(7) == len(set(shop.pays.bank.requests)) == 2, "the bank knows the key of the first payment"


@pytest.mark.parametrize("behaviour", [Behaviour.PAYS_AND_LOSES, Behaviour.FAILS, Behaviour.REFUSES])
async def test_compensation_without_success_frees_no_key(executor: Executor, behaviour: Behaviour) -> None:
    shop, payer = _Shop(executor, TENANT), Payer.root()
    await shop.pay(payer, "1.0")
    await shop.refund(f"{payer.task_id}/1.0", behaviour)
    assert (await shop.pay(Payer.root(), "1.0")).detail == "ALREADY_HAPPENED"


async def test_compensation_that_a_person_finds_done_frees_the_key(executor: Executor) -> None:
    shop, payer, undo = _Shop(executor, TENANT), Payer.root(), Payer.root()
    await shop.pay(payer, "1.0")
    in_doubt = await shop.refund(f"{payer.task_id}/1.0", Behaviour.PAYS_AND_LOSES, undo=undo)
    assert in_doubt.status is OutcomeStatus.IN_DOUBT
    resolution = Resolution(1, Happened(), "I looked", "olga")
    await shop.refund(f"{payer.task_id}/1.0", Behaviour.PAYS_AND_LOSES, undo=undo, resolution=resolution)
    assert (await shop.pay(Payer.root(), "1.0")).detail == ""


async def test_end_of_a_task_passes_on_what_a_person_found(executor: Executor, tools_dsn: str) -> None:
    """The undo ends before its next owner has sent the resolution: the refund counts, and frees the payment's key."""
    shop, payer, undo = _Shop(executor, TENANT), Payer.root(), Payer.root()
    await shop.pay(payer, "1.0")
    undone = f"{payer.task_id}/1.0"
    assert (await shop.refund(undone, _LOST, undo=undo)).status is OutcomeStatus.IN_DOUBT
    claims = shop.refunds.job(undo, "1.0", 7, undoes=undone).request.claims
    stale, known = (
        ResolvedCall("1.0", _resolution(Happened(), 2), undone),
        ResolvedCall("1.0", _resolution(Happened("x" * 9000)), undone, 1024),
    )
    async with open_pool(tools_dsn, service="tools", schema=SCHEMA) as pool:
        closer = FenceCloser(pool, RunningCalls())
        [doubted] = await closer.fence(claims, undo.task_id, close=True, resolved=[stale])
        [ended] = [await closer.fence(claims, undo.task_id, close=True, resolved=[known]) for _ in range(2)][1]
    assert (doubted.state, ended.state, ended.call_attempt) == (CallState.IN_DOUBT, CallState.FINISHED, 2)
    assert ended.outcome is not None
    assert (ended.outcome.status, ended.outcome.truncated) == (OutcomeStatus.SUCCEEDED, True)
    assert (await shop.pay(Payer.root(), "1.0")).detail == ""


@pytest.mark.parametrize("decision", [DidNotHappen(True), Abandon()])
async def test_end_of_a_task_makes_no_call_again(executor: Executor, tools_dsn: str, decision: Decision) -> None:
    shop, payer = _Shop(executor, TENANT), Payer.root()
    await shop.pay(payer, "1.0", _LOST)
    claims = shop.pays.job(payer, "1.0", 7).request.claims
    async with open_pool(tools_dsn, service="tools", schema=SCHEMA) as pool:
        resolved = [ResolvedCall("1.0", _resolution(decision))]
        [ended] = await FenceCloser(pool, RunningCalls()).fence(claims, payer.task_id, close=True, resolved=resolved)
    states = {DidNotHappen: CallState.IN_DOUBT, Abandon: CallState.FINISHED}
    assert (ended.state, shop.pays.paid(7)) == (states[type(decision)], 1)


async def test_end_of_a_task_proves_that_a_call_was_not_made(executor: Executor, tools_dsn: str) -> None:
    """A person was asked about the repeat and found that the effect happened. Then the task ends, before its next owner
    has told the tool service. The undo of the task must not take back what the other call did.
    """
    shop, asked = _Shop(executor, replace(TENANT, on_repeat=OnRepeat.ASK)), Payer.root()
    await shop.pay(Payer.root(), "1.0")
    assert (await shop.pay(asked, "1.0")).status is OutcomeStatus.IN_DOUBT
    async with open_pool(tools_dsn, service="tools", schema=SCHEMA) as pool:
        claims = shop.pays.job(asked, "1.0", 7).request.claims
        [call] = await FenceCloser(pool, RunningCalls()).fence(claims, asked.task_id, close=True)
    statuses = {"1.0": CallStatus(call.state, call.outcome, call.call_attempt)}
    intent = ToolIntent("1.0", "", "pay", "{}")
    for words in ({}, {"1.0": Resolution(1, Happened(), "I looked", "olga")}):
        [ended] = outcomes_of_ended_calls([intent], statuses, words, [])
        assert fact_of_outcome(ended.outcome) is EffectFact.NONE


async def test_two_calls_that_are_one_effect_are_undone_once(executor: Executor) -> None:
    """The first call lost its answer, and the bank recognised the second one: there is one payment."""
    shop, first, second = _Shop(executor, TENANT), Payer.root(), Payer.root()
    shop.refunds.effect_class = EffectClass.KEYED
    assert (await shop.pay(first, "1.0", _LOST)).status is OutcomeStatus.IN_DOUBT
    assert (await shop.pay(second, "1.0")).status is OutcomeStatus.SUCCEEDED
    await shop.pay(first, "1.0", _LOST, resolution=_resolution(Happened()))
    assert shop.pays.paid(7) == 1
    for payer in (first, second):
        assert (await shop.refund(f"{payer.task_id}/1.0")).status is OutcomeStatus.SUCCEEDED
    assert shop.refunds.paid(7) == 1
    assert (await shop.pay(Payer.root(), "1.0")).detail == ""


async def test_undo_of_an_earlier_call_frees_the_key_of_its_effect(executor: Executor) -> None:
    shop, first = _Shop(executor, TENANT), Payer.root()
    assert (await shop.pay(first, "1.0", _LOST)).status is OutcomeStatus.IN_DOUBT
    await shop.pay(Payer.root(), "1.0")
    await shop.pay(first, "1.0", _LOST, resolution=_resolution(Happened()))
    await shop.refund(f"{first.task_id}/1.0")
    assert (await shop.pay(Payer.root(), "1.0")).detail == ""
    assert shop.pays.paid(7) == 2


@pytest.mark.parametrize("undone", [0, 1])
async def test_undo_of_one_of_two_payments_leaves_the_other(executor: Executor, undone: int) -> None:
    """A person permitted the second payment. While one of the two stands, a third one is asked about."""
    shop, payers = _Shop(executor, replace(TENANT, on_repeat=OnRepeat.ASK)), [Payer.root(), Payer.root()]
    await shop.pay(payers[0], "1.0")
    await shop.pay(payers[1], "1.0")
    await shop.pay(payers[1], "1.0", resolution=_resolution(DidNotHappen(True)))
    assert shop.pays.paid(7) == 2
    await shop.refund(f"{payers[undone].task_id}/1.0")
    assert (await shop.pay(Payer.root(), "1.0")).status is OutcomeStatus.IN_DOUBT
    await shop.refund(f"{payers[1 - undone].task_id}/1.0")
    assert (await shop.pay(Payer.root(), "1.0")).status is OutcomeStatus.SUCCEEDED


async def test_second_compensation_frees_no_key_of_others(executor: Executor) -> None:
    shop, first = _Shop(executor, TENANT), Payer.root()
    await shop.pay(first, "1.0")
    await shop.refund(f"{first.task_id}/1.0")
    await shop.pay(Payer.root(), "1.0")
    await shop.refund(f"{first.task_id}/1.0")
    assert (await shop.pay(Payer.root(), "1.0")).detail == "ALREADY_HAPPENED"


async def test_compensation_of_another_tenant_frees_no_key(executor: Executor) -> None:
    shop, payer = _Shop(executor, TENANT, tenant="another"), Payer.root()
    await shop.pay(payer, "1.0")
    assert (await shop.refund(f"{payer.task_id}/1.0")).status is OutcomeStatus.SUCCEEDED
    assert (await shop.pay(Payer.root(), "1.0")).detail == "ALREADY_HAPPENED"


@pytest.mark.parametrize("scope", [scope for scope in EffectScope if scope is not EffectScope.TENANT])
async def test_undone_call_says_which_effect_its_compensation_makes(executor: Executor, scope: EffectScope) -> None:
    """The task of an undo has no relatives: a scope would mean another effect in the next undo of the same call."""
    shop, payer, undo = _Shop(executor, TREE, refund_key=replace(TREE, scope=scope)), Payer.root(), Payer.root()
    await shop.refund(f"{payer.task_id}/1.0", Behaviour.PAYS_AND_LOSES)
    await shop.refund(f"{payer.task_id}/1.0", undo=undo)
    job = shop.refunds.job(undo, "2.0", 7, undoes=f"{payer.task_id}/2.0")
    assert (await last_outcome(executor, job)).detail == "", "two payments of one order have two refunds"
    keys = shop.refunds.bank.requests
    assert [key.rpartition("/")[0] for key in keys] == [
        f"{payer.task_id}/{call}/undo" for call in ("1.0", "1.0", "2.0")
    ]
    assert keys[0] == keys[1]


async def test_compensation_that_another_call_made_frees_no_key(executor: Executor) -> None:
    shop, payer = _Shop(executor, TREE, refund_key=TENANT), Payer.root()
    await shop.pay(payer, "1.0")
    await shop.refund(f"{Payer.root().task_id}/1.0")
    again = await shop.refund(f"{payer.task_id}/1.0")
    assert (again.status, again.detail, again.no_effect) == (OutcomeStatus.SUCCEEDED, "ALREADY_HAPPENED", True)
    assert (await shop.pay(payer.relative(), "1.0")).detail == "ALREADY_HAPPENED"


def _resolution(decision: Decision, call_attempt: int = 1) -> Resolution:
    return Resolution(call_attempt, decision, "I looked", "olga")
