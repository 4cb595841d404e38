"""An SMTP server that e-mail is sent to: aiosmtpd, on a free port of this machine.

server = await mail_server()                              # takes everything
server.rcpt = lambda address: "550 no such user"          # its reply to a recipient; "" for 250
server.data = lambda mail: "451 later"                    # its reply to a message; LOST breaks the connection
await server.until(2)                                     # the accepted mails
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from typing import Any, Protocol

import pytest
from aiosmtpd.smtp import SMTP, AuthResult, LoginPassword

from services.checkpoint.webhooks.smtp_settings import SmtpSettings
from tests.support.patience import PATIENCE_SECONDS

LOST = "lost"
USER, PASSWORD = "tenure", "correct horse"


@dataclass(frozen=True, slots=True)
class Mail:
    """A message with its envelope."""

    sender: str
    recipients: tuple[str, ...]
    content: bytes
    over_tls: bool
    user: str

    @property
    def message(self) -> EmailMessage:
        return message_from_bytes(self.content, policy=default)

    @property
    def text(self) -> str:
        return str(self.message.get_content()).replace("\r\n", "\n")


@dataclass
class MailServer:
    """`came` is all that arrived whole; `took` what was answered with 250."""

    port: int = 0
    mail: Callable[[str], str] = lambda _sender: ""
    rcpt: Callable[[str], str] = lambda _address: ""
    data: Callable[[Mail], str] = lambda _mail: ""
    loses_data: Callable[[], bool] = lambda: False
    came: list[Mail] = field(default_factory=list)
    took: list[Mail] = field(default_factory=list)
    connections: int = 0
    open: list[Any] = field(default_factory=list)
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def until(self, count: int) -> list[Mail]:
        """The accepted mails, once they are so many."""
        async with asyncio.timeout(PATIENCE_SECONDS), self._news:
            await self._news.wait_for(lambda: len(self.took) >= count)
        return list(self.took)

    # The hooks of aiosmtpd.

    async def handle_MAIL(self, _server: SMTP, _session: Any, envelope: Any, address: str, _options: Any) -> str:
        envelope.mail_from = address
        return self.mail(address) or "250 OK"

    async def handle_RCPT(self, _server: SMTP, _session: Any, envelope: Any, address: str, _options: Any) -> str:
        reply = self.rcpt(address) or "250 OK"
        if reply.startswith("250"):
            envelope.rcpt_tos.append(address)
        return reply

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        user = session.auth_data.login.decode() if session.authenticated else ""
        over_tls = session.ssl is not None or server.transport.get_extra_info("sslcontext") is not None
        mail = Mail(envelope.mail_from, tuple(envelope.rcpt_tos), envelope.content, over_tls, user)
        reply = self.data(mail) or "250 OK"
        async with self._news:
            self.came.append(mail)
            if reply.startswith("250"):
                self.took.append(mail)
            self._news.notify_all()
        if reply == LOST:
            server.transport.abort()
        return reply


class _Server(SMTP):
    """Counts connections, and can break one in the middle of DATA."""

    def __init__(self, mails: MailServer, **options: Any) -> None:
        super().__init__(mails, hostname="mail.test", **options)
        self._mails = mails
        mails.connections += 1
        mails.open.append(self)

    async def leave(self) -> None:
        """Ends the connection."""
        transport: Any = self.transport
        if transport is not None:
            transport.abort()
        handler = self._handler_coroutine
        if handler is not None:
            handler.cancel()
            await asyncio.wait([handler])

    async def smtp_DATA(self, arg: str) -> None:
        if self._mails.loses_data():
            await self.push("354 go on")
            await self._reader.read(10)
            transport: Any = self.transport
            transport.abort()
            return
        await super().smtp_DATA(arg)


def _login(_server: Any, _session: Any, _envelope: Any, _mechanism: str, data: Any) -> AuthResult:
    given = (data.login, data.password) if isinstance(data, LoginPassword) else None
    return AuthResult(success=given == (USER.encode(), PASSWORD.encode()), handled=False, auth_data=data)


@asynccontextmanager
async def taking_mail(
    *, starttls: ssl.SSLContext | None = None, implicit: ssl.SSLContext | None = None, login: bool = False
) -> AsyncIterator[MailServer]:
    """A server for the time of the block. `login`: it takes mail only after AUTH with USER and PASSWORD."""
    mails = MailServer()
    options: dict[str, Any] = {"tls_context": starttls, "require_starttls": starttls is not None}
    if login:
        options |= {"authenticator": _login, "auth_required": True, "auth_require_tls": implicit is None}
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Server(mails, **options), "127.0.0.1", 0, ssl=implicit)
    mails.port = server.sockets[0].getsockname()[1]
    try:
        yield mails
    finally:
        server.close()
        for one in mails.open:
            await one.leave()


class MakeMailServer(Protocol):
    """Starts a server."""

    async def __call__(self, **options: Any) -> MailServer: ...


@pytest.fixture
async def mail_server() -> AsyncIterator[MakeMailServer]:
    """Makes SMTP servers on free ports of this machine; they end with the test."""
    async with AsyncExitStack() as stack:

        async def make(**options: Any) -> MailServer:
            return await stack.enter_async_context(taking_mail(**options))

        yield make


def smtp(server: MailServer, **changes: Any) -> SmtpSettings:
    plain = {"host": "localhost", "port": server.port, "tls": "none", "from_address": "tenure@example.com"}
    return SmtpSettings(**{**plain, **changes})
