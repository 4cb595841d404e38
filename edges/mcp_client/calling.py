"""Makes the tool calls of an MCP server and turns the server's tools into tools of this service.

A call whose answer was lost is sent again when its effect class allows a repeat. Otherwise it is in doubt.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import math
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import mcp_types as types

from edges.mcp_client.connection import McpSession
from edges.mcp_client.delivery_errors import AnswerLost, AnswerUnreadable, CallNotSent
from edges.mcp_client.settings import REACH_SECONDS, lane_of_server
from services.tools.answer_files import AnswerParts, Keep, part_text
from services.tools.output import OutputStore
from services.tools.sending import TELLING_SECONDS, SendAttempt, no_answer_in_time
from services.tools.tool import Arguments, CallContext, NothingDone, Tool, ToolAnswer, ToolInDoubt
from tenure.domain.tool_arguments import strict_json
from tenure.domain.tools import EffectClass, OutcomeStatus, ToolDefinition

# An answer as text for the model. Parts that are not text are kept in the workspace, and the text names their files.


def text_of(result: types.CallToolResult, keep: Keep) -> str:
    """Returns the parts of an answer in their order, as text, and then its structured content.

    Most servers repeat the structured content as a text, as the protocol asks them to: then the model reads it once.
    """
    parts = [_part(block, keep) for block in result.content]
    structured = result.structured_content
    if structured is not None and not _is_said(structured, [b.text for b in result.content if b.type == "text"]):
        parts.append(json.dumps(structured, ensure_ascii=False))
    return "\n".join(parts)


_WRAPPERS: Final = ("result", "content")


def _is_said(structured: dict[str, Any], texts: Sequence[str]) -> bool:
    """Whether the texts have all of the structured content: as JSON, or as libraries and servers wrap a value, in one
    member: `result`, `content`.
    """
    said = [_read(text) for text in texts]
    if structured in said or not structured:
        return True
    wrapped = next((structured[name] for name in _WRAPPERS if list(structured) == [name]), None)
    return wrapped is not None and (wrapped in said or wrapped in texts or wrapped in (said, list(texts)))


def _read(text: str) -> object:
    try:
        return strict_json(text)
    except (ValueError, RecursionError):
        return text


def _part(block: types.ContentBlock, keep: Keep) -> str:
    if isinstance(block, types.TextContent):
        return block.text
    if isinstance(block, types.ImageContent | types.AudioContent):
        return _stored(f"{block.type} ({block.mime_type})", block.data, block.mime_type, keep)
    if isinstance(block, types.ResourceLink):
        return _link(block)
    resource = block.resource
    if isinstance(resource, types.TextResourceContents):
        return f"[resource {resource.uri}]\n{resource.text}"
    kind = resource.mime_type or "application/octet-stream"
    return _stored(f"resource {resource.uri} ({kind})", resource.blob, kind, keep)


def _link(link: types.ResourceLink) -> str:
    details = [link.name, link.mime_type, None if link.size is None else f"{link.size} bytes", link.description]
    return f"[link to the resource {link.uri}: {', '.join(one for one in details if one)}]"


def _stored(what: str, encoded: str, mime_type: str, keep: Keep) -> str:
    try:
        content = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return f"[{what}: its content is not valid base64]"
    return part_text(what, content, mime_type, keep)


# A server's tools as definitions, with effect classes by the server's hints, and the tools that cannot be called.

_TASKS_ONLY: Final = "it can be called as an MCP task only"


def described(listed: Sequence[types.Tool]) -> list[ToolDefinition]:
    """Returns the definitions of a server's tools.

    The timeout and the output limit stay 0: MCP has no field for them.
    """
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
    """Returns the reasons why tools cannot be called from this service, by tool name."""
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


MAX_SENDS: Final = 3


class McpToolServer(Protocol):
    """The server of a tool: gives a call its session."""

    async def link(self, context: CallContext) -> McpSession:
        """Returns a session for the call. Raises CallNotSent when there is none."""


@dataclass(frozen=True, slots=True)
class McpToolCaller:
    """Runs the calls of one tool. `tool`: the server's own tool name. `threads`: only for writing parts of answers."""

    server: McpToolServer
    tool: str
    definition: ToolDefinition
    output_store: OutputStore
    threads: Executor

    async def run(self, context: CallContext, arguments: Arguments) -> ToolAnswer:
        """Makes the call. The call's timeout begins when a session is available.

        Raises NothingDone, and ToolInDoubt when the end of the call is unknown.
        """
        _check_text(arguments)
        sending = SendAttempt(math.inf, context.check_may_begin, sent_before=context.sent_before)
        try:
            session = await self._session(context, sending)
            sending.ends_at = asyncio.get_running_loop().time() + context.timeout_seconds
            async with asyncio.timeout_at(sending.ends_at):
                return await self._answered(session, sending, context, arguments)
        except asyncio.CancelledError:
            if not (sending.is_out or sending.sent_before):
                context.mark_not_sent()
            raise
        except TimeoutError:
            if not (sending.is_out or sending.sent_before):
                unreached = CallNotSent("the connection was lost before the call was sent")
                raise _unreachable(unreached, sending) from None
            raise no_answer_in_time("The server", context.timeout_seconds) from None

    async def _answered(
        self, session: McpSession, sending: SendAttempt, context: CallContext, arguments: Arguments
    ) -> ToolAnswer:
        for sends in range(1, MAX_SENDS + 1):
            is_last = sends == MAX_SENDS
            if sends > 1:
                session = await self._session(context, sending)
            try:
                sending.go_out()
                result = await session.call(self.tool, arguments, context)
            except CallNotSent as unreached:
                sending.is_out = sending.sent_before
                if is_last:
                    raise _unreachable(unreached, sending) from unreached
            except AnswerLost as lost:
                sending.sent_before = True
                self._check_repeat(lost, is_last=is_last)
            else:
                return await self._answer(result, context)
        raise AssertionError("unreachable: the last send returns or raises")

    async def _session(self, context: CallContext, sending: SendAttempt) -> McpSession:
        try:
            return await self.server.link(context)
        except CallNotSent as unreached:
            raise _unreachable(unreached, sending) from unreached

    def _check_repeat(self, lost: AnswerLost, *, is_last: bool) -> None:
        """Returns when the call may be sent again with the same idempotency key; raises otherwise."""
        if not self.definition.effect_class.may_run_again:
            what = (
                "gave an answer that cannot be read"
                if isinstance(lost, AnswerUnreadable)
                else "was lost in the middle of the call"
            )
            raise ToolInDoubt(f"The MCP server {what} ({lost}).") from lost
        if isinstance(lost, AnswerUnreadable):
            message = f"The server gave an answer that cannot be read ({lost})."
            raise ToolInDoubt(message, detail="BAD_ANSWER") from lost
        if is_last:
            message = f"The server was lost in the middle of the call, {MAX_SENDS} times in a row ({lost})."
            raise ToolInDoubt(message, detail="CONNECTION_LOST") from lost

    async def _answer(self, result: types.CallToolResult, context: CallContext) -> ToolAnswer:
        parts = AnswerParts(self.output_store, self.threads)
        if result.is_error:
            return await parts.answer(context, partial(text_of, result), OutcomeStatus.FAILED, "TOOL_ERROR")
        return await parts.answer(context, partial(text_of, result))


def tools_of(
    server: McpToolServer,
    name: str,
    definitions: dict[str, ToolDefinition],
    output_store: OutputStore,
    threads: Executor,
) -> list[Tool]:
    """Returns the tools of a server. `definitions`: by the server's own tool names."""
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


def _unreachable(unreached: CallNotSent, sending: SendAttempt) -> NothingDone | ToolInDoubt:
    """Returns the error of a call that cannot be sent, or not again: then its lost answer may stand for an effect."""
    if sending.sent_before:
        lost = "The server was lost in the middle of the call, and cannot be reached again"
        return ToolInDoubt(f"{lost} ({unreached}).", detail="CONNECTION_LOST")
    return NothingDone(f"The server cannot be reached: {unreached}.", "UNREACHABLE")


def _check_text(value: object) -> None:
    """Raises NothingDone for a lone surrogate, which no message can carry."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise NothingDone(
                "The arguments contain a lone surrogate, which cannot be sent: use whole characters.", "BAD_TEXT"
            ) from None
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_text(key)
            _check_text(item)
    elif isinstance(value, list):
        for item in value:
            _check_text(item)
