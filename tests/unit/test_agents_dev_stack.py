"""A worker without addresses does not join the development stack of another folder."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

import pytest

from services.gateway.admin import AdminServicer, Identity
from tenure.agents.dev_stack import stack_of_another_folder
from tenure.runtime.rpc.server import RpcServer


@pytest.mark.parametrize("folder", ["/home/ann/shop/.tenure", ""])
async def test_a_gateway_states_the_folder_of_its_stack(folder: str) -> None:
    server = RpcServer("127.0.0.1:0")
    server.add("tenure.v1.AdminService", AdminServicer(Mock(), Identity("tenure", folder)))
    async with server:
        assert await asyncio.to_thread(stack_of_another_folder, server.address) == folder
    assert await asyncio.to_thread(stack_of_another_folder, server.address) == "", "no gateway answers"
