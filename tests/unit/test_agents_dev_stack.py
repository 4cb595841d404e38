"""A worker without addresses does not join the development stack of another folder."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest

from services.gateway.admin import AdminServicer, Identity
from tenure.agents.dev_stack import stack_of_another_folder
from tenure.runtime.rpc.server import RpcServer
from tenure.v1.admin_service_pb2_grpc import add_AdminServiceServicer_to_server


@pytest.mark.parametrize("folder", ["/home/ann/shop/.tenure", ""])
async def test_a_gateway_states_the_folder_of_its_stack(folder: str) -> None:
    server = RpcServer("127.0.0.1:0")
    servicer: Any = AdminServicer(Mock(), Identity("tenure", folder))
    server.add("tenure.v1.AdminService", add_AdminServiceServicer_to_server, servicer)
    async with server:
        assert await asyncio.to_thread(stack_of_another_folder, server.address) == folder
    assert await asyncio.to_thread(stack_of_another_folder, server.address) == "", "no gateway answers"
