"""`tenure waits`, `resume` and `tenure tasks signal`: list the waits, answer one, send a signal."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from google.protobuf.timestamp_pb2 import Timestamp
from rich.table import Table

from tenure.cli.answering import (
    calls_of,
    decision_of,
    decisions_on,
    next_step_text,
    request_text,
    wait_text,
)
from tenure.cli.context import Context, with_client
from tenure.cli.formatting import (
    ListColumn,
    ago,
    arguments_text,
    count_text,
    cut_text,
    distinct_ids,
    fitted_list,
    harmless,
    one_line,
    seconds_text,
    short_id,
    why,
)
from tenure.cli.output import echo
from tenure.cli.parameters import DOLLARS, DURATION, MESSAGE_FILES, find_task, task_argument
from tenure.cli.questions import confirm, is_interactive
from tenure.client import Client
from tenure.domain.errors import WrongState
from tenure.domain.in_doubt import RESOLVE_COMMANDS
from tenure.domain.states import Reason
from tenure.domain.tools import PlannedCalls
from tenure.domain.waits import APPROVE, EDIT, call_digest
from tenure.sdk.option_values import files as input_files
from tenure.v1 import task_pb2, tool_pb2
from tenure.wire.call_plans import plan_to_wire
from tenure.wire.common import state_name, unix_seconds

WAITING = (task_pb2.TASK_STATE_WAITING_USER, task_pb2.TASK_STATE_WAITING_EXTERNAL)
MAX_WAITS = 10_000


@click.command(short_help="List the tasks that wait for a person.")
@click.option("--external", is_flag=True, help="Also list tasks that wait for a signal or for sub-agents.")
@click.option(
    "--limit", type=click.IntRange(1, MAX_WAITS), default=50, show_default=True, help="Show at most this many."
)
@with_client
async def waits(context: Context, client: Client, external: bool, limit: int) -> None:
    """List the tasks that wait for a person, by deadline: the most urgent first."""
    task_filter = task_pb2.TaskFilter(states=WAITING if external else WAITING[:1])

    tasks = client.list_tasks(task_filter, limit=limit, order=task_pb2.TASK_ORDER_WAIT_DEADLINE)
    if context.as_json:
        async for task in tasks:
            context.emit(task)
    elif listed := [task async for task in tasks]:
        context.console.print(wait_table(context.console.width, listed))
    else:
        echo("no task waits", err=True)


@click.command(short_help="Answer the wait of TASK.")
@task_argument
@click.option("--approve", "yes_or_no", flag_value="approve", help="Approve, or allow the tool call.")
@click.option("--deny", "yes_or_no", flag_value="deny", help="Deny; say why with --comment, which the agent reads.")
@click.option(
    "--option", default=None, metavar="X", help="Choose this option of the wait; `tenure get TASK` shows the options."
)
@click.option("--reply", default=None, metavar="TEXT", help="Answer with this text.")
@click.option("--edit", default=None, metavar="JSON", help="Allow the tool call, with these arguments instead.")
@click.option(
    "--call", "calls", multiple=True, metavar="ID", help="Of several calls that wait: only this one; may be repeated."
)
@click.option("--all", "all_calls", is_flag=True, help="Of several calls that wait: all of them.")
@click.option(
    "--plan",
    "plan_count",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="Also allow N later calls of the tool.",
)
@click.option("--plan-tool", default="", metavar="NAME", help="Of this tool; default: that of the call you allow.")
@click.option("--plan-when", default="", metavar="CEL", help="Only calls for which this is true: args.cents < 5000.")
@click.option("--plan-same", multiple=True, metavar="PATH", help="Only calls with the same value there: args.customer.")
@click.option("--plan-sum", default="", metavar="PATH=MOST", help="At most so much in all: args.cents=20000.")
@click.option("--plan-for", type=DURATION, metavar="TIME", help="Until then; default: 24h, at most 30d.")
@click.option("--comment", default="", help="A comment for the agent; recorded in the ledger.")
@click.option("--file", "files", **MESSAGE_FILES)
@click.option(
    "--tokens",
    "--extra-tokens",
    "extra_tokens",
    type=click.IntRange(min=0),
    default=0,
    help="Raise the token cap by this many: the answer to a wait for budget, or beside another answer.",
)
@click.option("--usd", type=DOLLARS, default=0, metavar="X", help="Raise the cap in money by this many dollars.")
@click.option(
    "--wait", "wait_id", default="", metavar="ID", help="The id of the wait that you answer; `tenure waits` shows it."
)
@click.option("--yes", is_flag=True, help="Send without asking for confirmation; needs --wait.")
@click.option(
    "--request-id",
    default="",
    help="Makes the command safe to repeat: a repeat with the same id sends no second answer.",
)
@with_client
async def resume(
    context: Context,
    client: Client,
    /,
    task: str,
    yes_or_no: str | None,
    yes: bool,
    wait_id: str,
    files: tuple[Path, ...],
    **options: Any,
) -> None:
    """Answer the wait of TASK. A wait takes one answer; a second answer is refused.

    Prints the wait first. On a terminal it asks for confirmation; in a script --wait is required, so that an answer
    never reaches a wait that you have not seen.
    """
    grants_budget = bool(options["extra_tokens"] or options["usd"])
    others = (options["option"], options["reply"], options["edit"])
    if yes_or_no is None and grants_budget and not any(one is not None for one in others):
        yes_or_no = APPROVE
    answer = TypedAnswer(yes_or_no, **options)
    if sum(one is not None for one in (yes_or_no, answer.option, answer.reply, answer.edit)) != 1:
        raise click.UsageError("give one of --approve, --deny, --option, --reply and --edit, or --tokens or --usd")
    sent = input_files("--file", files)
    if not wait_id and (yes or not is_interactive()):
        raise click.UsageError("give the id of the wait that you answer, --wait ID; `tenure waits` shows it")

    waiting = await client.get(await find_task(client, task))
    repeated = await _answered_wait(client, waiting, wait_id, answer.request_id)
    if repeated is None:
        _check_waits(waiting, wait_id)
    wait = repeated or waiting.wait
    echo(wait_text(wait), err=True)
    decisions = answer.decisions(wait)
    if not yes and is_interactive():
        await confirm(f"{answer.text(wait)}: send this answer?")
    resumed = await client.resume(
        waiting.task_id,
        wait.wait_id,
        calls=decisions,
        call_digest=wait.call_digest,
        decision=answer.decision(wait),
        reply=answer.reply or "",
        comment=answer.comment,
        edited_arguments_json=answer.edit or "",
        extra_budget_tokens=answer.extra_tokens,
        extra_budget_nano_usd=answer.usd,
        files=sent,
        plan=answer.plan(),
        request_id=answer.request_id,
    )
    context.say(resumed, f"answered; {short_id(resumed.task_id)} is {why(resumed.state, '', '')}")


@dataclass(frozen=True, slots=True)
class TypedAnswer:
    """The answer on the command line: exactly one of `yes_or_no` (approve or deny), `option`, `reply` and `edit`."""

    yes_or_no: str | None
    option: str | None
    reply: str | None
    edit: str | None
    comment: str
    calls: tuple[str, ...]
    all_calls: bool
    extra_tokens: int
    usd: int
    request_id: str
    plan_count: int | None = None
    plan_tool: str = ""
    plan_when: str = ""
    plan_same: tuple[str, ...] = ()
    plan_sum: str = ""
    plan_for: float | None = None

    def plan(self) -> tool_pb2.CallPlan | None:
        """Returns the later calls that the answer approves, too. Raises UsageError for bounds without a number."""
        if self.plan_count is None:
            if self.plan_tool or self.plan_when or self.plan_same or self.plan_sum or self.plan_for is not None:
                raise click.UsageError("give --plan N, the most later calls, with the other options of a plan")
            return None
        sum_of, _, limit = self.plan_sum.partition("=")
        plan = PlannedCalls(
            count=self.plan_count,
            tool=self.plan_tool,
            when=self.plan_when,
            same=self.plan_same,
            sum_of=sum_of,
            limit=limit,
            lasts_seconds=self.plan_for or 0.0,
        )
        return plan_to_wire(plan)

    def decision(self, wait: task_pb2.Wait) -> str:
        """Returns the decision as ResumeTask takes it, "" for a reply."""
        if self.edit is not None:
            return EDIT
        return self.option or (decision_of(wait, self.yes_or_no) if self.yes_or_no else "")

    def decisions(self, wait: task_pb2.Wait) -> list[task_pb2.CallDecision]:
        """Returns the decisions on calls of a wait for several calls. Raises UsageError unless it is said which."""
        known = [call.call_id for call in wait.calls]
        if unknown := [call for call in self.calls if call not in (known or [wait.call_id])]:
            raise click.UsageError(f"{unknown[0]} is not a call of the wait: {', '.join(known) or wait.call_id}")
        if not known:
            return []
        chosen = known if self.all_calls else self.calls
        if not chosen or (self.edit is not None and len(chosen) > 1):
            raise click.UsageError(f"{len(known)} calls wait: give --call ID, of {', '.join(known)}, or --all")
        return decisions_on(wait, chosen, self.decision(wait), self.edit or "")

    def text(self, wait: task_pb2.Wait) -> str:
        """Returns the answer for the question that asks for confirmation."""
        which = f"{' '.join(one.call_id for one in self.decisions(wait))} " if wait.calls else ""
        later = f" and up to {self.plan_count:,} later calls" if self.plan_count else ""
        return harmless(f"{which}{self.decision(wait)} {self.edit or ''}".strip() + later or f"reply {self.reply}")


async def _answered_wait(client: Client, task: task_pb2.Task, wait_id: str, request_id: str) -> task_pb2.Wait | None:
    """Returns the ended wait that an answer with this `request_id` ended, as it was shown then.

    A repeat of an answer must have the same result, also after the wait has ended. None: there is no such wait, so the
    answer is for the present wait.
    """
    if not wait_id or not request_id or (task.HasField("wait") and task.wait.wait_id == wait_id):
        return None
    wait: task_pb2.Wait | None = None
    async for entry in client.entries(task.task_id):
        body = entry.body
        if body.transition.wait.wait_id == wait_id:
            wait = body.transition.wait
        elif wait is not None and body.wait_resolution.wait_id == wait_id:
            wait.call_digest = call_digest(wait.tool, wait.arguments_json) if wait.tool else ""
            for call in wait.calls:
                call.call_digest = call_digest(call.tool, call.arguments_json)
            return wait if body.wait_resolution.request_id == request_id else None
    return None


def _check_waits(task: task_pb2.Task, wait_id: str) -> None:
    """Raises WrongState if the task has no wait, or another wait than `wait_id`."""
    if not task.HasField("wait"):
        hint = f": {RESOLVE_COMMANDS}" if task.reason == Reason.TOOL_IN_DOUBT else ""
        state = why(task.state, task.reason if hint else "", "")
        raise WrongState(f"{short_id(task.task_id)} does not wait for an answer; it is {state}{hint}")
    if wait_id and wait_id != task.wait.wait_id:
        echo(f"the task has another wait now:\n{wait_text(task.wait)}", err=True)
        raise WrongState(
            f"{short_id(task.task_id)} does not have the wait {wait_id}, or it has ended", reason="WAIT_OVER"
        )


@click.command(short_help="Send a signal to the task that waits for it.")
@click.argument("correlation_id")
@click.argument("payload")
@click.option(
    "--request-id",
    default="",
    help="Makes the command safe to repeat: a repeat with the same id sends no second signal.",
)
@with_client
async def signal(context: Context, client: Client, correlation_id: str, payload: str, request_id: str) -> None:
    """Send the signal PAYLOAD to the task that waits for CORRELATION_ID, now or later.

    PAYLOAD is JSON; anything else is sent as a JSON string. A signal for which no task waits is kept for 7 days.
    """
    task = await client.signal(correlation_id, _json_of(payload), request_id=request_id)
    if task is None:
        text = f"no task waits for {correlation_id} yet; the signal is kept for 7 days"
    else:
        text = f"delivered; {short_id(task.task_id)} is {why(task.state, '', '')}"
    context.say({"delivered": task is not None, "task_id": task.task_id if task else ""}, text)


def wait_rows(task: task_pb2.Task) -> list[tuple[str, str]]:
    """Returns the rows about a task's wait for `tenure get`."""
    if not task.HasField("wait"):
        return []
    wait = task.wait
    return [
        ("wait", wait.wait_id),
        ("waits for", _awaited(wait)),
        ("signal", wait.correlation_id if wait.question else ""),
        ("budget", request_text(wait.budget_request) if wait.HasField("budget_request") else ""),
        ("call", "\n".join(f"{call.tool} {arguments_text(call.arguments_json)}" for call in calls_of(wait))),
        ("context", wait.context),
        ("reference", wait.reference),
        ("options", ", ".join(wait.options)),
        ("sub-agents", "\n".join(wait.sub_agent_task_ids)),
        ("assignee", wait.assignee),
        ("may answer", ", ".join(wait.approvers)),
        ("next step", next_step_text(wait, time.time())),
        ("deadline", f"{_left(wait)}, then {_policy(wait)}"),
    ]


