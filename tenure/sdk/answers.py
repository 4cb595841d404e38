"""The answer of a wait: what `approve`, `deny` and `answer` send for each kind of wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tenure.domain.waits import ALLOW, APPROVE, CONTINUE, DENY, EDIT, CallDecision, WaitKind
from tenure.sdk.errors import invalid_argument
from tenure.sdk.option_values import json_text
from tenure.sdk.task_info import CallToApprove, TaskWait


@dataclass(frozen=True, slots=True)
class WaitReply:
    """A decision among the options of a wait, or a text."""

    decision: str = ""
    reply: str = ""
    edited_arguments_json: str = ""
    calls: tuple[CallDecision, ...] = ()


def approval(wait: TaskWait, arguments: Mapping[str, Any] | None, calls: Iterable[str] | None = None) -> WaitReply:
    """Returns the approval of a wait. `arguments`: those with which a tool call runs instead; None: as it asked.
    `calls`: the ids of the calls to approve; None: all.

    Raises InvalidRequest for a wait that asks no yes or no.
    """
    if decided := _decided(wait, calls):
        edited = "" if arguments is None else json_text("arguments", dict(arguments))
        if edited and len(decided) > 1:
            raise invalid_argument("arguments", f"are those of one call, and {len(decided)} wait", "name one of them")
        return _decisions(decided, EDIT if edited else ALLOW, edited)
    if wait.kind is WaitKind.TOOL_APPROVAL:
        if arguments is None:
            return WaitReply(ALLOW)
        return WaitReply(EDIT, edited_arguments_json=json_text("arguments", dict(arguments)))
    if arguments is not None:
        raise invalid_argument("arguments", f"must be None: a wait of kind {wait.kind} has no call to edit")
    return WaitReply(CONTINUE if wait.options == (CONTINUE,) else _option(wait, APPROVE))


def denial(wait: TaskWait, calls: Iterable[str] | None = None) -> WaitReply:
    """Returns the denial of a wait, or of some of its calls. Raises InvalidRequest for one that asks no yes or no."""
    if decided := _decided(wait, calls):
        return _decisions(decided, DENY)
    return WaitReply(_option(wait, DENY))


def free_answer(wait: TaskWait, text: str) -> WaitReply:
    """Returns one of the wait's options, or else a text. Raises InvalidRequest for a wait that takes no text."""
    if text in {ALLOW, DENY} and (decided := _decided(wait, None)):
        return _decisions(decided, text)
    if text in wait.options:
        return WaitReply(text)
    if wait.kind in {WaitKind.QUESTION, WaitKind.APPROVAL}:
        return WaitReply(reply=text)
    options = f"one of {', '.join(wait.options)}" if wait.options else "an event or sub-agents, not a person"
    raise invalid_argument("answer", f"must be {options}: the wait is of kind {wait.kind}")


def _decided(wait: TaskWait, calls: Iterable[str] | None) -> list[CallToApprove]:
    """Returns the calls of a wait for several calls that an answer is for.

    Raises InvalidRequest for an unknown call, and for no calls: an answer without calls decides on the first one.
    """
    known = {call.call_id: call for call in wait.calls}
    wanted = list(known if calls is None else calls)
    if calls is not None and not wanted:
        raise invalid_argument("calls", "must name a call", "for all of them, leave it out")
    if unknown := [call for call in wanted if call not in known and call != wait.call_id]:
        raise invalid_argument("calls", f"{unknown[0]} is not a call of the wait: {', '.join(known) or wait.call_id}")
    return [known[call] for call in wanted if call in known]


def _decisions(calls: list[CallToApprove], decision: str, edited_arguments_json: str = "") -> WaitReply:
    return WaitReply(
        calls=tuple(
            CallDecision(call.call_id, decision, call.call_digest, edited_arguments_json=edited_arguments_json)
            for call in calls
        )
    )


def _option(wait: TaskWait, option: str) -> str:
    if option in wait.options:
        return option
    offered = f"its options are {', '.join(wait.options)}" if wait.options else f"it is of kind {wait.kind}"
    raise invalid_argument("wait", f"has no option {option!r}: {offered}", "use task.answer(wait, …)")
