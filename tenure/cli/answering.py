"""Answers to waits: the text that a person reads first, the commands that answer, and the question in a terminal."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import click
from rich.text import Text

from tenure.cli.formatting import budget_text, harmless, seconds_text, short_id
from tenure.cli.output import echo
from tenure.cli.questions import ask, yes_or_no
from tenure.client import Client
from tenure.domain.budget import money_text, usd
from tenure.domain.errors import Refused
from tenure.domain.texts import visible_text
from tenure.domain.waits import ALLOW, DENY, EDIT, WaitKind, is_for_person
from tenure.v1 import task_pb2
from tenure.wire.common import PRIORITIES, WAIT_KINDS, unix_seconds

FOR_PEOPLE: Final = frozenset(WAIT_KINDS.to_wire(kind) for kind in WaitKind if is_for_person(kind))


class Said(NamedTuple):
    """An answer as ResumeTask takes it: a reply, or a decision, with new arguments for the decision "edit"."""

    decision: str = ""
    reply: str = ""
    edited_arguments_json: str = ""
    calls: tuple[task_pb2.CallDecision, ...] = ()


def step_text(step: task_pb2.EscalationStep) -> str:
    """Returns what a step of an escalation does."""
    match step.WhichOneof("action"):
        case "assignee":
            return harmless(f"assigned to {step.assignee}")
        case "queue":
            return harmless(f"goes on in queue {step.queue}")
        case "priority":
            return f"goes on with priority {PRIORITIES.to_domain(step.priority).name}"
        case "close_out":
            return "the task is closed out"
        case "approver":
            return harmless(f"{step.approver} may answer too")
        case "remind_webhook":
            return harmless(f"a reminder to the webhook {step.remind_webhook}")
        case _:
            return "event only"


def next_step_text(wait: task_pb2.Wait, now: float) -> str:
    """Returns when the wait's next step is due and what it does; "" without one. `now`: Unix time."""
    if not wait.HasField("next_step"):
        return ""
    left = unix_seconds(wait.next_step_time) - now
    return f"{f'in {seconds_text(left)}' if left > 0 else 'now'}: {step_text(wait.next_step)}"


def wait_text(wait: task_pb2.Wait) -> str:
    """Returns the wait on several lines. The arguments of a call are never cut: a person must see what they approve."""
    lines = [f"wait {wait.wait_id}"]
    for call in calls_of(wait):
        which = f" ({call.call_id})" if wait.calls else ""
        lines += [f"  call       {call.tool}{which}", f"  arguments  {_arguments(call.arguments_json)}"]
    lines += [
        f"  {name:<9}  {message}"
        for name, message in (
            ("question", wait.question),
            ("context", wait.context),
            ("assignee", wait.assignee),
            ("approvers", ", ".join(wait.approvers)),
            ("next step", next_step_text(wait, time.time())),
        )
        if message
    ]
    if wait.HasField("budget_request"):
        lines.append(f"  budget     {request_text(wait.budget_request)}")
    return visible_text("\n".join(lines).replace("\r\n", "\n"))


def calls_of(wait: task_pb2.Wait) -> Sequence[task_pb2.WaitingCall]:
    """Returns the calls that need approval."""
    if wait.calls or not wait.tool:
        return wait.calls
    one = task_pb2.WaitingCall(call_id=wait.call_id, tool=wait.tool, arguments_json=wait.arguments_json)
    one.call_digest = wait.call_digest
    return [one]


def decisions_on(
    wait: task_pb2.Wait, chosen: Collection[str], decision: str, edited_arguments_json: str = ""
) -> list[task_pb2.CallDecision]:
    """Returns the decision on each chosen call of a wait for several calls."""
    return [
        task_pb2.CallDecision(
            call_id=call.call_id,
            decision=decision,
            call_digest=call.call_digest,
            edited_arguments_json=edited_arguments_json,
        )
        for call in wait.calls
        if call.call_id in chosen
    ]


def _arguments(arguments_json: str) -> str:
    """Returns the arguments as JSON, indented below their heading; text that is not JSON unchanged."""
    try:
        shown = json.dumps(json.loads(arguments_json), ensure_ascii=False, indent=2)
    except ValueError:
        shown = arguments_json
    return shown.replace("\n", "\n" + " " * 13)


def answer_commands(task_id: str, wait: task_pb2.Wait) -> list[str]:
    """Returns the commands that answer the wait; the person runs one of them."""
    begin = f"tenure resume {short_id(task_id)} --wait {wait.wait_id}"
    if wait.kind == task_pb2.WAIT_KIND_BUDGET:
        return [f"{begin} {_suggested(wait.budget_request)}", f"{begin} --deny"]
    if wait.calls:
        one = f"--call {wait.calls[0].call_id}"
        return [f"{begin} --approve --all", f"{begin} --deny {one}", f"{begin} --edit JSON {one}"]
    if wait.kind == task_pb2.WAIT_KIND_TOOL_APPROVAL:
        return [f"{begin} --approve", f"{begin} --deny", f"{begin} --edit JSON"]
    if set(wait.options) == {"approve", "deny"}:
        return [f"{begin} --approve", f"{begin} --deny"]
    if len(wait.options) == 1:
        return [f"{begin} --option {shlex.quote(harmless(wait.options[0]))}"]
    if wait.options:
        return [f"{begin} --option X    # {harmless(', '.join(wait.options))}"]
    return [f"{begin} --reply TEXT"]


