"""Who may call what, for clients: every method of the gateway, with every kind of API key and JSON Web Token."""

from __future__ import annotations

import asyncio
import base64
import time
import uuid
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from google.protobuf.message import Message

from services.gateway.api_keys import FRESH_SECONDS
from tenure.domain.access import Permission, Role
from tenure.runtime.security.tls import ClientTls
from tenure.v1 import api_key_service_pb2
from tenure.v1 import lease_service_pb2 as lease_pb
from tenure.v1 import task_service_pb2 as api
from tenure.wire.common import timestamp
from tests.security.access_table import (
    ADMITTED,
    NOT_ALLOWED,
    Cell,
    Metadata,
    Row,
    answer_of,
    authority_of,
    channel_to,
    issued,
    matrix,
    methods_of,
    wrong_cells,
)
from tests.security.guarded import CLIENT_GATEWAYS, Guarded, bearer
from tests.security.identity_provider import TENANT, Provider
from tests.support.sweeps import first

ALLOWED: Final = {
    "read": {"read"},
    "write": {"read", "write"},
    "approve": {"read", "approve"},
    "tenant_admin": {"read", "write", "approve", "tenant_admin"},
    "operate": {"read", "write", "approve", "tenant_admin", "operate"},
}
"""The permissions of methods that a client with each permission may call."""
NO_KEY: Final = "UNAUTHENTICATED/NO_API_KEY"
KEY_INVALID: Final = "UNAUTHENTICATED/API_KEY_INVALID"
TOKEN_INVALID: Final = "UNAUTHENTICATED/TOKEN_INVALID"
TOKEN_EXPIRED: Final = "UNAUTHENTICATED/TOKEN_EXPIRED"
NO_TASK: Final = "NOT_FOUND/NOT_FOUND"
OTHER_TENANT: Final = "PERMISSION_DENIED/OTHER_TENANT"


class Caller(NamedTuple):
    """A client at the gateway.

    `answer`: to a method that its `permission` allows; without a permission, to every method.
    """

    metadata: Metadata
    answer: str
    permission: str = ""

    def expected(self, row: Row) -> str:
        if self.permission and row.permission not in ALLOWED[self.permission]:
            return NOT_ALLOWED
        return self.answer


def naming(tenant: str) -> Metadata:
    return (("x-tenure-tenant", tenant),)


async def keys_of(guarded: Guarded) -> dict[str, Caller]:
    """Clients with API keys."""
    soon = datetime.now(UTC) + timedelta(seconds=10)  # the ledger takes no key that has expired when it hears of it
    expired = (await guarded.key(Permission.TENANT_ADMIN, expire_time=timestamp(soon))).secret
    revoked = await guarded.key(Permission.TENANT_ADMIN)
    async with guarded.client(guarded.operator_key) as operator:
        await operator.api_keys.RevokeApiKey(api_key_service_pb2.RevokeApiKeyRequest(key_id=revoked.api_key.key_id))
    callers = {}
    for permission in Permission:
        good = (await guarded.key(permission)).secret
        name = permission.lower()
        callers[name] = Caller(bearer(good), ADMITTED, name)
        callers[f"{name} for another tenant"] = Caller(bearer(good) + naming("other"), OTHER_TENANT, name)
    forged = good[:-1] + ("A" if good[-1] != "A" else "B")
    everyone = bearer(guarded.operator_key)
    # A gateway that has read the key does not know for so long that it has expired.
    await asyncio.sleep(max(0.0, (soon - datetime.now(UTC)).total_seconds()) + FRESH_SECONDS)
    return {
        **callers,
        "operator of all tenants": Caller(everyone, ADMITTED, "operate"),
        "operator for a tenant": Caller(everyone + naming("other"), ADMITTED, "operate"),
        "none": Caller((), NO_KEY),
        "empty": Caller(bearer(""), TOKEN_INVALID),
        "two": Caller(bearer(good) + bearer(good), NO_KEY),
        "basic": Caller((("authorization", f"Basic {good}"),), NO_KEY),
        "of no form": Caller(bearer("tnr_x"), KEY_INVALID),
        "unknown": Caller(bearer("tnr_" + "0" * 12 + "_" + "A" * 43), KEY_INVALID),
        "forged": Caller(bearer(forged), KEY_INVALID),
        "too long": Caller(bearer(good + "A" * 4000), KEY_INVALID),
        "expired": Caller(bearer(expired), KEY_INVALID),
        "revoked": Caller(bearer(revoked.secret), KEY_INVALID),
    }


def tokens_of(provider: Provider) -> dict[str, Caller]:
    """Clients with JSON Web Tokens. test_json_web_tokens.py has more tokens that are not valid."""
    own, callers = rsa.generate_private_key(65537, 2048), {}
    for permission in Permission:
        name = permission.lower()
        good = provider.token(scope=name.replace("_", "-"))
        callers[name] = Caller(bearer(good), ADMITTED, name)
        callers[f"{name} for another tenant"] = Caller(bearer(good) + naming("other"), OTHER_TENANT, name)
    header, claims, signature = good.split(".")
    stated = base64.b64decode(claims + "=" * (-len(claims) % 4), altchars=b"-_", validate=True)
    more = base64.urlsafe_b64encode(stated.replace(b'"acme"', b'"else"')).decode()
    operator = provider.token(scope="operate", named={TENANT: None})
    return {
        **callers,
        "operator of all tenants": Caller(bearer(operator), ADMITTED, "operate"),
        "operator for a tenant": Caller(bearer(operator) + naming("other"), ADMITTED, "operate"),
        "without permissions": Caller(bearer(provider.token(scope="openid")), NOT_ALLOWED),
        "expired": Caller(bearer(provider.token(exp=time.time() - 3600)), TOKEN_EXPIRED),
        "by a stranger's key": Caller(bearer(provider.token(key=own)), TOKEN_INVALID),
        "changed claims": Caller(bearer(f"{header}.{more.rstrip('=')}.{signature}"), TOKEN_INVALID),
        "without a signature": Caller(bearer(f"{header}.{claims}."), TOKEN_INVALID),
        "of another audience": Caller(bearer(provider.token(aud="other")), TOKEN_INVALID),
        "of another issuer": Caller(bearer(provider.token(iss="https://evil.example")), TOKEN_INVALID),
        "not yet valid": Caller(bearer(provider.token(nbf=time.time() + 3600)), TOKEN_INVALID),
        "without a tenant": Caller(bearer(provider.token(named={TENANT: None})), TOKEN_INVALID),
    }


