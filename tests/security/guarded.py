"""A stack with certificates and four gateways: two for processes, and two for clients with keys or tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from devstack import Stack, StackOptions
from tenure.client import Client
from tenure.domain.access import Permission
from tenure.runtime.security.tls import ClientTls
from tenure.v1 import api_key_service_pb2 as pb
from tenure.wire.access import PERMISSIONS
from tests.security.identity_provider import Provider, serve_provider, variables
from tests.support.fix_stack import OnSharedStores
from tests.support.lives import LONG_LIFE
from tests.support.noisy_tenants import operator_key

CLIENT_GATEWAYS: Final = ("gateway-2", "gateway-3")
PROCESS_GATEWAYS: Final = ("gateway", "gateway-4")
_UNLIMITED: Final = {"TENURE_GATEWAY_LIMIT_CALLS_PER_SECOND": "100000"}


@dataclass(frozen=True)
class Guarded:
    """The stack, the identity provider, and an API key of an operator."""

    stack: Stack
    provider: Provider
    operator_key: str

    @property
    def ca_file(self) -> Path:
        return self.stack.layout.certificates / "ca.pem"

    @property
    def address(self) -> str:
        """The address of a gateway for clients."""
        return self.stack.services[CLIENT_GATEWAYS[0]].address

    def client(self, key: Any, tenant: str | None = None, *, gateway: str = CLIENT_GATEWAYS[0]) -> Client:
        """A client with a key or a token, at one of the gateways for clients."""
        return Client(self.stack.services[gateway].address, api_key=key, tenant=tenant, tls=ClientTls(self.ca_file))

    async def key(self, *permissions: Permission, tenant: str = "acme", **fields: Any) -> pb.CreateApiKeyResponse:
        """A new key of this tenant."""
        request = pb.CreateApiKeyRequest(
            name="of a test", permissions=[PERMISSIONS.to_wire(one) for one in permissions], **fields
        )
        async with self.client(self.operator_key, tenant) as operator:
            return await operator.api_keys.CreateApiKey(request)


def bearer(key: str) -> tuple[tuple[str, str], ...]:
    """The metadata of a call with this key or token."""
    return (("authorization", f"Bearer {key}"),)


@asynccontextmanager
async def guarded_stack(folder: Path, on_shared_stores: OnSharedStores) -> AsyncIterator[Guarded]:
    """Starts the stack and the identity provider for the time of the block."""
    with serve_provider() as provider:
        clients = {"TENURE_GATEWAY_AUTHENTICATION": "api-keys,jwt", **variables(provider.url), **_UNLIMITED}
        options = StackOptions(
            data_dir=folder,
            workers=1,
            tls=True,
            http=True,
            model_runner=True,
            replicas={"gateway": len(PROCESS_GATEWAYS) + len(CLIENT_GATEWAYS)},
            environment={"*": LONG_LIFE, **dict.fromkeys(CLIENT_GATEWAYS, clients)},
        )
        async with Stack(await on_shared_stores(options)) as stack:
            yield Guarded(stack, provider, await operator_key(stack))
