"""Starts the gateway, which serves the public API. It stores nothing: any number of replicas may run or be killed."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from services.gateway.admin import AdminServicer, Identity
from services.gateway.api_keys import ApiKeyForwarder, ApiKeys
from services.gateway.audit import AuditLog
from services.gateway.client_authentication import ClientAuthentication
from services.gateway.connection_limits import ConnectionLimits
from services.gateway.forwarder import Forwarder
from services.gateway.forwarding import (
    AgentForwarder,
    LeaseForwarder,
    ScheduleForwarder,
    TenantForwarder,
    WebhookForwarder,
)
from services.gateway.grpc_connections import limited_connections
from services.gateway.http.settings import HttpSettings
from services.gateway.json_web_tokens import JsonWebTokens, JwtSettings
from services.gateway.live_text import LiveTextRelay
from services.gateway.page_tokens import SealedPages, validate_page
from services.gateway.peers import Peers
from services.gateway.tasks import TaskServicer
from tenure.domain.access import Role
from tenure.domain.call_limits import ClientCallLimits
from tenure.runtime.process import Process
from tenure.runtime.rpc.call_limiter import CallLimiter
from tenure.runtime.rpc.server import RpcServer
from tenure.runtime.schema_checks import SchemaChecks
from tenure.runtime.security.process_security import Security, peer_problems
from tenure.runtime.service import CommonSettings, metrics_setting, run_service, serve
from tenure.runtime.settings import Address, group, setting
from tenure.validators import longest_request
from tenure.validators.task import schemas_in
from tenure.wire.access import access_rules

if TYPE_CHECKING:
    from services.gateway.http.edge import HttpEdge

    LoadEdges = Callable[[], Sequence[HttpEdge]]

CERTIFICATES: Final = "certificates"
API_KEYS: Final = "api-keys"
JWT: Final = "jwt"


@dataclass(frozen=True, kw_only=True)
class LimitSettings:
    """The limits of a tenant's clients, under TENURE_GATEWAY_LIMIT_. Each gateway counts separately."""

    calls: int = setting("calls of a tenant that run at once; others wait up to 5 s", default=16, minimum=1)
    streams: int = setting("open streams of a tenant", default=5000, minimum=1)
    connections: int = setting("connections of a tenant with a running call", default=200, minimum=1)
    calls_per_second: float = setting("calls of a tenant, streams included", default=400.0, minimum=0.1)
    bytes_per_second: float = setting("request bytes of a tenant", default=8.0 * 1024 * 1024, minimum=1.0)
    client_percent: int = setting("the part of these that one client may use", default=50, minimum=1, maximum=100)

    def limiter(self) -> CallLimiter:
        """Returns the limiter of one server."""
        limits = ClientCallLimits(
            self.calls, self.streams, self.connections, self.calls_per_second, self.bytes_per_second
        )
        return CallLimiter(limits, self.client_percent)


@dataclass(frozen=True, kw_only=True)
class GatewaySettings:
    """Settings with the prefix TENURE_GATEWAY_."""

    listen: Address = setting("the address to serve on", default=Address("127.0.0.1:8470"))
    metrics_listen: Address | None = metrics_setting()
    checkpoint_address: tuple[Address, ...] = setting(
        "the checkpoint services' addresses", default=(Address("127.0.0.1:8472"),)
    )
    coordinator_address: tuple[Address, ...] = setting(
        "the coordinators' addresses", default=(Address("127.0.0.1:8471"),)
    )
    tools_address: tuple[Address, ...] = setting("the tool services' addresses", default=(Address("127.0.0.1:8473"),))
    operator_tenants: tuple[str, ...] = setting("tenants whose callers may act on all others", default=("default",))
    address_connections: int = setting(
        "open gRPC connections of one address; a trusted proxy has no limit of its own", default=1000, minimum=1
    )
    heartbeat_seconds: float = setting("the silence of a stream before a heartbeat", default=15.0, minimum=0.1)
    authentication: str = setting(
        "of clients; certificates: of operators, without TLS none; api-keys: ApiKeyService; jwt: an identity provider",
        default=CERTIFICATES,
        choices=(CERTIFICATES, API_KEYS, JWT, f"{API_KEYS},{JWT}"),
    )
    stack_folder: str = setting("the data folder of the development stack that it is a part of", default="")
    jwt: JwtSettings = group(JwtSettings, "TENURE_GATEWAY_JWT_")
    limit: LimitSettings = group(LimitSettings, "TENURE_GATEWAY_LIMIT_")
    http: HttpSettings = group(HttpSettings, "TENURE_GATEWAY_HTTP_")
    common: CommonSettings = group(CommonSettings)

    def problems(self) -> Iterator[str]:
        """Yields the relations that do not hold."""
        if JWT in self.authentication and not self.jwt.issuer:
            yield "TENURE_GATEWAY_AUTHENTICATION=jwt needs TENURE_GATEWAY_JWT_ISSUER, _AUDIENCE and _KEYS"
        yield from peer_problems(
            self.common,
            {
                "TENURE_GATEWAY_CHECKPOINT_ADDRESS": self.checkpoint_address,
                "TENURE_GATEWAY_COORDINATOR_ADDRESS": self.coordinator_address,
                "TENURE_GATEWAY_TOOLS_ADDRESS": self.tools_address,
            },
        )


