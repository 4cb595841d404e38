"""The images that a model provider refused, in the messages of both agent libraries."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai.messages import BinaryContent, ImageUrl, ModelRequest, ToolReturnPart, UserPromptPart

from tenure.agents.openai_agents import refused_images as of_openai
from tenure.agents.pydantic_ai import refused_images as of_pydantic
from tenure.domain.images import REFUSED, not_shown

TEXT = not_shown(REFUSED)
FILE, URL = BinaryContent(b"png", media_type="image/png"), ImageUrl("https://example.com/a.png")


def test_images_of_pydantic_ai_are_found_and_replaced() -> None:
    prompt = UserPromptPart(["Look.", FILE, BinaryContent(b"pdf", media_type="application/pdf")])
    messages = [ModelRequest([prompt, ToolReturnPart("look", [URL, "seen"], "1")])]
    found = of_pydantic.images_in(messages)
    assert len(found) == 2
    [shown] = of_pydantic.without_images(messages, found)
    contents: list[Any] = [vars(part)["content"] for part in shown.parts]
    assert contents == [["Look.", TEXT, prompt.content[2]], [TEXT, "seen"]]
    assert of_pydantic.without_images(messages, ()) == messages


@pytest.mark.parametrize("image", [{"image_url": "data:image/png;base64,cG5n"}, {"file_id": "file-1"}])
def test_images_of_the_openai_sdk_are_found_and_replaced(image: dict[str, str]) -> None:
    text = {"type": "input_text", "text": "Look."}
    given = [{"role": "user", "content": [text, {"type": "input_image", **image}]}]
    [found] = of_openai.images_in(given)  # type: ignore[arg-type]  # a part of the SDK's types
    replaced = [{"role": "user", "content": [text, {"type": "input_text", "text": TEXT}]}]
    assert of_openai.without_images(given, {found}) == replaced  # type: ignore[arg-type]
    assert of_openai.without_images(given, ()) == given  # type: ignore[arg-type]
