"""Images that a model sees: of its tools and of the submit, also after its worker was killed."""

from __future__ import annotations

import hashlib

import pytest

import tenure
from tenure.v1 import task_pb2
from tests.end_to_end.installation import Installation, check_whole
from tests.end_to_end.scenarios import PICTURE


@pytest.mark.parametrize("prefix", ["", "openai/"], ids=["anthropic", "openai"])
async def test_the_next_owner_shows_the_image_of_a_tool(own_installation: Installation, prefix: str) -> None:
    install, seen = own_installation, f"image/png 64x48 sha256:{hashlib.sha256(PICTURE).hexdigest()}"
    task_id = await install.submit(f"{prefix}sim-e2e-vision")
    outcome = await install.until(task_id, "tool_outcome", lambda entry: bool(entry.body.tool_outcome.outcome.images))
    install.owner(await install.client.get(task_id)).kill()
    task = await install.ended(task_id)
    assert (task.state, task.result) == (task_pb2.TASK_STATE_SUCCEEDED, f"Now I see {seen}."), task.message
    assert task.claim_count == 2
    entries = await install.entries(task_id)
    check_whole(entries)
    [image] = outcome.body.tool_outcome.outcome.images
    async with tenure.Client(install.stack.gateway_address) as client:
        assert await (await client.get(task_id)).read_file(image.kept.path) == PICTURE
    assert all(len(entry.SerializeToString()) < 8192 for entry in entries if not entry.body.HasField("tools_defined"))
