"""`tenure waits`, `resume` and `signal`: who is waited for, and how they answer."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click
from google.protobuf.timestamp_pb2 import Timestamp
from rich.text import Text

from tenure.cli.answering import decision_of, is_interactive, wait_text
from tenure.cli.context import Context, pass_context
from tenure.cli.formatting import (
    ago,
    arguments_text,
    count_text,
    distinct_ids,
    harmless,
    make_table,
    one_line,
    seconds_text,
    short_id,
    why,
)
from tenure.cli.output import echo
from tenure.cli.parameters import find_task, task_argument
from tenure.client import Client
from tenure.domain.errors import WrongState
from tenure.domain.explain import TO_SETTLE
from tenure.domain.states import Reason
from tenure.domain.waits import EDIT, call_digest
from tenure.v1 import task_pb2
from tenure.wire.common import state_name, unix_seconds

WAITING = (task_pb2.TASK_STATE_WAITING_USER, task_pb2.TASK_STATE_WAITING_EXTERNAL)
MOST_WAITS = 10_000


@click.command(short_help="Show the tasks that wait for a person.")
@click.option("--external", is_flag=True, help="Also those that wait for an event from outside.")
@click.option("--limit", type=click.IntRange(1, MOST_WAITS), default=50, show_default=True)
@pass_context
def waits(context: Context, external: bool, limit: int) -> None:
    """Show the tasks that wait for a person, those first that must be answered soonest."""
    wanted = task_pb2.TaskFilter(states=WAITING if external else WAITING[:1])

    async def work(client: Client) -> None:
        tasks = client.list_tasks(wanted, limit=limit, order=task_pb2.TASK_ORDER_WAIT_DEADLINE)
        if context.as_json:
            async for task in tasks:
                context.emit(task)
        elif listed := [task async for task in tasks]:
            _show_waits(context, listed)
        else:
            echo("nobody is waited for", err=True)

    context.run(work)


@click.command(short_help="Answer what TASK waits for.")
@task_argument
@click.option("--approve", "message", flag_value="approve", help="Yes: approve, or allow the tool's call.")
@click.option("--deny", "message", flag_value="deny", help="No; --comment tells the agent why.")
@click.option("--option", default=None, metavar="X", help="One of the options that `tenure get TASK` shows.")
@click.option("--reply", default=None, metavar="TEXT", help="An answer in your own words.")
@click.option("--edit", default=None, metavar="JSON", help="Allow the tool's call with these arguments.")
@click.option("--comment", default="", help="What the agent is to read besides; it is recorded.")
@click.option("--extra-tokens", type=click.IntRange(min=0), default=0, help="Raise its cap of tokens by so many.")
@click.option(
    "--wait", "wait_id", default="", metavar="ID", help="The wait that you answer, as `tenure waits` shows it."
)
@click.option("--yes", is_flag=True, help="Do not ask in a terminal; needs --wait.")
@click.option("--request-id", default="", help="The same id and the same answer are one answer, however often sent.")
@pass_context
def resume(context: Context, /, task: str, message: str | None, yes: bool, wait_id: str, **options: Any) -> None:
    """Answer what TASK waits for. A wait takes one answer: who comes second is told so.

    Shows what is answered. In a terminal it asks before it sends the answer; elsewhere --wait is needed, so that nobody
    approves what they have not seen.
    """
    given = Given(message, **options)
    if sum(one is not None for one in (message, given.option, given.reply, given.edit)) != 1:
        raise click.UsageError("give one of --approve, --deny, --option, --reply and --edit")
    if not wait_id and (yes or not is_interactive()):
        raise click.UsageError("say which wait you answer: --wait ID; `tenure waits` shows it")

    async def work(client: Client) -> None:
        waiting = await client.get(await find_task(client, task))
        repeated = await _answered_wait(client, waiting, wait_id, given.request_id)
        if repeated is None:
            _check_waits(waiting, wait_id)
        wait = repeated or waiting.wait
        echo(wait_text(wait), err=True)
        if not yes and is_interactive():
            click.confirm(f"{given.words(wait)}: send this answer?", abort=True, err=True)
        resumed = await client.resume(
            waiting.task_id,
            wait.wait_id,
            call_digest=wait.call_digest,
            decision=given.decision(wait),
            reply=given.reply or "",
            comment=given.comment,
            edited_arguments_json=given.edit or "",
            extra_budget_tokens=given.extra_tokens,
            request_id=given.request_id,
        )
        if context.as_json:
            context.emit(resumed)
        else:
            echo(f"{short_id(resumed.task_id)} has its answer; it is {why(resumed.state, '', '')} now")

    context.run(work)


@dataclass(frozen=True, slots=True)
class Given:
    """The answer on the command line: one of `said` (approve or deny), `option`, `reply` and `edit`."""

    said: str | None
    option: str | None
    reply: str | None
    edit: str | None
    comment: str
    extra_tokens: int
    request_id: str

    def decision(self, wait: task_pb2.Wait) -> str:
        """Empty for a reply."""
        if self.edit is not None:
            return EDIT
        return self.option or (decision_of(wait, self.said) if self.said else "")

    def words(self, wait: task_pb2.Wait) -> str:
        """The answer, for the question before it is sent."""
        return harmless(f"{self.decision(wait)} {self.edit or ''}".strip() or f"reply {self.reply}")


async def _answered_wait(client: Client, task: task_pb2.Task, wait_id: str, request_id: str) -> task_pb2.Wait | None:
    """The wait that an answer with this request_id has ended, as it was shown then: sent again, the same answer has the
    same result. None: there is none, so the answer is for the present wait.
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
            return wait if body.wait_resolution.request_id == request_id else None
    return None


