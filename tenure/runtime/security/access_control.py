"""Admits the calls of a server: authenticates the caller, and applies the access rule of the method.

A server without authentication admits every call as `ANYONE`, for development on one machine. Each server refuses to
add a service with a method that has no rule.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Final

from tenure.domain.access import EVERYTHING, Access, Permission, Principal, check_access, process_of
from tenure.domain.errors import PermissionDenied, TenureError, Unauthenticated
from tenure.runtime.request_context import DEFAULT_TENANT, named_tenant
from tenure.runtime.rpc.in_process import InProcessContext
from tenure.runtime.rpc.status import PeerFailed
from tenure.runtime.security.certificate_files import CertificateFiles, TrustedCallers

Metadata = Iterable[tuple[str, str | bytes]] | None
Authenticate = Callable[[Any, Metadata], Awaitable[Principal]]
"""Returns the caller from the call's context and metadata. Raises Unauthenticated."""

READMIT_SECONDS: Final = 2.0
"""Between two admissions of an open stream. With the age of a key's copy, a revocation counts within 5 s."""
_log: Final = logging.getLogger(__name__)
ANYONE: Final = Principal("anyone", permissions=EVERYTHING)
ANONYMOUS: Final = Principal("")
"""The caller of a call that is not authenticated yet."""
_PRINCIPAL: ContextVar[Principal] = ContextVar("principal", default=ANYONE)
REFLECTION_RULE: Final = Access(permission=Permission.OPERATE)
"""Reflection describes all methods, so on a server with authentication it is for operators."""


def current_principal() -> Principal:
    """Returns the caller of the current request; `ANYONE` outside of a request."""
    return _PRINCIPAL.get()


class AccessControl:
    """Admits calls by the rules of their methods.

    `rules_of`: returns the rules of a service; see tenure/wire/access.py. `authenticate` None: no authentication.
    `serves_clients`: clients may call by their permissions (a gateway); otherwise only processes may, by their roles.
    """

    def __init__(
        self,
        rules_of: Callable[[str], Mapping[str, Access]],
        authenticate: Authenticate | None = None,
        *,
        serves_clients: bool = False,
    ) -> None:
        self._rules_of, self._authenticate, self._serves_clients = rules_of, authenticate, serves_clients
        self._rules: dict[str, Access] = {}

    def add(self, service: str) -> None:
        """Reads the rules of a service. Raises ValueError for a method without a rule."""
        for method, rule in self._rules_of(service).items():
            chosen = rule if self._serves_clients else replace(rule, permission=None)
            self._rules[f"/{service}/{method}"] = chosen

    async def admit(self, method: str, context: Any, metadata: Metadata) -> str:
        """Returns the tenant of the call. Raises Unauthenticated, PermissionDenied and InvalidRequest.

        `method`: "/service/method", as gRPC has it.
        """
        named = named_tenant(metadata)
        if self._authenticate is None:
            return DEFAULT_TENANT if named is None else named
        principal = await self._identify(self._authenticate, context, metadata)
        return check_access(self._rules[method], principal, named, DEFAULT_TENANT)

    def is_audited(self, method: str) -> bool:
        """Returns whether each call of the method is recorded."""
        return method in self._rules and self._rules[method].is_audited

    def audited_fields(self, method: str) -> tuple[str, ...]:
        """Returns the fields with which a call of the method is recorded."""
        return self._rules[method].audited_fields if method in self._rules else ()

    def is_long_poll(self, method: str) -> bool:
        """Returns whether the method is unary and may wait for minutes."""
        return method in self._rules and self._rules[method].is_long_poll

    def readmission(self, method: str, context: Any, metadata: Metadata) -> AbstractAsyncContextManager[None]:
        """Returns a context for the handler of a stream or a long poll.

        It raises Unauthenticated or PermissionDenied when the caller may no longer call the method.
        """
        if self._authenticate is None:
            return nullcontext()
        return _readmitted(lambda: self.admit(method, context, metadata))

    async def admit_reflection(self, context: Any, metadata: Metadata) -> None:
        """Raises Unauthenticated and PermissionDenied unless the caller is an operator."""
        if self._authenticate is not None:
            principal = await self._identify(self._authenticate, context, metadata)
            check_access(REFLECTION_RULE, principal, None, DEFAULT_TENANT)

    async def _identify(self, authenticate: Authenticate, context: Any, metadata: Metadata) -> Principal:
        """Returns the caller, and sets it for this call, also if the call is refused after that."""
        _PRINCIPAL.set(ANONYMOUS)
        principal = await authenticate(context, metadata)
        _PRINCIPAL.set(principal)
        return principal


@asynccontextmanager
async def _readmitted(admit: Callable[[], Awaitable[Any]]) -> AsyncIterator[None]:
    handler, refusals = asyncio.current_task(), list[TenureError]()
    assert handler is not None, "gRPC runs each handler in an asyncio task"

    async def watch() -> None:
        while not refusals:
            await asyncio.sleep(READMIT_SECONDS)
            try:
                await admit()
            except (Unauthenticated, PermissionDenied) as refusal:
                refusals.append(refusal)
                handler.cancel()
            except (TenureError, PeerFailed) as error:  # the ledger does not answer: nothing is known about the caller
                _log.warning("the caller of an open stream cannot be admitted again now", extra={"error": str(error)})

    watching = asyncio.create_task(watch())
    try:
        yield
    except (asyncio.CancelledError, GeneratorExit) as ending:  # GeneratorExit: gRPC sent a message meanwhile
        if not refusals:
            raise
        if isinstance(ending, asyncio.CancelledError):
            handler.uncancel()
        raise refusals[0] from None
    finally:
        watching.cancel()


def certificate_authentication(files: CertificateFiles) -> Authenticate:
    """Returns the authentication of processes by the SPIFFE ID in their certificates.

    TLS has verified the certificate: a server with certificates accepts no connection without one.
    """
    trusted = TrustedCallers(files)

    async def authenticate(context: Any, _metadata: Metadata) -> Principal:
        verified = context.auth_context()
        identities = verified.get("peer_uri")
        if identities is None:
            raise Unauthenticated("the caller has no certificate with an identity", reason="NO_IDENTITY")
        trusted.check(verified["x509_pem_cert"][0])
        return process_of([identity.decode("utf-8", "replace") for identity in identities], files.installation)

    return authenticate


def by_connection(in_process: Authenticate, others: Authenticate) -> Authenticate:
    """Returns an authentication that uses `in_process` for the calls inside of the server's process."""

    async def authenticate(context: Any, metadata: Metadata) -> Principal:
        return await (in_process if isinstance(context, InProcessContext) else others)(context, metadata)

    return authenticate
