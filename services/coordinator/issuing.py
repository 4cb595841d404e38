"""Signing tokens. Only for claims that the ledger has registered: who calls this has asked it."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from tenure.domain.token import LEASE_PREFIX, TASK_PREFIX, Claims
from tenure.runtime.duties import rest
from tenure.runtime.signing import Signer, Verifier
from tenure.v1 import lease_service_pb2 as pb
from tenure.wire.token import check_token, sign_claims

if TYPE_CHECKING:
    from pathlib import Path

    from services.coordinator.lease_store import HeldClaim
    from services.coordinator.lease_store.named_leases import HeldLease
    from tenure.v1 import token_pb2

_log: Final = logging.getLogger(__name__)
_CHECK_SECONDS: Final = 5.0


class Issuer:
    """Signs with the key in a file, and with another one as soon as the file holds another one."""

    def __init__(self, signing_key_file: Path, verifying_keys_file: Path) -> None:
        self._path = signing_key_file
        self._signer = Signer.load(signing_key_file)
        self._verifier = Verifier(verifying_keys_file)

    @property
    def key_id(self) -> str:
        """The key that signs now."""
        return self._signer.key_id

    def issue(self, claim: HeldClaim) -> token_pb2.FencingToken:
        """The token of a registered claim; signing one again gives the same epoch under the present key."""
        record = claim.record
        claims = Claims(
            resource=f"{TASK_PREFIX}{claim.task_id}",
            tenant=record.tenant,
            epoch=claim.epoch,
            claim_id=record.claim_id,
            holder=record.worker_id,
            tools=record.tools,
        )
        return sign_claims(self._signer, claims, datetime.now(UTC))

    def issue_again(self, task_id: str, tenant: str, epoch: int, claim_id: str, holder: str) -> token_pb2.FencingToken:
        """A token of a grant that the ledger told of as a pruned task's last: good for closing what it guarded."""
        claims = Claims(f"{TASK_PREFIX}{task_id}", tenant, epoch, claim_id, holder)
        return sign_claims(self._signer, claims, datetime.now(UTC))

    def issue_lease(self, held: HeldLease) -> token_pb2.FencingToken:
        """The token of a named resource's registered lease, likewise; it opens no task."""
        claims = Claims(
            resource=f"{LEASE_PREFIX}{held.resource}",
            tenant=held.tenant,
            epoch=held.epoch,
            claim_id=held.record.claim_id,
            holder=held.record.holder,
        )
        return sign_claims(self._signer, claims, datetime.now(UTC))

    def check(self, token: token_pb2.FencingToken) -> Claims:
        """What a token says that is shown to us. Raises Unauthenticated (INVALID_TOKEN)."""
        return check_token(self._verifier, token)

    def signing_keys(self) -> list[pb.SigningKey]:
        """All public keys that verify, the active one marked. It verifies here even before the others' file has it."""
        keys = {**self._verifier.public_keys(), self._signer.key_id: self._signer.public_key_bytes()}
        return [
            pb.SigningKey(key_id=key_id, public_key=public_key, active=key_id == self._signer.key_id)
            for key_id, public_key in sorted(keys.items())
        ]

    async def follow_rotation(self) -> None:
        """Duty: take up a new key. An unusable file changes nothing, or a slip of an operator would stop all grants."""
        while True:
            await rest(_CHECK_SECONDS)
            try:
                signer = await asyncio.to_thread(Signer.load, self._path)
            except ValueError as error:
                _log.error("the signing key cannot be read; the former one stays in use", extra={"error": error})
                continue
            if signer.key_id != self._signer.key_id:
                _log.info("signing with another key", extra={"former": self._signer.key_id, "key_id": signer.key_id})
                self._signer = signer