def _awaited(wait: task_pb2.Wait) -> str:
    """Returns what the wait is for: sub-agents, the question, or the signal."""
    if wait.kind == task_pb2.WAIT_KIND_SUB_AGENTS:
        return count_text(len(wait.sub_agent_task_ids), "sub-agent")
    return wait.question or (f"the signal {wait.correlation_id}" if wait.correlation_id else "")


def wait_table(width: int, listed: Sequence[task_pb2.Task]) -> Table:
    """Returns the waits as a table, without the columns for which the width has no place."""
    ids = distinct_ids(task.task_id for task in listed)
    now = time.time()
    return fitted_list(
        width,
        ListColumn("TASK", [ids[task.task_id] for task in listed]),
        ListColumn("WAIT", [task.wait.wait_id or "-" for task in listed]),
        ListColumn("SINCE", [ago(_since(task)) for task in listed], rank=5),
        ListColumn("DEADLINE", [_left(task.wait) if task.HasField("wait") else "-" for task in listed], rank=1),
        ListColumn("ASSIGNEE", [one_line(task.wait.assignee, 40) for task in listed], rank=3),
        ListColumn("NEXT STEP", [one_line(next_step_text(task.wait, now), 60) for task in listed], rank=4),
        ListColumn("OPTIONS", [one_line(_options(task), 60) for task in listed], rank=2),
        ListColumn("WAITS FOR", [cut_text(_question(task), max(40, width)) for task in listed]),
    )


