"""Arguments of the public client that it refuses itself, before it asks a gateway."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from services.gateway.http.operator_requests import QuotaBody
from services.gateway.http.operator_routes import _quota
from tenure import Client, InvalidRequest, TaskWait
from tenure.cli.task_options import typed_names
from tenure.client.leases import HeldLease
from tenure.domain.quotas import QuotaKind
from tenure.domain.task import Source, SourceKind
from tenure.domain.waits import CallDecision, WaitKind
from tenure.sdk.answers import WaitReply, approval, denial
from tenure.sdk.submit_options import argument_of
from tenure.sdk.task_filter import task_filter
from tenure.sdk.task_info import CallToApprove


@pytest.mark.parametrize(
    ("argument", "given"),
    [
        ("max_tokens", 0),
        ("max_steps", 0),
        ("max_output_tokens", 0),
        ("max_cost", 0),
        ("timeout", 0),
        ("timeout", timedelta(seconds=-1)),
        ("timeout", float("inf")),
        ("timeout", float("nan")),
        ("timeout", 1e30),
        ("priority", "urgent"),
        ("tools", "read_file"),
    ],
)
async def test_an_argument_is_refused_by_its_name(argument: str, given: Any) -> None:
    """A cap of 0 is the result of a computation, and must not become the default of the installation."""
    async with Client("127.0.0.1:1") as client:
        for call in (client.submit, client.register_agent):
            if argument == "priority" and call == client.register_agent:
                continue
            with pytest.raises(InvalidRequest) as raised:
                await call("x", **{argument: given})
            assert raised.value.field == argument
            assert raised.value.hint


async def test_a_policy_that_is_a_dict_is_refused_by_its_name() -> None:
    policy: Any = {"retry": {"max_attempts": 2}}
    async with Client("127.0.0.1:1") as client:
        with pytest.raises(InvalidRequest) as raised:
            await client.submit("x", policy=policy)
    assert (raised.value.field, "TaskPolicy" in raised.value.message) == ("policy", True)


HALF = "a\ud800"
"""Half of a surrogate pair: Python's JSON parser returns it, and UTF-8 does not have it."""


@pytest.mark.parametrize(
    ("argument", "given"),
    [
        ("goal", HALF),
        ("model", HALF),
        ("system", HALF),
        ("queue", HALF),
        ("request_id", HALF),
        ("tools", [HALF]),
        ("approve_tools", [HALF]),
        ("labels", {"team": HALF}),
        ("labels", {HALF: "team"}),
        ("source", Source(SourceKind.MANUAL, HALF)),
    ],
)
async def test_half_of_a_surrogate_pair_is_refused_by_name(argument: str, given: Any) -> None:
    async with Client("127.0.0.1:1") as client:
        with pytest.raises(InvalidRequest, match=r"U\+D800 at position 1") as raised:
            await client.submit(**{"goal": "x", argument: given})
        assert raised.value.field == argument
        with pytest.raises(InvalidRequest, match="input"):
            await client.submit_function("f", {"note": HALF})
        with pytest.raises(InvalidRequest):
            await client.get(HALF)


@pytest.mark.parametrize(
    ("name", "given"), [("at_most", "2"), ("at_most", 10**12), ("debounce_seconds", "x"), ("debounce_seconds", -1)]
)
async def test_a_source_with_an_invalid_line_is_refused(name: str, given: Any) -> None:
    async with Client("127.0.0.1:1") as client:
        with pytest.raises(InvalidRequest) as raised:
            await client.submit("x", source=Source(SourceKind.CONTROL, "s", **{name: given}))
        assert raised.value.field == f"source.{name}"


OTHER_TYPES: list[tuple[str, Any]] = [
    *((name, 5) for name in ("goal", "model", "system", "queue", "request_id", "agent", "labels", "tools")),
    ("labels", {"a": 1}),
    ("tools", [5]),
    ("approve_tools", [None]),
    ("policy", {"on_budget": "ASK"}),
    ("source", "chat"),
    ("start_at", "tomorrow"),
    ("timeout", {}),
    ("timeout", "soon"),
    ("max_cost", []),
    ("max_steps", "5"),
    ("max_tokens", 2.5),
    ("priority", 5),
]


@pytest.mark.parametrize(("argument", "given"), OTHER_TYPES)
async def test_arguments_of_another_type_are_refused_by_name(argument: str, given: Any) -> None:
    async with Client("127.0.0.1:1") as client:
        with pytest.raises(InvalidRequest) as raised:
            await client.submit(**{"goal": "x", argument: given})
    assert raised.value.field == argument
    assert ", not " in str(raised.value)


