"""What a server answered, as text for the model; what is no text is put aside, and said."""

from __future__ import annotations

import base64
import binascii
import json
import mimetypes
from collections.abc import Callable
from typing import Final

import mcp_types as types

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
