"""Encrypts all secrets of webhooks with the current key, after the key changed or where there was none."""

from __future__ import annotations

from contextlib import suppress
from typing import Final, NamedTuple
from uuid import UUID

from services.checkpoint.queries import fetch_all, fetch_one, ledger_transaction
from services.checkpoint.webhooks.rows import WEBHOOKS
from services.checkpoint.webhooks.sending import secret_owner
from tenure.domain.errors import Unavailable
from tenure.runtime.security.secret_box import SECRET_NOT_READABLE, SecretBox
from tenure.runtime.store.postgres import Connection, Pool, pool_connection

PAGE: Final = 50


class SealedSecrets(NamedTuple):
    """The columns of `sealed_secrets`, in their order."""

    webhook_id: str
    tenant: str
    secret: bytes
    old_secret: bytes | None

    def sealed(self, secrets: SecretBox) -> SealedSecrets:
        """Returns the row with the current key's seals. Raises Unavailable (SECRET_NOT_READABLE) for its secret; an old
        secret that cannot be read stays as it is, because it expires.
        """
        old_secret = self.old_secret
        with suppress(Unavailable):
            old_secret = old_secret and self._sealed(old_secret, secrets)
        return self._replace(secret=self._sealed(self.secret, secrets), old_secret=old_secret)

    def _sealed(self, stored: bytes, secrets: SecretBox) -> bytes:
        if secrets.is_current(stored):
            return stored
        owner = secret_owner(self.tenant, self.webhook_id)
        return secrets.seal(secrets.open(stored, owner), owner)


class Resealed(NamedTuple):
    """The number of webhooks with new seals, and the ids of those whose secrets cannot be read."""

    sealed: int
    unreadable: list[str]


async def seal_again(pool: Pool, secrets: SecretBox) -> Resealed:
    """Seals all secrets with the current key that have another seal or none."""
    sealed, unreadable, after = 0, list[str](), str(UUID(int=0))
    while True:
        async with pool_connection(pool) as connection:
            page = await fetch_all(connection, WEBHOOKS.sealed_secrets, {"after": after, "limit": PAGE})
        if not page:
            return Resealed(sealed, unreadable)
        for row in (SealedSecrets(*columns) for columns in page):
            after = row.webhook_id
            try:
                sealed += await _replace(pool, row, row.sealed(secrets))
            except Unavailable as error:
                if error.reason != SECRET_NOT_READABLE:
                    raise
                unreadable.append(row.webhook_id)


@ledger_transaction
async def _replace(connection: Connection, former: SealedSecrets, sealed: SealedSecrets) -> bool:
    """Writes the row unless nothing is new, or its secrets have changed meanwhile."""
    if sealed == former:
        return False
    formers = {"former": former.secret, "former_old": former.old_secret}
    return await fetch_one(connection, WEBHOOKS.seal_again, {**sealed._asdict(), **formers}) is not None
