"""Images in requests, through the worker's real client: the model sees them, or the provider refuses them."""

from __future__ import annotations

import hashlib
import struct
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tenure.domain.conversation import text_block
from tenure.domain.images import MAX_SIDE
from tenure.domain.retry import FailureClass
from tenure.model_providers.client import ModelCall, ModelCallFailed, ModelClient, ModelRequest
from tests.support.images import jpeg, png
from tests.support.model_clients import model_client

PICTURE = png(64, 48)
SEEN = f"image/png 64x48 sha256:{hashlib.sha256(PICTURE).hexdigest()}"


@pytest.fixture(params=["", "openai/"], ids=["anthropic", "openai"])
def model(request: pytest.FixtureRequest) -> str:
    return f"{request.param}sim-vision"


@pytest.fixture
async def client(simulator: Any) -> AsyncIterator[ModelClient]:
    async with model_client(simulator.url) as client:
        yield client


def block(content: bytes = PICTURE, media_type: str = "image/png") -> dict[str, Any]:
    return {
        "type": "image",
        "source": {"type": "base64", "media_type": media_type, "data": b64encode(content).decode()},
    }


def submitted(*images: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [text_block("Look."), *images]}]


def returned(*images: dict[str, Any], is_error: bool = False) -> list[dict[str, Any]]:
    """A conversation after two calls, of which the second one returned images."""
    uses = [{"type": "tool_use", "id": f"toolu_{n}", "name": "screen", "input": {}} for n in (1, 2)]
    content = [text_block("[image: kept in a file]"), *images]
    results = [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": "nothing", "is_error": False},
        {"type": "tool_result", "tool_use_id": "toolu_2", "content": content, "is_error": is_error},
    ]
    return [
        {"role": "user", "content": [text_block("Take a picture.")]},
        {"role": "assistant", "content": uses},
        {"role": "user", "content": [*results, text_block("And hurry.")]},
    ]


async def answer_of(client: ModelClient, model: str, messages: Any) -> Any:
    request = ModelRequest(model, messages, 1000, is_repeated_soon=True)
    return await client.answer(request, ModelCall(lambda _block, _text: None, lambda: None))


async def test_the_model_sees_an_image_of_a_submit(client: ModelClient, model: str) -> None:
    answer = await answer_of(client, model, submitted(block(), block(jpeg(5, 7), "image/jpeg")))
    assert answer.content[0]["text"].startswith(f"I see {SEEN}; image/jpeg 5x7 sha256:")


async def test_the_model_sees_an_image_of_a_tool(client: ModelClient, model: str) -> None:
    answer = await answer_of(client, model, returned(block()))
    assert answer.content[0]["text"] == f"Now I see {SEEN}."


async def test_an_image_is_billed_by_its_pixels(client: ModelClient, model: str) -> None:
    without = await answer_of(client, model, returned())
    seen = await answer_of(client, model, returned(block(png(1092, 1092))))
    assert 1590 <= seen.usage.total - without.usage.total < 1700


@pytest.mark.parametrize(
    ("refused", "why"),
    [
        (block(media_type="image/jpeg"), "does not match the provided media type"),
        (block(media_type="image/bmp"), "media_type"),
        (block(PICTURE[:-9]), "Could not process image"),
        (block(png(64, 48, packed=b"no pixels")), "Could not process image"),
        (block(png(MAX_SIDE + 1, 1)), "8000"),
        (block(PICTURE + bytes(5 * 1024 * 1024)), "exceeds 5 MB maximum"),
    ],
    ids=["other-type", "unknown-type", "truncated", "undecodable", "too-wide", "too-large"],
)
async def test_the_provider_refuses_a_bad_image(
    client: ModelClient, model: str, refused: dict[str, Any], why: str
) -> None:
    for messages in (submitted(refused), returned(refused)):
        with pytest.raises(ModelCallFailed, match=why) as failed:
            await answer_of(client, model, messages)
        assert failed.value.error_class is FailureClass.INVALID_REQUEST


async def test_anthropic_refuses_an_image_of_a_failed_call(client: ModelClient) -> None:
    with pytest.raises(ModelCallFailed, match='must be type "text" if "is_error"'):
        await answer_of(client, "sim-vision", returned(block(), is_error=True))


async def test_anthropic_limits_the_pixels_of_many_images(client: ModelClient) -> None:
    many = [block(png(2001, 1, shade)) for shade in range(21)]
    await answer_of(client, "sim-vision", submitted(*many[:20]))
    with pytest.raises(ModelCallFailed, match="2000 pixels"):
        await answer_of(client, "sim-vision", submitted(*many))


async def test_a_large_request_arrives_whole(client: ModelClient, model: str) -> None:
    """Three megabytes: they are sent in pieces."""
    large = png(1500, 600)
    padded = large[:-12] + struct.pack(">I", 3_000_000) + b"teXt" + bytes(3_000_004) + large[-12:]
    answer = await answer_of(client, model, submitted(block(padded)))
    assert answer.content[0]["text"] == f"I see image/png 1500x600 sha256:{hashlib.sha256(padded).hexdigest()}."
