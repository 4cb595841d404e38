"""The authority and all certificates of an installation change while tasks run: none of them notices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio
from cryptography.hazmat.primitives.serialization import Encoding

from devstack import Stack
from devstack.options import HOST
from tenure.client import Client
from tenure.domain.access import DEFAULT_INSTALLATION, Role
from tenure.domain.errors import Unauthenticated
from tenure.runtime.rpc.channels import CHECK_SECONDS
from tenure.runtime.security.certificates import Authority, write_certificate
from tenure.runtime.security.tls import ClientTls
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tests.end_to_end.conftest import options
from tests.end_to_end.installation import Installation, check_whole
from tests.end_to_end.steady_load import SteadyLoad
from tests.support.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.faults

SUCCEEDED: Final = task_pb2.TASK_STATE_SUCCEEDED
CONNECTED: Final = "connected with new certificate files"
CALLING: Final = ("gateway", "coordinator", "worker-1", "worker-2")
"""The processes that have channels to others."""


@pytest_asyncio.fixture
async def install(tmp_path: Path) -> AsyncIterator[Installation]:
    async with Stack(options(tmp_path, tls=True)) as stack:
        folder = stack.layout.certificates
        tls = ClientTls(folder / "ca.pem", folder / "operator.pem", folder / "operator.key.pem")
        async with Client(stack.gateway_address, tls=tls) as client:
            yield Installation(stack, client)


def trust(folder: Path, *authorities: bytes) -> None:
    fresh = folder / ".ca.pem.new"
    fresh.write_bytes(b"".join(authorities))
    fresh.replace(folder / "ca.pem")


def issue_all(install: Installation, authority: Authority) -> None:
    """A new certificate for each process, and for the operator."""
    for role in Role:
        for name in install.stack.options.names_of(role.lower()):
            certificate, key = authority.issue(role, name, DEFAULT_INSTALLATION, 1, ["localhost", HOST])
            write_certificate(install.stack.layout.certificates, name, certificate, key)


async def until_all_connected(install: Installation, times: int) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        for name in CALLING:
            while install.stack.services[name].log().count(CONNECTED) < times:
                await asyncio.sleep(0.2)


async def replace_authority(install: Installation, watching: asyncio.Task[None]) -> None:
    """As the documentation has it: trust both, replace the certificates, withdraw the former authority."""
    folder = install.stack.layout.certificates
    former = (folder / "ca.pem").read_bytes()
    authority = Authority.create(DEFAULT_INSTALLATION, 1)
    new = authority.certificate.public_bytes(Encoding.PEM)
    trust(folder, former, new)
    await until_all_connected(install, 1)
    issue_all(install, authority)
    await asyncio.sleep(2 * CHECK_SECONDS)
    assert not watching.done(), "it ends only when its authority is withdrawn"
    trust(folder, new)
    await until_all_connected(install, 3)


@asynccontextmanager
async def stubborn_operator(install: Installation, folder: Path) -> AsyncIterator[Client]:
    """A client that keeps its connection and its certificate."""
    for name in ("ca.pem", "operator.pem", "operator.key.pem"):
        (folder / name).write_bytes((install.stack.layout.certificates / name).read_bytes())
    tls = ClientTls(folder / "ca.pem", folder / "operator.pem", folder / "operator.key.pem")
    async with Client(install.stack.gateway_address, tls=tls) as client:
        yield client


async def watched_to_its_end(client: Client) -> None:
    async for _ in client.tasks.WatchTasks(api.WatchTasksRequest()):
        pass


async def test_no_task_notices_a_new_authority(install: Installation, tmp_path: Path) -> None:
    lasting = [await install.submit("sim-e2e-slow-answer") for _ in range(2)]
    for task_id in lasting:
        await install.speaking(task_id)
    async with stubborn_operator(install, tmp_path) as stubborn:
        watching = asyncio.create_task(watched_to_its_end(stubborn))
        load = SteadyLoad(install)
        await load.run_while(asyncio.create_task(replace_authority(install, watching)))
        for call in (watching, stubborn.get(lasting[0])):
            with pytest.raises(Unauthenticated) as refused:
                await asyncio.wait_for(call, PATIENCE_SECONDS)
            assert refused.value.reason == "CERTIFICATE_WITHDRAWN"
    await load.check()
    ended = [await install.ended(task_id) for task_id in lasting]
    assert {(task.state, task.claim_count, task.attempt) for task in ended} == {(SUCCEEDED, 1, 1)}
    for task in ended:
        check_whole(await install.entries(task.task_id))
