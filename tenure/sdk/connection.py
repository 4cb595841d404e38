"""The connection of a client: where the gateway is, who the caller is, and the gRPC channel, opened at the first call.

Arguments go before the environment, which has the same names as for the `tenure` command:

    TENURE_ADDRESS                host:port of the gateway; without a port 8470
    TENURE_DATA                   without an address: the data directory of a development stack on this machine
    TENURE_API_KEY                the API key, or
    TENURE_API_KEY_FILE           a file with it, read again at each call
    TENURE_TENANT                 the tenant
    TENURE_TLS_CA_FILE            the authorities of the gateway's certificate, as PEM: switches TLS on
    TENURE_TLS_CERTIFICATE_FILE   the client's own certificate, and
    TENURE_TLS_KEY_FILE           its key
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from tenure.client import Client as GatewayClient
from tenure.domain.errors import NotFound, TenureError, Unavailable
from tenure.runtime.rpc.channels import refuse_after_fork
from tenure.runtime.rpc.client import gateway_addresses
from tenure.runtime.rpc.status import PeerFailed
from tenure.runtime.running_stack import DEFAULT_DATA_DIR, FoundGateway, find_gateway
from tenure.runtime.security.tls import ClientTls, client_tls_of
from tenure.sdk.errors import STACK_OF_ANOTHER_FOLDER, api_errors, invalid_argument
from tenure.sdk.submit_options import argument_of
from tenure.v1.admin_service_pb2 import GetCallerRequest

_FOUND_SECONDS: Final = 2.0


class GatewayConnection:
    """One gRPC channel to the gateway, for one event loop. Raises InvalidRequest for arguments that cannot be meant."""

    def __init__(
        self,
        address: str | None,
        api_key: str | Callable[[], str] | None,
        tenant: str | None,
        tls: ClientTls | bool | None,
    ) -> None:
        environment = os.environ
        named = address or environment.get("TENURE_ADDRESS")
        data_dir = Path(environment.get("TENURE_DATA") or DEFAULT_DATA_DIR)
        gateway = FoundGateway(_checked_address(named)) if named else find_gateway(data_dir)
        self.address, self.is_guessed = gateway.address, gateway.is_guessed
        self._is_checked = not gateway.is_guessed
        self._tenant = tenant or environment.get("TENURE_TENANT") or None
        key = api_key or _key_of(environment)
        self._api_key = _readable_later(key) if callable(key) else key
        self._tls = gateway.tls if tls is None and gateway.tls is not None else _tls_of(tls, environment)
        self._client: GatewayClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False
        self._made()

    def client(self) -> GatewayClient:
        """Returns the connected client of the gateway's messages. Raises RuntimeError outside of its event loop.

        Raises UsedBeforeFork in a child of a process that had already called Tenure.
        """
        refuse_after_fork()
        loop = asyncio.get_running_loop()
        if self._is_closed:
            raise RuntimeError("the client is closed: make another one")
        if self._client is None:
            self._client, self._loop = self._made().connect(), loop
        if self._loop is not loop:
            raise RuntimeError(
                "this Client belongs to another event loop: make one Client in each loop, or use SyncClient, which has "
                "a loop of its own and can be used from every thread"
            )
        return self._client

    async def check_found(self) -> None:
        """Raises NotFound if the gateway was found at the usual address only, and is that of another folder's stack.

        A gateway that does not answer within 2 s passes: the first call meets the same.
        """
        try:
            await self.checked(_FOUND_SECONDS)
        except NotFound:
            raise
        except (TenureError, PeerFailed):
            return

    async def checked(self, timeout_seconds: float | None = None) -> GatewayClient:
        """Returns `client()`. At the usual address it asks before the first call whose gateway answers there.

        `timeout_seconds`: of the question, asked once; None: it is retried as the call would be. Raises NotFound
        (STACK_OF_ANOTHER_FOLDER), and the errors of a call.
        """
        client = self.client()
        if self._is_checked:
            return client
        caller = await client.admin.GetCaller(GetCallerRequest(), timeout=timeout_seconds)
        if caller.stack_folder:
            raise NotFound(
                f"no `tenure dev` runs in this folder or above; the gateway at {self.address} is that of the stack in "
                f"{caller.stack_folder}: start one here, or give the address, or TENURE_ADDRESS={self.address}",
                reason=STACK_OF_ANOTHER_FOLDER,
            )
        self._is_checked = True
        return client

    async def close(self) -> None:
        """Closes the channel. A second close has no effect."""
        client, self._client, self._is_closed = self._client, None, True
        if client is not None:
            await client.close()

    @asynccontextmanager
    async def use(self) -> AsyncGenerator[GatewayClient]:
        """Yields `checked()`. Errors of the API get their hints, and the names of arguments."""
        with api_errors(self.address, argument_of):
            yield await self.checked()

    def _made(self) -> GatewayClient:
        try:
            return GatewayClient(self.address, tenant=self._tenant, api_key=self._api_key, tls=self._tls)
        except ValueError as error:
            raise invalid_argument("tls", str(error), "give tls=True, or tls=ClientTls(ca_file=…)") from None


def _checked_address(text: str) -> str:
    try:
        return gateway_addresses(text)
    except ValueError as error:
        raise invalid_argument("address", str(error), "write for example 127.0.0.1:8470") from None


def _key_of(environment: Mapping[str, str]) -> str | Callable[[], str]:
    """Returns the key of the environment: a file is read at each call, so that a new key takes effect."""
    if environment.get("TENURE_API_KEY"):
        return environment["TENURE_API_KEY"]
    file = environment.get("TENURE_API_KEY_FILE")
    return (lambda: Path(file).read_text(encoding="ascii").strip()) if file else ""


def _readable_later(api_key: Callable[[], str]) -> Callable[[], str]:
    """Returns the same function, whose errors say that the key may be there in a moment: its file is being replaced."""

    def read() -> str:
        try:
            return api_key()
        except TenureError:
            raise
        except Exception as error:  # whatever a function of the caller raises
            message = f"the API key cannot be read: {error or type(error).__name__}"
            raise Unavailable(message, reason="API_KEY_UNREADABLE") from error

    return read


def _tls_of(tls: ClientTls | bool | None, environment: Mapping[str, str]) -> ClientTls | None:
    if isinstance(tls, ClientTls):
        return tls
    given = client_tls_of(environment)
    return None if tls is False or not (tls or given != ClientTls()) else given