@pytest.mark.parametrize("value", [datetime.now(UTC), timedelta(seconds=1), float("nan"), {1, 2}])
def test_edited_arguments_must_be_json(value: Any) -> None:
    wait = a_wait(WaitKind.TOOL_APPROVAL)
    with pytest.raises(InvalidRequest, match="arguments"):
        approval(wait, {"order": value})


@pytest.mark.parametrize("count", [1, 2])
def test_answer_without_a_call_is_refused(count: int) -> None:
    """The list is the result of a computation. An answer without calls would allow the first one."""
    calls = tuple(CallToApprove(f"3.{index}", "pay", {}, "d") for index in range(count))
    wait = replace(a_wait(WaitKind.TOOL_APPROVAL), call_id="3.0", options=("allow", "deny"), calls=calls[1:] and calls)
    with pytest.raises(InvalidRequest, match="calls"):
        approval(wait, None, [])
    with pytest.raises(InvalidRequest, match="calls"):
        denial(wait, [])
    assert approval(wait, None, ["3.0"]) in {WaitReply("allow"), WaitReply(calls=(CallDecision("3.0", "allow", "d"),))}


def a_wait(kind: WaitKind) -> TaskWait:
    return TaskWait(**{**dict.fromkeys(TaskWait.__dataclass_fields__), "kind": kind, "calls": ()})  # type: ignore[arg-type]


@pytest.mark.parametrize("margin_seconds", [5.0, 9.0, -1.0, float("nan")])
def test_a_margin_leaves_a_trust_window(margin_seconds: float) -> None:
    """Without one the lease would be lost at once, and be renewed without a pause."""
    stub: Any = None
    with pytest.raises(ValueError, match="ttl_seconds"):
        HeldLease(stub, "a", holder="one", ttl_seconds=5.0, margin_seconds=margin_seconds)


NAMES = [
    ("spec.goal", "goal", "GOAL"),
    ("spec.agent.tools.names[0]", "tools[0]", "--tools[0]"),
    ("spec.agent.model", "model", "--model"),
    ("spec.limits.max_nano_usd", "max_cost", "--max-cost"),
    ("spec.labels['']", "labels['']", "--label['']"),
    ("spec.policy.timeouts.start.after", "policy.timeouts.start.after", "--phase-timeout.start.after"),
    ("spec.start_time", "start_at", "--start-at"),
    ("spec.source.source_id", "source.source_id", "--source.source_id"),
    ("spec.control.function", "function", "--function"),
    ("spec.agent_pin.revision", "agent", "--function"),
    ("definition.agent.system", "system", "--system"),
    ("request_id", "request_id", "--request-id"),
    ("files[1].path", "files[1].path", "--file[1].path"),
    ("overrides.limits.max_tokens", "overrides.limits.max_tokens", "overrides.limits.max_tokens"),
]


@pytest.mark.parametrize(("field", "argument", "flag"), NAMES)
def test_a_refusal_names_what_was_typed(field: str, argument: str, flag: str) -> None:
    assert argument_of(field) == argument
    assert typed_names({"function": "month_end"})(field) == flag


def test_of_two_options_the_given_one_is_named() -> None:
    assert typed_names({"agent": "support"})("spec.control.function") == "--agent"
    assert typed_names({"no_tools": True})("spec.agent.tools") == "--no-tools"
    assert typed_names({"conversation": "c"})("spec.source.exclusive") == "--conversation.exclusive"
    assert typed_names({}, goal="--goal")("spec.goal") == "--goal"


@pytest.mark.parametrize(
    ("method", "option"), [("submit", "max_csot"), ("submit_function", "system"), ("register_agent", "queue")]
)
async def test_an_option_of_another_call_is_a_type_error(method: str, option: str) -> None:
    async with Client("127.0.0.1:1") as client:
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{option}'"):
            await getattr(client, method)("x", **{option: "y"})


def test_zero_is_a_bound_of_a_range() -> None:
    """A task without cost costs at most 0. In a submit the contract takes 0 for the default."""
    wanted = task_filter(min_cost=0, max_cost=0, min_duration=0, max_duration=0)
    assert wanted.HasField("max_nano_usd")
    assert wanted.HasField("max_duration")
    assert not task_filter().ListFields()
    for bound in ("max_cost", "max_duration"):
        below: dict[str, Any] = {bound: -1}
        with pytest.raises(InvalidRequest, match=f"{bound}: must be .*0 .*or more"):
            task_filter(**below)


def test_a_quota_of_no_dollars_is_one() -> None:
    quota = _quota(QuotaBody(kind=QuotaKind.MONEY_PER_DAY, limit_usd=Decimal(0)))
    assert (quota.most, quota.no_limit) == (0, False)
