"""Decides which live addresses of workers are recorded, and tells gateways the one of a claim's holder."""

from __future__ import annotations

import logging
from typing import Final

from services.coordinator.lease_store import LeaseStore
from tenure.domain.errors import NotFound
from tenure.domain.fencing import describe_epoch
from tenure.domain.outbound import IPAddress, LiveAddress, LiveNetworks, is_from_this_machine, refusal_of
from tenure.runtime.http.name_lookups import NameLookups, Unresolved
from tenure.runtime.request_context import current_tenant
from tenure.v1 import coordinator_service_pb2 as pb

_log: Final = logging.getLogger(__name__)
RESOLVE_SECONDS: Final = 1.0
"""The time for the name of a worker's address: a worker gives Hello two seconds."""


class LiveAddresses:
    """Applies the rules to the address in Hello. A worker without an address works like others, without live text."""

    def __init__(self, networks: LiveNetworks, names: NameLookups) -> None:
        self._networks, self._names = networks, names

    async def admit(self, worker_id: str, advertised: str, connected_from: IPAddress | None) -> str:
        """Returns the address to record, or "". Logs why an address is not recorded.

        With a limit of networks it is an IP address: a name could resolve to another one later.
        """
        if not advertised:
            return ""
        address, allows_loopback = LiveAddress.parse(advertised), is_from_this_machine(connected_from)
        if not self._networks and address.ip is None:
            return str(address)  # the gateway resolves the name, perhaps with another resolver, and applies the rule
        ips = [address.ip] if address.ip is not None else await self._resolved(address.host)
        refusal = f"{address.host} has no IP address"
        for ip in ips:
            reason = refusal_of(ip, allows_loopback=allows_loopback)
            if reason is None and self._networks.allow(ip, connected_from):
                return str(address.at(ip))
            refusal = reason or f"{ip} is outside of TENURE_COORDINATOR_LIVE_NETWORKS"
        fields = {"worker": worker_id, "advertised": advertised, "from": str(connected_from), "why": refusal}
        _log.warning("a worker has no live text: gateways must not connect to its address", extra=fields)
        return ""

    async def _resolved(self, host: str) -> list[IPAddress]:
        try:
            return await self._names.ip_addresses(host, RESOLVE_SECONDS)
        except Unresolved:
            return []


async def live_source(store: LeaseStore, task_id: str, epoch: int) -> pb.GetLiveSourceResponse:
    """Returns where the holder of the claim serves its live text. Raises NotFound and Unavailable."""
    claim = (await store.claims.find_many([task_id])).get(task_id)
    if claim is None or (claim.record.tenant, claim.epoch) != (current_tenant(), epoch):
        message = f"task {task_id} is not held under epoch {describe_epoch(epoch)}"
        raise NotFound(message, reason="CLAIM_NOT_FOUND")
    session = await store.sessions.find(claim.record.session_id)
    if session is None:
        return pb.GetLiveSourceResponse()
    record = session.record
    return pb.GetLiveSourceResponse(
        address=record.live_address,
        proof_digest=bytes.fromhex(record.proof_digest),
        allows_loopback=record.is_local,
    )
