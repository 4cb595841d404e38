"""Images that a model sees: of its tools and of the submit, also after its worker was killed."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from pathlib import Path
from typing import Final

import httpx2
import pytest

import tenure
from tenure import InputFile, UserMessageEvent
from tenure.v1 import task_pb2
from tests.end_to_end.command import tenure as tenure_command
from tests.end_to_end.installation import Installation, check_whole
from tests.end_to_end.scenarios import PICTURE
from tests.end_to_end.test_client import until_waiting
from tests.support.images import png
from tests.support.patience import CALL_SECONDS
from tests.support.sweeps import first

SEEN: Final = f"image/png 64x48 sha256:{hashlib.sha256(PICTURE).hexdigest()}"
PHOTO: Final = png(5, 7)
PHOTO_SEEN: Final = f"image/png 5x7 sha256:{hashlib.sha256(PHOTO).hexdigest()}"
SUCCEEDED: Final = task_pb2.TASK_STATE_SUCCEEDED


@pytest.mark.parametrize("prefix", first(["", "openai/"]), ids=["anthropic", "openai"])
async def test_the_next_owner_shows_the_image_of_a_tool(own_installation: Installation, prefix: str) -> None:
    install = own_installation
    task_id = await install.submit(f"{prefix}sim-e2e-vision")
    outcome = await install.until(task_id, "tool_outcome", lambda entry: bool(entry.body.tool_outcome.outcome.images))
    install.owner(await install.client.get(task_id)).kill()
    task = await install.ended(task_id)
    assert (task.state, task.result) == (SUCCEEDED, f"Now I see {SEEN}."), task.message
    assert task.claim_count == 2
    entries = await install.entries(task_id)
    check_whole(entries)
    [image] = outcome.body.tool_outcome.outcome.images
    async with tenure.Client(install.stack.gateway_address) as client:
        assert await (await client.get(task_id)).read_file(image.kept.path) == PICTURE
    assert all(len(entry.SerializeToString()) < 8192 for entry in entries if not entry.body.HasField("tools_defined"))


@pytest.mark.faults
async def test_the_next_owner_shows_the_image_of_a_submit(own_installation: Installation, tmp_path: Path) -> None:
    install, address = own_installation, own_installation.stack.gateway_address
    (tmp_path / "photo.png").write_bytes(PICTURE)
    (tmp_path / "facts.txt").write_text("true")
    files = [part for name in ("photo.png", "facts.txt") for part in ("--file", str(tmp_path / name))]
    submitted = await tenure_command("submit", "Look.", "--model", "sim-e2e-vision-at-once", *files, address=address)
    assert submitted.code == 0, submitted.err
    task_id = submitted.out.strip()
    first = await install.until(task_id, "assistant_message")
    install.owner(await install.client.get(task_id)).kill()
    task = await install.ended(task_id)
    assert json.loads(first.body.assistant_message.content_json)[0]["text"] == f"I see {SEEN}."
    assert (task.state, task.result) == (SUCCEEDED, f"Now I see {SEEN}, and the facts are true."), task.message
    assert task.claim_count == 2
    check_whole(await install.entries(task_id))


async def test_files_come_by_http_and_from_python_too(installation: Installation) -> None:
    files = [{"path": "photo.png", "content": b64encode(PICTURE).decode()}]
    body = {"goal": "Look.", "model": "sim-e2e-vision-at-once", "files": files}
    async with httpx2.AsyncClient(base_url=installation.stack.http_url, timeout=CALL_SECONDS, trust_env=False) as http:
        answer = await http.post("/v1/tasks", json=body)
        refused = await http.post("/v1/tasks", json={**body, "files": [{"path": "a", "content": "/etc/passwd!"}]})
        by_name = await http.post("/v1/tasks", json={**body, "files": ["/etc/passwd"]})
    assert (answer.status_code, refused.status_code, by_name.status_code) == (201, 400, 400), answer.text
    assert "must be base64" in refused.text
    async with tenure.Client(installation.stack.gateway_address) as client:
        own = await client.submit("Look.", model="sim-e2e-vision-at-once", files=[InputFile("photo.png", PICTURE)])
        for task_id in (answer.json()["task_id"], own.id):
            assert (await installation.ended(task_id)).result.startswith(f"Now I see {SEEN}")


async def test_the_images_of_messages_are_shown(installation: Installation, tmp_path: Path) -> None:
    """Sent by the command, by HTTP and from Python while the task waits, and with the answer: the next call has all."""
    address, photos = installation.stack.gateway_address, [png(5, height) for height in (7, 8, 9, 10)]
    (tmp_path / "photo.png").write_bytes(photos[0])
    async with tenure.Client(address) as client:
        task = await client.submit("Look.", model="sim-e2e-vision", approve_tools=["execute_python"])
        wait = (await until_waiting(task)).wait
        assert wait is not None
        sent = await tenure_command(
            *("tasks", "send", task.id, "By the command.", "--file", str(tmp_path / "photo.png")), address=address
        )
        assert sent.code == 0, sent.err
        files = [{"path": "photo.png", "content": b64encode(photos[1]).decode()}]
        async with httpx2.AsyncClient(
            base_url=installation.stack.http_url, timeout=CALL_SECONDS, trust_env=False
        ) as http:
            answer = await http.post(f"/v1/tasks/{task.id}/messages", json={"text": "By HTTP.", "files": files})
        assert answer.status_code == 200, answer.text
        await task.send("From Python.", files=[InputFile("photo.png", photos[2])])
        await task.approve(wait, files=[InputFile("photo.png", photos[3])])
        result = await task.result()
        messages = [event async for event in task.events() if isinstance(event, UserMessageEvent)]
        assert [await task.read_file(message.files[0]) for message in messages] == photos
    seen = [f"image/png 5x{7 + n} sha256:{hashlib.sha256(photo).hexdigest()}" for n, photo in enumerate(photos)]
    assert result == f"Now I see {'; '.join([*seen, SEEN])}."


async def test_forks_and_replays_show_the_images(installation: Installation, tmp_path: Path) -> None:
    address = installation.stack.gateway_address
    async with tenure.Client(address) as client:
        task = await client.submit("Look.", model="sim-e2e-vision", files=[InputFile("photo.png", PHOTO)])
        both = f"Now I see {PHOTO_SEEN}; {SEEN}."
        assert await task.result() == both
        model = "openai/sim-e2e-vision"
        (tmp_path / "second.png").write_bytes(PICTURE)
        more = ("--message", "And this.", "--file", str(tmp_path / "second.png"))
        fork = await tenure_command("fork", task.id, "--step", "2", "--model", model, *more, address=address)
        assert (await installation.ended(fork.out.strip())).result == f"Now I see {PHOTO_SEEN}; {SEEN}; {SEEN}."
        replay = ("tasks", "replay", task.id, "--model", "sim-e2e-vision", "--recorded-tools")
        replayed = await tenure_command("--data", str(installation.stack.layout.data_dir), *replay, address=address)
        assert (replayed.code, replayed.out.splitlines()[-1]) == (0, both), replayed


async def test_an_image_that_is_refused_does_not_end_the_task(installation: Installation) -> None:
    files = [InputFile("broken.png", png(5, 7, packed=b"no pixels"))]  # only who decodes it finds out
    async with tenure.Client(installation.stack.gateway_address) as client:
        task = await client.submit("Look.", model="sim-e2e-vision-told", files=files)
        result = await task.result()
    assert result.startswith("I see none, and read: Look.")
    assert "[This image is not shown: the model provider refused it" in result
    failures = [entry for entry in await installation.entries(task.id) if entry.body.HasField("model_failure")]
    assert [entry.body.model_failure.error_class for entry in failures] == ["INVALID_REQUEST"]
