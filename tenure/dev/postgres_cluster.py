"""The data directory of the embedded Postgres: making it once, guarding it, and reading who runs on it."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tenure.dev.postgres_account import PostgresAccount, account_for, name_of
from tenure.dev.postgres_binaries import CHILD_ENVIRONMENT, PostgresBinaries
from tenure.dev.postgres_errors import DataDirectoryRefused, PostgresStartFailed

SUPERUSER = "tenure"
INITDB_TIMEOUT_SECONDS = 120.0
PASSWORD_FILE = "tenure.password"
LOG_FILE = "server.log"


@dataclass(frozen=True)
class PostmasterFile:
    """What `postmaster.pid` says: of a server that runs, or of one that was killed."""

    pid: int
    ready: bool
    socket_directory: Path | None


class PostgresCluster:
    """One data directory, held by one process of ours at a time (an flock beside it says so)."""

    def __init__(self, directory: Path, binaries: PostgresBinaries) -> None:
        self.directory = directory.absolute()
        self.binaries = binaries
        self._lock_descriptor: int | None = None

    @property
    def exists(self) -> bool:
        return (self.directory / "PG_VERSION").is_file()

    @property
    def log_path(self) -> Path:
        return self.directory / LOG_FILE

    def account(self) -> PostgresAccount:
        """Whoever owns the data already, else whom root lends. Raises DataDirectoryRefused for another user's data."""
        paths = [self.directory.parent, self.binaries.directory]
        if not self.exists:
            return account_for(paths)
        owner_uid = self.directory.stat().st_uid
        if os.geteuid() == 0:
            return account_for(paths, name_of(owner_uid))
        if owner_uid != os.geteuid():
            raise DataDirectoryRefused(f"{self.directory} belongs to uid {owner_uid}, and this process is not root")
        return account_for(paths)

    def check_version(self) -> None:
        """Only the major release that made the data can read it. Raises DataDirectoryRefused."""
        if not self.exists:
            return
        maker = (self.directory / "PG_VERSION").read_text(encoding="ascii").strip()
        if maker != str(self.binaries.major):
            raise DataDirectoryRefused(
                f"{self.directory} was made by PostgreSQL {maker}, and {self.binaries.directory} has "
                f"{self.binaries.version}, which cannot read it: name the bin directory of a PostgreSQL {maker} "
                "(--postgres-binaries; `pip install 'tenure[dev]'` brings the usual one), or another data directory "
                "(--data), or upgrade this one with pg_upgrade"
            )

    def lock(self) -> None:
        """Keep other processes of ours away. Raises DataDirectoryRefused when one has it."""
        self.directory.parent.mkdir(parents=True, exist_ok=True)
        path = self.directory.with_name(self.directory.name + ".lock")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise DataDirectoryRefused(f"Another process already runs a Postgres on {self.directory}") from error
        self._lock_descriptor = descriptor

    def unlock(self) -> None:
        if self._lock_descriptor is not None:
            os.close(self._lock_descriptor)
            self._lock_descriptor = None

    def ensure_initialized(self, account: PostgresAccount, scratch: Path) -> None:
        """Make the cluster unless it is there. `scratch` is a directory of the account's, to hand it the password.

        Made beside its place and moved there whole, so that a crash in between leaves nothing half made.
        """
        if self.exists:
            self.check_version()
            return
        if self.directory.exists() and any(self.directory.iterdir()):
            raise DataDirectoryRefused(f"{self.directory} holds files, but they are no PostgreSQL cluster")
        unfinished = self.directory.with_name(self.directory.name + ".initializing")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        account.own(unfinished)
        password_file = scratch / PASSWORD_FILE
        _write_secret(password_file, secrets.token_urlsafe(24))
        account.own(password_file)
        self._run_initdb(account, unfinished, password_file)
        shutil.move(password_file, unfinished / PASSWORD_FILE)  # in one place only, and that one private
        (unfinished / PASSWORD_FILE).chmod(0o600)
        account.own(unfinished / PASSWORD_FILE)
        unfinished.replace(self.directory)

    def password(self) -> str:
        return (self.directory / PASSWORD_FILE).read_text(encoding="ascii")

    def read_postmaster_file(self) -> PostmasterFile | None:
        """None when there is none, or it is still being written."""
        try:
            lines = (self.directory / "postmaster.pid").read_text(encoding="utf-8").splitlines()
            sockets = Path(lines[4]) if len(lines) > 4 and lines[4] else None
            return PostmasterFile(int(lines[0]), len(lines) > 7 and lines[7].strip() == "ready", sockets)
        except (FileNotFoundError, IndexError, ValueError):
            return None

    def running_pid(self) -> int | None:
        """The server that runs on this directory, whoever started it. A recycled pid of another program is not one."""
        postmaster = self.read_postmaster_file()
        if postmaster is None or not self._works_here(postmaster.pid):
            return None
        return postmaster.pid

    def forget_dead_server(self) -> None:
        """Remove the `postmaster.pid` of a server that is gone.

        Postgres does so itself, unless the pid lives again as another program: after a container's restart, say.
        """
        if self.running_pid() is None:
            (self.directory / "postmaster.pid").unlink(missing_ok=True)

    def _works_here(self, pid: int) -> bool:
        if Path("/proc/self/cwd").exists():  # Linux
            try:
                return Path(f"/proc/{pid}/cwd").samefile(self.directory)
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                return False  # gone, a zombie, or another user's: not ours in any case
        listed = subprocess.run(["ps", "-p", str(pid), "-o", "command="], capture_output=True, text=True, check=False)
        return str(self.directory) in listed.stdout

    def _run_initdb(self, account: PostgresAccount, directory: Path, password_file: Path) -> None:
        options = ["--auth=scram-sha-256", "--encoding=UTF8", "--no-locale", "--data-checksums"]
        command = [self.binaries.path("initdb"), f"--pgdata={directory}", f"--username={SUPERUSER}", *options]
        done = subprocess.run(
            account.command([*command, f"--pwfile={password_file}"]),
            capture_output=True,
            text=True,
            check=False,
            timeout=INITDB_TIMEOUT_SECONDS,
            cwd="/",  # the caller's directory may be closed to the account
            env=CHILD_ENVIRONMENT,
            **account.popen_options,
        )
        if done.returncode != 0:
            raise PostgresStartFailed(f"initdb failed with status {done.returncode}", done.stderr.strip())


def _write_secret(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(text)
