"""Finds the images in the messages of Pydantic AI, and replaces those that the model provider refused."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

from pydantic_ai.messages import BinaryContent, ImageUrl, ModelMessage, ModelRequest, ToolReturnPart, UserPromptPart

from tenure.domain.images import REFUSED, not_shown


def images_in(messages: Sequence[ModelMessage]) -> set[str]:
    """Returns the digests of the images."""
    digests = set[str]()

    def note(image: BinaryContent | ImageUrl) -> Any:
        digests.add(_digest(image))
        return image

    _with_images(messages, note)
    return digests


def without_images(messages: Sequence[ModelMessage], refused: Collection[str]) -> list[ModelMessage]:
    """Returns the messages with a text in the place of each of these images."""
    return _with_images(messages, lambda image: not_shown(REFUSED) if _digest(image) in refused else image)


def _with_images(
    messages: Sequence[ModelMessage], put: Callable[[BinaryContent | ImageUrl], Any]
) -> list[ModelMessage]:
    def content(value: Any) -> Any:
        if isinstance(value, ImageUrl) or (isinstance(value, BinaryContent) and value.is_image):
            return put(value)
        return [content(each) for each in value] if isinstance(value, list | tuple) else value

    def part(given: Any) -> Any:
        has_content = isinstance(given, UserPromptPart | ToolReturnPart) and not isinstance(given.content, str)
        return replace(given, content=content(given.content)) if has_content else given

    return [
        replace(message, parts=[part(each) for each in message.parts]) if isinstance(message, ModelRequest) else message
        for message in messages
    ]


def _digest(image: BinaryContent | ImageUrl) -> str:
    return sha256(image.url.encode() if isinstance(image, ImageUrl) else image.data).hexdigest()
