"""Payments over HTTP that are planned again: after a timeout, and after the tool service was killed at any moment."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tenure.domain.errors import TryLater
from tenure.domain.tools import OutcomeStatus
from tests.support.fix_tools import Grants, StartTools
from tests.support.http_stub import HttpStub, Seen, never, page
from tests.support.sweeps import first

POINTS = [
    f"tools.{point}"
    for point in ("after_effect", "before_accept", "after_first_write", "after_accept", "before_start", "before_effect")
]

MARKED = {"tools.before_effect", "tools.after_effect"}
"""The call is STARTED, and nothing says whether the bank was asked."""


class Bank:
    """Answers POST requests. `hangs`: how many of the next requests it carries out and never answers."""

    def __init__(self, *, honours_keys: bool) -> None:
        self.honours_keys, self.hangs = honours_keys, 0
        self.payments: Counter[int] = Counter()
        self.keys: list[str] = []

    def answer(self, request: Seen) -> bytes | AsyncIterator[bytes]:
        order, key = json.loads(request.body)["order"], request.headers["idempotency-key"]
        if not (self.honours_keys and key in self.keys):
            self.payments[order] += 1
        self.keys.append(key)
        if self.hangs:
            self.hangs -= 1
            return never(request)
        return page(f"refunded order {order}")


def config(folder: Path, url: str, *, effect_class: str, has_key: bool = True, timeout_seconds: float = 30) -> Path:
    schema = {"type": "object", "properties": {"order": {"type": "number"}}}
    tool: dict[str, Any] = {
        "url": url,
        "description": "Refunds an order.",
        "input_schema": schema,
        "effect_class": effect_class,
        "timeout_seconds": timeout_seconds,
    }
    if has_key:
        tool["effect_key"] = {"arguments": ["/order"], "scope": "tree"}
    path = folder / "tools.json"
    path.write_text(json.dumps({"http_tools": {"refund": tool}}))
    return path


async def started(tool_service: StartTools, file: Path, failpoints: str = "") -> Any:
    return await tool_service(config_file=file, failpoints=failpoints, sandbox_bubblewrap="/nonexistent/bwrap")


@pytest.mark.parametrize(("has_key", "payments"), [(False, 3), (True, 1)])
async def test_a_model_that_insists_after_a_timeout_pays_once(
    tool_service: StartTools, grants: Grants, tmp_path: Path, has_key: bool, payments: int
) -> None:
    bank, owner = Bank(honours_keys=True), grants.claim()
    async with HttpStub(bank.answer) as stub:
        file = config(tmp_path, stub.url(), effect_class="KEYED", has_key=has_key, timeout_seconds=1)
        tools = await started(tool_service, file)
        bank.hangs = 1
        outcomes = [await tools.outcome(owner, f"{step}.0", "refund", order=order) for step, order in _PLANS]
    assert {outcome.status for outcome in outcomes} == {OutcomeStatus.SUCCEEDED}  # the first one is settled
    assert bank.payments[7] == payments


_PLANS = ((1, 7), (2, 7.0), (3, 7))


async def test_a_call_without_its_key_is_not_run(tool_service: StartTools, grants: Grants, tmp_path: Path) -> None:
    bank, owner = Bank(honours_keys=True), grants.claim()
    async with HttpStub(bank.answer) as stub:
        tools = await started(tool_service, config(tmp_path, stub.url(), effect_class="KEYED"))
        outcome = await tools.outcome(owner, "1.0", "refund", cents=5)
    assert (outcome.status, bank.payments) == (OutcomeStatus.INVALID_ARGUMENTS, Counter())
    assert "has no value at /order, which says which effect the call makes" in outcome.content


@pytest.mark.parametrize("effect_class", ["KEYED", "UNSAFE"])
@pytest.mark.parametrize("point", first(POINTS))
async def test_kill_at_any_moment_pays_at_most_once(
    tool_service: StartTools, grants: Grants, tmp_path: Path, point: str, effect_class: str
) -> None:
    """The killed call is repeated by the task's next owner; then the model and a sub-agent plan it again."""
    bank, owner = Bank(honours_keys=effect_class == "KEYED"), grants.claim()
    async with HttpStub(bank.answer) as stub:
        file = config(tmp_path, stub.url(), effect_class=effect_class)
        killed = await started(tool_service, file, f"{point}=1#kill9")
        with pytest.raises(TryLater):
            await killed.outcome(owner, "1.0", "refund", order=7)
        await killed.ended()
        tools = await started(tool_service, file)
        newer, sub_agent = grants.claim(owner.task_id, epoch=11), grants.claim(tree=owner.task_id)
        calls = (newer, "1.0"), (newer, "2.0"), (sub_agent, "1.0")
        outcomes = [await tools.outcome(who, call_id, "refund", order=7) for who, call_id in calls]
    if effect_class == "KEYED" or point not in MARKED:
        assert bank.payments[7] == 1
        assert {outcome.status for outcome in outcomes} == {OutcomeStatus.SUCCEEDED}
        assert [outcome.detail for outcome in outcomes[1:]] == ["ALREADY_HAPPENED"] * 2
    else:
        assert bank.payments[7] == (point == "tools.after_effect")
        assert [outcome.status for outcome in outcomes] == [OutcomeStatus.IN_DOUBT, *[OutcomeStatus.FAILED] * 2]
        assert {outcome.detail for outcome in outcomes[1:]} == {"EFFECT_UNKNOWN"}
