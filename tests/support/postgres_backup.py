"""Copies of the embedded Postgres: a base backup with an archive of the log, the restore of both, and a hot standby.

A backup is `WalArchive.start`, then `take_base_backup`. A restore without loss is a stop of the server in order,
`WalArchive.wait_end`, `restore_backup`, and a start, which recovers to the last commit.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from devstack import watchdog
from devstack.postgres_cluster import (
    CHILD_ENVIRONMENT,
    SUPERUSER,
    EmbeddedPostgresError,
    PostgresAccount,
    PostgresMissing,
    PostgresStartFailed,
)
from devstack.postgres_process import HOST, PostgresProcess

BACKUP_SECONDS: Final = 600.0
STREAM_SECONDS: Final = 60.0
POLL_SECONDS: Final = 0.05
UNFINISHED: Final = ".partial"
"""The ending of the segment that the server has not filled yet."""


async def take_base_backup(postgres: PostgresProcess, folder: Path, *options: str) -> None:
    """Copies the data of a running server to a new folder. Raises PostgresMissing or PostgresStartFailed."""
    account = postgres.cluster.account()
    _own_folder(account, folder)
    command = _command(postgres, "pg_basebackup", f"--pgdata={folder}", "--checkpoint=fast", *options)
    done = await asyncio.to_thread(_run, account, command, _environment(postgres))
    if done.returncode != 0:
        raise PostgresStartFailed(f"pg_basebackup ended with {done.returncode}", done.stderr.strip())


async def make_standby(
    primary: PostgresProcess, folder: Path, settings: Mapping[str, str] | None = None
) -> PostgresProcess:
    """Returns a hot standby of a running server, not yet started, which follows the server by streaming replication."""
    await take_base_backup(primary, folder, "--write-recovery-conf")
    return PostgresProcess(folder, binaries_directory=primary.cluster.binaries.directory, settings=settings)


class WalArchive:
    """The write-ahead log of a server, streamed into a folder by `pg_receivewal` until the server ends."""

    def __init__(self, postgres: PostgresProcess, folder: Path) -> None:
        self.folder = folder.absolute()
        self._postgres = postgres
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Returns when the stream has begun. Raises PostgresMissing or PostgresStartFailed."""
        process = self._process = self._launch()
        ends_at = time.monotonic() + STREAM_SECONDS
        while not any(self.folder.iterdir()):
            if process.poll() is not None or time.monotonic() > ends_at:
                self.stop()
                raise PostgresStartFailed(f"pg_receivewal does not stream into {self.folder}")
            await asyncio.sleep(POLL_SECONDS)

    def _launch(self) -> subprocess.Popen[bytes]:
        account = self._postgres.cluster.account()
        _own_folder(account, self.folder)
        command = _command(self._postgres, "pg_receivewal", f"--directory={self.folder}", "--no-loop")
        return watchdog.launch(
            account.command(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=_environment(self._postgres),
            start_new_session=True,
            **account.popen_options,
        )

    async def wait_end(self) -> None:
        """Waits until the stream has ended, after the server was stopped in order: then all commits are in the folder.

        Raises EmbeddedPostgresError if it goes on.
        """
        if self._process is None:
            return
        try:
            await asyncio.to_thread(self._process.wait, STREAM_SECONDS)
        except subprocess.TimeoutExpired:
            self.stop()
            raise EmbeddedPostgresError(f"pg_receivewal goes on {STREAM_SECONDS:g} s after its server ended") from None

    def stop(self) -> None:
        """Ends the stream now. Repeatable."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()


async def restore_backup(postgres: PostgresProcess, backup: Path, archive: WalArchive) -> None:
    """Replaces the data of a stopped server by a base backup. Its next start recovers to the end of the archive.

    Raises EmbeddedPostgresError if the server runs.
    """
    if postgres.pid is not None:
        raise EmbeddedPostgresError(
            f"{postgres.cluster.directory} is in use: stop the server before its data is replaced"
        )
    await asyncio.to_thread(_replace, postgres, backup, archive.folder)


def _replace(postgres: PostgresProcess, backup: Path, archive: Path) -> None:
    account, directory = postgres.cluster.account(), postgres.cluster.directory
    shutil.rmtree(directory)
    shutil.copytree(backup, directory, symlinks=True)
    for segment in archive.glob(f"*{UNFINISHED}"):
        segment.rename(segment.with_suffix(""))
    with (directory / "postgresql.auto.conf").open("a", encoding="utf-8") as settings:
        settings.write(f'restore_command = \'cp "{archive}/%f" "%p"\'\n')
    (directory / "recovery.signal").touch()
    for path in (directory, *directory.rglob("*")):
        account.own(path)


def _own_folder(account: PostgresAccount, folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True)
    account.own(folder)


def _command(postgres: PostgresProcess, program: str, *options: str) -> list[str]:
    path = postgres.cluster.binaries.directory / program
    if not path.is_file():
        raise PostgresMissing(f"{path.parent} has no {program}: name the bin directory of a whole PostgreSQL")
    server = [f"--host={HOST}", f"--port={postgres.port}", f"--username={SUPERUSER}", "--no-password"]
    return [str(path), *server, *options]


def _environment(postgres: PostgresProcess) -> dict[str, str]:
    return {**CHILD_ENVIRONMENT, "PGPASSWORD": postgres.cluster.password()}


def _run(
    account: PostgresAccount, command: Sequence[str], environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        account.command(command),
        capture_output=True,
        text=True,
        check=False,
        timeout=BACKUP_SECONDS,
        cwd="/",
        env=dict(environment),
        **account.popen_options,
    )
