"""The clients that backends and operators already have: grpcurl and buf curl, by reflection alone."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.installation import Installation
from tests.support.patience import PATIENCE_SECONDS
from tests.support.sweeps import first

TASKS = "tenure.v1.TaskService"
SCRIPTS = Path(sys.executable).parent


async def run(*command: str) -> list[dict[str, Any]]:
    """The JSON documents a command prints; its words when it fails."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(PATIENCE_SECONDS):
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    decoder, text, documents = json.JSONDecoder(), out.decode().strip(), []
    while text:
        document, end = decoder.raw_decode(text)
        documents.append(document)
        text = text[end:].lstrip()
    return documents


async def grpcurl(address: str, method: str, request: dict[str, Any]) -> list[dict[str, Any]]:
    """grpcurl 1.8.6 asks for reflection v1alpha."""
    tool = str(SCRIPTS / "grpcurl")
    return await run(tool, "-plaintext", "-d", json.dumps(request), address, f"{TASKS}/{method}")


async def buf_curl(address: str, method: str, request: dict[str, Any]) -> list[dict[str, Any]]:
    """buf curl asks for reflection v1."""
    options = ("--protocol", "grpc", "--http2-prior-knowledge", "--reflect-protocol", "grpc-v1")
    url = f"http://{address}/{TASKS}/{method}"
    return await run(str(SCRIPTS / "buf"), "curl", *options, "--data", json.dumps(request), url)


def named(document: dict[str, Any], field: str) -> Any:
    """A field by the contract's name, which some clients print and others turn into camelCase."""
    first, *rest = field.split("_")
    return document.get(field, document.get(first + "".join(word.title() for word in rest)))


@pytest.mark.parametrize("call", first([grpcurl, buf_curl]), ids=["grpcurl", "buf_curl"])
async def test_a_task_is_submitted_and_watched(installation: Installation, call: Any) -> None:
    address = installation.stack.gateway_address
    request = {"spec": {"goal": "say hello", "agent": {"model": "sim-hello"}}}
    (submitted,) = await call(address, "SubmitTask", request)
    task_id = named(submitted["task"], "task_id")
    events = await call(address, "WatchTask", {"task_id": task_id})
    entries = [event["entry"] for event in events if "entry" in event]
    assert [int(entry["sequence"]) for entry in entries] == list(range(1, len(entries) + 1))
    assert named(entries[-1]["body"]["transition"], "to_state") == "TASK_STATE_SUCCEEDED"


async def test_a_refusal_says_which_field_is_wrong(installation: Installation) -> None:
    with pytest.raises(AssertionError, match=r"spec\.goal"):
        await grpcurl(installation.stack.gateway_address, "SubmitTask", {"spec": {"goal": ""}})


async def test_every_service_lists_itself(installation: Installation) -> None:
    for service in installation.stack.services.values():
        process = await asyncio.create_subprocess_exec(
            str(SCRIPTS / "grpcurl"), "-plaintext", service.address, "list", stdout=asyncio.subprocess.PIPE
        )
        out, _ = await process.communicate()
        listed = out.decode().split()
        assert "grpc.health.v1.Health" in listed
        assert any(name.startswith("tenure.v1.") for name in listed), service.name
