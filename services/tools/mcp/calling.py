"""A tool of a server, as this service runs it: sent again where that is allowed, told honestly where it is not."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import math
import mimetypes
import secrets
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import mcp_types as types

from services.tools.mcp.connection import McpSession
from services.tools.mcp.delivery_errors import AnswerLost, AnswerUnreadable, CallNotSent
from services.tools.mcp.settings import REACH_SECONDS, lane_of_server
from services.tools.output import DIRECTORY, OutputKeeper
from services.tools.sending import TELLING_SECONDS, SendAttempt, no_answer_in_time
from services.tools.tool import Arguments, CallContext, Tool, ToolAnswer, ToolFailure, ToolInDoubt, past_return
from tenure.domain.tools import EffectClass, OutcomeStatus, ToolDefinition

# What a server answered, as text for the model; what is no text is put aside, and said.

Keep = Callable[[bytes, str], str]
"""Puts bytes aside under a name that ends like this, and says where they are, or why they are not there."""

_PLAIN_SUFFIX_LENGTH: Final = 8


def text_of(result: types.CallToolResult, keep: Keep) -> str:
    """The parts in their order. The structured answer is for programs: it is shown when there is no text beside it."""
    parts = [_part(block, keep) for block in result.content]
    if result.structured_content is not None and not any(isinstance(b, types.TextContent) for b in result.content):
        parts.append(json.dumps(result.structured_content, ensure_ascii=False))
    return "\n".join(parts)


def _part(block: types.ContentBlock, keep: Keep) -> str:
    if isinstance(block, types.TextContent):
        return block.text
    if isinstance(block, types.ImageContent | types.AudioContent):
        return _aside(f"{block.type} ({block.mime_type})", block.data, block.mime_type, keep)
    if isinstance(block, types.ResourceLink):
        return _link(block)
    resource = block.resource
    if isinstance(resource, types.TextResourceContents):
        return f"[resource {resource.uri}]\n{resource.text}"
    kind = resource.mime_type or "application/octet-stream"
    return _aside(f"resource {resource.uri} ({kind})", resource.blob, kind, keep)


def _link(link: types.ResourceLink) -> str:
    facts = [link.name, link.mime_type, None if link.size is None else f"{link.size} bytes", link.description]
    return f"[link to the resource {link.uri}: {', '.join(fact for fact in facts if fact)}]"


def _aside(what: str, encoded: str, mime_type: str, keep: Keep) -> str:
    try:
        content = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return f"[{what}: its content is no base64]"
    return f"[{what}, {len(content)} bytes: {keep(content, _suffix(mime_type))}]"


def _suffix(mime_type: str) -> str:
    """By the type alone: a server's own names of files are not used here."""
    guessed = mimetypes.guess_extension(mime_type.partition(";")[0].strip()) or ".bin"
    return guessed if len(guessed) <= _PLAIN_SUFFIX_LENGTH and guessed[1:].isalnum() else ".bin"


# A server's tools as any source describes its own: of which class by its hints, and which cannot be called at all.

_TASKS_ONLY: Final = "it can be called as a task of MCP only"


def described(listed: Sequence[types.Tool]) -> list[ToolDefinition]:
    """As the server says; what it cannot say, such as a timeout, is left open."""
    return [
        ToolDefinition(
            name=tool.name,
            description=tool.description or tool.title or "",
            input_schema_json=json.dumps(tool.input_schema),
            effect_class=_claimed(tool.annotations),
            timeout_seconds=0.0,
            output_limit_bytes=0,
        )
        for tool in listed
    ]


def unusable(listed: Sequence[types.Tool]) -> dict[str, str]:
    """Why some cannot be called from here, by name."""
    return {
        tool.name: _TASKS_ONLY
        for tool in listed
        if tool.execution is not None and tool.execution.task_support == "required"
    }


def _claimed(annotations: types.ToolAnnotations | None) -> EffectClass:
    """Returns the effect class that the annotations of a server claim, or UNSAFE without annotations."""
    if annotations is not None and annotations.read_only_hint:
        return EffectClass.PURE
    if annotations is not None and annotations.idempotent_hint:
        return EffectClass.IDEMPOTENT
    return EffectClass.UNSAFE


MOST_SENDS: Final = 3
MOST_PARTS_KEPT: Final = 16
"""Of one answer: the others are named only."""


