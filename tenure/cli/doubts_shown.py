"""A call in doubt as an operator needs to see it, maybe in the middle of the night: what, when, where, what next."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from rich.text import Text

from tenure.cli.tables import make_grid
from tenure.cli.words import ago, arguments_text, harmless, one_line, short_id, why
from tenure.domain.states import Reason
from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import task_pb2, tool_pb2
from tenure.wire.enums import EFFECT_CLASSES

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp
    from rich.console import Console

_MOST_ARGUMENT_LINES: Final = 12


def show_doubt(console: Console, listed: admin.AdminServiceListInDoubtCallsResponse.Listed) -> None:
    """One call, and the commands that settle it if it can be settled."""
    call = listed.call
    head = harmless(f"{short_id(call.task_id)}  call {call.call_id}  {call.tool}")
    tail = f"  {EFFECT_CLASSES.to_domain(call.effect_class)}"
    console.print(Text.assemble((head, "bold"), (tail, "dim")), soft_wrap=True)
    table = make_grid()
    for name, value in _rows(console, listed):
        if value:
            table.add_row(f"  {name}", Text(harmless(value)))
    console.print(table)
    for line in _commands(listed):
        console.print(Text(harmless(f"  {line}")), soft_wrap=True)


def doubts_text(task: task_pb2.Task) -> str:
    """Which calls a task waits for, and where they are seen; "" for one that waits for none."""
    if task.state != task_pb2.TASK_STATE_WAITING_USER or task.reason != Reason.TOOL_IN_DOUBT:
        return ""
    calls = ", ".join(call.call_id for call in task.calls_in_doubt)
    return f"{f'{calls}: ' if calls else ''}tenure tools in-doubt --task {short_id(task.task_id)}"


def _rows(console: Console, listed: admin.AdminServiceListInDoubtCallsResponse.Listed) -> Iterator[tuple[str, str]]:
    call = listed.call
    cut = " (and more: tenure entries)" if call.arguments_truncated else ""
    yield "arguments", one_line(arguments_text(call.arguments_json), _MOST_ARGUMENT_LINES * console.width) + cut
    yield "in doubt", f"since {_when(call.doubt_time)}"
    yield "started", f"{_when(call.start_time)}, attempt {call.call_attempt}" if call.HasField("start_time") else ""
    yield "ran on", call.runner_instance or f"a process that is no longer known, {call.runner_id}"
    yield "its runner", _runner(call)
    yield "the tool said", call.note
    yield "the task", _task(listed)


def _runner(call: tool_pb2.InDoubtCall) -> str:
    if call.note or call.acts_elsewhere:
        return "the other side may still be working on it; wait longer than its longest run, then look"
    if call.runner_gone:
        return "proven gone: nothing more will come of it, so what is there now is what there is"
    return "NOT proven gone: it may only be paused or cut off, and may still make the call happen"


def _task(listed: admin.AdminServiceListInDoubtCallsResponse.Listed) -> str:
    if not listed.task_state:
        return "was pruned; nothing can be settled any more"
    told = why(listed.task_state, listed.task_reason, "")
    if listed.resolvable:
        return f"{told}: it waits for you"
    waits = listed.task_state == task_pb2.TASK_STATE_WAITING_USER
    return f"{told}: {'it has a word on this call' if waits else 'it waits for no word on this call'}"


def _commands(listed: admin.AdminServiceListInDoubtCallsResponse.Listed) -> Iterator[str]:
    if not listed.resolvable:
        return
    call = listed.call
    again = f" --attempt {call.call_attempt}" if call.call_attempt > 1 else ""
    resolve = f"tenure tools resolve {short_id(call.task_id)} {call.call_id}{again}"
    gone = "" if call.runner_gone else " --runner-is-gone"
    answers = {
        "It happened; the agent reads your result as the call's:": '--happened --result "…" --reason "…"',
        "It did not happen; it is run again:": f'--did-not-happen{gone} --reason "…"',
        "Nobody will ever know; the agent is told so:": '--abandon --reason "…"',
    }
    if call.acts_elsewhere:
        yield "--runner-is-gone is your word that nothing over there works on it any more: nothing here can prove that."
    elif not call.runner_gone:
        yield f"Make sure that {call.runner_instance or 'its process'} is gone: end it, or start its machine anew."
    yield "Find out whether it happened, and how you know; then one of:"
    for what, words in answers.items():
        yield f"- {what}"
        yield f"  {resolve} {words}"


def _when(moment: Timestamp) -> str:
    """`2026-11-22 03:04:05, 12 min ago`."""
    if not moment.seconds:
        return "an unknown time"
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(moment.seconds))}, {ago(moment)}"
