"""A bank behind a socket that pays and then loses its answer, in every way in which answers are lost.

async with open_bank("reset", "500") as bank:    # how its first two payment requests end; all others are answered
    …tools that POST to f"{bank.url}/pay" and ask f"{bank.url}/payments"…
bank.payments        # what happened; bank.asked: what it was asked, with the keys
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.support.patience import PATIENCE_SECONDS
from tests.support.tcp_server import tcp_server


class Asked(NamedTuple):
    """A request."""

    path: str
    key: str
    epoch: str


@dataclass
class Bank:
    """`ends`: how the next payment requests end: answer, reset, hang, 500, 503, empty, cut, unread, refused or away.

    A request that ends as `refused` or `away` pays nothing; all others pay. `honours_keys`: a repeat with the same key
    pays nothing and gets the first answer. `says`: what the check answers in place of the truth.
    """

    ends: list[str]
    honours_keys: bool = True
    says: bytes | None = None
    port: int = 0
    payments: list[str] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    was_asked: asyncio.Event = field(default_factory=asyncio.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def config(
        self, name: str = "", *, effect_class: str = "KEYED", settle: dict[str, Any] | None = None, **fields: Any
    ) -> dict[str, Any]:
        """The HTTP tools `pay` and `find_payment` of this bank, with the name of the bank at their ends."""
        pay = {
            "url": f"{self.url}/pay",
            "description": "Pays.",
            "effect_class": effect_class,
            "timeout_seconds": 2,
            "connect_seconds": 1,
            **({} if settle is None else {"settle": self._settle(name, settle)}),
            **fields,
        }
        find = {
            "url": f"{self.url}/payments",
            "method": "GET",
            "description": "Finds a payment.",
            "effect_class": "PURE",
            "timeout_seconds": 2,
            "input_schema": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
        }
        return {f"pay{name}": pay, f"find_payment{name}": find}

    def _settle(self, name: str, settle: dict[str, Any]) -> dict[str, Any]:
        checks = settle.pop("checks", False)
        check = {"check_with": {"tool": f"find_payment{name}", "arguments": {"key": "/key"}}}
        return {**settle, **(check if checks else {})}

    async def until_asked(self, count: int, path: str = "") -> None:
        """Returns when it was asked so often."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while sum(path in asked.path for asked in self.asked) < count:
                self.was_asked.clear()
                await self.was_asked.wait()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in head[1:-2])}
                await reader.readexactly(int(headers.get("content-length", "0")))
                path = head[0].split(" ")[1]
                asked = Asked(path, headers.get("idempotency-key", ""), headers.get("x-fencing-epoch", ""))
                self.asked.append(asked)
                self.was_asked.set()
                if path.startswith("/payments"):
                    self._answer(writer, 200, self.says if self.says is not None else self._found())
                    continue
                end = self.ends.pop(0) if self.ends else "answer"
                if end not in {"refused", "away"} and not (self.honours_keys and asked.key in self.payments):
                    self.payments.append(asked.key)
                if not await self._end(end, reader, writer):
                    break

    def _found(self) -> bytes:
        return json.dumps({"happened": bool(self.payments), "result": {"receipt": len(self.payments)}}).encode()

    async def _end(self, end: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Ends a request. Returns whether the connection stays."""
        if end in {"answer", "500", "503", "refused"}:
            status = {"answer": 200, "refused": 402}.get(end) or int(end)
            self._answer(writer, status, f"receipt {len(self.payments)}".encode() if end == "answer" else end.encode())
            return True
        if end == "hang":
            await reader.read()
        elif end == "held":
            await self.released.wait()
            self._answer(writer, 200, b"receipt 1")
        elif end == "empty":
            writer.write(b"\r\n\r\n")
        elif end == "cut":
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nrece")
        elif end == "unread":
            writer.write(b"not HTTP at all\r\n\r\n")
        else:
            writer.transport.abort()
        return False

    def _answer(self, writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
        head = f"HTTP/1.1 {status} Whatever\r\ncontent-length: {len(body)}\r\ncontent-type: application/json\r\n\r\n"
        writer.write(head.encode() + body)


@asynccontextmanager
async def open_bank(*ends: str, honours_keys: bool = True, says: bytes | None = None) -> AsyncIterator[Bank]:
    """Serves while it is open."""
    bank = Bank(list(ends), honours_keys, says)
    async with tcp_server(bank.serve) as bank.port:
        yield bank
