"""Finds the images in the input of the OpenAI Agents SDK, and replaces those that the model provider refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from hashlib import sha256
from typing import Any, TypeAlias

from agents.items import TResponseInputItem

from tenure.domain.images import REFUSED, not_shown

Input: TypeAlias = str | list[TResponseInputItem]


def images_in(given: Input) -> set[str]:
    """Returns the digests of the images."""
    digests = set[str]()

    def note(image: Mapping[str, Any]) -> Any:
        digests.add(_digest(image))
        return image

    _with_images(given, note)
    return digests


def without_images(given: Input, refused: Collection[str]) -> Any:
    """Returns the input with a text in the place of each of these images."""
    text = {"type": "input_text", "text": not_shown(REFUSED)}
    return _with_images(given, lambda image: text if _digest(image) in refused else image)


def _with_images(value: Any, put: Callable[[Mapping[str, Any]], Any]) -> Any:
    if isinstance(value, Mapping):
        if value.get("type") == "input_image":
            return put(value)
        return {name: _with_images(inner, put) for name, inner in value.items()}
    return [_with_images(inner, put) for inner in value] if isinstance(value, list) else value


def _digest(image: Mapping[str, Any]) -> str:
    return sha256(json.dumps([image.get("image_url"), image.get("file_id")]).encode()).hexdigest()
