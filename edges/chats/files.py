"""Files in the messages of chats: they come as base64, and go the way of the files of a submit and of a message."""

from __future__ import annotations

import mimetypes
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

from tenure.domain.errors import InvalidRequest
from tenure.domain.task import InputFile

NOT_FETCHED = "must have its bytes in base64: Tenure fetches no address; write it into the text"


def files_of(parts: Any, field: str) -> tuple[InputFile, ...]:
    """Returns the files among the parts of a message of the AI SDK or of AG-UI. Raises InvalidRequest."""
    usable = [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    return tuple(file for part in usable for file in _file_of(part, field))


def _file_of(part: dict[str, Any], field: str) -> Iterator[InputFile]:
    source = part.get("source")
    match part.get("type"):
        case "file" | "binary":  # of the AI SDK, and of AG-UI
            kind = part.get("mediaType") or part.get("mimeType")
            content = part.get("data") or _of_data_url(part.get("url"))
        case "image" | "audio" | "video" | "document" if isinstance(source, dict):  # of AG-UI
            kind, content = source.get("mimeType"), source.get("value") if source.get("type") == "data" else None
        case _:
            return
    yield input_file(content, part.get("filename"), kind, field)


def _of_data_url(url: Any) -> str | None:
    head, comma, content = url.partition(",") if isinstance(url, str) else ("", "", "")
    return content if comma and head.startswith("data:") and head.endswith(";base64") else None


def input_file(content: Any, name: Any, media_type: Any, field: str) -> InputFile:
    """Returns a file of a message. `content`: base64. One without a name is named after its type."""
    if not isinstance(content, str):
        raise InvalidRequest(violations=[(field, f"a file {NOT_FETCHED}")])
    try:
        decoded = b64decode(content, validate=True)
    except ValueError:
        raise InvalidRequest(violations=[(field, "the bytes of a file must be base64")]) from None
    kind = media_type if isinstance(media_type, str) else ""
    return InputFile(str(name) if name else f"file{mimetypes.guess_extension(kind) or ''}", decoded)
