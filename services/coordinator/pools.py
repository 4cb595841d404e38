"""Reads the file of pools, and applies it to the sessions of this replica, also when it changes.

The rule is tenure/domain/pools.py. Without a file each worker has all queues, loops and tenants.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, Final

import yaml

from services.coordinator.claims.lost_claims import ClaimReleases
from services.coordinator.sessions.session import AttachedSession, WorkerProfile
from services.coordinator.sessions.session_attach import Sessions
from tenure.domain.errors import PermissionDenied
from tenure.domain.pools import EVERYTHING, MalformedPools, WorkerPool, pool_of, read_pools
from tenure.domain.states import Reason
from tenure.runtime.process import rest
from tenure.runtime.settings import ConfigurationError

_log: Final = logging.getLogger(__name__)
CHECK_SECONDS: Final = 5.0
_MAX_BYTES: Final = 1024 * 1024


class _Loader(yaml.SafeLoader):
    """Refuses a key that is there twice: YAML would take the last one, and silently drop a limit of a pool."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = [key for key in keys if keys.count(key) > 1]
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"the key {twice[0]} is there twice", node.start_mark)
        return super().construct_mapping(node, deep)


def parse_pools(content: bytes) -> tuple[WorkerPool, ...]:
    """Returns the pools in a file of YAML or JSON. Raises MalformedPools with all mistakes."""
    if len(content) > _MAX_BYTES:
        raise MalformedPools([f"it is larger than {_MAX_BYTES} bytes"])
    try:
        return read_pools(yaml.load(content, _Loader))  # noqa: S506  a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError, TypeError) as error:
        raise MalformedPools([f"it is not valid YAML: {' '.join(str(error).split())}"]) from error


class WorkerPools:
    """The pools in the file. `path` None: no pools, and each worker has everything."""

    def __init__(self, path: Path | None) -> None:
        """Raises ConfigurationError for a file that is unreadable or malformed."""
        self._path = path
        self._content = b""
        self._pools: tuple[WorkerPool, ...] = ()
        if path is not None:
            try:
                self._content = path.read_bytes()
                self._pools = parse_pools(self._content)
            except OSError as error:
                raise ConfigurationError([f"{path}: the file of pools cannot be read: {error.strerror}"]) from error
            except MalformedPools as error:
                raise ConfigurationError([f"{path}: {problem}" for problem in error.problems]) from error

    def pool_of(self, identity: str) -> WorkerPool:
        """Returns the pool of the worker. Raises PermissionDenied (NOT_IN_POOL)."""
        return EVERYTHING if self._path is None else pool_of(self._pools, identity)

    def admit(self, identity: str, profile: WorkerProfile) -> WorkerPool:
        """Returns the worker's pool. Raises PermissionDenied (NOT_IN_POOL, OUTSIDE_POOL)."""
        pool = self.pool_of(identity)
        pool.check(identity, profile.queues, profile.loops)
        return pool

    async def follow(self, on_changed_callback: Callable[[], None]) -> None:
        """Takes a changed file, and calls back. Ends at once without a file. A duty.

        A broken file is logged and changes nothing: an operator's mistake must not stop the workers.
        """
        while self._path is not None:
            await rest(CHECK_SECONDS)
            try:
                content = await asyncio.to_thread(self._path.read_bytes)
                if content == self._content:
                    continue
                self._content = content
                self._pools = await asyncio.to_thread(parse_pools, content)
            except (OSError, MalformedPools) as error:
                _log.error("the file of pools cannot be used; the former pools stay in use", extra={"error": error})
                continue
            _log.info("the pools of workers changed", extra={"pools": len(self._pools)})
            on_changed_callback()


class PoolEnforcement:
    """Applies the pools to attached sessions."""

    def __init__(
        self, pools: WorkerPools, sessions: Sessions, releases: ClaimReleases, on_changed_callback: Callable[[], None]
    ) -> None:
        self._pools = pools
        self._sessions = sessions
        self._releases = releases
        self._on_changed = on_changed_callback

    async def run(self) -> None:
        """Follows the file. A duty."""
        await self._pools.follow(self._apply_to_all)

    def apply(self, session: AttachedSession) -> None:
        """Revokes and requeues the claims that the session's pool does not have, and ends a session without a pool."""
        try:
            pool = self._pools.admit(session.identity, session.profile)
        except PermissionDenied as refusal:
            _log.warning("a session is ended: its pool does not admit it", extra=_fields(session, refusal.message))
            self._releases.revoke(session, list(session.claims.values()), Reason.POOL_CHANGED, refusal.message)
            session.end(refusal)
            return
        session.set_tenants(pool.tenants)
        outside = [claim for claim in session.claims.values() if not session.takes_tenant(claim.held.record.tenant)]
        if outside:
            message = f"the pool {pool.name} of worker {session.worker_id} no longer has the task's tenant"
            _log.warning("claims are revoked: their tenants are not of the pool", extra=_fields(session, message))
            self._releases.revoke(session, outside, Reason.POOL_CHANGED, message)

    def _apply_to_all(self) -> None:
        for session in self._sessions:
            self.apply(session)
        self._on_changed()


def _fields(session: AttachedSession, why: str) -> dict[str, str]:
    return {"worker": session.worker_id, "session": session.session_id, "why": why}
