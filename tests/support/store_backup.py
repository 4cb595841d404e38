"""Backups of a stack's stores while it works, and the restore of both after their data is gone."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from devstack.etcd import EtcdProcess
from devstack.postgres_process import PostgresProcess
from tests.support.etcd_backup import restore_snapshot, save_snapshot
from tests.support.postgres_backup import WalArchive, restore_backup, take_base_backup


@dataclass(slots=True)
class StoreBackup:
    """The backups below one folder. The archive of Postgres's log begins with the run, the rest with `take`."""

    postgres: PostgresProcess
    etcd: EtcdProcess
    folder: Path
    is_taken: bool = False
    archive: WalArchive = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(mode=0o711, parents=True)
        self.archive = WalArchive(self.postgres, self.folder / "wal")

    async def take(self) -> None:
        """Takes a base backup of Postgres and a snapshot of etcd, while both are used."""
        await take_base_backup(self.postgres, self.folder / "base")
        await asyncio.to_thread(save_snapshot, self.etcd, self.folder / "etcd.snapshot")
        self.is_taken = True

    async def restore(self) -> None:
        """Loses the data of both stores and restores it: all of Postgres's, and etcd's as of the snapshot."""
        await self.postgres.stop_async()  # in order, so that the archive has its last commit
        await self.archive.wait_end()
        await restore_backup(self.postgres, self.folder / "base", self.archive)
        self.etcd.kill()
        await asyncio.to_thread(restore_snapshot, self.etcd, self.folder / "etcd.snapshot")
        await self.postgres.start_async()
        self.etcd.start()
        await asyncio.to_thread(self.etcd.wait_ready)
