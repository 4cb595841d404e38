"""What a request has in the places of the images of a conversation."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from services.worker.context_window import InputEstimate
from services.worker.shown_images import NO_LONGER, ShownImages
from tenure.control import ResultLost
from tenure.domain.conversation import text_block
from tenure.domain.errors import Unavailable
from tenure.domain.images import MAX_SHOWN, Image, image_block, image_tokens
from tenure.domain.retry import FailureClass
from tenure.domain.texts import kept_as
from tenure.model_providers.client import ModelCallFailed, ModelRequest
from tenure.model_providers.message_texts import as_json
from tests.support.images import png

PICTURE = png(64, 48)
IMAGE = Image(kept_as(PICTURE), "image/png", 64, 48)
SHOWN = {"type": "base64", "media_type": "image/png", "data": b64encode(PICTURE).decode()}


def request(*blocks: dict[str, Any]) -> ModelRequest:
    messages = [
        {"role": "user", "content": [text_block("Go.")]},
        {"role": "user", "content": [text_block("Look."), *blocks]},
    ]
    return ModelRequest("m", messages, 10, texts=[as_json(message) for message in messages])


def shown_images(read: Any, *, sees: bool = True) -> ShownImages:
    return ShownImages(Mock(read=AsyncMock(side_effect=read)), sees)


async def test_references_become_bytes_in_a_request() -> None:
    before = request(image_block(IMAGE))
    shown = await shown_images([PICTURE]).shown(before)
    assert shown.messages[1]["content"][1] == {"type": "image", "source": SHOWN}
    assert [json.loads(text) for text in shown.texts] == shown.messages
    assert shown.texts[0] is before.texts[0], "only the message with the image is written anew"
    assert before.messages[1]["content"][1] == image_block(IMAGE)


async def test_a_conversation_without_images_is_unchanged() -> None:
    before = request()
    assert await shown_images([]).shown(before) is before


async def test_a_model_that_sees_no_images_gets_none() -> None:
    shown = await shown_images([], sees=False).shown(request(image_block(IMAGE)))
    assert shown.messages[1]["content"] == [text_block("Look.")]


async def test_the_model_reads_why_an_image_is_gone() -> None:
    shown = await shown_images([ResultLost("outputs/x", "it is another one now")]).shown(request(image_block(IMAGE)))
    [_, part] = shown.messages[1]["content"]
    assert part["type"] == "text"
    assert "it is another one now" in part["text"]


async def test_older_images_of_many_are_left_out() -> None:
    shown = await shown_images([PICTURE] * MAX_SHOWN).shown(request(*[image_block(IMAGE)] * (MAX_SHOWN + 2)))
    parts = shown.messages[1]["content"][1:]
    assert [part["type"] for part in parts] == ["text"] * 2 + ["image"] * MAX_SHOWN
    assert NO_LONGER in parts[0]["text"]


async def test_an_absent_tool_service_is_a_retryable_failure() -> None:
    with pytest.raises(ModelCallFailed) as failed:
        await shown_images([Unavailable("no")]).shown(request(image_block(IMAGE)))
    failure = failed.value
    assert (failure.error_class, failure.retryable, failure.was_sent) == (FailureClass.CONNECTION, True, False)
    assert failure.usage.total == 0


def test_an_image_that_is_seen_is_in_the_estimate() -> None:
    messages = request(image_block(IMAGE)).messages
    blind, seeing = (InputEstimate("", (), seen_by=model).upper_bound(messages) for model in ("", "claude-opus-4-8"))
    assert seeing - blind == image_tokens("claude-opus-4-8", 64, 48)
