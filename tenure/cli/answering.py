"""What a person sees before answering a wait, the commands that answer it, and the question in a terminal."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Final, NamedTuple

import click
from rich.text import Text

from tenure.cli.formatting import harmless, short_id
from tenure.cli.output import echo
from tenure.client import Client
from tenure.domain.errors import Refused
from tenure.domain.waits import ALLOW, DENY, EDIT
from tenure.v1 import task_pb2

FOR_PEOPLE = frozenset({task_pb2.WAIT_KIND_APPROVAL, task_pb2.WAIT_KIND_QUESTION, task_pb2.WAIT_KIND_TOOL_APPROVAL})

MAX_LINE_BYTES: Final = 4096
"""More than a terminal gives at once."""


class Said(NamedTuple):
    """An answer as ResumeTask takes it: a decision, with arguments for "edit", or a reply."""

    decision: str = ""
    reply: str = ""
    edited_arguments_json: str = ""


def wait_text(wait: task_pb2.Wait) -> str:
    """All that the answer is about, on several lines: the arguments of a call are shown whole, never cut."""
    lines = [f"wait {wait.wait_id}"]
    if wait.tool:
        lines += [f"  call       {wait.tool}", f"  arguments  {_arguments(wait.arguments_json)}"]
    lines += [
        f"  {name:<9}  {message}"
        for name, message in (("question", wait.question), ("context", wait.context))
        if message
    ]
    return harmless("\n".join(lines))


def _arguments(arguments_json: str) -> str:
    """Indented below their heading; what is no JSON as it came."""
    try:
        shown = json.dumps(json.loads(arguments_json), ensure_ascii=False, indent=2)
    except ValueError:
        shown = arguments_json
    return shown.replace("\n", "\n" + " " * 13)


def answer_commands(task_id: str, wait: task_pb2.Wait) -> list[str]:
    """The commands of which one answers the wait."""
    begin = f"tenure resume {short_id(task_id)} --wait {wait.wait_id}"
    if wait.kind == task_pb2.WAIT_KIND_TOOL_APPROVAL:
        return [f"{begin} --approve", f"{begin} --deny", f"{begin} --edit JSON"]
    if set(wait.options) == {"approve", "deny"}:
        return [f"{begin} --approve", f"{begin} --deny"]
    if wait.options:
        return [f"{begin} --option X    # {harmless(', '.join(wait.options))}"]
    return [f"{begin} --reply TEXT"]


def decision_of(wait: task_pb2.Wait, word: str) -> str:
    """What "approve" and "deny" are called in this wait."""
    is_yes_to_a_call = word == "approve" and wait.kind == task_pb2.WAIT_KIND_TOOL_APPROVAL
    return ALLOW if is_yes_to_a_call else (DENY if word == "deny" else word)


def is_interactive() -> bool:
    """Whether somebody can be asked: both ends are a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def question_of(wait: task_pb2.Wait) -> str:
    """The line that asks a person to answer."""
    if wait.kind == task_pb2.WAIT_KIND_TOOL_APPROVAL:
        return "allow this call? [y/n/edit] "
    if {"approve", "deny"} <= set(wait.options):
        return "approve? [y/n] "
    return f"answer ({', '.join(wait.options)}): " if wait.options else "your reply: "


def said_in(wait: task_pb2.Wait, line: str) -> Said | None:
    """The answer that a typed line is; None when it is none, and the person is asked again."""
    word = line.strip()
    is_yes_or_no = wait.kind == task_pb2.WAIT_KIND_TOOL_APPROVAL or {"approve", "deny"} <= set(wait.options)
    if is_yes_or_no and word.lower() in {"y", "yes", "n", "no"}:
        return Said(decision=decision_of(wait, "approve" if word.lower().startswith("y") else "deny"))
    if wait.kind == task_pb2.WAIT_KIND_TOOL_APPROVAL:
        return None
    if wait.options:
        return Said(decision=word) if word in wait.options else None
    return Said(reply=word) if word else None


async def ask_person(client: Client, task_id: str, wait: task_pb2.Wait) -> None:
    """Asks in the terminal until the wait has an answer. Returns, too, when somebody else's answer came first."""
    echo(wait_text(wait), err=True)
    message: Said | None = None
    while message is None:
        echo(harmless(question_of(wait)), nl=False, err=True)
        line = await read_line()
        if not line:
            echo("", err=True)
            return
        edits = wait.kind == task_pb2.WAIT_KIND_TOOL_APPROVAL and line.strip().lower() in {"e", EDIT}
        message = _edited(wait) if edits else said_in(wait, line)
    try:
        await send_answer(client, task_id, wait, message)
    except Refused as error:
        echo(f"not taken: {error.message}", err=True)


async def send_answer(
    client: Client, task_id: str, wait: task_pb2.Wait, message: Said, *, comment: str = "", request_id: str = ""
) -> task_pb2.Task:
    """Answers exactly the wait, and the call, that was shown."""
    return await client.resume(
        task_id,
        wait.wait_id,
        decision=message.decision,
        reply=message.reply,
        call_digest=wait.call_digest,
        comment=comment,
        edited_arguments_json=message.edited_arguments_json,
        request_id=request_id,
    )


def _edited(wait: task_pb2.Wait) -> Said | None:
    """The arguments as the person's editor leaves them; None when nothing was saved or it is no JSON object."""
    shown = json.dumps(json.loads(wait.arguments_json), ensure_ascii=False, indent=2)
    text = click.edit(shown, extension=".json", require_save=True)
    try:
        is_object = text is not None and isinstance(json.loads(text), dict)
    except ValueError:
        is_object = False
    if not is_object or text is None:
        echo("not changed: the arguments must be saved as a JSON object", err=True)
        return None
    return Said(decision=EDIT, edited_arguments_json=text)


async def read_line() -> str:
    """A line of standard input; empty at its end. Reads without a thread, so that Ctrl-C ends it at once."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(sys.stdin, wake)
    try:
        await ready
    finally:
        loop.remove_reader(sys.stdin)
    # Not through sys.stdin's buffer, which would keep a second line from the reader; a terminal gives one line a read.
    return os.read(sys.stdin.fileno(), MAX_LINE_BYTES).decode(errors="replace")


def answer_lines(task_id: str, wait: task_pb2.Wait) -> list[Text]:
    """What a watcher is shown at a wait for a person."""
    return [Text(f"  to answer: {command}", "yellow") for command in answer_commands(task_id, wait)]
