"""Reports what the ledger keeps of the lease of a lost claim: the newest renewals, and when the loss was noticed."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from time import time

from google.protobuf import timestamp_pb2

from services.coordinator.sessions.session import AttachedSession
from tenure.v1 import ledger_pb2
from tenure.wire.common import timestamp


def lease_end(session: AttachedSession, claim_id: str) -> ledger_pb2.LeaseEnd | None:
    """Returns the end of a claim's lease as this replica knows it; None: it does not know the claim."""
    claim = session.claims.get(claim_id)
    if claim is None:
        return None
    now = time()
    end = ledger_pb2.LeaseEnd(loss_time=_timestamp(now))
    if claim.renewals is not None:
        end.renewal_count = claim.renewals.count
        end.renewal_times.extend(map(_timestamp, claim.renewals.newest))
    if session.is_unanswered:
        silent_seconds = session.unheard_of_seconds(asyncio.get_running_loop().time())
        end.unanswered_time.CopyFrom(_timestamp(now - silent_seconds))
    return end


def _timestamp(unix_seconds: float) -> timestamp_pb2.Timestamp:
    return timestamp(datetime.fromtimestamp(unix_seconds, UTC))
