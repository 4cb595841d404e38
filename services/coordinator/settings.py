"""The settings of a coordinator."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services.coordinator.etcd.endpoints import parse_targets
from services.coordinator.sessions.session import Timing
from tenure.domain.outbound import LiveNetworks
from tenure.runtime.rpc.call_limiter import WorkerLimitSettings
from tenure.runtime.security.process_security import clear_text_problems, peer_problems
from tenure.runtime.service import CommonSettings, metrics_setting
from tenure.runtime.settings import Address, group, setting

_PREFIX: Final = re.compile(r"/([A-Za-z0-9._:-]+/)*")


@dataclass(frozen=True, kw_only=True)
class CoordinatorSettings:
    """Settings with the prefix TENURE_COORDINATOR_."""

    listen: Address = setting("the address to serve on", default=Address("127.0.0.1:8471"))
    metrics_listen: Address | None = metrics_setting()
    id: str = setting("this replica's name, unique among live ones; empty: host, pid and a random part", default="")
    etcd_endpoints: tuple[str, ...] = setting("the members of etcd", default=("127.0.0.1:2379",))
    etcd_key_prefix: str = setting(
        "the beginning of all keys in etcd; each installation on one etcd needs another", default="/tenure/"
    )
    etcd_ca_file: Path | None = setting("the authority of etcd's certificates", default=None)
    etcd_certificate_file: Path | None = setting("the client certificate for etcd", default=None)
    etcd_key_file: Path | None = setting("the key of the client certificate for etcd", default=None)
    checkpoint_address: tuple[Address, ...] = setting(
        "the checkpoint services' addresses", default=(Address("127.0.0.1:8472"),)
    )
    tools_address: tuple[Address, ...] = setting("the tool services' addresses", default=(Address("127.0.0.1:8473"),))
    signing_key_file: Path = setting("the private key that signs tokens")
    verifying_keys_file: Path = setting("the public keys that verify tokens")
    pools_file: Path | None = setting(
        "the pools of workers: identities, and their queues, loops and tenants; a YAML or JSON file", default=None
    )
    ttl_seconds: int = setting("the lifetime of a session without a renewal", default=5, minimum=2, maximum=300)
    renew_interval_seconds: float = setting("the interval of workers' renewals", default=1.5, minimum=0.1)
    reconnect_grace_seconds: float = setting("the time to attach again after a broken stream", default=0.5, minimum=0.0)
    start_timeout_seconds: float = setting(
        "the longest time without a renewal naming a claim", default=5.0, minimum=0.1
    )
    progress_timeout_seconds: float = setting(
        "the longest time of a claim without progress", default=120.0, minimum=0.1
    )
    call_interval_seconds: float = setting(
        "the interval of reports on model calls in flight, from which lost calls are billed", default=0.2, minimum=0.05
    )
    cancel_grace_seconds: float = setting(
        "the time for an owner to carry out a cancel", default=1.0, minimum=0.0, maximum=60.0
    )
    reconcile_interval_seconds: float = setting("the interval of the reconciliation", default=3.0, minimum=0.1)
    max_leases_per_tenant: int = setting(
        "the maximum of named leases per tenant; etcd ends about 1,000 leases a second", default=1000, minimum=1
    )
    live_networks: tuple[str, ...] = setting(
        "the networks of workers' live addresses; session: where the worker connects from; empty: no limit", default=()
    )
    limit: WorkerLimitSettings = group(WorkerLimitSettings, "TENURE_COORDINATOR_LIMIT_")
    common: CommonSettings = group(CommonSettings)

    def problems(self) -> Iterator[str]:
        """Yields the settings that contradict each other."""
        if self.renew_interval_seconds * 2 > self.ttl_seconds:
            yield "TENURE_COORDINATOR_RENEW_INTERVAL_SECONDS must be at most half of the TTL: one renewal may be lost"
        if not _PREFIX.fullmatch(self.etcd_key_prefix):
            yield (
                "TENURE_COORDINATOR_ETCD_KEY_PREFIX must begin and end with / and have letters, digits and -_.: "
                f"between, such as /tenure/ or /staging/, not {self.etcd_key_prefix!r}"
            )
        if self.reconnect_grace_seconds >= self.ttl_seconds:
            yield "TENURE_COORDINATOR_RECONNECT_GRACE_SECONDS must be shorter than the TTL, or it has no effect"
        if self.start_timeout_seconds <= self.renew_interval_seconds * 2:
            yield "TENURE_COORDINATOR_START_TIMEOUT_SECONDS must be longer than two renewal intervals"
        if (self.etcd_certificate_file is None) != (self.etcd_key_file is None):
            yield "TENURE_COORDINATOR_ETCD_CERTIFICATE_FILE and …_ETCD_KEY_FILE must be set together"
        if self.pools_file is not None and self.common.tls.certificate_file is None:
            yield (
                "TENURE_COORDINATOR_POOLS_FILE needs TLS, because only certificates prove which worker calls: set "
                "TENURE_TLS_CERTIFICATE_FILE, TENURE_TLS_KEY_FILE and TENURE_TLS_CA_FILE (`tenure keys certs` makes "
                "them)"
            )
        try:
            LiveNetworks(self.live_networks)
        except ValueError as error:
            yield f"TENURE_COORDINATOR_LIVE_NETWORKS: {error}"
        yield from self._clear_text_problems()

    def _clear_text_problems(self) -> Iterator[str]:
        services = {
            "TENURE_COORDINATOR_CHECKPOINT_ADDRESS": self.checkpoint_address,
            "TENURE_COORDINATOR_TOOLS_ADDRESS": self.tools_address,
        }
        yield from peer_problems(self.common, services)
        try:
            members, has_tls = parse_targets(self.etcd_endpoints)
        except ValueError as error:
            yield f"TENURE_COORDINATOR_ETCD_ENDPOINTS: {error}"
            return
        if has_tls:
            return
        if self.etcd_ca_file is not None or self.etcd_certificate_file is not None:
            if any(endpoint.strip().startswith("http://") for endpoint in self.etcd_endpoints):
                yield (
                    "TENURE_COORDINATOR_ETCD_ENDPOINTS: http:// means no TLS, but TENURE_COORDINATOR_ETCD_CA_FILE or "
                    "…_ETCD_CERTIFICATE_FILE is set: write https://, or leave the scheme out"
                )
        else:
            hosts = (Address(member).host for member in members)
            remedy = "TENURE_COORDINATOR_ETCD_CA_FILE, …_ETCD_CERTIFICATE_FILE and …_ETCD_KEY_FILE"
            yield from clear_text_problems(self.common, "TENURE_COORDINATOR_ETCD_ENDPOINTS", hosts, remedy)

    def timing(self) -> Timing:
        """Returns the durations of sessions."""
        return Timing(
            ttl_seconds=self.ttl_seconds,
            renew_interval_seconds=self.renew_interval_seconds,
            reconnect_grace_seconds=self.reconnect_grace_seconds,
            start_timeout_seconds=self.start_timeout_seconds,
            progress_timeout_seconds=self.progress_timeout_seconds,
            call_interval_seconds=self.call_interval_seconds,
        )