async def compose(process: Process, settings: GatewaySettings, http_edges: LoadEdges) -> None:
    """Opens the channels to the services, then the server that uses them. `http_edges`: called for an HTTP server."""
    security = Security.load(settings.common, Role.GATEWAY, settings.listen, access_rules, serves_clients=True)
    peers = await process.open(
        Peers(settings.checkpoint_address, settings.coordinator_address, settings.tools_address, security)
    )
    if settings.authentication != CERTIFICATES:
        security = security.for_clients((await client_authentication(process, settings, peers)).authenticate)
    if settings.http.listen:  # a caller by HTTP has no certificate
        security = security.for_http_clients(ClientAuthentication(ApiKeys(peers), None).authenticate)
    live = await process.open(LiveTextRelay(peers, security))
    examine = SchemaChecks(schemas_in).examine
    server = RpcServer(
        settings.listen,
        security=security,
        validate=validate_page,
        longest_request=longest_request,
        examine=examine,
        stopping=process.stopping,
        audit=await process.open(AuditLog(peers).opened()),
        limiter=settings.limit.limiter(),
    )
    for service, servicer in servicers(
        peers,
        live,
        server.stopping,
        settings.heartbeat_seconds,
        settings.operator_tenants,
        Identity(settings.common.tls.installation, settings.stack_folder),
    ).items():
        name = f"tenure.v1.{service}"
        server.add(name, SealedPages(servicer, name))
    limits = ConnectionLimits("gRPC", server.max_connections, settings.address_connections, settings.http.proxies)
    doors = [_http_door(settings, security, server, process, peers, http_edges())] if settings.http.listen else []
    await serve(process, server, limited_connections(server, limits), *doors)


def servicers(
    peers: Peers,
    live: LiveTextRelay,
    stopping: asyncio.Event,
    heartbeat_seconds: float,
    operators: Collection[str],
    identity: Identity,
) -> dict[str, Forwarder]:
    """Returns the servicers of the public services."""
    return {
        "TaskService": TaskServicer(peers, live, stopping, heartbeat_seconds),
        "AdminService": AdminServicer(peers, identity),
        "LeaseService": LeaseForwarder(peers, stopping),
        "ScheduleService": ScheduleForwarder(peers),
        "TenantService": TenantForwarder(peers, operators),
        "WebhookService": WebhookForwarder(peers),
        "ApiKeyService": ApiKeyForwarder(peers),
        "AgentService": AgentForwarder(peers),
        "ApprovalService": Forwarder("ApprovalService", peers),
        "AuditService": Forwarder("AuditService", peers),
    }


def _http_door(
    settings: GatewaySettings,
    security: Security,
    server: RpcServer,
    process: Process,
    peers: Peers,
    edges: Sequence[HttpEdge],
) -> AbstractAsyncContextManager[str]:
    """Returns the HTTP server. Its libraries are imported by gateways that have one."""
    from services.gateway.http.server import http_door

    return http_door(
        settings.http,
        server,
        process.stopping,
        security.files,
        settings.common.tls,
        is_authenticated=security.files is not None or settings.authentication != CERTIFICATES,
        allow_insecure_network=settings.common.allow_insecure_network,
        peers=peers,
        edges=edges,
    )


async def client_authentication(process: Process, settings: GatewaySettings, peers: Peers) -> ClientAuthentication:
    """Returns the authentication of clients. Raises ConfigurationError for keys that cannot be used."""
    accepted = settings.authentication.split(",")
    tokens = await process.open(JsonWebTokens(settings.jwt).opened()) if JWT in accepted else None
    return ClientAuthentication(ApiKeys(peers) if API_KEYS in accepted else None, tokens)


def main(http_edges: LoadEdges = tuple) -> int:
    """Runs the gateway with these edges and returns its exit code."""
    composing = partial(compose, http_edges=http_edges)
    return run_service("gateway", GatewaySettings, os.environ, composing, arguments=sys.argv[1:])