def cells_of(caller_name: str, caller: Caller, channel: Any) -> list[Cell]:
    """The caller at each method; with a wrong key, token or tenant at one of each service: one interceptor reads it."""
    rows = matrix()
    cells = {
        name: Cell(f"{caller_name} {name}", channel, method, caller.metadata, caller.expected(rows[name]))
        for name, method in methods_of("gateway")
    }
    if caller.answer in {ADMITTED, NO_KEY, NOT_ALLOWED}:
        return list(cells.values())
    return list({name.partition("/")[0]: cell for name, cell in cells.items()}.values())


def requests_that_need_more() -> dict[str, tuple[Message, str]]:
    """Requests that need `tenant_admin`, and the answer with it: nothing has these ids."""
    new, reference = str(uuid.uuid4()), lease_pb.LeaseReference(resource=f"none/{uuid.uuid4()}", epoch=1 << 41)
    answer = api.ResumeTaskRequest(task_id=new, wait_id=new, request_id=new, decision="approve")
    tokens, money = api.ResumeTaskRequest(extra_budget_tokens=1), api.ResumeTaskRequest(extra_budget_nano_usd=1)
    tokens.MergeFrom(answer)
    money.MergeFrom(answer)
    return {
        "TaskService/ResumeTask tokens": (tokens, NO_TASK),
        "TaskService/ResumeTask money": (money, NO_TASK),
        "LeaseService/ReleaseLease": (lease_pb.ReleaseLeaseRequest(lease=reference, reason="so"), "OK"),
        "LeaseService/TransferLease": (
            lease_pb.TransferLeaseRequest(lease=reference, holder="me", reason="so", request_id=new),
            "ABORTED/LEASE_LOST",
        ),
    }


@pytest.mark.parametrize("permission", list(Permission))
async def test_some_requests_need_an_administrator(guarded: Guarded, permission: Permission) -> None:
    key, methods = (await guarded.key(permission)).secret, dict(methods_of("gateway"))
    is_admin = permission in {Permission.TENANT_ADMIN, Permission.OPERATE}
    async with channel_to(guarded.stack.services[CLIENT_GATEWAYS[0]], ClientTls(guarded.ca_file)) as channel:
        for name, (request, answer) in requests_that_need_more().items():
            method = methods[name.partition(" ")[0]]
            given = await answer_of(channel, method, bearer(key), request.SerializeToString())
            assert given == (answer if is_admin else NOT_ALLOWED), name


@pytest.mark.parametrize("kind", first(["keys", "tokens"]))
async def test_a_client_calls_exactly_the_methods_of_its_row(guarded: Guarded, kind: str) -> None:
    callers = await keys_of(guarded) if kind == "keys" else tokens_of(guarded.provider)
    async with channel_to(guarded.stack.services[CLIENT_GATEWAYS[0]], ClientTls(guarded.ca_file)) as channel:
        cells = [cell for name, caller in callers.items() for cell in cells_of(name, caller, channel)]
        assert await wrong_cells(cells) == []


async def test_a_certificate_makes_no_client(guarded: Guarded, tmp_path: Path) -> None:
    """A process of the installation needs a key too, and may do no more than the key allows."""
    reader, cells = (await guarded.key(Permission.READ)).secret, list[Cell]()
    async with AsyncExitStack() as opened:
        for role in Role:
            tls = issued(tmp_path, authority_of(guarded.stack), role, guarded.ca_file)
            gateway = guarded.stack.services[CLIENT_GATEWAYS[0]]
            channel = await opened.enter_async_context(channel_to(gateway, tls))
            cells += cells_of(role, Caller((), NO_KEY), channel)
            cells += cells_of(f"{role} reader", Caller(bearer(reader), ADMITTED, "read"), channel)
        assert await wrong_cells(cells) == []


async def test_keys_and_tokens_are_nothing_to_other_services(guarded: Guarded, tmp_path: Path) -> None:
    """A worker with an operator's key has only a worker's rights, at each process that demands certificates."""
    rows, cells = matrix(), list[Cell]()
    tls = issued(tmp_path, authority_of(guarded.stack), Role.WORKER, guarded.ca_file)
    async with AsyncExitStack() as opened:
        for process in ("gateway", "coordinator", "checkpoint", "tools", "worker-1"):
            channel = await opened.enter_async_context(channel_to(guarded.stack.services[process], tls))
            for name, method in methods_of(process):
                expected = ADMITTED if "worker" in rows[name].callers else NOT_ALLOWED
                cells.append(Cell(f"{process} {name}", channel, method, bearer(guarded.operator_key), expected))
        assert await wrong_cells(cells) == []
