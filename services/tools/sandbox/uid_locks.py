"""Locks by which replicas that share the workspaces, and run as root, agree which uid runs in which workspace.

A replica has uids of its own, one for each slot. Two rules hold across all replicas:
- While a program runs in a workspace, the workspace belongs to that program's uid. Every further run in the workspace,
  in any replica, uses the same uid.
- A uid that runs in one workspace is not leased to a run in another workspace, even if two replicas were configured
  with the same range of uids.

The locks are byte ranges of one file beside the workspaces: one byte for each uid and one for each workspace. A run
holds shared locks on its uid and on its workspace. A replica holds an exclusive lock only while it decides. The kernel
releases the locks of a replica that dies. The locks belong to open file descriptions (F_OFD_SETLK): so two runs of one
process exclude each other like runs of two processes, and a lock that is changed from exclusive to shared is never free
in between.
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

from services.tools.sandbox.permissions import DIRECTORY

_FIRST_UID: Final = 1000  # no program runs under a uid of the system
_WORKSPACES_FROM: Final = 1 << 33  # the bytes before this offset stand for uids
_WORKSPACES: Final = 1 << 62
_DECIDES_WITHIN_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 0.01
_TRIES: Final = 4
_HELD: Final = frozenset({errno.EAGAIN, errno.EACCES})


@dataclass(slots=True)
class UidLease:
    """The uid of a run, locked until `close`. `uid` is None for the service's own uid, which is not locked."""

    uid: int | None
    _locks: int = -1

    def close(self) -> None:
        """Releases the locks. Call it only when no process of the run exists any more. Idempotent."""
        if self._locks >= 0:
            os.close(self._locks)
            self._locks = -1


class UidLocks:
    """The locks in `file`, which is in the root of the workspaces. None: no other replica shares the workspaces."""

    def __init__(self, file: Path | None) -> None:
        self._file = file

    def acquire(self, workspace: Path | None, uid: int) -> UidLease | None:
        """Leases `uid`, or the uid of the programs that already run in the workspace. Blocks.

        The workspace's directory belongs to the leased uid afterwards. Returns None when `uid` runs in another
        workspace. Raises OSError, also when the filesystem has no locks, and with EBUSY when the locks of other runs
        prevent a decision for 5 seconds.
        """
        if self._file is None:
            return UidLease(uid)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        locks = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            leased = _lock_uid(locks, uid) if workspace is None else self._lock_workspace(locks, workspace, uid)
        except BaseException:
            os.close(locks)
            raise
        if leased is None:
            os.close(locks)
            return None
        return UidLease(leased, locks)

    def _lock_workspace(self, locks: int, workspace: Path, uid: int) -> int | None:
        """Returns the uid that may run in the workspace, or None when `uid` runs in another workspace."""
        offset = self._offset_of(workspace)
        ends_at = time.monotonic() + _DECIDES_WITHIN_SECONDS
        while True:
            owner = workspace.lstat().st_uid
            # The lock on the owner's uid comes first. With it, no run in another workspace gets that uid, so a run that
            # denies us the exclusive lock on the workspace has that uid.
            if _try_lock(locks, fcntl.F_RDLCK, owner):
                if _try_lock(locks, fcntl.F_WRLCK, offset):
                    return _assign(locks, offset, workspace, owner, uid)
                if _try_lock(locks, fcntl.F_RDLCK, offset) and workspace.lstat().st_uid == owner >= _FIRST_UID:
                    return owner
                _try_lock(locks, fcntl.F_UNLCK, offset)
                _try_lock(locks, fcntl.F_UNLCK, owner)
            if time.monotonic() > ends_at:
                raise OSError(errno.EBUSY, "another replica is still deciding on the workspace's uid; try again")
            time.sleep(_RETRY_SECONDS)

    def _offset_of(self, workspace: Path) -> int:
        """Returns the workspace's byte, from its path below the root, which is the same in all replicas."""
        assert self._file is not None
        name = os.path.relpath(workspace.absolute(), self._file.absolute().parent)
        digest = hashlib.blake2b(os.fsencode(name), digest_size=8).digest()
        return _WORKSPACES_FROM + int.from_bytes(digest, "big") % _WORKSPACES


def _assign(locks: int, offset: int, workspace: Path, owner: int, uid: int) -> int | None:
    """Gives the workspace to `uid`, if `uid` is free. The caller's exclusive lock proves that no program runs there."""
    if owner != uid:
        _try_lock(locks, fcntl.F_UNLCK, owner)
    leased = _lock_uid(locks, uid)
    if leased is not None:
        _change_owner(workspace, uid)
        _try_lock(locks, fcntl.F_RDLCK, offset)
    return leased


def _lock_uid(locks: int, uid: int) -> int | None:
    """Takes the shared lock on a free uid. Returns None when another run has the uid.

    The lock is shared, so runs that join the same workspace later get the same uid.
    """
    for _ in range(_TRIES):
        if _try_lock(locks, fcntl.F_WRLCK, uid):
            _try_lock(locks, fcntl.F_RDLCK, uid)
            return uid
        # The lock may be the short one of a replica that checks whether its run can join the uid's last workspace.
        time.sleep(_RETRY_SECONDS / 2)
    return None


def _try_lock(locks: int, kind: int, offset: int) -> bool:
    """Sets or clears the lock on one byte without waiting. Changing an own exclusive lock to shared always succeeds."""
    try:
        fcntl.fcntl(locks, fcntl.F_OFD_SETLK, struct.pack("@hhqqi0q", kind, os.SEEK_SET, offset, 1, 0))
    except OSError as error:
        if error.errno in _HELD:
            return False
        raise
    return True


def _change_owner(workspace: Path, uid: int) -> None:
    directory = os.open(workspace, DIRECTORY)
    try:
        if os.fstat(directory).st_uid != uid:
            os.fchown(directory, uid, uid)
    finally:
        os.close(directory)
