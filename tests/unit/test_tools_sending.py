"""Sending calls: what an error of our own comes to, before anything was sent and after."""

from __future__ import annotations

from typing import Any

import pytest

from edges.providers.provider import read_refusal
from services.tools.sending import AnswerLostError, CallDelivery, NotSentError, SendAttempt
from services.tools.tool import CallContext, ToolAnswer, ToolFailure, ToolInDoubt
from tenure.domain.errors import WrongState
from tenure.domain.tools import EffectClass, OutcomeStatus
from tests.support.patience import CALL_SECONDS


async def delivered(effect_class: EffectClass, *steps: Exception | ToolAnswer | str) -> ToolAnswer:
    """Each step is what one sending returns or raises; the text "out: …" is raised as a bug once the call is out."""
    left = list(steps)

    async def send(sending: SendAttempt) -> ToolAnswer:
        step = left.pop(0)
        if isinstance(step, str):
            sending.go_out()
            raise KeyError(step)
        if isinstance(step, ToolAnswer):
            return step
        raise step

    call_context = CallContext("default", "t", "1.0", "t/1.0", 7, lambda _text: None, timeout_seconds=CALL_SECONDS)
    return await CallDelivery("The shop", effect_class, call_context, CALL_SECONDS).carry_out(send)


@pytest.mark.parametrize("effect_class", list(EffectClass))
async def test_an_error_after_sending_leaves_the_effect_open(effect_class: Any) -> None:
    with pytest.raises(ToolInDoubt, match="KeyError"):
        await delivered(effect_class, NotSentError("no way"), "out: a bug")


async def test_an_error_in_a_repeat_keeps_the_earlier_sending() -> None:
    with pytest.raises(ToolInDoubt, match="KeyError"):
        await delivered(EffectClass.KEYED, AnswerLostError("gone"), KeyError("a bug"))


@pytest.mark.parametrize("effect_class", list(EffectClass))
async def test_a_bug_before_anything_was_sent_is_a_crash(effect_class: Any) -> None:
    with pytest.raises(KeyError):
        await delivered(effect_class, KeyError("a bug"))


async def test_refused_repeat_reports_the_earlier_sending() -> None:
    """Such as when the host's name has another address by now, which is not allowed."""
    refused = ToolFailure("It has an address that is not allowed.", "ADDRESS_REFUSED")
    with pytest.raises(ToolInDoubt, match="was sent before") as repeated:
        await delivered(EffectClass.KEYED, AnswerLostError("gone"), refused)
    assert repeated.value.detail == "ADDRESS_REFUSED"
    with pytest.raises(ToolFailure):
        await delivered(EffectClass.KEYED, refused)


async def test_a_refusal_after_a_lost_answer_proves_nothing() -> None:
    """The first sending may have had the effect, and the other side may validate before it looks up the key."""
    refused = ToolAnswer("HTTP 422", OutcomeStatus.FAILED, "HTTP_422", no_effect=True)
    assert (await delivered(EffectClass.KEYED, refused)).no_effect
    assert not (await delivered(EffectClass.KEYED, AnswerLostError("gone"), refused)).no_effect


@pytest.mark.parametrize(("reason", "detail"), [("OUT_OF_STOCK", "OUT_OF_STOCK"), ("x" * 5000, ""), ("A\nB", "")])
def test_only_a_code_of_a_refusal_becomes_the_detail(reason: str, detail: str) -> None:
    answer = read_refusal("The provider", WrongState("there is none left", reason=reason))
    assert (answer.status, answer.detail) == (OutcomeStatus.FAILED, detail)
    assert "Nothing was done: there is none left" in answer.content
    assert answer.no_effect
