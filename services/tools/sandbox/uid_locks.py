"""Who runs where, as all replicas see it that share a root of workspaces and are root.

A replica has uids of its own, one for each place. But while somebody runs in a workspace its files are theirs: whoever
else begins there, in whatever replica, runs under the same uid. And a uid under which somebody runs in one workspace is
not given to a run in another, also when two replicas were given the same range.

What is in use is locked in one file beside the workspaces, a byte for each uid and for each workspace, shared by those
who run and exclusive for the moment in which somebody decides. The kernel releases what a replica held when it dies.
The locks are of open file descriptions: two runs of one process exclude each other like those of two, and a lock that
is made a shared one is never free in between.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_FIRST_UID: Final = 1000  # nobody runs under those of the system
_WORKSPACES_FROM: Final = 1 << 33  # bytes before that are uids
_WORKSPACES: Final = 1 << 62
_DECIDES_WITHIN_SECONDS: Final = 5.0
_AGAIN_SECONDS: Final = 0.01
_TRIES: Final = 4
_HELD: Final = frozenset({errno.EAGAIN, errno.EACCES})
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True)
class UidLease:
    """The uid of a run, until `close`. None: the service's own."""

    uid: int | None
    _locks: int = -1

    def close(self) -> None:
        """The run has ended for certain."""
        if self._locks >= 0:
            os.close(self._locks)
            self._locks = -1


class UidLocks:
    """`file`: beside the workspaces; None: nobody else runs in them."""

    def __init__(self, file: Path | None) -> None:
        self._file = file

    def take(self, workspace: Path | None, uid: int) -> UidLease | None:
        """A lease of `uid`, or of that of those who run in the workspace already, whose directory belongs to it then.

        None when somebody runs under this uid elsewhere. Blocks. Raises OSError, of a filesystem without locks too.
        """
        if self._file is None:
            return UidLease(uid)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        locks = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            agreed = _take_uid(locks, uid) if workspace is None else self._agree(locks, workspace, uid)
        except BaseException:
            os.close(locks)
            raise
        if agreed is None:
            os.close(locks)
            return None
        return UidLease(agreed, locks)

    def _agree(self, locks: int, workspace: Path, uid: int) -> int | None:
        place = self._place_of(workspace)
        ends_at = time.monotonic() + _DECIDES_WITHIN_SECONDS
        while True:
            owner = workspace.lstat().st_uid
            # First the uid: from then on nobody else gets it, and whoever keeps us from deciding runs under it.
            if _try(locks, fcntl.F_RDLCK, owner):
                if _try(locks, fcntl.F_WRLCK, place):
                    return _decide(locks, place, workspace, owner, uid)
                if _try(locks, fcntl.F_RDLCK, place) and workspace.lstat().st_uid == owner >= _FIRST_UID:
                    return owner
                _try(locks, fcntl.F_UNLCK, place)
                _try(locks, fcntl.F_UNLCK, owner)
            if time.monotonic() > ends_at:
                raise OSError(errno.EBUSY, "another replica does not come to an end with deciding who runs there")
            time.sleep(_AGAIN_SECONDS)

    def _place_of(self, workspace: Path) -> int:
        """By its name below the root, which is the same for all."""
        assert self._file is not None
        name = os.path.relpath(workspace.absolute(), self._file.absolute().parent)
        digest = hashlib.blake2b(os.fsencode(name), digest_size=8).digest()
        return _WORKSPACES_FROM + int.from_bytes(digest, "big") % _WORKSPACES


def _decide(locks: int, place: int, workspace: Path, owner: int, uid: int) -> int | None:
    """Nobody runs there, and nobody can begin."""
    if owner != uid:
        _try(locks, fcntl.F_UNLCK, owner)
    agreed = _take_uid(locks, uid)
    if agreed is not None:
        _give(workspace, uid)
        _try(locks, fcntl.F_RDLCK, place)
    return agreed


def _take_uid(locks: int, uid: int) -> int | None:
    """None when somebody has it. Afterwards others may have it too, who join a workspace."""
    for _ in range(_TRIES):
        if _try(locks, fcntl.F_WRLCK, uid):
            _try(locks, fcntl.F_RDLCK, uid)
            return uid
        time.sleep(_AGAIN_SECONDS / 2)  # perhaps somebody only looks whether he may join who had it last
    return None


def _try(locks: int, kind: int, place: int) -> bool:
    """Without waiting. To make a lock of one's own a shared one always works."""
    try:
        fcntl.fcntl(locks, fcntl.F_OFD_SETLK, struct.pack("@hhqqi0q", kind, os.SEEK_SET, place, 1, 0))
    except OSError as error:
        if error.errno in _HELD:
            return False
        raise
    return True


def _give(workspace: Path, uid: int) -> None:
    directory = os.open(workspace, _DIRECTORY)
    try:
        if os.fstat(directory).st_uid != uid:
            os.fchown(directory, uid, uid)
    finally:
        os.close(directory)