def _question(task: task_pb2.Task) -> str:
    wait = task.wait
    if wait.tool:
        return "; ".join(f"{call.tool} {arguments_text(call.arguments_json)}" for call in calls_of(wait))
    return _awaited(wait) or task.message or state_name(task.state)


def _options(task: task_pb2.Task) -> str:
    """Returns what may be answered; for a wait that `tenure resume` cannot answer, what ends it."""
    wait = task.wait
    if not task.HasField("wait"):
        return _other_remedy(task)
    is_not_for_people = bool(wait.correlation_id) or wait.kind == task_pb2.WAIT_KIND_SUB_AGENTS
    return ", ".join(wait.options) or ("" if is_not_for_people else "a reply")


def _other_remedy(task: task_pb2.Task) -> str:
    """Returns what ends a wait that `tenure resume` cannot answer."""
    return RESOLVE_COMMANDS if task.reason == Reason.TOOL_IN_DOUBT else task.reason


def _since(task: task_pb2.Task) -> Timestamp:
    return task.wait.begin_time if task.HasField("wait") else task.update_time


def _left(wait: task_pb2.Wait) -> str:
    left = unix_seconds(wait.deadline_time) - time.time()
    return f"in {seconds_text(left)}" if left > 0 else "now"


def _policy(wait: task_pb2.Wait) -> str:
    if wait.kind == task_pb2.WAIT_KIND_BUDGET:
        return "the task ends at its cap"
    continues = wait.at_deadline == task_pb2.WAIT_DEADLINE_POLICY_GO_ON
    return "the task continues without an answer" if continues else "the task times out"


def _json_of(text: str) -> str:
    try:
        json.loads(text)
    except ValueError:
        return json.dumps(text, ensure_ascii=False)
    return text
