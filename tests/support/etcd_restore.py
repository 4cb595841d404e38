"""Lives of an etcd: what was backed up is put back, with the same flags at the same address, or nothing at all is."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING

from services.coordinator.etcd.client import EtcdClient

if TYPE_CHECKING:
    from pathlib import Path

    from devstack.etcd import EtcdProcess


async def back_up(etcd: EtcdProcess, folder: Path) -> Path:
    """A copy of its data as after a crash; it runs on."""
    etcd.kill()
    copy = folder / "backup"
    shutil.copytree(_data(etcd), copy)
    await _start(etcd)
    return copy


async def put_back(etcd: EtcdProcess, backup: Path | None) -> None:
    """The old data instead of the present; None: no data at all. The cluster's id stays, revisions are given again."""
    etcd.kill()
    shutil.rmtree(_data(etcd))
    if backup is not None:
        shutil.copytree(backup, _data(etcd))
    await _start(etcd)


async def write_on(etcd: EtcdProcess, revisions: int) -> int:
    """Let its revision grow by so much, as other tasks would; the one it is at then."""
    async with EtcdClient([etcd.endpoint]) as client:
        for _ in range(0, revisions, 100):
            await asyncio.gather(*(client.put(b"/elsewhere", b"") for _ in range(min(100, revisions))))
        return await client.revision()


def _data(etcd: EtcdProcess) -> Path:
    return etcd.member.data_dir / "store"


async def _start(etcd: EtcdProcess) -> None:
    etcd.start()
    await asyncio.to_thread(etcd.wait_ready)
