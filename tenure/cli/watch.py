"""`tenure watch`: a task's steps as they happen."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import click
from rich.console import Console

from tenure.cli.answering import FOR_PEOPLE, answer_lines, ask_person, is_interactive
from tenure.cli.context import Context, pass_context
from tenure.cli.exits import Exit, exit_of_task
from tenure.cli.narration import Narrator
from tenure.cli.output import echo
from tenure.cli.parameters import find_task, task_argument
from tenure.cli.screen import Screen
from tenure.cli.watched import WatchedTask
from tenure.cli.words import short_id
from tenure.client import Client
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api


@click.command()
@task_argument
@click.option("--after", type=click.IntRange(min=0), default=0, help="Only what comes after this entry.")
@click.option("--no-live", is_flag=True, help="Without the text as the model speaks it.")
@pass_context
def watch(context: Context, task: str, after: int, no_live: bool) -> None:
    """Show a task's steps as they happen, to its end.

    The exit code is 0 when the task succeeded. Ctrl-C stops watching; the task goes on.
    """

    async def follow(client: Client) -> Exit:
        return await watch_task(context, client, await find_task(client, task), after=after, live=not no_live)

    raise SystemExit(context.run(follow))


async def watch_task(context: Context, client: Client, task_id: str, *, after: int = 0, live: bool = True) -> Exit:
    """Watches to the end; the exit code of the task."""
    if context.as_json:
        return await _emit_events(context, client, task_id, after, live)
    try:
        return exit_of_task(await _show_events(context.console, client, task_id, after, live))
    except asyncio.CancelledError:
        echo(f"No longer watched; the task goes on. Again: tenure watch {short_id(task_id)}", err=True)
        raise


async def _emit_events(context: Context, client: Client, task_id: str, after: int, live: bool) -> Exit:
    async with aclosing(client.watch(task_id, after, live=live)) as events:
        async for event in events:
            context.emit(event)
    return exit_of_task(await client.get(task_id))


async def _show_events(console: Console, client: Client, task_id: str, after: int, live: bool) -> task_pb2.Task:
    """Reads from the first entry: what is under way now began before. Tells only what comes after `after`."""
    watched = WatchedTask()
    narrator = Narrator(watched, console, is_plain=not console.is_terminal)
    screen = Screen(console, task_id, watched)
    shown_live = live and console.is_terminal
    async with aclosing(client.watch(task_id, 0, live=shown_live)) as events, screen.drawn():
        async for event in events:
            _take(event, narrator, screen, after)
            if event.entry.body.transition.wait.kind in FOR_PEOPLE:
                await _answer_wait(console, client, task_id, event.entry.body.transition.wait, screen)
    task = await client.get(task_id)
    screen.say(narrator.ending(task))
    return task


async def _answer_wait(console: Console, client: Client, task_id: str, wait: task_pb2.Wait, screen: Screen) -> None:
    """Shows how the wait is answered, and asks where somebody can be asked; nothing when it is over already."""
    present = await client.get(task_id)
    if present.wait.wait_id != wait.wait_id:
        return
    screen.say(answer_lines(task_id, present.wait))
    if console.is_terminal and is_interactive():
        with screen.paused():
            await ask_person(client, task_id, present.wait)


def _take(event: api.WatchTaskResponse, narrator: Narrator, screen: Screen, after: int) -> None:
    match event.WhichOneof("event"):
        case "entry":
            lines = list(narrator.tell(event.entry))
            if event.entry.sequence > after:
                screen.say(lines)
        case "heartbeat" if event.heartbeat.HasField("budget"):
            narrator.task.budget = event.heartbeat.budget
        case "delta":
            screen.say(narrator.tell_text(event.delta))
