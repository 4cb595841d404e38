"""A shop of another party, over HTTP: orders, payments and mails, with a memory of idempotency keys.

async with Shop() as shop: …shop.tools()… shop.effects, shop.keys["refund"]
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from typing import Any, Self

from tests.support.http_stub import HttpStub, Seen, page


def _schema(**properties: str) -> dict[str, Any]:
    fields = {name: {"type": kind} for name, kind in properties.items()}
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


class Shop:
    """`effects`: what happened, in order. A repeat with a known key happens once, and gets the first answer.

    `fails`: paths that answer 400. `holds`: paths whose first request has its effect and no answer until `let_go` is
    set; `held` is set when it came.
    """

    def __init__(self) -> None:
        self.effects: list[str] = []
        self.keys: defaultdict[str, set[str]] = defaultdict(set)
        self.fails: set[str] = set()
        self.holds: set[str] = set()
        self.held, self.let_go = asyncio.Event(), asyncio.Event()
        self._answers: dict[str, bytes] = {}
        self._stub = HttpStub(self._answer)

    def forget(self) -> None:
        """Begins again, as a new shop."""
        self.effects.clear()
        self.keys.clear()
        self.fails.clear()
        self.holds.clear()
        self.held.clear()
        self.let_go.clear()

    async def __aenter__(self) -> Self:
        await self._stub.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.let_go.set()
        await self._stub.__aexit__()

    def tools(self) -> dict[str, Any]:
        """The section http_tools of a config file."""

        def tool(path: str, schema: dict[str, Any], effect: str = "KEYED", **more: Any) -> dict[str, Any]:
            url = self._stub.url(f"/{path}")
            return {"url": url, "description": path, "input_schema": schema, "effect_class": effect, **more}

        refund = {"tool": "refund", "arguments": {"payment": "/outcome/id", "cents": "/arguments/cents"}}
        cancel = {"tool": "cancel_order", "arguments": {"order": "/outcome/id"}}
        return {
            "order": tool("order", _schema(item="string"), compensation=cancel),
            "cancel_order": tool("cancel_order", _schema(order="string")),
            "pay": tool("pay", _schema(cents="integer"), "UNSAFE", compensation=refund),
            "refund": tool("refund", _schema(payment="string", cents="integer")),
            "mail": tool("mail", _schema(text="string"), "UNSAFE"),
        }

    def _answer(self, seen: Seen) -> Any:
        path, key = seen.target.lstrip("/"), seen.headers["idempotency-key"]
        arguments = json.loads(seen.body)
        if path in self.fails:
            return page("not now", "400 Bad Request")
        self.keys[path].add(key)
        if key not in self._answers:
            self.effects.append(f"{path} {' '.join(str(arguments[name]) for name in sorted(arguments))}")
            self._answers[key] = page(json.dumps({"id": f"{path}-{len(self.effects)}"}))
        if path in self.holds:
            self.holds.discard(path)
            return self._later(key)
        return self._answers[key]

    async def _later(self, key: str) -> Any:
        self.held.set()
        await self.let_go.wait()
        yield self._answers[key]
