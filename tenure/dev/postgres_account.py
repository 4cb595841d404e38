"""Under which account Postgres runs. It refuses root, so root lends it an unprivileged account.

An account that cannot reach the binaries or the data (both below root's 0700 home, say) keeps one capability,
DAC_OVERRIDE, through `setpriv`: no permission of the user's directories is ever loosened for a development database.
"""

from __future__ import annotations

import os
import pwd
import shutil
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tenure.dev.postgres_errors import PostgresMissing

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

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