class McpToolServer(Protocol):
    """Where calls go."""

    async def link(self, context: CallContext) -> McpSession:
        """Raises CallNotSent when there is none."""


@dataclass(frozen=True, slots=True)
class McpToolCaller:
    """`tool`: the server's own name of it. `threads`: where parts of answers are written, with nobody else's work."""

    server: McpToolServer
    tool: str
    definition: ToolDefinition
    output_store: OutputKeeper
    threads: Executor

    async def run(self, context: CallContext, arguments: Arguments) -> ToolAnswer:
        """Its timeout bounds all that comes after the server was reached. Raises ToolFailed, and ToolInDoubt for what
        must not be sent twice.
        """
        _check_text(arguments)
        sending = SendAttempt(math.inf, context.check_may_begin)
        try:
            link = await self._link(context)
            sending.ends_at = asyncio.get_running_loop().time() + context.timeout_seconds
            async with asyncio.timeout_at(sending.ends_at):
                return await self._answered(link, sending, context, arguments)
        except asyncio.CancelledError:
            if not sending.is_out:
                context.mark_not_sent()
            raise
        except TimeoutError:
            if not sending.is_out:
                raise _unreachable(CallNotSent("it went away before it was asked")) from None
            return no_answer_in_time("The server", self.definition.effect_class, context.timeout_seconds)

    async def _answered(
        self, link: McpSession, sending: SendAttempt, context: CallContext, arguments: Arguments
    ) -> ToolAnswer:
        for sends in range(1, MOST_SENDS + 1):
            is_last = sends == MOST_SENDS
            if sends > 1:
                link = await self._link(context)
            try:
                sending.go_out()
                result = await link.call(self.tool, arguments, context)
            except CallNotSent as unreached:
                sending.is_out = sending.sent_before
                if is_last:
                    raise _unreachable(unreached) from unreached
            except AnswerLost as lost:
                sending.sent_before = True
                self._judge(lost, is_last=is_last)
            else:
                return await self._kept_answer(result, context)
        raise AssertionError("the last one returns or raises")

    async def _link(self, context: CallContext) -> McpSession:
        try:
            return await self.server.link(context)
        except CallNotSent as unreached:
            raise _unreachable(unreached) from unreached

    def _judge(self, lost: AnswerLost, *, is_last: bool) -> None:
        """Returns when it may be sent again, with the same key."""
        if not self.definition.effect_class.may_run_again:
            what = (
                "gave no answer that can be read"
                if isinstance(lost, AnswerUnreadable)
                else "was lost in the middle of the call"
            )
            raise ToolInDoubt(f"The MCP server {what} ({lost}).") from lost
        if isinstance(lost, AnswerUnreadable):
            raise ToolFailure(f"The server gave no answer that can be read ({lost}).", "BAD_ANSWER") from lost
        if is_last:
            message = f"The server was lost in the middle of the call, {MOST_SENDS} times in a row ({lost})."
            raise ToolFailure(message, "CONNECTION_LOST") from lost

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
            self.output_store.keep(content, context.tenant, context.task_id, path)
        except (OSError, ToolFailure) as error:
            return f"not kept ({error})"
        return f"kept in the workspace's file {path}"


def tools_of(
    server: McpToolServer,
    name: str,
    definitions: dict[str, ToolDefinition],
    output_store: OutputKeeper,
    threads: Executor,
) -> list[Tool]:
    """By the server's own names of them."""
    return [
        Tool(
            definition,
            McpToolCaller(server, tool, definition, output_store, threads).run,
            lane=lane_of_server(name),
            guard_seconds=REACH_SECONDS + TELLING_SECONDS,
            keeps_any_timeout=True,
            acts_elsewhere=True,
        )
        for tool, definition in definitions.items()
    ]


def _unreachable(unreached: CallNotSent) -> ToolFailure:
    return ToolFailure(f"The server cannot be reached: {unreached}. Nothing was done.", "UNREACHABLE")


def _check_text(value: object) -> None:
    """Raises ToolFailed for halves of surrogate pairs, which no message can carry."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ToolFailure("The arguments hold half a character, which cannot be sent.", "BAD_TEXT") from None
    elif isinstance(value, dict):
        for key, one in value.items():
            _check_text(key)
            _check_text(one)
    elif isinstance(value, list):
        for one in value:
            _check_text(one)