def _suggested(request: task_pb2.BudgetRequest) -> str:
    """Returns the options that grant the suggested amounts."""
    tokens = [f"--tokens {request.suggested_tokens}"] if request.suggested_tokens else []
    money = (
        [f"--usd {usd(request.suggested_nano_usd).strip('$').replace(',', '')}"] if request.suggested_nano_usd else []
    )
    return " ".join([*tokens, *money]) or "--approve"


def request_text(request: task_pb2.BudgetRequest) -> str:
    """Returns the cap, its use, the size of the refused reservation, and the grant that an approval gives."""
    whose = "its own cap" if request.own_cap else "the cap of its tree"
    needed = f"{request.needed_tokens:,} tokens" + (
        f" and {money_text(request.needed_nano_usd)}" if request.needed_nano_usd else ""
    )
    tokens = [f"{request.suggested_tokens:,} tokens"] if request.suggested_tokens else []
    money = [money_text(request.suggested_nano_usd)] if request.suggested_nano_usd else []
    return (
        f"{whose} ({request.limit}): {budget_text(request.budget)}; the next call needs {needed}; "
        f"suggested: {' and '.join([*tokens, *money])} more"
    )


def decision_of(wait: task_pb2.Wait, approve_or_deny: str) -> str:
    """Returns the decision of "approve" or "deny" in this wait: approval of a tool call is "allow"."""
    allows_call = approve_or_deny == "approve" and wait.kind == task_pb2.WAIT_KIND_TOOL_APPROVAL
    return ALLOW if allows_call else (DENY if approve_or_deny == "deny" else approve_or_deny)


def question_of(wait: task_pb2.Wait) -> str:
    """Returns the prompt of a wait."""
    if wait.calls:
        return "allow all these calls? [y/n, or the ids of some to allow] "
    if wait.kind == task_pb2.WAIT_KIND_TOOL_APPROVAL:
        return "allow this call? [y/n/edit] "
    if {"approve", "deny"} <= set(wait.options):
        return "approve? [y/n] "
    return f"answer ({', '.join(wait.options)}): " if wait.options else "your reply: "


def said_in(wait: task_pb2.Wait, line: str) -> Said | None:
    """Returns the answer of a typed line, or None if the line is not a valid answer."""
    typed = line.strip()
    if wait.calls:
        return _said_of_calls(wait, typed)
    takes_yes = wait.kind == task_pb2.WAIT_KIND_TOOL_APPROVAL or {"approve", "deny"} <= set(wait.options)
    if takes_yes and (is_yes := yes_or_no(line)) is not None:
        return Said(decision=decision_of(wait, "approve" if is_yes else "deny"))
    if wait.kind == task_pb2.WAIT_KIND_TOOL_APPROVAL:
        return None
    if wait.options:
        return Said(decision=typed) if typed in wait.options else None
    return Said(reply=typed) if typed else None


def _said_of_calls(wait: task_pb2.Wait, typed: str) -> Said | None:
    known = [call.call_id for call in wait.calls]
    if (is_yes := yes_or_no(typed)) is not None:
        return Said(calls=tuple(decisions_on(wait, known, ALLOW if is_yes else DENY)))
    chosen = typed.replace(",", " ").split()
    return Said(calls=tuple(decisions_on(wait, chosen, ALLOW))) if chosen and set(chosen) <= set(known) else None


async def ask_person(client: Client, task_id: str, wait: task_pb2.Wait) -> None:
    """Asks in the terminal until the person gives a valid answer, and sends it.

    Returns without an answer at the end of standard input. If another answer came first, prints the refusal.
    """
    echo(wait_text(wait), err=True)
    answer: Said | None = None
    while answer is None:
        line = await ask(question_of(wait))
        if not line:
            return
        edits = wait.kind == task_pb2.WAIT_KIND_TOOL_APPROVAL and not wait.calls and line.strip().lower() in {"e", EDIT}
        answer = _edited(wait) if edits else said_in(wait, line)
    try:
        await send_answer(client, task_id, wait, answer)
    except Refused as error:
        echo(f"the answer was refused: {error.message}", err=True)


async def send_answer(
    client: Client, task_id: str, wait: task_pb2.Wait, answer: Said, *, comment: str = "", request_id: str = ""
) -> task_pb2.Task:
    """Sends the answer to exactly the wait, and the call, that was shown: the call digest is sent too."""
    return await client.resume(
        task_id,
        wait.wait_id,
        decision=answer.decision,
        reply=answer.reply,
        calls=answer.calls,
        call_digest=wait.call_digest,
        comment=comment,
        edited_arguments_json=answer.edited_arguments_json,
        request_id=request_id,
    )


def _edited(wait: task_pb2.Wait) -> Said | None:
    """Opens the arguments in the person's editor. Returns None if the person saved nothing, or no JSON object."""
    shown = json.dumps(json.loads(wait.arguments_json), ensure_ascii=False, indent=2)
    text = click.edit(shown, extension=".json", require_save=True)
    try:
        is_object = text is not None and isinstance(json.loads(text), dict)
    except ValueError:
        is_object = False
    if not is_object or text is None:
        echo("no answer was sent: save the arguments as a JSON object", err=True)
        return None
    return Said(decision=EDIT, edited_arguments_json=text)


def answer_lines(task_id: str, wait: task_pb2.Wait) -> list[Text]:
    """Returns the lines that `tenure watch` prints at a wait for a person."""
    return [Text(f"  to answer: {command}", "yellow") for command in answer_commands(task_id, wait)]
