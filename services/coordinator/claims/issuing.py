"""Signs fencing tokens and receipts. Callers pass only claims that the ledger has registered."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from services.coordinator.lease_store import HeldClaim
from services.coordinator.lease_store.named_leases import NamedLease
from tenure.domain.access import DEFAULT_INSTALLATION
from tenure.domain.effect_keys import TaskScopes
from tenure.domain.fencing import LEASE_PREFIX, TASK_PREFIX, Audience, Claims
from tenure.domain.receipts import VERSION as RECEIPT_VERSION
from tenure.domain.receipts import signed_bytes, signed_line
from tenure.runtime.process import rest
from tenure.runtime.security.signing import Signer, Verifier
from tenure.v1 import lease_service_pb2 as pb
from tenure.v1 import token_pb2
from tenure.wire.call_plans import plans_of_text
from tenure.wire.token import TokenChecker, sign_claims, sign_task_claims

_log: Final = logging.getLogger(__name__)
_CHECK_SECONDS: Final = 5.0


class Issuer:
    """Signs with the key in a file, and changes to another key when the file does."""

    def __init__(
        self, signing_key_file: Path, verifying_keys_file: Path, installation: str = DEFAULT_INSTALLATION
    ) -> None:
        self._path = signing_key_file
        self._signer = Signer.load(signing_key_file)
        self._verifier, self._installation = Verifier(verifying_keys_file), installation
        self._leases = TokenChecker(self._verifier, Audience.LEASE, installation)

    @property
    def key_id(self) -> str:
        """The id of the key that signs now."""
        return self._signer.key_id

    def issue(self, claim: HeldClaim) -> token_pb2.FencingToken:
        """Returns the token of a registered claim. A repeat signs the same epoch with the present key."""
        record = claim.record
        claims = Claims(
            resource=f"{TASK_PREFIX}{claim.task_id}",
            tenant=record.tenant,
            epoch=claim.epoch,
            claim_id=record.claim_id,
            holder=record.worker_id,
            tools=record.tools,
            installation=self._installation,
            agent=record.agent,
            queue=record.queue,
            scopes=None if record.scopes is None else TaskScopes(*record.scopes),
            labels=tuple(zip(record.labels[::2], record.labels[1::2], strict=True)),
            approvals=record.approvals,
            plans=plans_of_text(record.plans),
        )
        return sign_task_claims(self._signer, claims, datetime.now(UTC))

    def issue_again(self, task_id: str, tenant: str, epoch: int, claim_id: str, holder: str) -> token_pb2.FencingToken:
        """Returns a token of a pruned task's last grant, as the ledger states it: enough to delete the task's data."""
        claims = Claims(f"{TASK_PREFIX}{task_id}", tenant, epoch, claim_id, holder, installation=self._installation)
        return sign_task_claims(self._signer, claims, datetime.now(UTC))

    def issue_lease(self, held: NamedLease) -> token_pb2.FencingToken:
        """Returns the token of a registered named lease. It opens no task."""
        claims = Claims(
            resource=f"{LEASE_PREFIX}{held.resource}",
            tenant=held.tenant,
            epoch=held.epoch,
            claim_id=held.record.claim_id,
            holder=held.record.holder,
            audiences=(Audience.LEASE,),
            installation=self._installation,
        )
        return sign_claims(self._signer, claims, datetime.now(UTC))

    def sign_receipt(self, kind: str, signed: Mapping[str, Any]) -> str:
        """Returns the line of a receipt, or of the head of receipts (`kind` "receipt" or "head")."""
        whole = {"v": RECEIPT_VERSION, "type": kind, "installation": self._installation, **signed}
        _, key_id, signature = self._signer.sign(signed_bytes(whole))
        return signed_line(kind, whole, key_id, signature)

    def check(self, token: token_pb2.FencingToken) -> Claims:
        """Returns the claims of a presented token of a named lease. Raises as `TokenChecker.check`."""
        return self._leases.check(token)

    def signing_keys(self) -> list[pb.SigningKey]:
        """Returns all public keys that verify, with the active one marked.

        The active key is included even before the file of verifying keys has it.
        """
        keys = {**self._verifier.public_keys(), self._signer.key_id: self._signer.public_key_bytes()}
        return [
            pb.SigningKey(key_id=key_id, public_key=public_key, active=key_id == self._signer.key_id)
            for key_id, public_key in sorted(keys.items())
        ]

    async def follow_rotation(self) -> None:
        """Takes up a new signing key.

        A duty. An unusable file changes nothing: an operator's mistake must not stop all grants.
        """
        while True:
            await rest(_CHECK_SECONDS)
            try:
                signer = await asyncio.to_thread(Signer.load, self._path)
            except ValueError as error:
                _log.error("the signing key cannot be read; the former key stays in use", extra={"error": error})
                continue
            if signer.key_id != self._signer.key_id:
                _log.info("signing with another key", extra={"former": self._signer.key_id, "key_id": signer.key_id})
                self._signer = signer
