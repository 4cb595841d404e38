"""A real etcd driven out of space, and helped out of it as its operator would."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from services.coordinator.etcd import stubs
from services.coordinator.etcd.calls import SpaceExhausted
from services.coordinator.etcd.descriptors import EtcdApi
from tests.support.fix_etcd import delete_prefix
from tests.support.patience import CALL_SECONDS

if TYPE_CHECKING:
    from services.coordinator.etcd.client import EtcdClient

QUOTA = "--quota-backend-bytes=6291456"
_FILLER = b"/filler/"


async def fill(client: EtcdClient) -> None:
    """Write until the alarm stands."""
    while "NOSPACE" not in await client.alarms():
        answers = await asyncio.gather(
            *(client.put(_FILLER + os.urandom(8), os.urandom(300_000), timeout_seconds=CALL_SECONDS) for _ in range(4)),
            return_exceptions=True,
        )
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, SpaceExhausted):
                raise answer


async def compact(client: EtcdClient) -> None:
    """Forget all history there is, the present revision excepted: so that one is made to be of no interest."""
    await client.put(b"/elsewhere", b"")
    await _compact(client)


async def _compact(client: EtcdClient) -> None:
    request = stubs.CompactionRequest(revision=await client.revision(), physical=True)
    await client.endpoints.current.kv.Compact(request, timeout=CALL_SECONDS)


async def make_space(client: EtcdClient) -> None:
    """Delete, compact, defragment, disarm."""
    api = EtcdApi()
    await delete_prefix(client, _FILLER)
    await _compact(client)
    maintenance = api.stub("etcdserverpb.Maintenance")(client.endpoints.current.channel)
    await maintenance.Defragment(api.message("etcdserverpb.DefragmentRequest")(), timeout=CALL_SECONDS)
    member_id = (await client.status()).member_id
    disarm = api.message("etcdserverpb.AlarmRequest")(action=2, memberID=member_id, alarm=1)  # DEACTIVATE, NOSPACE
    await maintenance.Alarm(disarm, timeout=CALL_SECONDS)
