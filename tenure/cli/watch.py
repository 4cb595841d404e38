"""`tenure watch`: shows a task's steps as they happen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from typing import Final

import click
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.text import Text

from tenure.cli.answering import FOR_PEOPLE, answer_lines, ask_person
from tenure.cli.context import Context, with_client
from tenure.cli.error_texts import exit_of_task, lost_text
from tenure.cli.exit_codes import Exit
from tenure.cli.formatting import arguments_text, budget_text, harmless, one_line, seconds_text, short_id
from tenure.cli.narration import Narrator
from tenure.cli.output import echo
from tenure.cli.parameters import find_task, task_argument
from tenure.cli.questions import is_interactive
from tenure.cli.watch_state import WatchedTask
from tenure.cli.watch_tree import tell_of_sub_agents
from tenure.client import Client
from tenure.domain.errors import TenureError, TryLater
from tenure.domain.states import TaskState
from tenure.domain.sub_agents import SPAWN_SUB_AGENTS
from tenure.runtime.rpc.status import PeerFailed
from tenure.sdk.live_text import LiveTextFilter
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api

# The live view of one task: settled lines scroll away; the open calls and the live text are redrawn below them.

FRAME_SECONDS: Final = 0.1
SPINNER: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
MAX_CALLS: Final = 8
LONG_QUEUED_SECONDS: Final = 5.0
"""After this time in the queue a task may wait for a worker that was never started."""
LONG_SILENT_SECONDS: Final = 30.0
"""After this time without text a model call may wait at its model runner, unsent, and a tool call may be settled."""


class Screen:
    """The output of a watch: settled lines, and on a terminal a part below them that is redrawn.

    The redrawn part has the open calls, the live text, the budget and a footer.
    """

    def __init__(self, console: Console, task_id: str, task: WatchedTask) -> None:
        self._console, self._task_id, self.task = console, task_id, task
        self._is_paused = False
        self._live = Live(
            console=console, auto_refresh=False, transient=True, get_renderable=self._lower_part, redirect_stderr=False
        )

    def say(self, lines: Iterable[RenderableType]) -> None:
        """Prints settled lines above the redrawn part."""
        for line in lines:
            if not self._console.is_terminal:
                self._console.print(line, soft_wrap=True)
            elif isinstance(line, Text):
                self._console.print(line, no_wrap=True, overflow="ellipsis")
            else:
                self._console.print(line)

    @asynccontextmanager
    async def drawn(self) -> AsyncIterator[None]:
        """Redraws the lower part every `FRAME_SECONDS` inside the block; on a terminal only."""
        if not self._console.is_terminal:
            yield
            return
        with self._live:
            drawing = asyncio.create_task(self._draw())
            try:
                yield
            finally:
                drawing.cancel()
                await asyncio.gather(drawing, return_exceptions=True)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stops drawing inside the block, so that a person can type."""
        self._live.stop()
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False
            self._live.start()

    async def _draw(self) -> None:
        while True:
            if not self._is_paused:
                self._live.refresh()
            await asyncio.sleep(FRAME_SECONDS)

    def _lower_part(self) -> RenderableType:
        task, now = self.task, time.time()
        if task.ended:
            return Text("")
        parts: list[RenderableType] = [
            Text(""),
            *(self._activity(what, since, now) for what, since in self._activities()),
        ]
        if task.live.text:
            parts.append(Tail(harmless(task.live.text), max(3, self._console.height // 2)))
        return Group(*parts, Text(""), *self._budget(), self._footer())

    def _activities(self) -> list[tuple[str, float]]:
        """Returns what the task waits for, and since when in Unix seconds: open calls, a model call or a state."""
        task = self.task
        shown = [
            (self._call(call.intent.tool, call.intent.arguments_json, call.since), call.since)
            for call in list(task.calls.values())[:MAX_CALLS]
        ]
        if task.state is TaskState.QUEUED:  # open calls may go on meanwhile
            return [(f"waits for a worker{self._why(task.changed_at, LONG_QUEUED_SECONDS)}", task.changed_at), *shown]
        if shown:
            return shown
        if task.state is TaskState.RUNNING and task.attempt is not None:
            attempt = f", attempt {task.attempt.attempt_number}" if task.attempt.attempt_number > 1 else ""
            may_wait = task.attempt.outlives_worker and not task.live.text
            why = self._why(task.asked_at, LONG_SILENT_SECONDS) if may_wait else ""
            return [(f"Step {task.step} · {task.attempt.model}{attempt}{why}", task.asked_at)]
        return [(f"{task.state}", task.changed_at)]

    def _call(self, tool: str, arguments_json: str, since: float) -> str:
        return f"{tool} {arguments_text(arguments_json)}{self._why(since, LONG_SILENT_SECONDS)}"

    def _why(self, since: float, long_seconds: float) -> str:
        is_long = time.time() - since > long_seconds
        return f"; tenure explain {short_id(self._task_id)} says why" if is_long else ""

    def _activity(self, what: str, since: float, now: float) -> Text:
        frame = SPINNER[int(now / FRAME_SECONDS) % len(SPINNER)]
        lasted = f"  {seconds_text(max(0.0, now - since))}" if since else ""
        return Text.assemble(
            (f"  {frame} ", "cyan"), one_line(what, self._console.width - 6 - len(lasted)), (lasted, "dim")
        )

    def _budget(self) -> list[Text]:
        """Returns the budget of the whole tree as of the last event that had it."""
        budget = self.task.budget
        return [] if budget is None else [Text(f"  {one_line(budget_text(budget), self._console.width - 3)}", "dim")]

    def _footer(self) -> Text:
        task = self.task
        holder = f" on {task.owner}" if task.state is TaskState.RUNNING else ""
        message = f"{short_id(self._task_id)} · {task.state}{holder} · Ctrl-C stops watching, not the task"
        return Text(f"  {one_line(message, self._console.width - 3)}", "dim")


class Tail:
    """The last lines of a text, at most `height` of them."""

    def __init__(self, text: str, height: int) -> None:
        self._text, self._height = text, height

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yields the lines, wrapped to the width and indented."""
        width = max(20, options.max_width - 4)
        # The text may be long and is drawn ten times a second: only its end, one screen of it, is wrapped.
        shown = Text(self._text[-width * (self._height + 1) :].strip("\n"))
        for line in shown.wrap(console, width)[-self._height :]:
            line.rstrip()
            yield Text.assemble("  ", line)


@click.command()
@task_argument
@click.option("--after", type=click.IntRange(min=0), default=0, help="Show only entries after this sequence.")
@click.option("--no-live", is_flag=True, help="Do not show the live text of the model call in flight.")
@with_client
async def watch(context: Context, client: Client, task: str, after: int, no_live: bool) -> Exit:
    """Show a task's steps as they happen, until the task ends.

    The exit code is 0 if the task SUCCEEDED, else 1. Ctrl-C stops watching; the task continues.
    """
    return await watch_task(context, client, await find_task(client, task), after=after, live=not no_live)


async def watch_task(context: Context, client: Client, task_id: str, *, after: int = 0, live: bool = True) -> Exit:
    """Watches the task to its end and returns its exit code."""
    if context.as_json:
        return await _emit_events(context, client, task_id, after, live)
    try:
        return exit_of_task(await _show_events(context, client, task_id, after, live))
    except (asyncio.CancelledError, TryLater):  # the former: Ctrl-C
        echo(f"Stopped watching; the task continues. Watch it again: tenure watch {short_id(task_id)}", err=True)
        raise


async def _emit_events(context: Context, client: Client, task_id: str, after: int, live: bool) -> Exit:

    def report_lost() -> None:
        echo(lost_text(context.address), err=True)

    async with aclosing(client.watch(task_id, after, live=live, on_lost=report_lost)) as events:
        live_text = LiveTextFilter()
        async for event in events:
            public = event if context.is_verbose else live_text.public_event(event)
            if public is not None:
                context.emit(public)
    return exit_of_task(await client.get(task_id))


async def _show_events(context: Context, client: Client, task_id: str, after: int, live: bool) -> task_pb2.Task:
    """Shows the entries after `after`, and returns the ended task.

    Reads from the first entry, because the state of the task is the fold of all its entries.
    """
    console, watched = context.console, WatchedTask()
    narrator = Narrator(watched, console, is_plain=not console.is_terminal, is_verbose=context.is_verbose)
    screen = Screen(console, task_id, watched)
    shown_live = live and console.is_terminal
    lost = Text(lost_text(context.address), "yellow")
    helping = [asyncio.create_task(_say_why_it_waits(client, task_id, screen))]
    try:
        watched_events = client.watch(task_id, 0, live=shown_live, on_lost=lambda: screen.say([lost]))
        async with aclosing(watched_events) as events, screen.drawn():
            async for event in events:
                _show_event(event, narrator, screen, after)
                if event.entry.body.tool_intent.tool == SPAWN_SUB_AGENTS and len(helping) == 1:
                    telling = tell_of_sub_agents(client, task_id, lambda line: screen.say([line]))
                    helping.append(asyncio.create_task(telling))
                if event.entry.body.transition.wait.kind in FOR_PEOPLE:
                    await _answer_wait(console, client, task_id, event.entry.body.transition.wait, screen)
    finally:
        for each in helping:
            each.cancel()
    task = await client.get(task_id)
    screen.say(narrator.ending(task))
    return task


async def _say_why_it_waits(client: Client, task_id: str, screen: Screen) -> None:
    """Explains once for each long stay in the queue what the task needs: it may need a worker that does not exist."""
    seen_at = explained_at = 0.0
    while True:
        await asyncio.sleep(LONG_QUEUED_SECONDS)
        task, since = screen.task, screen.task.changed_at
        if task.state is TaskState.QUEUED and since == seen_at != explained_at:
            with suppress(TenureError, PeerFailed):  # the stream says what is away; this line only helps
                lines = (await client.explain(task_id)).lines
                screen.say(Text(f"  {line}", "dim") for line in (*lines[1:2], *lines[-1:]))
                explained_at = since
        seen_at = since


async def _answer_wait(console: Console, client: Client, task_id: str, wait: task_pb2.Wait, screen: Screen) -> None:
    """Shows the commands that answer the wait; on an interactive terminal also asks the person.

    Does nothing if the wait has ended meanwhile.
    """
    present = await client.get(task_id)
    if present.wait.wait_id != wait.wait_id:
        return
    screen.say(answer_lines(task_id, present.wait))
    if console.is_terminal and is_interactive():
        with screen.paused():
            await ask_person(client, task_id, present.wait)


def _show_event(event: api.WatchTaskResponse, narrator: Narrator, screen: Screen, after: int) -> None:
    match event.WhichOneof("event"):
        case "entry":
            lines = list(narrator.tell(event.entry))
            if event.entry.sequence > after:
                screen.say(lines)
        case "heartbeat" if event.heartbeat.HasField("budget"):
            narrator.task.budget = event.heartbeat.budget
        case "delta":
            screen.say(narrator.tell_text(event.delta))
