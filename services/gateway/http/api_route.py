"""The description of a route: the application, /openapi.json and docs/http.md are made of the tables of routes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Final

from services.gateway.http import requests as req
from services.gateway.http.field_names import name_of
from services.gateway.http.translation import Handler, translating


@dataclass(frozen=True, slots=True)
class EventsOf:
    """An answer of server-sent events, with the dataclasses of their data."""

    data: tuple[type[Any], ...]


@dataclass(frozen=True, slots=True)
class Bytes:
    """An answer of bytes, of this media type."""

    media_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRoute:
    """A route. `name`: of the operation. `path`: a part in braces is one text, with `:path` also with slashes.

    `prepare`: makes the body of what another project's client sends. `answer`: a public dataclass, EventsOf or Bytes.
    `body`: the dataclass of the body, None without a body.
    """

    method: str
    path: str
    name: str
    summary: str
    handler: Handler
    answer: Any
    query: type[Any] = req.NoQuery
    body: type[Any] | None = None
    prepare: Callable[[Any], Any] | None = None
    group: str = "tasks"
    status: int = 200

    def name_of(self, field: str) -> str:
        """Returns what a request of this route calls a field of the contract."""
        parts = [*fields(self.query), *(fields(self.body) if self.body else ())]
        path = re.findall(r"{(\w+)", self.path)
        return name_of(field, {*(part.name for part in parts), *path})


def route_of(method: str, path: str, handler: Handler | str, answer: Any, summary: str, **fields: Any) -> ApiRoute:
    """Returns a route. `handler`: a method that does it all, as a text; `with_`: what its request differs in."""
    differing = fields.pop("with_", {})
    if isinstance(handler, str):
        sent = fields.get("body") or fields.get("query", req.NoQuery)
        fields.setdefault("group", _GROUPS[handler.partition(".")[0]])
        handler = translating(handler, path, sent, answer, **differing)
    name = fields.pop("name", handler.__name__)
    return ApiRoute(method=method, path=path, name=name, summary=summary, handler=handler, answer=answer, **fields)


_GROUPS: Final = {
    "TaskService": "tasks",
    "ScheduleService": "schedules",
    "WebhookService": "webhooks",
    "AgentService": "agents",
    "AdminService": "operations",
    "LeaseService": "operations",
    "TenantService": "tenants",
    "ApiKeyService": "tenants",
    "ApprovalService": "tenants",
    "AuditService": "tenants",
}
