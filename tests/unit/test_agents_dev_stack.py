"""A worker without addresses does not join the development stack of another folder."""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest.mock import Mock

import click
import pytest

from devstack.data_dir import hold_folder, write_addresses
from services.gateway.admin import AdminServicer, Identity
from tenure.agents.dev_stack import advice_without_stack, dev_settings, stack_of_another_folder
from tenure.cli.dev import vendor_values
from tenure.cli.replay import worker_environment
from tenure.runtime.rpc.server import RpcServer


@pytest.mark.parametrize("folder", ["/home/ann/shop/.tenure", ""])
async def test_a_gateway_states_the_folder_of_its_stack(folder: str) -> None:
    server = RpcServer("127.0.0.1:0")
    server.add("tenure.v1.AdminService", AdminServicer(Mock(), Identity("tenure", folder)))
    async with server:
        assert await asyncio.to_thread(stack_of_another_folder, server.address) == folder
    assert await asyncio.to_thread(stack_of_another_folder, server.address) == "", "no gateway answers"


def test_a_worker_without_a_stack_uses_defaults(tmp_path: Path) -> None:
    """A worker with an address in its settings is not sent elsewhere."""
    assert dev_settings({"TENURE_DATA": str(tmp_path)}) == {}
    advice = advice_without_stack({"TENURE_DATA": str(tmp_path)})
    assert f"no `tenure dev` runs on {tmp_path}" in advice
    assert "no simulator plays its models" in advice
    assert "simulator" not in advice_without_stack({"TENURE_DATA": str(tmp_path), "ANTHROPIC_API_KEY": "key"})
    assert not advice_without_stack({"TENURE_WORKER_TOOLS_ADDRESS": "b:1"})
    addresses = {"gateway": "a:0", "coordinator": "a:1", "checkpoint": "a:2", "tools": "a:3"}
    with hold_folder(tmp_path):
        write_addresses(tmp_path, addresses)
        found = dev_settings({"TENURE_DATA": str(tmp_path)})
        assert not advice_without_stack({"TENURE_DATA": str(tmp_path)})
        assert found["TENURE_WORKER_COORDINATOR_ADDRESS"] == "a:1"
        assert "TENURE_WORKER_MODELS_ADDRESS" not in found
        assert dev_settings({"TENURE_DATA": str(tmp_path), "TENURE_WORKER_TOOLS_ADDRESS": "b:1"}) == {}
        write_addresses(tmp_path, {**addresses, "models": "a:4"})
        assert dev_settings({"TENURE_DATA": str(tmp_path)})["TENURE_WORKER_MODELS_ADDRESS"] == "a:4"
        simulated = {**addresses, "models": "a:4", "simulator": "http://a:5"}
        write_addresses(tmp_path, simulated)
        own_key = {"TENURE_DATA": str(tmp_path), "OPENAI_API_KEY": "key"}
        assert dev_settings(own_key)["TENURE_WORKER_FUNCTIONS_USE_RUNNER"] == "false", (
            "the simulator does not get the calls"
        )
        assert "TENURE_WORKER_FUNCTIONS_USE_RUNNER" not in dev_settings({"TENURE_DATA": str(tmp_path)})


@pytest.mark.parametrize(
    ("variable", "value", "is_given"),
    [
        ("ANTHROPIC_API_KEY", "", False),
        ("ANTHROPIC_MODEL", "x", False),
        ("ANTHROPIC_LOG", "debug", False),
        ("OPENAI_AGENTS_DISABLE_TRACING", "1", False),
        ("OPENAI_BASE_URL", "http://own/v1", True),
        ("ANTHROPIC_AUTH_TOKEN", "token", True),
        ("OPENAI_API_KEY_FILE", "key.txt", True),
    ],
)
def test_only_a_given_provider_replaces_the_simulator(
    tmp_path: Path, variable: str, value: str, is_given: bool
) -> None:
    """The same for the worker beside a stack, for a replay, and for the stack itself."""
    addresses = {
        "gateway": "a:0",
        "coordinator": "a:1",
        "checkpoint": "a:2",
        "tools": "a:3",
        "models": "a:4",
        "simulator": "http://a:5",
    }
    given = {"TENURE_DATA": str(tmp_path), variable: value}
    assert ("simulator" in advice_without_stack(given)) == (not is_given)
    with hold_folder(tmp_path):
        write_addresses(tmp_path, addresses | {"model": "http://127.0.0.1:5"})
        found = dev_settings(given)
        replayed = worker_environment(Mock(data_dir=tmp_path, environment=given, address="a:0"), "q")
    assert ("TENURE_WORKER_FUNCTIONS_USE_RUNNER" in found) == is_given
    assert (found.get("ANTHROPIC_API_KEY") == "simulated") == (not is_given)
    assert (replayed.get("ANTHROPIC_API_KEY") == "none") == (not is_given)


def test_development_stack_reads_keys_of_files(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-file\n")
    assert vendor_values({"OPENAI_API_KEY_FILE": str(tmp_path / "key")}) == {"OPENAI_API_KEY": "sk-file"}
    assert vendor_values({"ANTHROPIC_API_KEY": "", "OPENAI_LOG": "debug"}) == {}
    with pytest.raises(click.UsageError, match="ANTHROPIC_API_KEY cannot be read"):
        vendor_values({"ANTHROPIC_API_KEY_FILE": str(tmp_path / "none")})
