"""A tool of a server, as this service runs it: sent again where that is allowed, told honestly where it is not."""

from __future__ import annotations

import asyncio
import math
import secrets
import threading
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import mcp_types as types

from services.tools.mcp.content import text_of
from services.tools.mcp.fates import Lost, NothingDone, Unreadable
from services.tools.mcp.link import Link
from services.tools.mcp.settings import REACH_SECONDS, lane_of_server
from services.tools.output import DIRECTORY, OutputKeeper
from services.tools.sending import TELLING_SECONDS, Sending, no_answer_in_time
from services.tools.tool import Arguments, CallContext, Tool, ToolAnswer, ToolFailed, ToolInDoubt, past_return
from tenure.domain.tools import OutcomeStatus, ToolDefinition

MOST_SENDS: Final = 3
MOST_PARTS_KEPT: Final = 16
"""Of one answer: the others are named only."""


class Server(Protocol):
    """Where calls go."""

    async def link(self, context: CallContext) -> Link:
        """Raises NothingDone when there is none."""


@dataclass(frozen=True, slots=True)
class Calling:
    """`tool`: the server's own name of it. `threads`: where parts of answers are written, with nobody else's work."""

    server: Server
    tool: str
    definition: ToolDefinition
    keeper: OutputKeeper
    threads: Executor

    async def run(self, context: CallContext, arguments: Arguments) -> ToolAnswer:
        """Its timeout bounds all that comes after the server was reached. Raises ToolFailed, and ToolInDoubt for what
        must not be sent twice.
        """
        _check_text(arguments)
        sending = Sending(math.inf, context.check_may_begin)
        try:
            link = await self._link(context)
            sending.ends_at = asyncio.get_running_loop().time() + context.timeout_seconds
            async with asyncio.timeout_at(sending.ends_at):
                return await self._answered(link, sending, context, arguments)
        except asyncio.CancelledError:
            if not sending.is_out:
                context.vouch_unsent()
            raise
        except TimeoutError:
            if not sending.is_out:
                raise _unreachable(NothingDone("it went away before it was asked")) from None
            return no_answer_in_time("The server", self.definition.effect_class, context.timeout_seconds)

    async def _answered(self, link: Link, sending: Sending, context: CallContext, arguments: Arguments) -> ToolAnswer:
        for sends in range(1, MOST_SENDS + 1):
            is_last = sends == MOST_SENDS
            if sends > 1:
                link = await self._link(context)
            try:
                sending.go_out()
                result = await link.call(self.tool, arguments, context)
            except NothingDone as unreached:
                sending.is_out = sending.sent_before
                if is_last:
                    raise _unreachable(unreached) from unreached
            except Lost as lost:
                sending.sent_before = True
                self._judge(lost, is_last=is_last)
            else:
                return await self._kept_answer(result, context)
        raise AssertionError("the last one returns or raises")

    async def _link(self, context: CallContext) -> Link:
        try:
            return await self.server.link(context)
        except NothingDone as unreached:
            raise _unreachable(unreached) from unreached

    def _judge(self, lost: Lost, *, is_last: bool) -> None:
        """Returns when it may be sent again, with the same key."""
        if not self.definition.effect_class.may_run_again:
            what = (
                "gave no answer that can be read"
                if isinstance(lost, Unreadable)
                else "was lost in the middle of the call"
            )
            raise ToolInDoubt(f"The MCP server {what} ({lost}).") from lost
        if isinstance(lost, Unreadable):
            raise ToolFailed(f"The server gave no answer that can be read ({lost}).", "BAD_ANSWER") from lost
        if is_last:
            words = f"The server was lost in the middle of the call, {MOST_SENDS} times in a row ({lost})."
            raise ToolFailed(words, "CONNECTION_LOST") from lost

    async def _kept_answer(self, result: types.CallToolResult, context: CallContext) -> ToolAnswer:
        """The call has happened: who stops it now gets its answer, without the parts that are not written yet."""
        stopped = threading.Event()
        answer = partial(self._answer, result, context, stopped)
        writing = asyncio.get_running_loop().run_in_executor(self.threads, answer)
        try:
            return await asyncio.shield(writing)
        except asyncio.CancelledError:
            stopped.set()
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            return await past_return(writing)

    def _answer(self, result: types.CallToolResult, context: CallContext, stopped: threading.Event) -> ToolAnswer:
        kept: list[str] = []
        content = text_of(result, partial(self._keep, context, kept, stopped))
        status = OutcomeStatus.FAILED if result.is_error else OutcomeStatus.SUCCEEDED
        return ToolAnswer(content, status, "TOOL_ERROR" if result.is_error else "")

    def _keep(
        self, context: CallContext, kept: list[str], stopped: threading.Event, content: bytes, suffix: str
    ) -> str:
        """A part that is no text goes to the workspace."""
        if stopped.is_set():
            return "not kept (the call was stopped)"
        if len(kept) == MOST_PARTS_KEPT:
            return f"not kept (it is over {MOST_PARTS_KEPT} parts)"
        # A name of this run's own: one that was thought dead cannot change what a later one speaks of.
        path = f"{DIRECTORY}/{context.call_id}-{secrets.token_hex(3)}-{len(kept) + 1}{suffix}"
        kept.append(path)
        try:
            self.keeper.keep(content, context.tenant, context.task_id, path)
        except (OSError, ToolFailed) as error:
            return f"not kept ({error})"
        return f"kept in the workspace's file {path}"


def tools_of(
    server: Server, name: str, definitions: dict[str, ToolDefinition], keeper: OutputKeeper, threads: Executor
) -> list[Tool]:
    """By the server's own names of them."""
    return [
        Tool(
            definition,
            Calling(server, tool, definition, keeper, threads).run,
            lane=lane_of_server(name),
            guard_seconds=REACH_SECONDS + TELLING_SECONDS,
            keeps_any_timeout=True,
            acts_elsewhere=True,
        )
        for tool, definition in definitions.items()
    ]


def _unreachable(unreached: NothingDone) -> ToolFailed:
    return ToolFailed(f"The server cannot be reached: {unreached}. Nothing was done.", "UNREACHABLE")


def _check_text(value: object) -> None:
    """Raises ToolFailed for halves of surrogate pairs, which no message can carry."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ToolFailed("The arguments hold half a character, which cannot be sent.", "BAD_TEXT") from None
    elif isinstance(value, dict):
        for key, one in value.items():
            _check_text(key)
            _check_text(one)
    elif isinstance(value, list):
        for one in value:
            _check_text(one)