def _check_waits(task: task_pb2.Task, wait_id: str) -> None:
    """Raises WrongState when the task waits for no answer, or for one to another wait than `wait_id`."""
    if not task.HasField("wait"):
        hint = f": {TO_SETTLE}" if task.reason == Reason.TOOL_IN_DOUBT else ""
        now = why(task.state, task.reason if hint else "", "")
        raise WrongState(f"{short_id(task.task_id)} waits for no answer; it is {now}{hint}")
    if wait_id and wait_id != task.wait.wait_id:
        echo(f"it waits for something else by now:\n{wait_text(task.wait)}", err=True)
        raise WrongState(f"{short_id(task.task_id)} does not wait for {wait_id}, or no longer", reason="WAIT_OVER")


@click.command(short_help="Send an event to the task that waits for it.")
@click.argument("correlation_id")
@click.argument("payload")
@click.option("--request-id", default="", help="The same id and the same event are one event, however often sent.")
@pass_context
def signal(context: Context, correlation_id: str, payload: str, request_id: str) -> None:
    """Send the event PAYLOAD to the task that waits for CORRELATION_ID, or will.

    PAYLOAD is JSON; what is none is sent as a text. An event that finds no task is kept for 7 days.
    """

    async def work(client: Client) -> None:
        took = await client.signal(correlation_id, _json_of(payload), request_id=request_id)
        if context.as_json:
            context.emit({"delivered": took is not None, "task_id": took.task_id if took else ""})
        elif took is None:
            echo(f"nobody waits for {correlation_id} now; the event is kept for 7 days")
        else:
            echo(f"{short_id(took.task_id)} has the event; it is {why(took.state, '', '')} now")

    context.run(work)


def wait_rows(task: task_pb2.Task) -> list[tuple[str, str]]:
    """What a task waits for, for `tenure get`."""
    if not task.HasField("wait"):
        return []
    wait = task.wait
    return [
        ("wait", wait.wait_id),
        ("waits for", _awaited(wait)),
        ("event", wait.correlation_id if wait.question else ""),
        ("call", f"{wait.tool} {arguments_text(wait.arguments_json)}" if wait.tool else ""),
        ("context", wait.context),
        ("reference", wait.reference),
        ("options", ", ".join(wait.options)),
        ("sub-agents", "\n".join(wait.sub_agent_task_ids)),
        ("deadline", f"{_left(wait)}, then {_policy(wait)}"),
    ]


def _awaited(wait: task_pb2.Wait) -> str:
    """In words."""
    if wait.kind == task_pb2.WAIT_KIND_SUB_AGENTS:
        return count_text(len(wait.sub_agent_task_ids), "sub-agent")
    return wait.question or (f"the event {wait.correlation_id}" if wait.correlation_id else "")


def _show_waits(context: Context, listed: Sequence[task_pb2.Task]) -> None:
    ids = distinct_ids(task.task_id for task in listed)
    table = make_table("TASK", "WAIT", "SINCE", "DEADLINE", "WAITS FOR", "OPTIONS")
    for task in listed:
        wait = task.wait
        question = _awaited(wait) or task.message
        if wait.tool:
            question = f"{wait.tool} {arguments_text(wait.arguments_json)}"
        is_for_others = bool(wait.correlation_id) or wait.kind == task_pb2.WAIT_KIND_SUB_AGENTS
        options = ", ".join(wait.options) or ("" if is_for_others else "a reply")
        table.add_row(
            ids[task.task_id],
            wait.wait_id or "-",
            ago(_since(task)),
            _left(wait) if task.HasField("wait") else "-",
            Text(one_line(question or state_name(task.state), max(40, context.console.width))),
            Text(one_line(options if task.HasField("wait") else _elsewhere(task), 60)),
        )
    context.console.print(table)


def _elsewhere(task: task_pb2.Task) -> str:
    """What settles a wait that has no question."""
    return TO_SETTLE if task.reason == Reason.TOOL_IN_DOUBT else task.reason


def _since(task: task_pb2.Task) -> Timestamp:
    return task.wait.begin_time if task.HasField("wait") else task.update_time


def _left(wait: task_pb2.Wait) -> str:
    left = unix_seconds(wait.deadline_time) - time.time()
    return f"in {seconds_text(left)}" if left > 0 else "now"


def _policy(wait: task_pb2.Wait) -> str:
    goes_on = wait.at_deadline == task_pb2.WAIT_DEADLINE_POLICY_GO_ON
    return "it goes on without an answer" if goes_on else "the task times out"


def _json_of(text: str) -> str:
    try:
        json.loads(text)
    except ValueError:
        return json.dumps(text, ensure_ascii=False)
    return text
